# SPDX-License-Identifier: Apache-2.0
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from conftest import two_ranks
from trace_files import ATTENTION, COLLECTIVE, DENSE, Rank, write_run

import cadenza
from cadenza.read import rank_file
from cadenza.read.run import Run
from cadenza.read.superblock import open_hdf5
from cadenza.summary import summarize

FRAMES = ("parts", "totals", "imbalance", "bubbles", "overlap", "efficiencies", "utilization",
          "attention_tasks", "divergence", "growth", "stragglers", "verdicts",
          "plan_summary", "metrics", "memory")


def test_the_same_as_the_functions_say(run_folder):
    run = cadenza.open(run_folder)
    study = cadenza.Study(run)
    direct = cadenza.time_parts(run.events(), run.steps(), run.ranks())
    by = ["rank", "step"]
    pd.testing.assert_frame_equal(
        study.parts.sort_values(by, ignore_index=True), direct.sort_values(by, ignore_index=True)
    )
    assert study.imbalance["imbalance"].tolist() == [1.5, 1.5]
    assert len(study.events) == run.event_count and study.has_events


@pytest.fixture
def reads(monkeypatch):
    """The steps of each reading of events."""
    calls = []
    read = Run.events
    monkeypatch.setattr(
        Run, "events", lambda self, **what: calls.append(what.get("steps")) or read(self, **what)
    )
    return calls


def test_events_are_read_once(run_folder, reads):
    study = cadenza.Study(cadenza.open(run_folder))
    for name in ("parts", "bubbles", "totals", "attention_tasks", "utilization", "verdicts"):
        getattr(study, name)
    study.what_if(), study.critical_path(), study.step_events(study.typical_step)
    assert reads == [None]


def test_a_large_run_is_read_in_parts(run_folder, reads, monkeypatch):
    """For a page in one pass, and once more for the typical step, which shows its events."""
    whole = cadenza.Study(cadenza.open(run_folder)).parts
    reads.clear()
    for module in ("read.run", "study"):
        monkeypatch.setattr(f"cadenza.{module}.EVENTS_AT_ONCE", 16)
    study = cadenza.Study(cadenza.open(run_folder))
    study.prepare()
    pd.testing.assert_frame_equal(study.parts, whole)
    study.what_if(), study.critical_path(), study.efficiencies
    assert reads == [[0], [1]]
    study.step_events(study.typical_step)
    assert reads == [[0], [1], [study.typical_step]]


def test_a_summary_of_a_large_run_reads_it_once(run_folder, reads, monkeypatch):
    for module in ("read.run", "study"):
        monkeypatch.setattr(f"cadenza.{module}.EVENTS_AT_ONCE", 16)
    assert summarize(cadenza.Study(cadenza.open(run_folder)))["findings"] == []
    assert reads == [[0], [1]]


@pytest.mark.parametrize("command", ["summary", "check", "bubbles", "stragglers", "what-if"])
def test_files_are_opened_twice(command, run_folder, monkeypatch, inside):
    """For the facts and the small tables, and for the events; the first one also for who made the
    run, and on which machine."""
    opened = []
    monkeypatch.setattr(rank_file, "open_hdf5", lambda path: opened.append(path) or open_hdf5(path))
    assert inside(command, run_folder).stderr == ""
    first, other = (count for _, count in sorted(Counter(opened).items()))
    assert other == 2 and first <= 4


@pytest.mark.parametrize("command", ["bubbles", "check"])
def test_graphs_are_not_built_where_nothing_needs_them(command, run_folder, monkeypatch, inside):
    def build(*_):
        raise AssertionError("a graph was built")

    monkeypatch.setattr("cadenza.study.build", build)
    assert inside(command, run_folder).stderr == ""
    assert "a graph was built" in inside("stragglers", run_folder).stderr


def test_steps_without_events_are_not_replayed(tmp_path, inside):
    """The first step of a real run of four is not looked at, and has all there is."""
    steps = [(step, 100 * step, 100 * step + 90) for step in range(4)]
    run = write_run(tmp_path / "r", [Rank(0, [(0, DENSE, 0, 50)], steps)])
    done = inside("what-if", run)
    assert done.returncode == 3 and "no events in the steps that are replayed" in done.stderr


def test_the_first_step_of_a_real_run_warms_up(tmp_path):
    steps = [(0, 0, 100), (1, 100, 150), (2, 150, 210), (3, 210, 280)]
    for producer, steady, mean in (("trainer", [1, 2, 3], 60), ("simulator", [0, 1, 2, 3], 70)):
        run = write_run(tmp_path / producer, [Rank(0, [], steps, producer=producer)])
        study = cadenza.Study(cadenza.open(run))
        assert study.steady_steps == steady and study.seconds == pytest.approx(mean * 1e-9)
        assert study.typical_step == 2
        median = {"trainer": 60, "simulator": 65}[producer]
        assert summarize(study)["step_seconds"] == pytest.approx(median * 1e-9)
    few = write_run(tmp_path / "few", [Rank(0, [], steps[:3])])
    assert cadenza.Study(cadenza.open(few)).steady_steps == [0, 1, 2]


