# SPDX-License-Identifier: Apache-2.0
"""What ranks do between steps: parts that sum to wall time, beside those of the steps."""

import json

import numpy as np
import pytest
from trace_files import DENSE, HOST_LANE, PLANNING, Rank, write_run

import cadenza
from cadenza.facts import between_said
from cadenza.time.between import CAUSES

CHECKPOINT, DATA, TRACE = 11, 9, 14
MS = 1_000_000
# Two ranks, steps of 10 ms. What lies before the second step, and before all after it; in ms.
HAND = {
    0: {"checkpoint": 4, "data": 0, "plan": 1, "trace": 1, "late_start": 0, "other": 2},
    1: {"checkpoint": 3, "data": 1, "plan": 0, "trace": 1, "late_start": 2, "other": 4},
}


def two_ranks(steps=5, events=True, producer="trainer"):
    """Rank 0 begins its steps 18 ms apart, rank 1 by 3 ms later; both end after 10 ms."""
    made = []
    for rank in (0, 1):
        rows, windows = [], []
        for step in range(steps):
            at = 18 * MS * step
            begin = at + 3 * MS * (rank == 1 and step > 0)
            end = at + 10 * MS
            before = at - 8 * MS
            host = {"lane": HOST_LANE}
            if step and rank == 0:  # the trace's is inside the checkpoint's for a millisecond
                rows += [(step, CHECKPOINT, before + 1 * MS, before + 5 * MS, host),
                         (step, TRACE, before + 4 * MS, before + 6 * MS, host),
                         (step, PLANNING, before + 6 * MS, before + 7 * MS, host)]
            if step and rank == 1:  # what it reads after rank 0 began is no late start
                rows += [(step, TRACE, before, before + 1 * MS, host),
                         (step, CHECKPOINT, before + 2 * MS, before + 5 * MS, host),
                         (step, DATA, at + 2 * MS, at + 3 * MS, host)]
            rows.append((step, DENSE, begin, end))
            windows.append((step, begin, end))
        made.append(Rank(rank, rows if events else [], windows, producer=producer,
                         flops={"tokens": 900}))
    return made


def study_of(tmp_path, **options):
    return cadenza.Study(cadenza.open(write_run(tmp_path / "r", two_ranks(**options))))


def test_gaps_worked_out_by_hand(tmp_path):
    study = study_of(tmp_path)
    found = study.between
    assert found["step"].tolist() == 2 * [1, 2, 3, 4]
    for row in found.to_dict("records"):
        assert {name: row[name] / MS for name in CAUSES} == HAND[row["rank"]], row


def test_parts_and_gaps_are_the_wall_time(tmp_path):
    study = study_of(tmp_path)
    inside = study.steady(study.parts).groupby("rank")["window"].sum()
    outside = study.steady_between.groupby("rank")[list(CAUSES)].sum().sum(axis=1)
    steps = study.steady(study.steps).groupby("rank")
    wall = steps["end_ns"].max() - steps["begin_ns"].min()
    assert (inside + outside == wall).all()
    assert study.wall_seconds == pytest.approx((4 * 18 - 8) * 1e-3)
    assert study.goodput == pytest.approx(4 * 900 / study.wall_seconds)


def test_summary_has_goodput_and_the_largest_cause(tmp_path, inside):
    folder = study_of(tmp_path).run.path
    (run,) = json.loads(inside("summary", folder, "--json").stdout)["runs"]
    found = run["between_steps"]
    means = {cause: 3 * (HAND[0][cause] + HAND[1][cause]) / 2 for cause in CAUSES}
    assert found["causes"] == pytest.approx({key: ms * 1e-3 for key, ms in means.items()})
    assert found["share"] == pytest.approx(sum(means.values()) / 64)
    assert run["goodput"] == pytest.approx(3600 / 64e-3)
    row = run["per_rank"][1]
    assert row["between_checkpoint_seconds"] == pytest.approx(9e-3)
    text = " ".join(inside("summary", folder).stdout.split())
    assert "56,250 of wall clock (goodput)" in text
    assert "between steps 44.5% of wall time, mainly checkpoints (16.4%)" in text


