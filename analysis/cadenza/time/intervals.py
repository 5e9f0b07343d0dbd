# SPDX-License-Identifier: Apache-2.0
"""Sets of half-open intervals [begin, end) in whole nanoseconds: arrays of shape (n, 2)."""

from __future__ import annotations

import numpy as np

EMPTY = np.empty((0, 2), dtype=np.int64)


def make(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Pairs in the order given."""
    pairs = np.stack([np.asarray(begins, np.int64), np.asarray(ends, np.int64)], axis=1)
    return pairs.reshape(-1, 2)


def several(count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of which each stands for `count` pieces: of each piece its row, and its number in it."""
    which = np.repeat(np.arange(len(count)), count)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)


def clip(pairs: np.ndarray, begin: int, end: int) -> np.ndarray:
    """What lies inside [begin, end)."""
    inside = np.clip(pairs, begin, end)
    return inside[inside[:, 1] > inside[:, 0]]


def union(*sets: np.ndarray) -> np.ndarray:
    """Sorted, disjoint intervals that cover the same points."""
    pairs = np.concatenate(sets) if sets else EMPTY
    pairs = pairs[pairs[:, 1] > pairs[:, 0]]
    if len(pairs) == 0:
        return EMPTY
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(pairs[:, 1])
    first = np.concatenate(([True], pairs[1:, 0] > reach[:-1]))
    starts = np.flatnonzero(first)
    last = np.concatenate((starts[1:] - 1, [len(pairs) - 1]))
    return make(pairs[starts, 0], reach[last])


def length(disjoint: np.ndarray) -> int:
    """Nanoseconds covered by disjoint intervals."""
    return int((disjoint[:, 1] - disjoint[:, 0]).sum())


def covered_within(disjoint: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Nanoseconds covered in each window [begin, end); intervals sorted, disjoint. Exact."""
    return _covered_until(disjoint, ends) - _covered_until(disjoint, begins)


def _covered_until(disjoint: np.ndarray, points: np.ndarray) -> np.ndarray:
    if len(disjoint) == 0:
        return np.zeros(len(points), np.int64)
    sums = np.concatenate(([0], np.cumsum(disjoint[:, 1] - disjoint[:, 0])))
    index = np.searchsorted(disjoint[:, 0], points, side="right")
    beyond = np.maximum(disjoint[np.maximum(index - 1, 0), 1] - points, 0)
    return sums[index] - np.where(index > 0, beyond, 0)


def outside(pairs: np.ndarray, disjoint: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What of each pair lies outside of sorted, disjoint intervals.

    @returns pieces (n, 2) and the index of the pair that each belongs to
    """
    if not len(pairs):
        return EMPTY, np.empty(0, np.int64)
    low, high = min(pairs.min(), disjoint.min(initial=0)), max(pairs.max(), disjoint.max(initial=0))
    opens = np.concatenate(([low], disjoint[:, 1]))
    closes = np.concatenate((disjoint[:, 0], [high]))
    first = np.searchsorted(closes, pairs[:, 0], side="right")
    count = np.maximum(np.searchsorted(opens, pairs[:, 1], side="left") - first, 0)
    owner = np.repeat(np.arange(len(pairs)), count)
    gap = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count) + first[owner]
    pieces = make(np.maximum(pairs[owner, 0], opens[gap]), np.minimum(pairs[owner, 1], closes[gap]))
    lasting = pieces[:, 1] > pieces[:, 0]
    return pieces[lasting], owner[lasting]


