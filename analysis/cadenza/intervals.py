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
    """Time for which each of the nested intervals of a lane is the innermost one.

    @returns pieces (n, 2) and the index of the interval that each piece belongs to
    """
    order = np.lexsort((-ends, begins))
    begins, ends = begins[order], ends[order]
    if len(begins) < 2 or (begins[1:] >= ends[:-1]).all():  # flat, as most lanes are
        return make(begins, ends), order
    pieces: list[tuple[int, int, int]] = []
    open_: list[int] = []
    now = 0
    for index in range(len(begins) + 1):
        until = int(begins[index]) if index < len(begins) else None
        while open_ and (until is None or ends[open_[-1]] <= until):
            top = open_.pop()
            if ends[top] > now:
                pieces.append((now, int(ends[top]), top))
                now = int(ends[top])
        if until is None:
            break
        if open_ and until > now:
            pieces.append((now, until, open_[-1]))
        now = max(now, until)
        open_.append(index)
    table = np.array(pieces, dtype=np.int64).reshape(-1, 3)
    return table[:, :2], order[table[:, 2]]
