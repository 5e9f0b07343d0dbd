# SPDX-License-Identifier: Apache-2.0
"""One run at a time writes into a folder, into that folder alone, and notices when it is gone."""

import os
import shutil
import signal

import pytest

import harness

DATA = 3
LONG = {"run": {"steps": 1000000, "checkpoint": {"every": 1000000}}, "batch": {"tokens": 256}}


@pytest.fixture
def long_run(corpus, tmp_path):
    """A run that has made steps, and the command that it was started with."""
    changes = harness.merged(LONG, {"data": harness.tokens_data(corpus)})
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    arguments = ["train", experiment, "--output", tmp_path / "run"]
    process = harness.start(harness.command(1, arguments))
    try:
        harness.wait_for_steps(process, tmp_path / "run", 2)
        yield process, arguments
    finally:
        harness.stop(process)


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("command", ["train", "simulate", "sweep"])
def test_a_second_run_is_refused(command, long_run, corpus, tmp_path):
    process, arguments = long_run
    if command == "sweep":
        base = harness.write_experiment(tmp_path / "base.yaml", {"run": {"steps": 1}})
        sweep = tmp_path / "sweep.yaml"
        sweep.write_text(f"name: s\nbase: {base.name}\naxes:\n  heads: {{a: {{}}}}\n")
        arguments = [sweep, *arguments[2:]]
    else:
        arguments = arguments[1:]
    before = files_below(tmp_path / "run")
    result = harness.run(1, [command, *arguments])
    assert result.code == DATA, str(result)
    (line,) = result.complaints
    assert f"{tmp_path / 'run'}: in use by process {process.pid} on " in line
    assert files_below(tmp_path / "run") == before
    assert not (tmp_path / "run.1").exists()
    os.kill(process.pid, signal.SIGTERM)
    assert harness.finish(process).code == 143


def test_a_killed_run_locks_nothing(long_run, tmp_path):
    process, arguments = long_run
    process.kill()
    harness.finish(process)
    unfinished = tmp_path / "run/trace/rank-00000.h5.compact"
    unfinished.touch()  # as one that is killed while it makes its trace smaller leaves
    harness.run_well(1, [*arguments, "--set", "run.steps=2"])
    kept = files_below(tmp_path / "run.1")
    assert "experiment.yaml" in kept
    assert not {".lock", "trace/rank-00000.h5.compact"} & set(kept)
    assert ".lock" not in files_below(tmp_path / "run")


@pytest.mark.parametrize("gone", [".", "trace", "metrics.jsonl", "checkpoints"])
def test_output_that_is_removed_ends_the_run(gone, long_run, tmp_path):
    process, _ = long_run
    path = tmp_path / "run" / gone
    path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
    result = harness.finish(process)
    assert result.code == DATA, str(result)
    (line,) = result.complaints
    assert f"{path}" in line
    assert "metrics " not in result.out, "names files that are gone"


def test_output_of_two_ranks_that_is_replaced(corpus, tmp_path):
    changes = harness.merged(
        LONG, {"data": harness.tokens_data(corpus), "parallel": {"data": 2}}
    )
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    arguments = ["train", experiment, "--output", tmp_path / "run"]
    process = harness.start(harness.command(2, arguments))
    try:
        harness.wait_for_steps(process, tmp_path / "run", 2)
        (tmp_path / "run").rename(tmp_path / "elsewhere")
        (tmp_path / "run").mkdir()
        result = harness.finish(process)
    finally:
        harness.stop(process)
    assert result.code == DATA, str(result)
    (line,) = result.complaints
    assert f"{tmp_path / 'run'}: was removed, renamed or replaced" in line
    assert files_below(tmp_path / "run") == []


LINKS = ["trace", "checkpoints", "metrics.jsonl", "experiment.yaml", ".lock",
         "trace/rank-00000.h5", "checkpoints/step-00000000.h5"]