def test_a_share_of_nothing_has_no_cause():
    found = {"share": 4e-4, "wall_seconds": 1.0, "causes": {"checkpoint": 4e-4, "data": 0.0}}
    assert between_said(found) == "0.0%"
    assert between_said({**found, "share": 0.01}) == "1.0% of wall time, mainly checkpoints (0.0%)"


@pytest.mark.parametrize(("started", "said"), [
    ((None, None), "start-up -"), ((0, 100), "start-up 4.000 s"),
    ((0, 3000), "start-up 4.000 s; rank 1 began 3.000 s after the first")])
def test_start_up_is_told(tmp_path, inside, started, said):
    """Clocks are apart by a minute, which says nothing of when a process began."""
    ranks = [Rank(rank, [], [(0, 4_000_000_000, 5_000_000_000)], shift=rank * 60_000_000_000,
                  started=None if ms is None else ms * MS) for rank, ms in enumerate(started)]
    folder = write_run(tmp_path / "run", ranks)
    text = " ".join(inside("summary", folder).stdout.split())
    assert said in text and ("began" in said) == ("began" in text)


def test_the_page_says_it(tmp_path, inside):
    folder = study_of(tmp_path).run.path
    assert inside("report", folder, "--output", tmp_path / "r.html").returncode == 0
    page = (tmp_path / "r.html").read_text()
    said = "44.5% of wall time lies between steps, mainly checkpoints (16.4%)."
    time = page.split('<section id="time">')[1].split("</section>")[0]
    assert said in page.split("<section")[0] and said in time and ">12.00 ms</td>" in time


def test_without_events_the_cause_is_not_known(tmp_path):
    found = study_of(tmp_path, events=False).between
    assert (found[["other", "late_start"]].sum(axis=1) == found["window"]).all()
    assert found.groupby("rank")["late_start"].unique().tolist() == [[0], [3 * MS]]


def test_steps_without_gaps_are_the_wall_time(tmp_path, inside):
    steps = [(step, step * MS, step * MS + MS) for step in range(3)]
    rank = Rank(0, [(s, DENSE, b, e) for s, b, e in steps], steps, flops={"tokens": 5})
    folder = write_run(tmp_path / "r", [rank])
    study = cadenza.Study(cadenza.open(folder))
    assert (study.between[["window", *CAUSES]] == 0).all(axis=None)
    assert "between steps 0.0%" in " ".join(inside("summary", folder).stdout.split())
    assert inside("report", folder, "--output", tmp_path / "r.html").returncode == 0
    assert "between steps" not in (tmp_path / "r.html").read_text().split('id="time"')[1]


def test_random_gaps_sum(tmp_path):
    """Events of all categories, before, across and in steps."""
    random = np.random.default_rng(4)
    for case in range(20):
        ranks = []
        for number in range(3):
            edges = np.sort(random.integers(0, 5000, 12))
            windows = [(s, int(edges[2 * s]), int(edges[2 * s + 1])) for s in range(6)]
            rows = []
            for step, begin, _ in windows:
                for at in random.integers(-400, 100, 5):
                    rows.append((step, int(random.integers(0, 15)), begin + int(at),
                                 begin + int(at + random.integers(0, 300)), {"lane": HOST_LANE}))
            ranks.append(Rank(number, rows, windows))
        run = cadenza.open(write_run(tmp_path / str(case), ranks))
        found = cadenza.Study(run).between
        assert len(found) == 15 and (found[list(CAUSES)] >= 0).all(axis=None)
        assert (found[list(CAUSES)].sum(axis=1) == found["window"]).all()
        steps = run.steps()
        gaps = steps["begin_ns"] - steps.groupby("rank")["end_ns"].shift()
        assert found["window"].tolist() == gaps.dropna().astype(int).tolist()
