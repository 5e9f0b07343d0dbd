# SPDX-License-Identifier: Apache-2.0
import h5py
import pytest
from conftest import two_ranks
from trace_files import (
    ATTENTION,
    DENSE,
    DISPATCH,
    HOST,
    HOST_LANE,
    NON_BLOCKING,
    RECEIVE,
    SEND,
    SENDS,
    Rank,
    write_run,
)

import cadenza
from cadenza.checks import check


def findings(tmp_path, *ranks, **options):
    return check(cadenza.open(write_run(tmp_path / "r", list(ranks), **options)))


def rank(number, *events, **options):
    return Rank(number, [(0, *e) for e in events], [(0, 0, 100)], **options)


def pair(sent, received, sender=1, size=(64, 64), flow=(7, 7)):
    """Two ranks and a message of attention from one to the other."""
    there = {"flags": NON_BLOCKING | SENDS, "peer": 0, "flow": flow[0], "bytes": size[0]}
    here = {"flags": NON_BLOCKING, "peer": sender, "flow": flow[1], "bytes": size[1]}
    return rank(0, (DISPATCH, *received, here)), rank(1, (DISPATCH, *sent, there))


def test_sound_traces(run_folder, tmp_path):
    assert check(cadenza.open(run_folder)) == []
    assert findings(tmp_path, *pair((10, 20), (5, 30))) == []
    assert check(cadenza.open(write_run(tmp_path / "none", [Rank(0, [], [(0, 0, 9)])]))) == []


def test_ranks_without_a_trace(tmp_path):
    folder = write_run(tmp_path / "r", [rank(0, (DENSE, 0, 50)), rank(2, (DENSE, 0, 50))], world=12)
    (folder / "trace/rank-00002.h5").write_bytes(b"")
    found = check(cadenza.open(folder))
    assert [finding.rank for finding in found] == [*range(1, 9), -1]
    assert found[0].what == "its trace is missing or cannot be read"
    assert found[8].what == "the traces of 3 more ranks are missing or cannot be read"


def test_a_trace_that_was_cut_off(tmp_path):
    run = cadenza.open(write_run(tmp_path / "r", [rank(0, (DENSE, 0, 50)), rank(1)]))
    run.files[1].ended, run.files[1].truncated = False, True  # as of a killed writer
    (found,) = check(run)
    assert found.rank == 1 and "did not end cleanly" in found.what


def test_host_events_may_lie_between_steps(tmp_path):
    assert findings(tmp_path, rank(0, (DENSE, 0, 50), (HOST, 90, 130, {"lane": HOST_LANE}))) == []


WRONG = {
    "an event ends before it begins": [rank(0, (DENSE, 50, 40))],
    "an event lies outside its step": [rank(0, (DENSE, 90, 130))],
    "two events of a lane overlap": [rank(0, (DENSE, 10, 40), (ATTENTION, 30, 60))],
    "a message is not received": pair((10, 20), (5, 30), flow=(7, 8)),
    "a message was not sent": pair((10, 20), (5, 30), flow=(7, 8)),
    "bytes sent and received differ": pair((10, 20), (5, 30), size=(64, 65)),
    "steps are not contiguous": [Rank(0, [], [(0, 0, 9), (2, 9, 18)])],
    "a step begins before the last ended": [Rank(0, [], [(0, 0, 9), (1, 8, 18)])],
    "a step ends before it begins": [Rank(0, [], [(0, 9, 3)])],
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_traces(what, tmp_path):
    found = findings(tmp_path, *WRONG[what])
    assert what in {finding.what for finding in found}, found
    assert "step" in found[0].where


def test_a_message_cannot_arrive_before_it_is_sent(tmp_path):
    """Beyond the error of the clocks: half the round trip of 1000 ns on both ranks, and 1 us."""
    late = 2_000_000
    here = {"flags": NON_BLOCKING, "peer": 1, "flow": 3}
    there = {"flags": NON_BLOCKING | SENDS, "peer": 0, "flow": 3}
    for ahead, wrong in ((1900, False), (2100, True)):
        ends = [
            Rank(0, [(0, DISPATCH, 10, late - ahead, here)], [(0, 0, 2 * late)]),
            Rank(1, [(0, DISPATCH, late, late + 9, there)], [(0, 0, 2 * late)]),
        ]
        found = findings(tmp_path / str(ahead), *ends)
        assert [f.what for f in found] == ["a message arrives before it is sent"] * wrong


def test_ends_of_a_stream_belong_together(tmp_path):
    option = {"flags": NON_BLOCKING, "flow": 4, "bytes": 8}
    sound = [rank(0, (SEND, 0, 5, {"peer": 1, **option})),
             rank(1, (RECEIVE, 0, 9, {"peer": 0, **option}))]
    assert findings(tmp_path, *sound) == []
    # With the other rank's file missing nothing is said about its messages.
    (found,) = findings(tmp_path / "alone", sound[0], world=2)
    assert found.what == "its trace is missing or cannot be read"


def test_memory_and_plans(tmp_path):
    folder = write_run(tmp_path / "memory", [rank(0)])
    with h5py.File(folder / "trace" / "rank-00000.h5", "r+") as file:
        rows = file["memory/highwater"][:]
        rows["peak_total_bytes"] *= 2
        file["memory/highwater"][:] = rows
    found = check(cadenza.open(folder))
    assert [f.what for f in found] == ["peak memory contradicts that of its kinds"]
    row = (0, 0, -1, 0, 0, 0, 1, 0, 5.0, 0, 0, 0.0, 0.0)
    plan = [(0, 0, 2.0), (0, 0, 2.0)]
    found = findings(tmp_path / "plan", rank(0, plan=plan, summary=[row]))
    assert [f.what for f in found] == ["the cost in /plan differs from that in /plan_summary"]
    right = (*row[:8], 4.0, *row[9:])
    backward = (0, 1, -1, 1, *row[4:])  # a tick without a forward phase: not in the plan's summary
    assert findings(tmp_path / "sound", rank(0, plan=plan, summary=[right, backward])) == []
    other_tick = (0, 1, *right[2:])
    assert findings(tmp_path / "other", rank(0, plan=plan, summary=[right, other_tick])) == []


def test_bytes_of_a_step(tmp_path):
    unequal = [rank(0, flops={"bytes_sent": 10}), rank(1, flops={"bytes_received": 9})]
    assert [f.where for f in findings(tmp_path, *unequal)] == ["step 0: 10 and 9"]
    (found,) = findings(tmp_path / "alone", unequal[0], world=2)
    assert found.what == "its trace is missing or cannot be read"


def test_the_same_of_many_steps_is_one_finding(tmp_path):
    ranks = two_ranks()
    ranks[0].events += [(s, DENSE, 1000 + 100 * s + 99, 1000 + 100 * s + 120) for s in (0, 1)]
    ranks[0].events.sort(key=lambda event: event[0])
    found = [f for f in findings(tmp_path, *ranks) if "outside" in f.what]
    assert len(found) == 1 and found[0].where.endswith("and 1 more") and found[0].rank == 0
