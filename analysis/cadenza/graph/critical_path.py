# SPDX-License-Identifier: Apache-2.0
"""The chain of operations and messages that a step's time is made of."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.read.columns import one_of, rows_of
from cadenza.time import intervals
from cadenza.graph.graph import StepGraph
from cadenza.graph.lanes import GAP, OPERATION, Lanes

_COLUMNS = ["category", "phase", "name", "microbatch", "layer"]
_HOST = 3  # a kind of piece beside those of nodes


def critical_path(graph: StepGraph) -> pd.DataFrame:
    """Contiguous pieces, in the order of time, that sum to the step's time.

    It goes back from the operation that ends last: where a rank waited, to the rank that came last
    and from there on; the piece between is the message (or collective), of the rank that waited.
    Between operations the host may have been busy: planning, adding gradients, writing the trace.
    A gap is time of a rank in which nothing at all is recorded.

    @returns rank, begin_ns, end_ns, kind (operation, message, host or gap), category, phase, name,
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
    forward = [piece for piece in reversed(pieces) if piece[3] > piece[2]]
    return _path_frame(graph, np.array(forward, dtype=np.int64).reshape(-1, 4))


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
    """Per meeting the row of the post that came last; of several, one whose operation has ended."""
    meetings = graph.meetings
    open_ = meetings.post_time - graph.lanes.end[meetings.post_node]
    ready = np.full(meetings.count, np.iinfo(np.int64).min)
    np.maximum.at(ready, meetings.post_meeting, meetings.post_time)
    latest = np.flatnonzero(meetings.post_time == ready[meetings.post_meeting])
    order = latest[np.lexsort((-open_[latest], meetings.post_meeting[latest]))]
    last = np.full(meetings.count, -1)
    last[meetings.post_meeting[order]] = order
    return last


def _path_frame(graph: StepGraph, pieces: np.ndarray) -> pd.DataFrame:
    lanes = graph.lanes
    pieces = _with_host_work(lanes, pieces)
    node, event, begin, end = pieces.T
    host = one_of(lanes.events["lane"], "host")[np.maximum(event, 0)]
    kind = np.where(event < 0, GAP, np.where(host, _HOST, lanes.kind[node]))
    names = rows_of(lanes.events, np.maximum(event, 0), _COLUMNS)
    for column in ("category", "phase", "name"):
        names[column] = names[column].astype(object).where(event >= 0, "")
    for column in ("microbatch", "layer"):
        names[column] = names[column].where(event >= 0, -1)
    return pd.DataFrame(
        {
            "rank": lanes.ranks[lanes.rank[node]],
            "begin_ns": begin + lanes.origin,
            "end_ns": end + lanes.origin,
            "kind": np.array(["operation", "message", "gap", "host"])[kind],
            **names,
        }
    )


def _with_host_work(lanes: Lanes, pieces: np.ndarray) -> np.ndarray:
    """`pieces` (node, event, begin, end), where those without an event are cut at what the host
    lane of their rank has in their time."""
    empty = np.flatnonzero(pieces[:, 1] < 0)
    rows = np.flatnonzero(one_of(lanes.events["lane"], "host"))
    owner = np.searchsorted(lanes.ranks, lanes.events["rank"].to_numpy(np.int64)[rows])
    rows = rows[np.isin(owner, lanes.rank[pieces[empty, 0]])]
    if not len(rows):
        return pieces
    events = lanes.events.iloc[rows]
    begin, end = (events[name].to_numpy(np.int64) - lanes.origin for name in ("begin_ns", "end_ns"))
    owner = np.searchsorted(lanes.ranks, events["rank"].to_numpy(np.int64))
    found, of = intervals.innermost_of_lanes(begin, np.maximum(begin, end), owner)
    made = []
    for node, event, first, last in pieces.tolist():
        if event >= 0:
            made.append((node, event, first, last))
            continue
        mine = (owner[of] == lanes.rank[node]) & (found[:, 1] > first) & (found[:, 0] < last)
        made += _cut(node, first, last, found[mine], rows[of[mine]])
    return np.array(made, dtype=np.int64).reshape(-1, 4)


def _cut(node: int, first: int, last: int, found: np.ndarray, rows: np.ndarray) -> list[tuple]:
    """[first, last) as pieces: those of `found`, with their events, and the gaps between them."""
    made, now = [], first
    for (begin, end), row in sorted(zip(found.tolist(), rows.tolist(), strict=True)):
        begin, end = max(begin, now), min(end, last)
        made += [(node, -1, now, begin)] if begin > now else []
        made += [(node, row, begin, end)] if end > begin else []
        now = max(now, end)
    return made + ([(node, -1, now, last)] if last > now else [])


def path_shares(path: pd.DataFrame) -> pd.DataFrame:
    """What the path is made of.

    @returns kind, category, phase, seconds, share: longest first; shares sum to 1
    """
    spent = path.assign(seconds=(path["end_ns"] - path["begin_ns"]) / 1e9)
    sums = spent.groupby(["kind", "category", "phase"], as_index=False)["seconds"].sum()
    sums["share"] = sums["seconds"] / sums["seconds"].sum()
    return sums.sort_values("seconds", ascending=False, ignore_index=True)


def mean_shares(found: pd.DataFrame) -> pd.DataFrame:
    """path_shares() of several steps, as of one: seconds are means, shares are of their sum.

    @param found  path_shares() of each, with a column `step`
    """
    steps = found["step"].nunique()
    sums = found.groupby(["kind", "category", "phase"], as_index=False)["seconds"].sum()
    sums["seconds"] /= max(steps, 1)
    sums["share"] = sums["seconds"] / sums["seconds"].sum()
    return sums.sort_values("seconds", ascending=False, ignore_index=True)


def rank_switches(path: pd.DataFrame) -> int:
    """How often the path goes from a rank to another."""
    return int((path["rank"].to_numpy()[1:] != path["rank"].to_numpy()[:-1]).sum())


def switches_said(path: pd.DataFrame) -> str:
    """What the path does, beside changing operations."""
    count = rank_switches(path)
    if not count:
        return "stays on one rank"
    return f"changes rank {'once' if count == 1 else f'{count} times'}"


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
    names = rows_of(lanes.events, lanes.event[node], _COLUMNS)
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