def test_the_typical_step_is_as_unbalanced_as_most(tmp_path):
    """The step of median time has its ranks in balance, the others do not."""
    each = [meeting(step, lengths) for step, lengths in
            enumerate([(80, 40), (84, 40), (60, 60), (82, 40), (90, 30)])]
    ends = [100, 195, 295, 400, 520]  # and so are its 100 ns the median
    windows = [(s, a, b) for s, (a, b) in enumerate(zip([0, *ends], ends, strict=False))]
    shifted = [[[(row[0], row[1], row[2] - 100 * s + windows[s][1],
                  row[3] - 100 * s + windows[s][1], *row[4:]) for row in rank]
                for rank in step] for s, step in enumerate(each)]
    ranks = [Rank(r, [event for step in shifted for event in step[r]], windows,
                  producer="simulator") for r in (0, 1)]
    study = cadenza.Study(cadenza.open(write_run(tmp_path / "r", ranks)))
    assert study.step_times.sort_values("seconds")["step"].iloc[2] in (0, 2)
    assert study.typical_step in (0, 1, 3)


def meeting(step, lengths):
    """Per rank the events of a step of 100 ns: attention as long as said, then a sum."""
    at, last = 100 * step, max(lengths)
    return [
        [(step, ATTENTION, at, at + length, {"flops": 1.0 * length, "tick": 0}),
         (step, COLLECTIVE, at + length, at + last,
          {"flow": 3, "lane": 0, "name": "agree_on_norm"}),
         (step, DENSE, at + last, at + 100)]
        for length in lengths
    ]


def test_what_if_is_of_all_steps(tmp_path):
    """A step of median time that is balanced says nothing of those that are not."""
    each = [meeting(step, lengths) for step, lengths in enumerate([(80, 40), (60, 60), (90, 30)])]
    windows = [(step, 100 * step, 100 * step + 100) for step in range(3)]
    ranks = [Rank(r, [event for step in each for event in step[r]], windows) for r in (0, 1)]
    study = cadenza.Study(cadenza.open(write_run(tmp_path / "r", ranks)))
    row = study.what_if().set_index("scenario").loc["no attention imbalance"]
    assert row["saved_seconds"] == pytest.approx((20 + 0 + 30) / 3 * 1e-9)
    assert row["seconds"] == pytest.approx((80 + 100 + 70) / 3 * 1e-9)
    assert (row["low_share"], row["high_share"]) == pytest.approx((0.04, 0.28))
    one = study.what_if(1).set_index("scenario").loc["no attention imbalance"]
    assert one["saved_seconds"] == pytest.approx(0, abs=1e-12)


def test_of_many_steps_some_are_replayed(tmp_path):
    lengths = np.random.default_rng(5).permutation(60) + 1
    ends = np.cumsum(lengths).tolist()
    steps = [(s, e - int(n), e) for s, (n, e) in enumerate(zip(lengths, ends, strict=True))]
    study = cadenza.Study(cadenza.open(write_run(tmp_path / "r", [Rank(0, [], steps)])))
    chosen = lengths[study.replayed_steps]
    assert len(chosen) == 24 and chosen.mean() == pytest.approx(lengths.mean(), abs=1)


def test_causes_of_a_step(run_folder):
    """The replay of a step takes as long as the step, and its critical path has no gap."""
    study = cadenza.Study(cadenza.open(run_folder))
    recorded = study.what_if().query("scenario == 'as recorded'").iloc[0]
    assert recorded["seconds"] == pytest.approx(100e-9)
    path = study.critical_path(0)
    assert (path["end_ns"] - path["begin_ns"]).sum() == 100
    pop = study.efficiencies.set_index("step")
    assert pop["transfer_efficiency"].notna().tolist() == [True, True]  # replayed


@pytest.mark.parametrize("name", FRAMES)
def test_runs_without_events(tmp_path, name):
    ranks = [Rank(r, [], [(0, 0, 100)]) for r in (0, 1)]
    study = cadenza.Study(cadenza.open(write_run(tmp_path / "r", ranks)))
    assert isinstance(getattr(study, name), pd.DataFrame) and not study.has_events


@pytest.mark.parametrize("name", FRAMES)
def test_a_rank_is_missing(tmp_path, name):
    study = cadenza.Study(cadenza.open(write_run(tmp_path / "r", two_ranks()[:1], world=2)))
    assert isinstance(getattr(study, name), pd.DataFrame)


def test_steps_that_not_all_ranks_completed_are_left_out(tmp_path):
    ranks = [
        Rank(0, [(0, DENSE, 0, 5), (1, DENSE, 9, 12)], [(0, 0, 9), (1, 9, 18)]),
        Rank(1, [(0, DENSE, 0, 5)], [(0, 0, 9)]),
    ]
    study = cadenza.Study(cadenza.open(write_run(tmp_path / "r", ranks)))
    assert study.parts["step"].unique().tolist() == [0]


def test_no_complete_step(tmp_path):
    study = cadenza.Study(cadenza.open(write_run(tmp_path / "r", [Rank(0)])))
    with pytest.raises(cadenza.DataError, match="no complete step in the trace"):
        study.parts  # noqa: B018 - asking for it is the test
