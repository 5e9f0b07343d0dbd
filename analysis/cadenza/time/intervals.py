# SPDX-License-Identifier: Apache-2.0
"""Sets of half-open intervals [begin, end) in whole nanoseconds: arrays of shape (n, 2)."""

from __future__ import annotations

import numpy as np

EMPTY = np.empty((0, 2), dtype=np.int64)


def make(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Pairs in the order given."""
    pairs = np.stack([np.asarray(begins, np.int64), np.asarray(ends, np.int64)], axis=1)
    return pairs.reshape(-1, 2)


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


def coverage(disjoint: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Nanoseconds covered in each bin between neighbouring `edges`; intervals sorted, disjoint."""
    if len(disjoint) == 0:
        return np.zeros(len(edges) - 1)
    origin = disjoint[0, 0]
    points = (disjoint - origin).ravel()
    grown = np.cumsum(disjoint[:, 1] - disjoint[:, 0])
    total = np.stack([grown - (disjoint[:, 1] - disjoint[:, 0]), grown], axis=1).ravel()
    return np.diff(np.interp(edges - origin, points, total))


def innermost(begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Time for which each of the nested intervals of a lane is the innermost one. Empty intervals
    are pieces too, and cut those that they lie in.

    @returns pieces (n, 2) and the index of the interval that each piece belongs to
    """
    order = np.lexsort((-ends, begins))
    begins, ends = begins[order], ends[order]
    if len(begins) == 0:
        return EMPTY, order
    reach = np.maximum.accumulate(ends)
    first = np.concatenate(([True], begins[1:] >= reach[:-1]))
    group = np.cumsum(first) - 1
    single = (np.bincount(group) == 1)[group]  # most of them, as most lanes are flat
    nested = np.flatnonzero(~single)
    pieces, owner = _walk(begins[nested].tolist(), ends[nested].tolist())
    owner = np.concatenate([np.flatnonzero(single), nested[owner]])
    table = np.concatenate([make(begins[single], ends[single]), pieces])
    ordered = np.argsort(table[:, 0], kind="stable")
    return table[ordered], order[owner[ordered]]


def _walk(begins: list[int], ends: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """innermost() of sorted intervals, one after the other with a stack of the open ones."""
    pieces: list[tuple[int, int, int]] = []
    open_: list[int] = []
    now = 0
    for index in range(len(begins) + 1):
        until = begins[index] if index < len(begins) else None
        while open_ and (until is None or ends[open_[-1]] <= until):
            top = open_.pop()
            if ends[top] > now:
                pieces.append((now, ends[top], top))
                now = ends[top]
        if until is None:
            break
        if open_ and until > now:
            pieces.append((now, until, open_[-1]))
        now = max(now, until)
        if ends[index] == begins[index]:
            pieces.append((now, now, index))
        else:
            open_.append(index)
    table = np.array(pieces, dtype=np.int64).reshape(-1, 3)
    return table[:, :2], table[:, 2]


def innermost_of_lanes(
    begins: np.ndarray, ends: np.ndarray, lanes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """innermost() of many lanes at once; `lanes` holds the number of each interval's lane."""
    if len(begins) == 0:
        return EMPTY, np.empty(0, np.int64)
    index = np.unique(lanes, return_inverse=True)[1]
    origin = begins.min()
    shift = index * (ends.max() - origin + 1) - origin
    cut, owner = innermost(begins + shift, ends + shift)
    return cut - shift[owner][:, None], owner


def crossings(begins: np.ndarray, ends: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    """Whether each interval begins inside another one of its lane and ends behind it: neither
    nested nor apart."""
    order = np.lexsort((-ends, begins, lanes))
    begin, end, lane = begins[order], ends[order], lanes[order]
    found = np.zeros(len(order), bool)
    if len(order) == 0:
        return found
    changes = np.flatnonzero(np.diff(lane)) + 1
    for first, last in zip([0, *changes], [*changes, len(lane)], strict=True):
        if (begin[first + 1 : last] >= np.maximum.accumulate(end[first : last - 1])).all():
            continue  # flat, as most lanes are
        open_: list[int] = []
        for index in range(first, last):
            while open_ and end[open_[-1]] <= begin[index]:
                open_.pop()
            found[order[index]] = bool(open_) and end[index] > end[open_[-1]]
            open_.append(index)
    return found
