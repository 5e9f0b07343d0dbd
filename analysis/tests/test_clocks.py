# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pandas as pd
import pytest
from trace_files import COLLECTIVE, DENSE, DISPATCH, NON_BLOCKING, SENDS, Rank, write_run

import cadenza
from cadenza.time.parts import PARTS, time_parts


def test_offset_is_interpolated_and_held_outside(tmp_path):
    start = 2**60 + 1  # no float64 holds this
    events = [(0, DENSE, start + t, start + t + 1) for t in (-500, 0, 250, 1000, 5000)]
    syncs = [(start + 1000, 300), (start, 100)]  # out of order
    rank = Rank(0, events, [(0, start, start + 9)], syncs=syncs)
    found = cadenza.open(write_run(tmp_path / "r", [rank])).events()["begin_ns"] - start
    assert found.tolist() == [-400, 100, 400, 1300, 5300]


def drifting(tmp_path, name, syncs):
    """A clock that runs 20 ppm fast and 3 ms ahead: what its readings become on rank 0's."""
    times = np.arange(0, 20_000_000_000, 1_000_000_000)
    local = [round(t * (1 + 20e-6)) + 3_000_000 for t in times]
    syncs = [(local[t], int(times[t]) - local[t]) for t in syncs]
    events = [(0, DENSE, t, t + 1) for t in local]
    rank = Rank(0, events, [(0, 0, 9)], syncs=syncs)
    return cadenza.open(write_run(tmp_path / name, [rank])).events()["begin_ns"] - times


def test_drift_is_recovered(tmp_path):
    assert drifting(tmp_path, "two", [0, 10]).abs().max() <= 1  # before, between and after
    assert drifting(tmp_path, "three", [0, 5, 10]).abs().max() <= 1
    assert drifting(tmp_path, "one", [0])[10] == pytest.approx(200_000, abs=1)


def test_drifting_clocks_change_nothing_after_alignment(tmp_path):
    """Parts of two ranks whose clocks drift, against those on one clock: steps of milliseconds, as
    times are whole nanoseconds."""
    rng = np.random.default_rng(1)
    second, steps = 1_000_000_000, [(s, s * 10**9, s * 10**9 + 10**8) for s in range(0, 20, 4)]

    def ranks(drift):
        made = []
        for number in (0, 1):
            slope, ahead = (1.0, 0) if number == 0 else (1 + drift, int(drift * 1e12))
            local = lambda t, k=slope, a=ahead: round(t * k) + a  # noqa: E731
            events = []
            for step, begin, _ in steps:
                late = begin + 10**7 * (1 + 3 * number)
                options = {"flow": 3, "lane": 0}
                events += [
                    (step, DENSE, local(begin), local(late)),
                    (step, COLLECTIVE, local(late), local(begin + 6 * 10**7), options),
                ]
            syncs = [(local(t), t - local(t)) for t in (0, 7 * second, 19 * second)]
            mine = [(s, local(b), local(e)) for s, b, e in steps]
            made.append(Rank(number, events, mine, syncs=syncs if number else []))
        return made

    plain, *moved = (
        time_parts(run.events(), run.steps(), run.ranks())
        for run in (
            cadenza.open(write_run(tmp_path / str(i), ranks(drift)))
            for i, drift in enumerate([0.0, *rng.uniform(-5e-5, 5e-5, 4)])
        )
    )
    assert (plain.loc[plain["rank"] == 0, "data_parallel_wait"] == 3 * 10**7).all()
    for other in moved:
        assert np.abs(other[list(PARTS)] - plain[list(PARTS)]).max(axis=None) <= 3


def test_one_offset_is_constant(tmp_path):
    events = [(0, DENSE, 50, 60), (0, DENSE, 10**12, 10**12 + 1)]
    rank = Rank(0, events, [(0, 0, 9)], syncs=[(0, -50)])
    found = cadenza.open(write_run(tmp_path / "r", [rank])).events()["begin_ns"]
    assert found.tolist() == [0, 10**12 - 50]


MS = 1_000_000


def together(ahead=(0, 0, 0), steps=5, gap=2, early=0, late=0, jitter=0, sends=False):
    """Ranks that leave a collective together at the end of each step of 10 ms, `gap` ms apart, but
    for `jitter` ns. @param ahead  ns of each clock, unknown to the trace
    @param early, late  ns by which rank 1 ends each step before the others, and begins it after
    @param sends        rank 1 sends rank 0 a message in each step, and there is no collective
    """
    random = np.random.default_rng(5)
    made = []
    for number, clock in enumerate(ahead):
        mine = number == 1
        events, windows = [], []
        for step in range(steps):
            begin = step * (10 + gap) * MS
            end = begin + 10 * MS - early * mine - int(random.integers(0, jitter + 1))
            arrives = begin + (2 + 2 * mine) * MS
            windows.append((step, begin + late * mine + clock, end + clock))
            events.append((step, DENSE, begin + late * mine + clock, arrives + clock))
            meets = {"flow": 3, "lane": 0}
            if sends and number < 2:
                meets = {"flow": 3, "peer": 1 - number,
                         "flags": NON_BLOCKING | (SENDS if mine else 0)}
            if not sends or number < 2:
                kind = DISPATCH if sends else COLLECTIVE
                events.append((step, kind, arrives + clock, begin + 9 * MS + clock, meets))
        made.append(Rank(number, events, windows))
    return made


def opened(tmp_path, name, **options):
    return cadenza.open(write_run(tmp_path / name, together(**options)))


def frames(run):
    return [run.steps(), run.events(), run.memory_samples()]


