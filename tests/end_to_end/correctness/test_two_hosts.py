# SPDX-License-Identifier: Apache-2.0
"""Two hosts (two_hosts.py), two ranks on each: what they train, save, resume, trace and analyse,
and what a run says and leaves when the second fails. `scripts/test --thorough` runs it."""

import os
import re
import shutil
import signal

import h5py
import numpy as np
import pytest

import harness
from cadenza.opening import open_run
from test_watchdog import assert_gone
from two_hosts import NAMES, SKEW, TwoHosts, Unavailable

RANKS = 4
TIMEOUT = 8  # seconds without progress
LAYOUT = {"parallel": {"data": RANKS}, "attention": {"placement": "cad"}}


@pytest.fixture
def hosts(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    try:
        made = TwoHosts(folder).__enter__()
    except (Unavailable, FileNotFoundError) as error:
        pytest.skip(f"no two hosts can be made here: {error}")
    yield made
    made.__exit__()


@pytest.fixture
def experiment(hosts, corpus):
    """Writes the experiment of a test where both hosts see it."""
    tokens = shutil.copy(corpus, hosts.folder)

    def write(**changes):
        base = harness.merged(LAYOUT, {"data": harness.tokens_data(tokens)})
        path = hosts.folder / "e.yaml"
        return harness.write_experiment(path, harness.merged(base, changes))

    return write


def train(hosts, experiment, name, *more):
    words = ["train", experiment, "--output", hosts.folder / name, *more]
    process = hosts.start(RANKS // 2, words)
    process.wait(harness.TIMEOUT)
    assert process.returncode == 0, str(hosts.result(process))
    return harness.Run(hosts.folder / name)


def raw(folder, rank):
    """Host, the offset of its clock and the beginnings of its steps by that clock, in seconds."""
    with h5py.File(folder / f"trace/rank-{rank:05}.h5", "r") as file:
        host = file["/meta/rank"][0]["host"].decode()
        return host, file["/clock/sync"]["offset_ns"] / 1e9, file["/steps"]["begin_ns"] / 1e9


def test_trains_saves_resumes_traces_and_is_analysed(hosts, experiment):
    path = experiment(
        batch={"tokens": 12 * 96, "microbatch": 96},
        run={"steps": 6, "checkpoint": {"every": 3}},
    )
    harness.run_well(RANKS, ["train", path, "--output", hosts.folder / "one-host"])
    expected = harness.Run(hosts.folder / "one-host").losses
    run = train(hosts, path, "run")
    np.testing.assert_allclose(run.losses, expected, rtol=1e-6)
    resumed = train(hosts, path, "resumed", "--from", run.folder / "checkpoints/step-00000003.h5")
    np.testing.assert_array_equal(resumed.losses, run.losses[3:])

    begins = []
    for rank in range(RANKS):
        host, offsets, begin = raw(run.folder, rank)
        assert host == NAMES[rank // 2]
        skew = SKEW * (rank // 2)
        assert np.all(np.abs(offsets + skew) < 1), "what leads to the clock of rank 0"
        begins.append(begin)
        assert len(harness.committed_steps(run.folder / f"trace/rank-{rank:05}.h5")) == 6
    assert begins[RANKS - 1][0] - begins[0][0] > SKEW - 100, "the clocks do differ"
    for _, step in open_run(run.folder).steps().groupby("step"):
        assert step["begin_ns"].max() < step["end_ns"].min(), "a step ends when all have begun it"

    harness.analyze("report", run.folder)
    assert "<html" in (run.folder / "report.html").read_text()
    harness.analyze("check", run.folder)


def fail(hosts, fault):
    """What happens to host-b."""
    if fault == "the link is lost":
        hosts.unplug()
        return
    ranks = hosts.ranks("host-b")
    assert len(ranks) == RANKS // 2
    number = signal.SIGSTOP if "stop" in fault else signal.SIGKILL
    for process in ranks if "ranks" in fault else hosts.processes("host-b"):
        os.kill(process, number)


FAULTS = {  # whether mpirun ends: it waits for daemons of its own, on hosts that answer nothing
    "its ranks are killed": True,
    "it is gone": True,
    "its ranks stop": True,
    "it stops": False,
    "the link is lost": False,
}
SILENT = (
    rf"no operation completed for {TIMEOUT} s \(run.timeout\): "
    r"rank 2 \(host host-b, process \d+\), rank 3 \(host host-b, process \d+\) do not answer; "
    r"rank 0(, 1 wait| waits) for"
)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_second_host_fails(fault, hosts, experiment):
    """The ranks end, say which host it was, and the run goes on from its checkpoint on one host."""
    path = experiment(
        batch={"tokens": 512},
        run={"steps": 100000, "timeout": TIMEOUT, "checkpoint": {"every": 2}},
    )
    run = hosts.folder / "run"
    process = hosts.start(RANKS // 2, ["train", path, "--output", run])
    try:
        harness.wait_for_steps(process, run, 5)
        ranks = hosts.ranks("host-a")
        fail(hosts, fault)
        if FAULTS[fault]:
            process.wait(harness.TIMEOUT)
            assert process.returncode != 0
        assert_gone(ranks)
        result = hosts.result(process)
    finally:
        harness.stop(process)
    if "stop" in fault or "link" in fault:
        assert re.search(SILENT, "\n".join(result.complaints)), str(result)
    done = len(harness.read_metrics(run))
    for rank in range(RANKS):
        steps = harness.committed_steps(run / f"trace/rank-{rank:05}.h5")["step"]
        assert len(steps) >= done - 1
        assert np.array_equal(steps, np.arange(len(steps)))
    words = ["train", path, "--from", run, "--output", hosts.folder / "resumed"]
    harness.run_well(RANKS, [*words, "--set", f"run.steps={done + 2}"])
    first = harness.read_metrics(hosts.folder / "resumed")[0]["step"]
    assert done - first <= 3 and first % 2 == 0, "the newest checkpoint, or the one before"
