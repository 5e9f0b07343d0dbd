# SPDX-License-Identifier: Apache-2.0
"""run.timeout: a rank that does not go on ends the job, and one line says which it is."""

import os
import re
import signal
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

import harness
from test_interrupted import ranks_below

COMMUNICATION = 5
TIMEOUT = 8  # seconds; far more than anything here takes, however busy the machine is
PATIENCE = 300  # seconds until a run has begun, or ended
LONG = {"run": {"steps": 1000000, "timeout": TIMEOUT}, "batch": {"tokens": 256}}
DATA = {"parallel": {"data": 2}}
CAD = {"parallel": {"data": 2}, "attention": {"placement": "cad"}}
SERVERS = {"parallel": {"data": 2}, "attention": {"placement": "cad", "servers": 2}}
CASES = {  # layout, the rank that is stopped
    "data": (DATA, 0),
    "attention exchange": (CAD, 1),
    "tensor": ({"parallel": {"tensor": 2}}, 1),
    "pipeline": ({"parallel": {"pipeline": 2}}, 0),
    "a trainer of four ranks": (SERVERS, 0),
    "a server of four ranks": (SERVERS, 3),
}


def assert_named(result, ranks, victim, process):
    """One line names the rank that was stopped, and what all others wait for."""
    assert result.code == COMMUNICATION, str(result)
    (line,) = result.complaints
    found = re.search(
        r"no operation completed for (\S+) s \(run\.timeout\): rank (\d+) \(host \S+, process "
        r"(\d+)\) does not answer; (.*)",
        line,
    )
    assert found, line
    assert float(found[1]) == TIMEOUT
    assert (int(found[2]), int(found[3])) == (victim, process)
    waiting = re.findall(r"rank ([\d, ]+) waits? for (\w+)", found[4])
    named = [int(rank) for group, _ in waiting for rank in group.split(",")]
    assert sorted(named) == [rank for rank in range(ranks) if rank != victim], line


def assert_gone(processes):
    """None is left, stopped or running; the launcher does not wait for those that it kills."""
    end = time.monotonic() + PATIENCE
    left = list(processes)
    while left:
        assert time.monotonic() < end, f"{left} stayed"
        time.sleep(0.05)
        left = [number for number in left if lives(number)]


def lives(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def start_training(folder, corpus, changes):
    """Processes, by rank, of a run that has made steps."""
    changes = harness.merged(
        harness.merged(LONG, {"data": harness.tokens_data(corpus)}),
        changes,
    )
    experiment = harness.write_experiment(folder / "e.yaml", changes)
    ranks = harness.ranks_of(harness.merged(harness.DEFAULTS, changes))
    process = harness.start(
        harness.command(ranks, ["train", experiment, "--output", folder / "run"])
    )
    try:
        harness.wait_for_steps(process, folder / "run", 2)
    except AssertionError:
        harness.stop(process)
        raise
    return process, ranks_below(process.pid)


# A case waits for the longest silence and does nothing: two kinds of ranks are enough each time.
OFTEN = ("attention exchange", "a server of four ranks")


@pytest.mark.parametrize(
    "case",
    [case if case in OFTEN else pytest.param(case, marks=pytest.mark.thorough) for case in CASES],
)
def test_a_stopped_rank_is_named(case, corpus, tmp_path):
    layout, victim = CASES[case]
    process, ranks = start_training(tmp_path, corpus, layout)
    try:
        os.kill(ranks[victim], signal.SIGSTOP)
        result = harness.finish(process, PATIENCE)
    finally:
        harness.stop(process)
    assert_named(result, len(ranks), victim, ranks[victim])
    assert_gone(ranks.values())
    speaker = 1 if victim == 0 else 0
    for rank in ranks:
        path = tmp_path / f"run/trace/rank-{rank:05}.h5"
        steps = harness.committed_steps(path)["step"]
        assert len(steps) >= 1
        assert np.array_equal(steps, np.arange(len(steps)))
        if rank == speaker:
            with h5py.File(path, "r") as file:
                status = file["/meta/status"]
                assert harness.names_of(status, "state")[status["state"][0]] == "error"


def test_a_rank_that_goes_on_in_time_is_waited_for(corpus, tmp_path):
    changes = harness.merged(DATA, {"run": {"timeout": 60}})
    process, ranks = start_training(tmp_path, corpus, changes)
    try:
        os.kill(ranks[1], signal.SIGSTOP)
        time.sleep(8)  # of the 60: ranks have asked each other by then
        assert process.poll() is None
        done = len(harness.read_metrics(tmp_path / "run"))
        os.kill(ranks[1], signal.SIGCONT)
        harness.wait_for_steps(process, tmp_path / "run", done + 3)
        os.kill(ranks[0], signal.SIGUSR1)
        result = harness.finish(process, PATIENCE)
    finally:
        harness.stop(process)
    assert result.code == 85, str(result)
    assert result.complaints == []


def test_a_job_that_was_stopped_whole_goes_on(corpus, tmp_path):
    """A batch system may suspend all ranks for longer than the timeout."""
    process, ranks = start_training(tmp_path, corpus, DATA)
    try:
        for number in ranks.values():
            os.kill(number, signal.SIGSTOP)
        time.sleep(TIMEOUT + 3)
        done = len(harness.read_metrics(tmp_path / "run"))
        for number in ranks.values():
            os.kill(number, signal.SIGCONT)
        harness.wait_for_steps(process, tmp_path / "run", done + 3)
    finally:
        harness.stop(process)


def test_timeout_of_zero_waits_for_ever(corpus, tmp_path):
    changes = harness.merged(DATA, {"run": {"timeout": 0}})
    process, ranks = start_training(tmp_path, corpus, changes)
    try:
        os.kill(ranks[1], signal.SIGSTOP)
        time.sleep(2 * TIMEOUT)
        assert process.poll() is None
    finally:
        os.kill(ranks[1], signal.SIGCONT)
        harness.stop(process)


def stop_when(line_begins, words):
    """Runs a command on two ranks and stops rank 1 once rank 0 has begun a line like this."""
    process = harness.start(harness.command(2, words))
    try:
        for line in process.stdout:
            if line.startswith(line_begins):
                break
        else:
            raise AssertionError(str(harness.finish(process)))
        ranks = ranks_below(process.pid)
        os.kill(ranks[1], signal.SIGSTOP)
        return harness.finish(process, PATIENCE), ranks[1]
    finally:
        harness.stop(process)


def test_calibrate(corpus, tmp_path):
    changes = {"run": {"timeout": TIMEOUT}, "data": harness.tokens_data(corpus)}
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    words = ["calibrate", experiment, "--output", tmp_path / "m.yaml"]
    result, process = stop_when("round 1", words)
    assert_named(result, 2, 1, process)


def test_attend(corpus, tmp_path):
    """So long a document that rank 1 is met while it reads or computes."""
    changes = harness.merged(
        CAD, {"run": {"timeout": TIMEOUT}, "data": harness.tokens_data(corpus)}
    )
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    random = np.random.default_rng(3)
    tokens, heads, head_dim = 24576, 4, 64
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for name in ("q", "k", "v"):
            shape = (tokens, heads, head_dim)
            file[name] = random.standard_normal(shape, dtype=np.float32)
        file["document_lengths"] = [tokens]
    words = ["attend", experiment, "--input", tmp_path / "in.h5", "--output", tmp_path / "out.h5"]
    result, process = stop_when("attention", words)
    assert_named(result, 2, 1, process)
