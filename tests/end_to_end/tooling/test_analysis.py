# SPDX-License-Identifier: Apache-2.0
"""The Python package on what the program really writes."""

import json
import os
import random
import shutil
import sys
import time

import h5py
import pytest

import harness

pytest.importorskip(
    "cadenza.cli", reason="the package analysis/ is not installed here", exc_type=ImportError
)
import cadenza  # noqa: E402 - where it is installed
from cadenza.read import rank_file  # noqa: E402
from cadenza.read.superblock import open_hdf5  # noqa: E402
from cadenza.time.between import CAUSES  # noqa: E402

sys.path.append(str(harness.ROOT / "analysis/tests"))
from cut_files import look_at_cut_files  # noqa: E402


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory):
    """The same training with attention placed in two ways."""
    changes = {
        "data": harness.tokens_data(corpus),
        "parallel": {"data": 2},
        "run": {"steps": 4},
        "batch": {"tokens": 1024, "microbatch": 512},
    }
    return {
        placement: harness.train(
            tmp_path_factory.mktemp(placement),
            harness.merged(changes, {"attention": {"placement": placement}}),
        ).folder
        for placement in ("colocated", "cad")
    }


def test_summary(runs):
    output = json.loads(harness.analyze("summary", runs["colocated"], runs["cad"], "--json").stdout)
    assert len(output["runs"]) == 2
    text = harness.analyze("summary", runs["cad"]).stdout
    assert "rank" in text
    assert "imbalance" in text


