# SPDX-License-Identifier: Apache-2.0
"""Clocks of ranks: what is planted in them comes out, and none is off by more than is said."""

import numpy as np
import pytest
from neutral_traces import MS, ddp, pipeline

import cadenza
from cadenza.report.health import health
from cadenza.sources.align import Clock, clocks
from cadenza.sources.importing import import_run
from cadenza.sources.meetings import matched
from cadenza.sources.neutral import frame
from cadenza.sources.neutral_files import write
from cadenza.summary import summarize

BEGIN = 10**9
OFFSET = (0, 11_560_000_000, -3 * MS, 700_000)  # of ranks' clocks, ns
PPM = 50
DRIFT = (0.0, PPM * 1e-6, -PPM / 2 * 1e-6, PPM / 3 * 1e-6)


def seen(time, rank, drifts=True):
    """What a rank's clock shows."""
    return int(time + OFFSET[rank] + round(DRIFT[rank] * drifts * (time - BEGIN)))


def met(count, span, drifts, random):
    """Three ranks leave collectives, which takes them some us."""
    return [{"rank": rank, "kind": "collective", "group": "a", "members": "0,1,2",
             "sequence": number, "name": "all_gather", "begin_ns": seen(time - MS, rank, drifts),
             "end_ns": seen(time + abs(random.normal(0, 10_000)), rank, drifts)}
            for number in range(count) for time in [BEGIN + span * (number + 0.5) / count]
            for rank in range(3)]


def sent(stages, steps, span, drifts, random):
    """Forth and back through a pipeline, four microbatches each. A message takes 1 ms, and often
    waits for a rank that is at work."""
    rows, number = [], 0
    for turn, time in enumerate(np.linspace(BEGIN, BEGIN + span, steps * 8 * stages)):
        at = turn % stages
        if at == stages - 1:
            continue
        back = turn // (4 * stages) % 2
        sender, receiver = (at, at + 1) if not back else (stages - 1 - at, stages - 2 - at)
        took = MS + random.exponential(MS / 10)
        took += random.exponential(20 * MS) * (random.random() < 0.5)
        for rank, kind, end in ((sender, "send", time), (receiver, "receive", time + took)):
            rows.append({"rank": rank, "kind": kind, "peer": sender + receiver - rank, "group": "p",
                         "sequence": number, "name": kind, "begin_ns": seen(time, rank, drifts),
                         "end_ns": seen(end, rank, drifts)})
        number += 1
    return rows