@pytest.mark.parametrize("ahead", [(0, 500 * MS, 0), (0, -500 * MS, 0), (700 * MS, 0, 0),
                                   (0, 9 * MS, -3 * MS)])
@pytest.mark.parametrize("late", [0, MS])
def test_a_clock_that_is_wrong_is_corrected(tmp_path, ahead, late):
    """Steps begin before others ended the last one, which cannot be."""
    run = opened(tmp_path, "wrong", ahead=ahead, late=late)
    assert {one.rank: one.ahead_ns for one in run.wrong_clocks} == {
        rank: ns for rank, ns in enumerate(ahead) if ns}
    for found, expected in zip(frames(run), frames(opened(tmp_path, "right", late=late)),
                               strict=True):
        pd.testing.assert_frame_equal(found.drop(columns="time_ns", errors="ignore"),
                                      expected.drop(columns="time_ns", errors="ignore"))


@pytest.mark.parametrize("options", [{"gap": 200, "steps": 5}, {"steps": 1}])
@pytest.mark.parametrize("sends", [False, True])
def test_messages_and_collectives_show_it_where_steps_are_far_apart(tmp_path, options, sends):
    run = opened(tmp_path, "wrong", ahead=(0, 20 * MS, 0), sends=sends, **options)
    assert [(one.rank, one.ahead_ns) for one in run.wrong_clocks] == [(1, 20 * MS)]


def test_messages_bound_what_the_ends_of_steps_say(tmp_path):
    """Rank 1 leaves each step 6 ms before the others: its clock seems to be 14 ms ahead. But then
    it would begin a collective after that is over."""
    run = opened(tmp_path, "wrong", ahead=(0, 20 * MS, 0), early=6 * MS)
    assert [(one.rank, one.ahead_ns) for one in run.wrong_clocks] == [(1, 15 * MS)]
    assert all("before it is sent" not in one.what for one in cadenza.check(run))


@pytest.mark.parametrize("options", [
    {}, {"jitter": 50_000}, {"early": 5 * MS // 10}, {"late": MS}, {"early": MS // 2, "late": MS},
    {"jitter": 2 * MS}, {"early": MS // 2, "sends": True}, {"steps": 1, "early": MS // 2},
    {"gap": 0}, {"gap": 0, "late": MS},
])
def test_times_of_a_sound_trace_are_not_touched(tmp_path, options):
    """A rank that always ends its steps earlier than the others does so, if nothing contradicts."""
    ranks = together(**options)
    run = cadenza.open(write_run(tmp_path / "r", ranks))
    assert run.wrong_clocks == [] and all(file.ahead_ns == 0 for file in run.files.values())
    windows = [(begin, end) for rank in ranks for _, begin, end in rank.steps]
    assert run.steps()[["begin_ns", "end_ns"]].to_numpy().tolist() == [list(w) for w in windows]


def test_an_offset_that_varies_is_no_clock(tmp_path):
    """It is half of what it varies by: the steps that it contradicts stay findings."""
    ranks = together(ahead=(0, 3 * MS, 0), steps=8)
    for at, (step, begin, end) in enumerate(ranks[1].steps):
        moved = (at % 4) * 2 * MS
        ranks[1].steps[at] = (step, begin + moved, end + moved)
    assert cadenza.open(write_run(tmp_path / "r", ranks)).wrong_clocks == []


def test_a_wrong_clock_is_said(tmp_path, inside):
    folder = opened(tmp_path, "wrong", ahead=(0, 0, -500 * MS)).path
    said = "its clock was 500.0 ms behind: corrected"
    (finding,) = cadenza.check(cadenza.open(folder))
    assert (finding.rank, finding.what) == (2, said)
    found = inside("summary", folder)
    assert f"1 finding: rank 2: /clock/sync: {said}" in found.stdout
    assert "clock of rank 2 was 500.0 ms behind: corrected" in found.stderr
    assert inside("report", folder, "--output", tmp_path / "r.html").returncode == 0
    page = (tmp_path / "r.html").read_text()
    assert "rank 2&#39;s was 500.0 ms behind: corrected" in page
    assert f"1 finding: rank 2: /clock/sync: {said}" in page


def test_one_that_cannot_be_corrected_stays_a_finding_everywhere(tmp_path, inside):
    """A message that comes before it was sent, of a rank whose steps end with the others'."""
    here = {"flags": NON_BLOCKING, "peer": 1, "flow": 9}
    there = {"flags": NON_BLOCKING | SENDS, "peer": 0, "flow": 9}
    ranks = together()
    for step, begin, _ in ranks[0].steps:
        ranks[0].events.append((step, DISPATCH, begin, begin + MS, here))
        ranks[1].events.append((step, DISPATCH, begin + 3 * MS, begin + 4 * MS, there))
    for rank in ranks[:2]:
        rank.events.sort(key=lambda event: event[0])
    folder = write_run(tmp_path / "r", ranks)
    said = ("5 findings, most often: rank 1: step 0, flow 9 from rank 1 to rank 0 and 4 more: a "
            "message arrives before it is sent")
    assert said in " ".join(inside("summary", folder).stdout.split())
    (run,) = json.loads(inside("summary", folder, "--json").stdout)["runs"]
    assert [finding["count"] for finding in run["findings"]] == [5]
    assert run["worst_finding"] in said
    assert inside("report", folder, "--output", tmp_path / "r.html").returncode == 0
    health = (tmp_path / "r.html").read_text().split("Can the traces be trusted?")[1]
    assert said in health.split("</article>")[0]