def test_timeline(runs, tmp_path):
    picture = tmp_path / "timeline.png"
    harness.analyze("timeline", runs["colocated"], runs["cad"], "--output", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


def look_at(folder):
    """The parts of a run's steps sum to them, and its trace keeps its promises."""
    study = cadenza.Study(cadenza.open(folder))
    assert study.findings == []
    parts = study.parts
    assert len(parts) == len(study.ranks) * len(study.step_times)
    assert (parts[list(cadenza.PARTS)].sum(axis=1) == parts["window"]).all()
    assert (parts[list(cadenza.PARTS)] >= 0).all(axis=None)
    return study


@pytest.mark.parametrize("placement", ["colocated", "cad"])
def test_parts_of_a_real_run(runs, placement):
    study = look_at(runs[placement])
    totals = study.totals
    assert (totals[["compute_attention", "compute_dense"]] > 0).all(axis=None)
    assert (totals["data_parallel_wait"] > 0).any()  # the rank that is last never waits
    assert (totals["pipeline_bubble"] == 0).all()
    assert (totals["attention_wait"] > 0).any() == (placement == "cad")


def test_steps_and_what_lies_between_are_the_wall_time(runs, corpus, tmp_path):
    """With a checkpoint after every step: by the files' own times and the batch's tokens."""
    called = time.monotonic_ns()
    folder = harness.train(tmp_path, {
        "data": harness.tokens_data(corpus), "parallel": {"data": 2},
        "run": {"steps": 6, "checkpoint": {"every": 1, "keep": 1}},
    }).folder
    study = look_at(folder)
    with h5py.File(folder / "trace/rank-00001.h5") as file:
        first, *_ = file["/steps"]["begin_ns"]
        started = int(file["/meta/rank"]["started_ns"][0])
        steps = file["/steps"][1:]
    wall = float(steps["end_ns"][-1] - steps["begin_ns"][0]) / 1e9
    parts, gaps = study.steady(study.parts), study.steady_between
    parts, gaps = (frame[(frame["rank"] == 1).to_numpy()] for frame in (parts, gaps))
    inside = parts[list(cadenza.PARTS)].sum(axis=None) / 1e9
    outside = gaps[list(CAUSES)].sum(axis=None) / 1e9
    assert inside + outside == pytest.approx(wall, rel=0.01)
    (summary,) = json.loads(harness.analyze("summary", folder, "--json").stdout)["runs"]
    assert called - 20e6 <= started < first
    assert study.run.start_up()["seconds"][1] == pytest.approx((first - started) / 1e9)
    assert summary["start_up"]["seconds"] <= (first - called) / 1e9 + 0.02
    tokens = study.metrics["tokens"].iloc[1:].sum()
    of_all = study.steady(study.steps)  # a rank may begin, or end, before the other
    wall = float(of_all["end_ns"].max() - of_all["begin_ns"].min()) / 1e9
    assert summary["goodput"] == pytest.approx(tokens / wall, rel=0.001)
    causes = summary["between_steps"]["causes"]
    assert causes["checkpoint"] > 0 and causes["trace"] > 0
    without = cadenza.Study(cadenza.open(runs["colocated"]))
    assert without.between["checkpoint"].sum() == 0 < without.between["trace"].sum()


def test_a_clock_half_a_second_off_is_corrected(runs, tmp_path, monkeypatch):
    """What was measured of a rank's clock is changed: many messages come before they are sent."""
    folder = tmp_path / "run"
    shutil.copytree(runs["cad"], folder)
    with h5py.File(folder / "trace/rank-00001.h5", "r+") as file:
        rows = file["/clock/sync"][:]
        rows["offset_ns"] += 500_000_000
        file["/clock/sync"][:] = rows
    ((rank, ahead),) = [(one.rank, one.ahead_ns) for one in cadenza.open(folder).wrong_clocks]
    assert rank == 1 and ahead == pytest.approx(5e8, rel=0.1)
    assert cadenza.open(runs["cad"]).wrong_clocks == []

    def early():
        return sum(one.count for one in cadenza.check(cadenza.open(folder))
                   if "before it is sent" in one.what)

    corrected = early()
    monkeypatch.setattr(cadenza.Run, "wrong_clocks", [])
    assert early() > 10 and corrected <= early() / 10


def simulate(folder, experiment, *sets):
    arguments = ["simulate", experiment, "--trace", "full", "--output", folder]
    changes = [word for change in sets for word in ("--set", change)]
    harness.run_well(1, [*arguments, *changes], cwd=harness.ROOT)
    return folder


def test_simulated_pipeline_has_the_bubble_of_the_formula(tmp_path):
    """Two stages, four microbatches of equal documents: the second stage also has the head, so the
    first one waits longer, the second one shorter than the formula says."""
    folder = simulate(tmp_path / "run", "inputs/layouts/pipeline_1f1b.yaml", "run.steps=2",
                      "data.lengths.values=[4096]")
    study = look_at(folder)
    bubbles = study.bubbles
    assert bubbles["ideal_fraction"].tolist() == pytest.approx([1 / 5] * 4, rel=0.01)
    assert bubbles["fraction"].mean() == pytest.approx(1 / 5, rel=0.05)


def test_512_ranks(tmp_path, monkeypatch):
    """Small tables are read when the run is opened."""
    opened = []
    monkeypatch.setattr(rank_file, "open_hdf5", lambda path: opened.append(path) or open_hdf5(path))
    folder = simulate(
        tmp_path / "run", "inputs/paper/base.yaml", "parallel.data=64", "batch.tokens=8388608",
        "run.steps=2",
    )
    run = cadenza.open(folder)
    assert len(run.ranks()) == 512 and len(run.steps()) == 1024
    assert len(run.memory()) == 1024 * 8 and len(run.plans()) > 1024
    assert len(opened) == 512
    events, steps = run.events(steps=[1]), run.steps().query("step == 1")
    parts = cadenza.time_parts(events, steps, run.ranks())
    assert len(parts) == 512 and len(events) > 500_000
    assert (parts[list(cadenza.PARTS)].sum(axis=1) == parts["window"]).all()


def test_summary_of_a_killed_run(corpus, tmp_path):
    changes = {"data": harness.tokens_data(corpus), "run": {"steps": 100000}}
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    process = harness.start(harness.command(1, ["train", experiment, "--output", tmp_path / "run"]))
    try:
        harness.wait_for_steps(process, tmp_path / "run", 4)
    finally:
        os.kill(process.pid, 9)
        harness.finish(process)
    result = harness.analyze("summary", tmp_path / "run")
    assert "warning" in result.stderr
    steps = harness.committed_steps(tmp_path / "run/trace/rank-00000.h5")
    output = json.loads(harness.analyze("summary", tmp_path / "run", "--json").stdout)
    assert f": {len(steps)}" in json.dumps(output)
    cut_anywhere(tmp_path / "run")


def cut_anywhere(folder):
    """A copy of a killed run that broke off gives its complete steps, or one line."""
    path = folder / "trace/rank-00000.h5"
    rng = random.Random(3)
    sizes = sorted(rng.randrange(path.stat().st_size) for _ in range(100))
    for found in look_at_cut_files(folder, path, sizes):
        if "error" in found:
            assert "\n" not in found["error"]
        else:
            assert found["truncated"] and found["steps_with_events"] == found["steps"]