@pytest.mark.parametrize("command", ["train", "simulate"])
@pytest.mark.parametrize("name", LINKS)
def test_links_are_not_followed(command, name, corpus, tmp_path):
    changes = {"data": harness.tokens_data(corpus), "run": {"checkpoint": {"every": 1}}}
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    outside = tmp_path / "outside"
    outside.mkdir()
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    is_folder = name in ("trace", "checkpoints")
    target = outside if is_folder else outside / "file"
    link.symlink_to(target, target_is_directory=is_folder)
    result = harness.run(1, [command, experiment, "--output", tmp_path / "run"])
    assert result.code == DATA, str(result)
    (line,) = result.complaints
    assert str(link) in line
    assert files_below(outside) == []


@pytest.fixture
def sweep(tmp_path):
    synthetic = {"source": "synthetic", "lengths": {"distribution": "constant", "median": 64}}
    harness.write_experiment(tmp_path / "base.yaml", {"data": synthetic, "run": {"steps": 1}})
    path = tmp_path / "s.yaml"
    path.write_text("name: s\nbase: base.yaml\naxes:\n  heads: {a: {}}\n")
    return path


@pytest.mark.parametrize("name", ["metrics.jsonl", "trace/rank-00000.h5", "sweep.csv"])
def test_pipes_are_not_waited_for(name, sweep, tmp_path):
    words = ["sweep", sweep] if name == "sweep.csv" else ["simulate", tmp_path / "base.yaml"]
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    os.mkfifo(tmp_path / "out" / name)
    result = harness.run(1, [*words, "--output", tmp_path / "out"])
    assert result.code == DATA, str(result)
    assert f"{name}: is a pipe, a socket or a device" in result.complaints[0]


@pytest.mark.parametrize("name", ["/", "/usr/.."])
@pytest.mark.parametrize("command", ["simulate", "sweep"])
def test_the_root_folder_is_refused(command, name, sweep, tmp_path):
    words = ["sweep", sweep] if command == "sweep" else ["simulate", tmp_path / "base.yaml"]
    result = harness.run(1, [*words, "--output", name])
    assert result.code == DATA, str(result)
    (line,) = result.complaints
    assert f"{name}: is the root folder" in line
    assert not os.path.lexists("/sweep.csv") and not os.path.lexists("/metrics.jsonl")


def test_links_of_a_sweep_are_not_followed(sweep, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/sweep.h5").symlink_to(tmp_path / "outside")
    result = harness.run(1, ["sweep", sweep, "--output", tmp_path / "out"])
    assert result.code == DATA, str(result)
    assert "sweep.h5: is a link" in result.complaints[0]
    assert not (tmp_path / "outside").exists()


def test_a_link_to_the_folder_is_followed(corpus, tmp_path):
    """runs/ may lie on another disk."""
    changes = {"data": harness.tokens_data(corpus), "run": {"steps": 2}}
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    harness.run_well(1, ["train", experiment, "--output", tmp_path / "run"])
    assert (tmp_path / "disk/trace/rank-00000.h5").is_file()


@pytest.mark.parametrize("name", ["experiment.yaml", "metrics.jsonl", "trace/rank-00000.h5",
                                  "checkpoints/step-00000000.h5"])
def test_files_that_no_run_wrote_stay(name, corpus, tmp_path):
    """Of a folder that is somebody's project and not a run."""
    changes = {"data": harness.tokens_data(corpus)}
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    mine = tmp_path / "project" / name
    mine.parent.mkdir(parents=True)
    before = experiment.read_text()
    mine.write_text(before)
    for command in ("train", "simulate"):
        result = harness.run(1, [command, experiment, "--output", tmp_path / "project"])
        assert result.code == DATA, str(result)
        assert f"{mine}: " in result.complaints[0] and "run" in result.complaints[0]
    assert mine.read_text() == before
    assert set(files_below(tmp_path / "project")) == {name, name.split("/")[0]}
    assert not (tmp_path / "project.1").exists()
