# SPDX-License-Identifier: Apache-2.0
"""Ranks that stood still, in frames where the truth is known."""

import pandas as pd
import pytest
from step_frames import MS, Cluster, graph_of

from cadenza.graph.pauses import COLUMNS, pauses
from cadenza.causes.stragglers import stragglers, wait_causes
from cadenza.causes.what_if import what_if

PAUSE = 400.0  # ms


def found(graph):
    frame = pauses(graph)
    return frame[["rank", "phase", "name"]].values.tolist(), frame["seconds"].tolist()


def judged(graph):
    causes = wait_causes(graph)
    return stragglers(graph.lanes.events, graph.ranks, causes, paused=pauses(graph))


def data_parallel(pause_at=None, still=PAUSE):
    """Both ranks compute 100 ms ten times, then meet; rank 1 stands still in one of them."""
    rows = []
    for rank in range(2):
        now = 0.0
        for number in range(10):
            stops = rank == 1 and number == pause_at
            took = 100.0 + (still if stops else 0)
            rows.append({"rank": rank, "begin": now, "end": now + took, "flops": 1.0,
                         "still_ns": round(still * MS) if stops else 0})
            now += took
    last = max(row["end"] for row in rows)
    for rank in range(2):
        mine = max(row["end"] for row in rows if row["rank"] == rank)
        rows.append({"rank": rank, "begin": mine, "end": last, "category": "wait",
                     "name": "wait_for_ranks", "still_ns": 0})
        rows.append({"rank": rank, "begin": last, "end": last + 1, "category": "collective",
                     "name": "sum", "flow": 7, "still_ns": 0})
    return rows


def test_a_pause_in_a_computation_is_not_a_slow_rank():
    graph = graph_of(data_parallel(pause_at=4))
    assert found(graph) == ([[1, "forward", "work"]], [pytest.approx(PAUSE / 1e3)])
    row = judged(graph).iloc[0]
    assert (row["rank"], row["why"]) == (1, "paused")
    assert row["late_seconds"] == pytest.approx(PAUSE / 1e3)
    assert row["explanation"].startswith("rank 1: stood still for 0.4 s in work")
    frame = what_if(graph).set_index("scenario")
    assert frame.loc["no rank stands still", "saved_seconds"] == pytest.approx(PAUSE / 1e3)
    assert "rank as fast as the median" not in frame.index  # it is not slow
    assert frame.loc["as recorded", "seconds"] == pytest.approx(graph.seconds)


def test_without_pauses_nothing_is_said():
    graph = graph_of(data_parallel())
    assert found(graph) == ([], [])
    assert "no rank stands still" not in set(what_if(graph)["scenario"])
    assert set(judged(graph)["why"]) == {"none"}


def test_a_rank_that_shares_its_core_does_not_stand_still():
    """Half of the time of everything that rank 1 computes, without a long stop: it is slow."""
    rows = data_parallel()
    for row in rows:
        if row["rank"] == 1 and row.get("flops"):
            row["begin"], row["end"], row["still_ns"] = 2 * row["begin"], 2 * row["end"], 100 * MS
        elif "flops" not in row:
            if row["name"] == "sum" or row["rank"] == 1:
                row["begin"] = 2000.0
            row["end"] = 2001.0 if row["name"] == "sum" else 2000.0
    graph = graph_of(rows)
    assert found(graph) == ([], [])
    row = judged(graph).iloc[0]
    assert (row["rank"], row["why"]) == (1, "rate")


def test_a_pause_is_not_usual_because_all_else_is_short():
    """Computations of less than a millisecond say little of what a core loses, but the one that the
    pause makes longer than that says nothing either."""
    rows = data_parallel(pause_at=4)
    for row in rows:
        row["begin"], row["end"] = row["begin"] / 1000, row["end"] / 1000
    now = 0.0
    for row in (row for row in rows if row["rank"] == 1 and "flops" in row):
        row["begin"], row["end"] = now, now + 0.1 + row["still_ns"] / MS
        now = row["end"]
    for row in (row for row in rows if "flops" not in row):
        row["begin"] = row["begin"] if row["name"] != "sum" and row["rank"] == 0 else now
        row["end"] = now + (0.1 if row["name"] == "sum" else 0.0)
    assert found(graph_of(rows)) == ([[1, "forward", "work"]], [pytest.approx(PAUSE / 1e3)])


def test_a_wait_that_ends_late_though_its_message_came_is_a_pause():
    """Rank 1 waits for rank 0's first message, which comes after 101 ms, until 501."""
    rows = Cluster([[("work", "a", 100.0), ("send", 1), ("work", "b", 100.0)],
                    [("receive", 0), ("work", "a", 100.0)]], travel=1.0).rows
    for row in rows:
        row["still_ns"] = 0
        if row["rank"] == 1 and row["begin"] >= 101.0:
            row["begin"] += PAUSE
        if row["rank"] == 1:
            row["end"] += PAUSE
        if row["rank"] == 1 and row.get("category") == "wait":
            row["still_ns"] = round((PAUSE + 20) * MS)  # it stood still 20 ms before it came
    graph = graph_of(rows, pipeline=range(2))
    names, seconds = found(graph)
    assert names == [[1, "forward", "wait_for_stage"]]
    assert seconds == [pytest.approx(PAUSE / 1e3, abs=2e-3)]
    row = judged(graph).iloc[0]
    assert (row["rank"], row["why"]) == (1, "paused")
    frame = what_if(graph).set_index("scenario")
    assert frame.loc["no rank stands still", "seconds"] == pytest.approx(0.201, abs=2e-3)


