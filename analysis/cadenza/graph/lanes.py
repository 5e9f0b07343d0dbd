# SPDX-License-Identifier: Apache-2.0
"""What each rank did in a step, one thing after the other: the nodes of its dependency graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from cadenza.time import intervals
from cadenza.read.columns import one_of
from cadenza.read.partners import both_ends, message_ends
from cadenza.read.schema import COMMUNICATION, TENSOR_COLLECTIVES, WAITS_FOR_GROUPS

COMPUTE = ("compute_dense", "compute_attention", "compute_other", "optimizer")
WORK = (*COMPUTE, "data")  # what a rank does by itself
OPERATION, MEETING, GAP = range(3)  # it works; it waits or communicates; nothing is recorded


@dataclass(frozen=True)
class Lanes:
    """Nodes of all ranks, rank by rank in the order of time, without a gap between them.

    Every rank begins with a node of no length at the begin of its step.
    """

    events: pd.DataFrame  # of the step; their row numbers are in `event`
    ranks: np.ndarray  # world ranks; `rank` is an index into them
    rank: np.ndarray
    begin: np.ndarray  # ns since the step began on the first rank
    end: np.ndarray
    event: np.ndarray  # -1: gap or start
    kind: np.ndarray
    origin: int  # ns, of the first rank's begin
    span: int  # ns, of the step

    def key(self, rank: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Numbers that order (rank, time) as nodes are ordered."""
        return rank * (self.span + 2) + np.clip(time, -1, self.span) + 1

    def last_before(self, rank: np.ndarray, time: np.ndarray) -> np.ndarray:
        """The last node of the rank that ends at `time` or before; its first node if none does."""
        found = np.searchsorted(self.key(self.rank, self.end), self.key(rank, time), "right") - 1
        first = np.searchsorted(self.rank, rank)
        return np.maximum(found, first)

    def column(self, name: str, default: float) -> np.ndarray:
        """A column of numbers of the nodes' events, `default` for gaps."""
        return np.where(self.event >= 0, self.events[name].to_numpy()[self.event], default)

    def where(self, column: str, *values: str) -> np.ndarray:
        """Whether the nodes' events have one of the values in a column of names."""
        return one_of(self.events[column], *values)[self.event] & (self.event >= 0)

    @cached_property
    def starts(self) -> np.ndarray:
        """Nodes that are the first of their ranks."""
        return np.flatnonzero(np.append(True, self.rank[1:] != self.rank[:-1]))

    @cached_property
    def message_ends(self) -> pd.DataFrame:
        """both_ends() of the messages between ranks."""
        return both_ends(message_ends(self.events))


def make_lanes(events: pd.DataFrame, windows: pd.DataFrame) -> Lanes:
    """@param events  of one step, with a fresh index
    @param windows  rank, begin_ns, end_ns of the step, sorted by rank
    """
    ranks = windows["rank"].to_numpy(np.int64)
    origin = int(windows["begin_ns"].min())
    span = int(windows["end_ns"].max()) - origin
    rows = _lane_rows(events)
    rank = np.searchsorted(ranks, events["rank"].to_numpy(np.int64)[rows])
    opens = windows["begin_ns"].to_numpy(np.int64) - origin
    closes = windows["end_ns"].to_numpy(np.int64) - origin
    begin = np.clip(events["begin_ns"].to_numpy(np.int64)[rows] - origin, opens[rank], closes[rank])
    end = np.clip(events["end_ns"].to_numpy(np.int64)[rows] - origin, opens[rank], closes[rank])
    pieces, owner = intervals.innermost_of_lanes(begin, np.maximum(begin, end), rank)
    rank, begin, end, rows = rank[owner], pieces[:, 0], pieces[:, 1], rows[owner]
    rank, begin, end, rows = _cut_at_posts(events, ranks, origin, rank, begin, end, rows)
    rank, begin, end, rows = _with_starts(opens, rank, begin, end, rows)
    rank, begin, end, rows = _with_gaps(closes, rank, begin, end, rows)
    return Lanes(events, ranks, rank, begin, end, rows, _kinds(events, rows), origin, span)


