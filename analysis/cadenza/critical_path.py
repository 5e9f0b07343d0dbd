# SPDX-License-Identifier: Apache-2.0
"""The chain of operations and messages that a step's time is made of."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.graph import StepGraph
from cadenza.lanes import GAP, OPERATION

_COLUMNS = ["category", "phase", "name", "microbatch", "layer"]


def critical_path(graph: StepGraph) -> pd.DataFrame:
    """Pieces without a gap between them, in the order of time, that sum to the step's time.

    It goes back from the operation that ends last: where a rank waited, to the rank that came last
    and from there on; the piece between is the message (or collective), of the rank that waited.
    A gap is time of a rank in which nothing is recorded.

    @returns rank, begin_ns, end_ns, kind (operation, message or gap), category, phase, name,
             microbatch, layer; names are empty and numbers -1 where they do not apply
    """
    lanes, decides = graph.lanes, _deciding(graph)
    poster = _last_posters(graph)
    pieces: list[tuple[int, int, int, int]] = []  # node or -1, event, begin, end
    node = int(np.argmax(lanes.end))
    now = int(lanes.end[node])
    while True:
        end = int(decides[node])
        if end >= 0:
            meeting = graph.meetings.end_meeting[end]
            ready = min(int(graph.ready[meeting]), now)
            pieces.append((node, int(graph.meetings.end_event[end]), ready, now))
            node = int(graph.meetings.post_node[poster[meeting]])
            over = min(int(lanes.end[node]), ready)
            pieces.append((node + 1, -1, over, ready))  # it posted before the next node was over
            now = over
            continue
        before = min(int(lanes.begin[node]), now)
        pieces.append((node, int(lanes.event[node]), before, now))
        now = before
        if node == 0 or lanes.rank[node - 1] != lanes.rank[node]:
            pieces.append((node, -1, 0, now))  # others had begun before this rank did
            break
        node -= 1
    return _path_frame(graph, [piece for piece in reversed(pieces) if piece[3] > piece[2]])


def _deciding(graph: StepGraph) -> np.ndarray:
    """Per node the end of a meeting that came last, or -1 where the node waited for none."""
    meetings = graph.meetings
    there = graph.ready[meetings.end_meeting] + graph.transfer
    order = np.lexsort((there, meetings.end_node))
    node = meetings.end_node[order]
    latest = order[np.flatnonzero(np.append(node[1:] != node[:-1], True))] if len(order) else order
    decides = np.full(len(graph.own), -1)
    decides[meetings.end_node[latest]] = latest
    begins = graph.lanes.begin[meetings.end_node[latest]] + graph.own[meetings.end_node[latest]]
    decides[meetings.end_node[latest[there[latest] <= begins]]] = -1
    return decides


def _last_posters(graph: StepGraph) -> np.ndarray:
    """Per meeting the row of the post that came last; of several, one that nothing is open of."""
    meetings = graph.meetings
    open_ = meetings.post_time - graph.lanes.end[meetings.post_node]
    order = np.lexsort((-open_, meetings.post_time, meetings.post_meeting))
    last = np.full(meetings.count, -1)
    last[meetings.post_meeting[order]] = order
    return last


def _path_frame(graph: StepGraph, pieces: list[tuple[int, int, int, int]]) -> pd.DataFrame:
    lanes = graph.lanes
    node, event, begin, end = np.array(pieces, dtype=np.int64).reshape(-1, 4).T
    kind = np.where(event < 0, GAP, lanes.kind[node])
    names = lanes.events.iloc[np.maximum(event, 0)][_COLUMNS].reset_index(drop=True)
    for column in ("category", "phase", "name"):
        names[column] = names[column].astype(object).where(event >= 0, "")
    for column in ("microbatch", "layer"):
        names[column] = names[column].where(event >= 0, -1)
    return pd.DataFrame(
        {
            "rank": lanes.ranks[lanes.rank[node]],
            "begin_ns": begin + lanes.origin,
            "end_ns": end + lanes.origin,
            "kind": np.array(["operation", "message", "gap"])[kind],
            **names,
        }
    )


def path_shares(path: pd.DataFrame) -> pd.DataFrame:
    """What the path is made of.

    @returns kind, category, phase, seconds, share: longest first; shares sum to 1
    """
    spent = path.assign(seconds=(path["end_ns"] - path["begin_ns"]) / 1e9)
    sums = spent.groupby(["kind", "category", "phase"], as_index=False)["seconds"].sum()
    sums["share"] = sums["seconds"] / sums["seconds"].sum()
    return sums.sort_values("seconds", ascending=False, ignore_index=True)


def rank_switches(path: pd.DataFrame) -> int:
    """How often the path goes from a rank to another."""
    return int((path["rank"].to_numpy()[1:] != path["rank"].to_numpy()[:-1]).sum())


def longest_operations(path: pd.DataFrame, count: int = 10) -> pd.DataFrame:
    """Operations that the path spends most time in: rank, category, phase, name, count, seconds."""
    spent = path[path["kind"] == "operation"]
    spent = spent.assign(seconds=(spent["end_ns"] - spent["begin_ns"]) / 1e9)
    group = spent.groupby(["rank", "category", "phase", "name"])["seconds"]
    sums = group.agg(count="size", seconds="sum").reset_index()
    return sums.sort_values("seconds", ascending=False, ignore_index=True).head(count)


def slack(graph: StepGraph) -> pd.DataFrame:
    """By how much each operation could end later without the step taking longer.

    @returns rank, begin_ns, end_ns, category, phase, name, microbatch, layer, slack_ns
    """
    lanes = graph.lanes
    node = np.flatnonzero(lanes.kind == OPERATION)
    names = lanes.events.iloc[lanes.event[node]][_COLUMNS].reset_index(drop=True)
    left = graph.latest_ends()[node] - lanes.end[node]
    return pd.DataFrame(
        {
            "rank": lanes.ranks[lanes.rank[node]],
            "begin_ns": lanes.begin[node] + lanes.origin,
            "end_ns": lanes.end[node] + lanes.origin,
            **names,
            "slack_ns": np.round(left).astype(np.int64),
        }
    )