def innermost(begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Time for which each of the nested intervals of a lane is the innermost one. Empty intervals
    are pieces too, and cut those that they lie in.

    Where one begins inside another and ends behind it, the one that began last counts.

    @returns pieces (n, 2) and the index of the interval that each piece belongs to
    """
    order = _outer_first(begins, ends)
    begins, ends = begins[order], np.maximum(begins, ends)[order]
    if len(begins) == 0:
        return EMPTY, order
    parent, closing, closed = _nesting(begins, ends)
    inner = np.flatnonzero(parent >= 0)
    if (ends[parent[inner]] < ends[inner]).any():
        ends = _cut_at_crossings(begins, ends)
        parent, closing, closed = _nesting(begins, ends)
    # Edges in the order of time: what closes at a time comes before what opens then.
    opens = np.arange(len(begins)) + closed
    closes = np.ones(len(begins) + len(closing), bool)
    closes[opens] = False
    closes = np.flatnonzero(closes)
    empty = ends == begins
    edges = np.empty(len(opens) + len(closes), np.int64)
    edges[opens], edges[closes] = begins, ends[closing]
    after = np.empty_like(edges)  # the innermost one from an edge on, -1 for none
    after[opens] = np.where(empty, parent, np.arange(len(begins)))
    after[closes] = parent[closing]
    long = np.flatnonzero((edges[1:] > edges[:-1]) & (after[:-1] >= 0))
    at = np.concatenate([opens[empty], long])
    inner = np.concatenate([np.flatnonzero(empty), after[long]])
    until = np.concatenate([begins[empty], edges[long + 1]])
    turn = np.argsort(at, kind="stable")  # of an edge, an empty one before what goes on
    return make(edges[at], until)[turn], order[inner[turn]]


def _outer_first(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The order of intervals by begin, of those that begin together the longest first.

    np.lexsort((-ends, begins)), but most intervals come in the order of their begins, and few
    begin together.
    """
    order = np.argsort(begins, kind="stable")
    begins = begins[order]
    same = np.append(False, begins[1:] == begins[:-1])
    same[:-1] |= same[1:]
    some = np.flatnonzero(same)
    order[some] = order[some][np.lexsort((-ends[order[some]], begins[some]))]
    return order


def _nesting(begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How sorted intervals (by begin, then the longest first) lie in one another.

    @returns of each the index of the one around it or -1; indices of those that are not empty in
             the order in which they end, of those that end together the last one first; and of
             each how many of these have ended when it begins
    """
    whole = np.flatnonzero(ends > begins)[::-1]
    closing = whole[np.argsort(ends[whole], kind="stable")]
    holds = ends > begins
    closed = np.searchsorted(ends[closing], begins, side="right")
    depth = np.cumsum(holds) - holds - closed
    parent = np.full(len(begins), -1)
    for level in range(int(depth.max())):
        outer = np.flatnonzero(holds & (depth == level))
        inner = np.flatnonzero(depth == level + 1)
        parent[inner] = outer[np.searchsorted(outer, inner) - 1]
    return parent, closing, closed


def _cut_at_crossings(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Ends of sorted intervals, earlier where one that began later goes on behind them: from its
    begin on that one counts. After that all are nested."""
    ends = ends.copy()
    open_: list[int] = []
    for index, begin in enumerate(begins.tolist()):
        while open_ and ends[open_[-1]] <= begin:
            open_.pop()
        while open_ and ends[open_[-1]] < ends[index]:
            ends[open_.pop()] = begin
        open_.append(index)
    return ends


def innermost_of_lanes(
    begins: np.ndarray, ends: np.ndarray, lanes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """innermost() of many lanes at once; `lanes` holds the number of each interval's lane."""
    if len(begins) == 0:
        return EMPTY, np.empty(0, np.int64)
    shift = _one_behind_the_other(begins, ends, lanes)
    cut, owner = innermost(begins + shift, ends + shift)
    return cut - shift[owner][:, None], owner


def _one_behind_the_other(begins: np.ndarray, ends: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    """What to add to the times of each interval for its lane to begin after the one before."""
    index = np.unique(lanes, return_inverse=True)[1]
    origin = begins.min()
    return index * (ends.max() - origin + 1) - origin


def crossings(begins: np.ndarray, ends: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    """Whether each interval begins inside another one of its lane and ends behind it: neither
    nested nor apart."""
    found = np.zeros(len(begins), bool)
    if len(begins) == 0:
        return found
    shift = _one_behind_the_other(begins, ends, lanes)
    begins, ends = begins + shift, ends + shift
    order = _outer_first(begins, ends)
    parent = _nesting(begins[order], ends[order])[0]
    outlives = (parent >= 0) & (ends[order[parent]] < ends[order])
    # All nest in a sound trace. In the others' lanes each is held against those that are open.
    for lane in np.unique(lanes[order[outlives]]):
        open_: list[int] = []
        for index in order[lanes[order] == lane].tolist():
            while open_ and ends[open_[-1]] <= begins[index]:
                open_.pop()
            found[index] = bool(open_) and ends[index] > ends[open_[-1]]
            open_.append(index)
    return found
