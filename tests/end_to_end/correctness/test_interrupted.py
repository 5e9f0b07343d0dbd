# SPDX-License-Identifier: Apache-2.0
"""Runs that die of their loss, a full disk or a kill: traces stay readable to the last step."""

import os
import signal
import subprocess
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

import harness

DATA, NUMERICS = 3, 4


def experiment_of(corpus, ranks, changes):
    return harness.merged(
        {
            "data": harness.tokens_data(corpus),
            "parallel": {"data": ranks},
            "attention": {"placement": "cad"},
        },
        changes,
    )


def traces(folder, ranks):
    return [harness.committed_steps(folder / f"trace/rank-{rank:05}.h5") for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_loss_that_is_not_finite(ranks, corpus, tmp_path):
    changes = {"optimizer": {"lr": 1e30, "clip": 0, "warmup": 0}, "run": {"steps": 50}}
    experiment = harness.write_experiment(
        tmp_path / "e.yaml", experiment_of(corpus, ranks, changes)
    )
    result = harness.run(ranks, ["train", experiment, "--output", tmp_path / "run"])
    assert result.code == NUMERICS, str(result)
    assert len(result.complaints) == 1, str(result)
    steps = traces(tmp_path / "run", ranks)
    bad = steps[0]["step"][-1]
    assert f"step {bad}" in result.complaints[0]
    for rows in steps:
        assert np.array_equal(rows["step"], np.arange(bad + 1))
        assert np.all(np.isfinite(rows["loss"][:-1]))
        assert not np.isfinite(rows["loss"][-1])


LONG = {"run": {"steps": 100000}, "batch": {"tokens": 256}}


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB, where this machine lets one be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small file system can be mounted: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def assert_full_disk_was_told(result, folder, ranks, reason):
    assert result.code == DATA, str(result)
    assert len(result.complaints) == 1, str(result)
    assert str(folder) in result.complaints[0], str(result)
    assert reason in result.complaints[0], str(result)
    reported = (folder / "metrics.jsonl").read_text().count("\n")  # a last line may be cut
    for rank, rows in enumerate(traces(folder, ranks)):
        # Rank 0 reports a step when it has written it; another rank may fail at that very step.
        assert len(rows) >= max(1, reported - (rank > 0))
        assert np.array_equal(rows["step"], np.arange(len(rows)))


@pytest.mark.parametrize("ranks", [1, 2])
def test_full_disk(ranks, corpus, small_disk, tmp_path):
    experiment = harness.write_experiment(tmp_path / "e.yaml", experiment_of(corpus, ranks, LONG))
    result = harness.run(ranks, ["train", experiment, "--output", small_disk / "run"])
    assert_full_disk_was_told(result, small_disk / "run", ranks, "No space left on device")


@pytest.mark.parametrize("ranks", [1, 2])
def test_file_size_limit(ranks, corpus, tmp_path):
    """Like a full disk, on machines where none can be mounted."""
    experiment = harness.write_experiment(tmp_path / "e.yaml", experiment_of(corpus, ranks, LONG))
    result = harness.run_limited(400, ranks, ["train", experiment, "--output", tmp_path / "run"])
    assert_full_disk_was_told(result, tmp_path / "run", ranks, "File too large")


def make_full_device(path):
    """A file to which nothing can be written, where this machine lets one be made."""
    full = os.stat("/dev/full")
    try:
        os.mknod(path, full.st_mode, full.st_rdev)
        path.open("w").close()
    except PermissionError as error:
        pytest.skip(f"no device can be made: {error}")


def test_metrics_that_cannot_be_written(corpus, tmp_path):
    experiment = harness.write_experiment(tmp_path / "e.yaml", experiment_of(corpus, 2, LONG))
    run = tmp_path / "run"
    run.mkdir()
    make_full_device(run / "metrics.jsonl")
    result = harness.run(2, ["train", experiment, "--output", run])
    assert result.code == DATA, str(result)
    assert len(result.complaints) == 1, str(result)
    assert "metrics.jsonl" in result.complaints[0]
    assert [len(rows) for rows in traces(run, 2)] == [1, 1]


def test_checkpoint_that_cannot_be_written(corpus, tmp_path):
    changes = harness.merged(LONG, {"run": {"checkpoint": {"every": 2}}})
    experiment = harness.write_experiment(tmp_path / "e.yaml", experiment_of(corpus, 2, changes))
    run = tmp_path / "run"
    (run / "checkpoints/step-00000004.h5").mkdir(parents=True)
    (run / "checkpoints/step-00000004.h5/x").touch()
    result = harness.run(2, ["train", experiment, "--output", run])
    assert result.code == DATA, str(result)
    assert len(result.complaints) == 1, str(result)
    assert "step-00000004.h5" in result.complaints[0]
    assert [len(rows) for rows in traces(run, 2)] == [4, 4]


def ranks_below(launcher):
    """Process ids of a launcher's ranks, by rank."""
    found = {}
    for process in Path("/proc").iterdir():
        try:
            if not process.name.isdigit() or int(process.name) == os.getpid():
                continue
            if Path(os.readlink(process / "exe")).resolve() != harness.PROGRAM:
                continue
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended while we looked
        rank = [
            v.split(b"=")[1]
            for v in variables
            if v.startswith((b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK="))
        ]
        if parent == launcher and rank:
            found[int(rank[0])] = int(process.name)
    return found


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_rank(victim, corpus, tmp_path):
    experiment = harness.write_experiment(tmp_path / "e.yaml", experiment_of(corpus, 2, LONG))
    process = harness.start(harness.command(2, ["train", experiment, "--output", tmp_path / "run"]))
    try:
        harness.wait_for_steps(process, tmp_path / "run", 4)
        os.kill(ranks_below(process.pid)[victim], signal.SIGKILL)
        result = harness.finish(process)
    finally:
        harness.stop(process)
    assert result.code != 0, str(result)
    for rows in traces(tmp_path / "run", 2):
        assert len(rows) >= 4
        assert np.array_equal(rows["step"], np.arange(len(rows)))
        assert np.all(rows["loss"] > 0)


@pytest.mark.parametrize("delay", [0, 0.007, 0.019, 0.041])
def test_killed_alone(delay, corpus, tmp_path):
    experiment = harness.write_experiment(tmp_path / "e.yaml", experiment_of(corpus, 1, LONG))
    process = harness.start(harness.command(1, ["train", experiment, "--output", tmp_path / "run"]))
    try:
        harness.wait_for_steps(process, tmp_path / "run", 4)
        time.sleep(delay)
        process.kill()
        harness.finish(process)
    finally:
        harness.stop(process)
    (rows,) = traces(tmp_path / "run", 1)
    assert len(rows) >= 4
    assert np.array_equal(rows["step"], np.arange(len(rows)))
    told = harness.analyze("summary", tmp_path / "run").stderr
    assert f"did not end cleanly after step {len(rows) - 1}" in told


def test_trace_check_refuses_a_trace_that_lacks_events(corpus, tmp_path):
    """What is held above is more than that a file opens."""
    path = harness.train(tmp_path, experiment_of(corpus, 1, {})).folder / "trace/rank-00000.h5"
    assert len(harness.committed_steps(path)) == 3
    with h5py.File(path, "r+") as file:
        file["/events"].resize(len(file["/events"]) - 1, axis=0)
    with pytest.raises(AssertionError, match="are committed"):
        harness.committed_steps(path)