def test_a_pause_while_there_is_nothing_to_do_costs_nothing():
    """Rank 1 stands still for 80 of the 101 ms that it waits for its message."""
    rows = Cluster([[("work", "a", 100.0), ("send", 1)],
                    [("receive", 0), ("work", "a", 100.0)]], travel=1.0).rows
    for row in rows:
        row["still_ns"] = 80 * MS if row["rank"] == 1 and row.get("category") == "wait" else 0
    graph = graph_of(rows, pipeline=range(2))
    assert sum(found(graph)[1]) == pytest.approx(0, abs=2e-3)
    assert "paused" not in set(judged(graph)["why"])


def test_who_stops_within_a_collective_is_named_not_who_waits_there():
    rows = data_parallel()
    for row in rows:
        if row.get("name") == "sum":
            row["end"] += PAUSE
            row["still_ns"] = round(PAUSE * MS) if row["rank"] == 0 else 0
    graph = graph_of(rows)
    assert found(graph)[0] == [[0, "forward", "sum"]]
    frame = what_if(graph).set_index("scenario")
    assert frame.loc["no rank stands still", "saved_seconds"] == pytest.approx(PAUSE / 1e3)


def test_the_only_message_of_a_step_teaches_no_rate_if_it_was_held_up():
    """Rank 0 posts its part 2 ms after rank 1, which then stands still until 1402 ms."""
    rows = [row for row in data_parallel() if row.get("name") not in ("sum", "wait_for_ranks")]
    rows.append({"rank": 0, "begin": 1000.0, "end": 1002.0, "name": "more", "still_ns": 0})
    for rank, begin in ((0, 1002.0), (1, 1000.0)):
        rows.append({"rank": rank, "begin": begin, "end": 1002.5 + PAUSE, "category": "wait",
                     "name": "reduce", "still_ns": round(PAUSE * MS) * rank})
        rows.append({"rank": rank, "begin": begin + 0.02, "end": 1002.4 + PAUSE, "flow": 9,
                     "category": "collective", "lane": "communication", "bytes": 1 << 20,
                     "non_blocking": True, "name": "message", "still_ns": -1})
    graph = graph_of(rows)
    assert found(graph) == ([[1, "forward", "reduce"]], [pytest.approx(PAUSE / 1e3, abs=3e-3)])
    row = judged(graph).iloc[0]
    assert (row["rank"], row["why"]) == (1, "paused")


def test_pauses_of_the_host_lane_lie_in_a_gap():
    """Rank 1 stops in MPI's progress, between two operations."""
    rows = data_parallel()
    for row in rows:
        if row["rank"] == 1 and row["begin"] >= 500.0:
            row["begin"] += PAUSE
        if row["rank"] == 1 and row["end"] > 500.0:
            row["end"] += PAUSE
    for row in rows:
        if row.get("name") in ("sum", "wait_for_ranks") and row["rank"] == 0:
            row["begin"] += PAUSE if row["name"] == "sum" else 0
            row["end"] += PAUSE
    rows.append({"rank": 1, "begin": 500.0, "end": 500.0 + PAUSE, "category": "host",
                 "lane": "host", "name": "progress", "still_ns": round(PAUSE * MS)})
    graph = graph_of(rows)
    assert found(graph) == ([[1, "forward", "progress"]], [pytest.approx(PAUSE / 1e3)])
    frame = what_if(graph).set_index("scenario")
    assert frame.loc["no rank stands still", "saved_seconds"] == pytest.approx(PAUSE / 1e3)


def test_late_reading_of_data_is_named():
    rows = []
    for rank, reads in enumerate((1.0, 60.0)):
        rows.append({"rank": rank, "begin": 0.0, "end": reads, "category": "data", "name": "load"})
        rows.append({"rank": rank, "begin": reads, "end": reads + 100.0, "flops": 1.0})
    graph = graph_of(rows, pipeline=range(2))
    row = judged(graph).iloc[0]
    assert (row["rank"], row["why"]) == (1, "input")
    assert row["explanation"] == "rank 1: its data loading takes longer"
    frame = what_if(graph)
    assert frame.loc[frame["rank"] == 1, "saved_seconds"].item() == pytest.approx(0.059)


def test_reading_says_nothing_of_how_fast_a_rank_computes():
    """Both read, the rest each does alone: three times as long a read makes nothing slow."""
    rows = []
    for rank, reads in enumerate((0.01, 0.03)):
        rows.append({"rank": rank, "begin": 0.0, "end": reads, "category": "data", "name": "load"})
        rows.append({"rank": rank, "begin": reads, "end": reads + 100.0, "flops": 1.0,
                     "name": f"stage {rank}"})
    graph = graph_of(rows, pipeline=range(2))
    assert judged(graph).iloc[0]["late_seconds"] == pytest.approx(0.02e-3)
    assert judged(graph).iloc[0]["why"] == "none"
    frame = what_if(graph)
    assert not (frame.loc[frame["rank"] >= 0, "saved_seconds"] > 1e-3).any()


def test_a_phase_of_pauses_alone():
    """Who waits there computes nothing that others could be compared with."""
    graph = graph_of(data_parallel())
    paused = pd.DataFrame([(0, "other", 1, "host", "checkpoint", 1e-5)], columns=COLUMNS)
    waits = pd.DataFrame([(0, "other", 0, 1, 0.05)],
                         columns=["step", "phase", "rank", "cause", "seconds"])
    found = stragglers(graph.lanes.events, graph.ranks, waits, paused=paused)
    row = found.set_index("phase").loc["other"]
    assert (row["rank"], row["why"]) == (0, "waiting")
