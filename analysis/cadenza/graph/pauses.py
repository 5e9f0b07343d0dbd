# SPDX-License-Identifier: Apache-2.0
"""Ranks that stood still: stopped, swapped out or without a core, whatever they were at.

A writer records of each operation for how long its thread neither had its processor nor looked at
messages (docs/trace.md, still_ns). On a shared machine that is never 0: what a computation loses
is compared with what the rank loses for each of its seconds, and short pauses are no news.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from cadenza.graph.lanes import COMPUTE, GAP, Lanes

LEAST_NS = 50_000_000  # a pause: longer than turns at a core that others want too
_LEAST_SHARE = 0.02  # of the step: shorter ones are not worth a word
SHORT_NS = 1_000_000  # what computes for less says little about the share of a core
FEWEST = 4  # computations that say what is usual
_READS = "data"  # category: who waits for a disk does stand still, but for a reason of its own
_BETWEEN = ("write_step", "measure_clock", "save_checkpoint", "validate")
_STILL = ("save_checkpoint", "validate")  # wait for disks, and for one another
COLUMNS = ["step", "phase", "rank", "category", "name", "seconds"]


def standstills(lanes: Lanes) -> tuple[np.ndarray, np.ndarray]:
    """Long pauses of a step.

    @returns per node the ns for which its rank stood still in it, and the row of the event that
             says so, or -1
    """
    lost, row_of = np.zeros(len(lanes.rank)), np.full(len(lanes.rank), -1)
    events = lanes.events
    least = max(LEAST_NS, _LEAST_SHARE * lanes.span)
    still = np.maximum(events["still_ns"].to_numpy(np.int64), 0).astype(float)
    long = np.flatnonzero((still > least) & (events["category"] != _READS).to_numpy())
    if not len(long):
        return lost, row_of
    still -= _usual(events, still)
    for row in long[still[long] > least]:
        node, took = _node_of(lanes, row)
        if took > 0:
            lost[node], row_of[node] = min(still[row], took), row
    return lost, row_of


def _node_of(lanes: Lanes, row: int) -> tuple[int, int]:
    """The longest node of an event, or, of the host's lane, of the gap around it; and how much of
    the node's time is the event's, ns."""
    event = lanes.events.iloc[row]
    begin, end = event["begin_ns"] - lanes.origin, event["end_ns"] - lanes.origin
    nodes = np.flatnonzero(lanes.event == row)
    if not len(nodes):
        gaps = (lanes.kind == GAP) & (lanes.ranks[lanes.rank] == event["rank"])
        nodes = np.flatnonzero(gaps & (lanes.begin < end) & (lanes.end > begin))
    if not len(nodes):
        return 0, 0
    took = np.minimum(lanes.end[nodes], end) - np.maximum(lanes.begin[nodes], begin)
    return int(nodes[took.argmax()]), int(took.max())


def _usual(events: pd.DataFrame, still: np.ndarray) -> np.ndarray:
    """Per event the ns that its rank stands still in as much computing; 0 for what waits, which
    looks at its messages whenever it has its core."""
    took = (events["end_ns"] - events["begin_ns"]).to_numpy(float)
    ran = np.maximum(took - still, 1.0)
    computes = events["category"].isin(COMPUTE).to_numpy()
    known = computes & (took > SHORT_NS)
    each = pd.Series(still[known] / ran[known]).groupby(events["rank"].to_numpy()[known])
    share = each.median().where(each.size() >= FEWEST)  # of few, the pause itself is the median
    return np.where(computes, ran * events["rank"].map(share).fillna(0.0).to_numpy(), 0.0)


def held(lanes: Lanes, pause: np.ndarray, meetings, ready: np.ndarray, spare: np.ndarray):
    """Per end of a meeting the ns of its transfer in which another of its ranks stood still.

    @param pause  per node: ns for which its rank stood still
    @param ready  per meeting: when its last rank posted
    @param spare  per end: ns of its transfer that are more than it needs
    """
    found = np.zeros(len(meetings.end_meeting))
    begin = ready[meetings.end_meeting]
    end = lanes.end[meetings.end_node]
    for node in np.flatnonzero(pause):
        rank = lanes.rank[node]
        whose = np.zeros(meetings.count, bool)
        whose[meetings.post_meeting[lanes.rank[meetings.post_node] == rank]] = True
        mine = whose[meetings.end_meeting] & (lanes.rank[meetings.end_node] != rank)
        both = np.minimum(end, lanes.end[node]) - np.maximum(begin, lanes.begin[node])
        lost = np.minimum(np.minimum(both, pause[node]), spare)
        found = np.where(mine, np.maximum(found, lost), found)
    return found


def pauses(graph) -> pd.DataFrame:
    """The pauses of a step, longest first.

    @param graph  graph.StepGraph
    @returns step, phase, rank, category, name, seconds (by which the rank was late for it: of a
             wait, those after its messages had come)
    """
    lanes = graph.lanes
    node = np.flatnonzero(graph.pause)
    rows = lanes.events.iloc[graph.pause_event[node]]
    frame = pd.DataFrame({name: rows[name].astype(object).to_numpy()
                          for name in ("phase", "category", "name")})
    frame["phase"] = frame["phase"].where(frame["phase"] != "recompute", "backward")
    frame = frame.assign(
        step=graph.step, rank=lanes.ranks[lanes.rank[node]], seconds=graph.pause[node] / 1e9
    )
    return frame[COLUMNS].sort_values("seconds", ascending=False, ignore_index=True)


def unexplained_gaps(
    windows: pd.DataFrame, outside: pd.DataFrame, steps: Sequence[int]
) -> pd.DataFrame:
    """What others have more of is their late start: no two clocks are compared.

    @param windows  between.gap_windows()
    @param outside  between.outside_steps()
    @returns seconds between each of the steps and the one before it that nothing explains, of the
             rank with the least, by step, and how many of them each rank is known to have stood
             still for, by its number
    """
    stood = stood_between_steps(outside)
    gaps = (windows["end_ns"] - windows["begin_ns"]).groupby(windows["step"]).min() / 1e9
    known = stood.groupby("step")["known"].first().reindex(gaps.index).fillna(0.0)
    still = stood.pivot_table(index="step", columns="rank", values="still")
    return (gaps - known)[gaps.index.isin(steps)].rename("seconds").to_frame().join(still)


def stood_between_steps(outside: pd.DataFrame) -> pd.DataFrame:
    """What ranks do between a step and the one before it.

    @param outside  between.outside_steps()
    @returns step, rank, still (seconds that the rank stood still for, without checkpoints and
             validation, which wait for disks and other ranks), known (what all ranks had to do
             there takes so long)
    """
    host = outside[outside["name"].isin(_BETWEEN)]
    still = host["still_ns"].where(
        (host["still_ns"] > LEAST_NS) & ~host["name"].isin(_STILL), 0)
    host = host.assign(still=still / 1e9,
                       known=(host["end_ns"] - host["begin_ns"] - still) / 1e9)
    sums = host.groupby(["step", "name", "rank"])[["still", "known"]].sum()
    known = sums["known"].groupby(["step", "name"]).agg(["min", "max"])
    # All begin and end these together, but for the trace, which each writes alone.
    alone = known.index.get_level_values("name") == "write_step"
    known = known["max"].where(alone, known["min"]).groupby("step").sum()
    found = sums["still"].groupby(["step", "rank"]).sum().reset_index()
    return found.assign(known=found["step"].map(known).astype(float))


def taken_off(graph, members: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ns that the graph's `own`, `rest` and `transfer` would have less, had some ranks not stood
    still. @param members  world ranks"""
    world = graph.lanes.ranks[graph.lanes.rank]
    pause = np.where(np.isin(world, members), graph.pause, 0.0)
    works = graph.own > 0
    # What pauses held up is not told apart by who held it up.
    all_of_them = np.isin(world[graph.pause > 0], members).all()
    held = graph.held if all_of_them else np.zeros(len(graph.held))
    return np.where(works, pause, 0.0), np.where(works, 0.0, pause), held


def without(graph) -> float:
    """Seconds of the step, had no rank stood still."""
    own, rest, transfer = taken_off(graph, graph.lanes.ranks)
    seconds = graph.replayed_seconds(graph.own - own, graph.rest - rest, graph.transfer - transfer)
    return float(seconds[0])