def errors(rows, span, drifts):
    """By rank: its clock, by how much times on it are wrong, and by how much they may be."""
    times = [BEGIN, BEGIN + span // 2, BEGIN + span]
    for rank, clock in _clocks(rows).items():
        mine = np.array([seen(time, rank, drifts) for time in times])
        wrong = np.abs(clock.aligned(mine) - times).max()
        yield rank, clock, wrong, clock.over((int(mine[0]), int(mine[-1]))).error_ns


@pytest.mark.parametrize("drifts", [True, False])
@pytest.mark.parametrize("count", [1, 2, 5, 6, 9, 19, 40])
def test_few_meetings_tell_a_drift_or_say_what_it_may_be(count, drifts):
    span = 10**10
    for seed in range(4):
        for rank, clock, wrong, most in errors(
                met(count, span, drifts, np.random.default_rng(seed)), span, drifts):
            assert wrong <= most and clock.drift_known == (count >= 6 or rank == 0)
            if count >= 6:
                assert clock.drift * 1e6 == pytest.approx(-DRIFT[rank] * drifts * 1e6, abs=30)
                assert most < 300_000 and (drifts or clock.drift == 0.0)
            elif rank:
                assert 3e-4 * span / 2 <= most < 3e-4 * span


@pytest.mark.parametrize("drifts", [True, False])
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize(("steps", "seconds"), [(3, 3), (8, 10), (30, 60), (30, 600)])
def test_messages_alone_tell_a_drift_or_say_what_it_may_be(stages, steps, seconds, drifts):
    span = seconds * 10**9
    for seed in range(3):
        rows = sent(stages, steps, span, drifts, np.random.default_rng(seed))
        for rank, clock, wrong, most in errors(rows, span, drifts):
            assert wrong <= most <= rank * (2 * MS + 3e-4 * span)
            if drifts and seconds == 600:
                assert clock.drift * 1e6 == pytest.approx(-DRIFT[rank] * 1e6, abs=2)


def test_a_clock_is_found_through_others():
    """Rank 2 meets only rank 1; of four wrong times in ten none matters."""
    random = np.random.default_rng(1)
    rows = []
    for number in range(100):
        for group, members in (("a", (0, 1)), ("b", (1, 2))):
            end = 10**9 + number * 10**8 + (10**7 if group == "b" else 0)
            late = int(random.integers(0, 50_000_000)) if number % 5 < 2 else 0
            for rank in members:
                moved = {0: 0, 1: 700_000, 2: -9_000_000}[rank] + late * (rank == members[1])
                rows.append({"rank": rank, "kind": "collective", "group": group,
                             "members": ",".join(map(str, members)), "sequence": number,
                             "name": "all_gather", "begin_ns": end - 1000 + moved,
                             "end_ns": end + moved})
    found = _clocks(rows)
    assert found[0].offset_ns == 0
    assert found[1].offset_ns == pytest.approx(-700_000, abs=1000)
    assert found[2].offset_ns == pytest.approx(9_000_000, abs=2000)


def test_a_clock_of_messages_alone():
    """Both ways take at least 2 ms; the clock is off by 30 ms."""
    rows = []
    for number in range(20):
        for sender, receiver in ((0, 1), (1, 0)):
            begin = 10**9 + number * 10**8 + sender * 5 * 10**7
            for rank, kind, at in ((sender, "send", 0), (receiver, "receive", 2 * MS + number)):
                moved = 30 * MS if rank == 1 else 0
                rows.append({"rank": rank, "kind": kind, "peer": sender + receiver - rank,
                             "group": "p", "sequence": number, "begin_ns": begin + moved,
                             "end_ns": begin + at + moved, "name": kind})
    found = _clocks(rows)
    assert found[1].offset_ns == pytest.approx(-30 * MS, abs=1000)
    assert found[1].residual_ns >= MS  # what a message takes is not known to be equal both ways


def _clocks(rows):
    columns = {name: [row.get(name, default) for row in rows] for name, default in {
        "rank": 0, "kind": "", "group": "", "members": "", "sequence": -1, "peer": -1, "name": "",
        "begin_ns": 0, "end_ns": 0}.items()}
    events = frame(columns, len(rows))
    return clocks(events, matched(events, np.zeros(len(events), int)))


def test_a_clock_is_no_surer_than_that_beside_which_it_was_found():
    """Found 10 s after what tells of the other, which may drift by 100 ppm."""
    other = Clock(500, 0.0, 0, 1000.0, 1e-4)
    both = Clock(300, 2e-6, 10**10, 20.0).beside(other).over((10**10, 10**10 + 10**9))
    assert (both.offset_ns, both.drift) == (800, 2e-6)
    assert both.error_ns == pytest.approx(1020 + 1e-4 * (10**10 + 10**9), abs=1)


def imported(tmp_path, traces):
    (tmp_path / "traces").mkdir(parents=True)
    for trace in traces:
        write(trace, tmp_path / "traces" / f"{trace.rank}.arrow")
    said = import_run([tmp_path / "traces"], tmp_path / "run")
    study = cadenza.Study(cadenza.open(tmp_path / "run"))
    rows = {row[0]: row[1] for row in health([study], ["run"], [summarize(study)]).rows}
    return [line for line in said if "clock" in line], rows["clocks off by at most"]


def test_what_clocks_may_be_off_by_is_said(tmp_path):
    lines, most = imported(tmp_path / "sure", ddp(2, steps=10))
    assert lines == [] and most == "0 s"
    traces = pipeline(steps=6)
    times = ["begin_ns", "end_ns", "enqueued_ns"]
    traces[1].events[times] += 30 * MS
    lines, most = imported(tmp_path / "messages", traces)
    assert lines == ["The drift of the clock of rank 1 cannot be told from 48 meetings with "
                     f"others: all in all, times may be off by up to {most}."]
    lines, most = imported(tmp_path / "alone", [ddp(2, steps=3)[0], pipeline(steps=3)[1]])
    assert lines == ["Nothing that rank 1 did with others tells how far a clock is off: it is "
                     "taken to be right."]
    assert most == "0 s; not known of rank 1"
