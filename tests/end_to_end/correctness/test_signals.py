# SPDX-License-Identifier: Apache-2.0
"""SIGUSR1, SIGTERM and SIGINT: the step ends, a checkpoint is written, every file is closed."""

import contextlib
import os
import signal
import subprocess
import time

import h5py
import numpy as np
import pytest

import harness
from test_interrupted import ranks_below

REQUEUE, TERMINATED, INTERRUPTED = 85, 143, 130
# Steps that take long enough to be met by a signal, and far more of them than a test waits for.
LONG = {"run": {"steps": 100000, "checkpoint": {"every": 100000}}, "batch": {"tokens": 256}}


def start(folder, corpus, ranks, changes=None):
    changes = harness.merged(
        harness.merged(LONG, {"data": harness.tokens_data(corpus), "parallel": {"data": ranks}}),
        changes or {},
    )
    experiment = harness.write_experiment(folder / "e.yaml", changes)
    process = harness.start(
        harness.command(ranks, ["train", experiment, "--output", folder / "run"])
    )
    try:
        harness.wait_for_steps(process, folder / "run", 4)
    except AssertionError:
        harness.stop(process)
        raise
    return process


def end(process, send):
    """What the run says and leaves once `send` has sent its signal."""
    try:
        send(process)
        return harness.finish(process)
    finally:
        harness.stop(process)


def to_launcher(number):
    return lambda process: os.kill(process.pid, number)


def to_rank(rank, number):
    return lambda process: os.kill(ranks_below(process.pid)[rank], number)


def assert_ended_whole(result, folder, ranks, number, code, checkpoint=True):
    """All ranks stopped after one step, which the checkpoint and the last line name."""
    run = folder / "run"
    assert result.code == code, str(result)
    assert result.complaints == [], str(result)
    done = set()
    for rank in range(ranks):
        path = run / f"trace/rank-{rank:05}.h5"
        with h5py.File(path, "r") as file:  # plainly: its writer closed it
            status, sync = file["/meta/status"], file["/clock/sync"]
            assert harness.names_of(status, "state")[status["state"][0]] == "signalled"
            assert status["signal"][0] == number
            assert harness.names_of(sync, "phase")[sync["phase"][-1]] == "end"
        steps = harness.committed_steps(path)["step"]
        assert np.array_equal(steps, np.arange(len(steps)))
        done.add(len(steps))
    (steps,) = done
    assert len(harness.read_metrics(run)) == steps
    kept = sorted(path.name for path in (run / "checkpoints").glob("*.h5"))
    assert kept == (["step-00000000.h5", f"step-{steps:08}.h5"] if checkpoint else [])
    (line,) = [line for line in result.out.splitlines() if line.startswith("stopped ")]
    for words in (
        signal.Signals(number).name,
        f"{steps} of 100000 steps",
        f"exit code {code}",
        f"--from {run}" if checkpoint else "run.checkpoint.every is 0",
    ):
        assert words in line


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGUSR1, REQUEUE),
        (signal.SIGTERM, TERMINATED),
        (signal.SIGINT, INTERRUPTED),
    ],
)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_asked_to_stop_stops_all(number, code, victim, corpus, tmp_path):
    result = end(start(tmp_path, corpus, 2), to_rank(victim, number))
    assert_ended_whole(result, tmp_path, 2, number, code)


def test_the_launcher_passes_sigusr1_on(corpus, tmp_path):
    result = end(start(tmp_path, corpus, 2), to_launcher(signal.SIGUSR1))
    assert_ended_whole(result, tmp_path, 2, signal.SIGUSR1, REQUEUE)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGUSR1, REQUEUE),
        (signal.SIGTERM, TERMINATED),
        (signal.SIGINT, INTERRUPTED),
    ],
)
def test_without_a_launcher(number, code, corpus, tmp_path):
    result = end(start(tmp_path, corpus, 1), to_launcher(number))
    assert_ended_whole(result, tmp_path, 1, number, code)


def test_without_checkpoints(corpus, tmp_path):
    changes = {"run": {"checkpoint": {"every": 0}}}
    result = end(start(tmp_path, corpus, 1, changes), to_launcher(signal.SIGUSR1))
    assert_ended_whole(result, tmp_path, 1, signal.SIGUSR1, REQUEUE, checkpoint=False)