def _lane_rows(events: pd.DataFrame) -> np.ndarray:
    """Rows of operations that a rank does one after the other.

    Those are the compute lane, and collectives of a tensor group: computations go on when they
    are over.
    """
    on_lane = one_of(events["lane"], "compute") & ~events["non_blocking"].to_numpy(bool)
    return np.flatnonzero(on_lane | inside_computation(events))


def inside_computation(events: pd.DataFrame) -> np.ndarray:
    """Whether events are collectives of a tensor group, which are part of a computation."""
    return one_of(events["category"], "collective") & one_of(events["name"], *TENSOR_COLLECTIVES)


def _cut_at_posts(events: pd.DataFrame, ranks: np.ndarray, origin: int, rank, begin, end, rows):
    """Cuts operations of imported runs where the rank comes to a communication in their middle, as
    a row of a whole pass has them: what lies before decides when it came."""
    if not one_of(events["name"], *WAITS_FOR_GROUPS.values()).any():
        return rank, begin, end, rows
    beside = one_of(events["category"], *COMMUNICATION) & events["non_blocking"].to_numpy(bool)
    owner = np.searchsorted(ranks, events["rank"].to_numpy(np.int64)[beside])
    posted = events["begin_ns"].to_numpy(np.int64)[beside] - origin
    size = int(max(end.max(initial=0), posted.max(initial=0))) + 1
    at = np.unique(owner * size + np.clip(posted, 0, size - 1))
    low, high = rank * size + begin, rank * size + end
    first, last = np.searchsorted(at, low, side="right"), np.searchsorted(at, high, side="left")
    count = np.maximum(last - first, 0) + 1
    which, part = intervals.several(count)
    edges = np.append(at, 0)
    cut = np.where(part > 0, edges[np.maximum(first[which] + part - 1, 0)], low[which])
    until = np.where(part < count[which] - 1, edges[np.minimum(first[which] + part, len(at))],
                     high[which])
    return rank[which], cut - rank[which] * size, until - rank[which] * size, rows[which]


def _with_starts(opens: np.ndarray, rank, begin, end, rows):
    """Puts a node of no length before each rank's first."""
    first = np.searchsorted(rank, np.arange(len(opens)))
    return (
        np.insert(rank, first, np.arange(len(opens))),
        np.insert(begin, first, opens),
        np.insert(end, first, opens),
        np.insert(rows, first, -1),
    )


def _with_gaps(closes: np.ndarray, rank, begin, end, rows):
    """Fills the times in which nothing is recorded.

    After the last operation of all, the step's end is its rank's; that of others is no work.
    """
    size = int(closes.max()) + 1
    reach = np.maximum.accumulate(rank * size + end) - rank * size  # overlap is a damaged trace
    last = np.append(rank[1:] != rank[:-1], True)
    before = np.where(np.append(True, last[:-1]), begin, np.append(0, reach[:-1]))
    begin = np.maximum(begin, before)
    gaps = np.flatnonzero(begin > before)
    tails = np.flatnonzero(last & (reach == reach.max()) & (reach < closes.max()))
    at = np.concatenate([3 * np.arange(len(rank)) + 1, 3 * gaps, 3 * tails + 2])
    order = np.argsort(at, kind="stable")
    new = np.full(len(gaps) + len(tails), -1)
    return (
        np.concatenate([rank, rank[gaps], rank[tails]])[order],
        np.concatenate([begin, before[gaps], reach[tails]])[order],
        np.concatenate([reach, begin[gaps], np.full(len(tails), closes.max())])[order],
        np.concatenate([rows, new])[order],
    )


def _kinds(events: pd.DataFrame, rows: np.ndarray) -> np.ndarray:
    meets = one_of(events["category"], *COMMUNICATION, "wait")
    kind = np.full(len(rows), GAP, np.int8)
    known = rows >= 0
    kind[known] = np.where(meets[rows[known]], MEETING, OPERATION)
    return kind