IN_MPI_INIT = """#include <signal.h>
int PMPI_Init_thread(int*, char***, int, int*);
int MPI_Init_thread(int* argc, char*** argv, int wanted, int* provided) {
  raise(SIGUSR1);
  return PMPI_Init_thread(argc, argv, wanted, provided);
}
"""


def test_a_signal_before_mpi_has_started(corpus, tmp_path):
    """What would end the rank, and with it the job, waits for the first step."""
    source, library = tmp_path / "early.c", tmp_path / "early.so"
    source.write_text(IN_MPI_INIT)
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    changes = harness.merged(LONG, {"data": harness.tokens_data(corpus)})
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    words = ["train", experiment, "--output", tmp_path / "run"]
    result = harness.run(1, words, env={"LD_PRELOAD": str(library)})
    assert len(harness.read_metrics(tmp_path / "run")) == 1
    assert_ended_whole(result, tmp_path, 1, signal.SIGUSR1, REQUEUE)


def test_a_signal_that_comes_twice_at_once_counts_once(corpus, tmp_path):
    def twice(process):
        for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM):
            to_launcher(number)(process)
            time.sleep(0.001)

    result = end(start(tmp_path, corpus, 1), twice)
    assert result.code in (REQUEUE, TERMINATED), str(result)
    number = {REQUEUE: signal.SIGUSR1, TERMINATED: signal.SIGTERM}[result.code]
    assert_ended_whole(result, tmp_path, 1, number, result.code)


def step_seconds(folder):
    return sum(line["seconds"] for line in harness.read_metrics(folder))


def test_clocks_are_compared_between_steps(corpus, tmp_path):
    process = start(tmp_path, corpus, 2)
    harness.wait_until(process, lambda: step_seconds(tmp_path / "run") > 3)  # one is due after 1 s
    result = end(process, to_launcher(signal.SIGUSR1))
    assert_ended_whole(result, tmp_path, 2, signal.SIGUSR1, REQUEUE)
    for rank in range(2):
        with h5py.File(tmp_path / f"run/trace/rank-{rank:05}.h5", "r") as file:
            clock, steps = file["/clock/sync"][:], file["/steps"][:]
            names = [name.decode() for name in file["/meta/strings"][:]]
            events = file["/events"][:]
        phases = clock["phase"].tolist()
        assert phases == [0, *[1] * (len(phases) - 2), 2]
        elapsed = (clock["time_ns"][-1] - clock["time_ns"][0]) / 1e9
        most = 1 + np.log2(elapsed) + elapsed / 60
        assert 1 <= len(phases) - 2 <= most, "after 1, 2, 4, ... s, then every minute"
        for when in clock["time_ns"]:
            assert not np.any((steps["begin_ns"] < when) & (when < steps["end_ns"]))
        between = events[events["lane"] == 2]
        found = {names[event["name_id"]] for event in between}
        assert found >= {"write_step", "measure_clock", "save_checkpoint", "bind_plan"}


def test_a_second_signal_ends_a_step_that_does_not_end(corpus, tmp_path):
    """One rank is stopped, so that the other waits for it for ever."""
    process = start(tmp_path, corpus, 2)
    try:
        ranks = ranks_below(process.pid)
        os.kill(ranks[1], signal.SIGSTOP)
        os.kill(ranks[0], signal.SIGTERM)
        time.sleep(1.5)
        assert process.poll() is None
        # A busy machine may deliver the first one so late that the second counts as the same.
        give_up = time.monotonic() + harness.TIMEOUT
        while process.poll() is None and time.monotonic() < give_up:
            with contextlib.suppress(ProcessLookupError):
                os.kill(ranks[0], signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.5)
        result = harness.finish(process)
    finally:
        harness.stop(process)
    assert result.code not in (0, REQUEUE), str(result)
    for rank in range(2):
        path = tmp_path / f"run/trace/rank-{rank:05}.h5"
        assert len(harness.committed_steps(path)) >= 4 - rank  # rank 0 reports its step first


def test_a_simulation_ends_at_once(corpus, tmp_path):
    changes = {"data": harness.tokens_data(corpus), "parallel": {"data": 2}}
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    arguments = ["simulate", experiment, "--output", tmp_path / "run", "--steps", 100000]
    process = harness.start(harness.command(1, arguments))
    try:
        harness.wait_for_steps(process, tmp_path / "run", 2)
        process.terminate()
        result = harness.finish(process)
    finally:
        harness.stop(process)
    assert result.code == -signal.SIGTERM, str(result)
