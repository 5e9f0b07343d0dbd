# SPDX-License-Identifier: Apache-2.0
"""An order in which a dependency graph can be worked through, many vertices at a time."""

from __future__ import annotations

import numpy as np


def levels(count: int, source: np.ndarray, target: np.ndarray) -> tuple[list[np.ndarray], bool]:
    """Vertices 0 .. count - 1 in levels: every edge goes from a level to a later one.

    @returns the levels, and whether all vertices are in one (not so where edges make a circle)
    """
    missing = np.bincount(target, minlength=count)
    order = np.argsort(source, kind="stable")
    target = target[order]
    first = np.searchsorted(source[order], np.arange(count + 1))
    ready = np.flatnonzero(missing == 0)
    found, done = [], 0
    while len(ready):
        found.append(ready)
        done += len(ready)
        following = target[_ranges(first[ready], first[ready + 1])]
        np.subtract.at(missing, following, 1)
        ready = np.unique(following[missing[following] == 0])
    return found, done == count


def _ranges(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """begin[0] .. end[0] - 1, begin[1] .. end[1] - 1, ..."""
    size = end - begin
    offset = np.repeat(begin - np.concatenate(([0], np.cumsum(size)[:-1])), size)
    return offset + np.arange(len(offset))


class Arrivals:
    """For each of some vertices the latest of what comes to it, level by level."""

    def __init__(self, vertex: np.ndarray, source: np.ndarray, found: list[np.ndarray]) -> None:
        level = np.empty(sum(map(len, found)), np.int64)
        for number, members in enumerate(found):
            level[members] = number
        self.order = np.lexsort((vertex, level[vertex])) if len(vertex) else vertex
        self.source = source[self.order]
        vertex = vertex[self.order]
        self.bounds = np.searchsorted(level[vertex], np.arange(len(found) + 1))
        self.vertex = vertex

    def of_level(self, number: int, values: np.ndarray, delays: np.ndarray):
        """@param values  (vertices, cases) of all vertices of earlier levels
        @param delays  (arrivals, cases) in the order of `order`
        @returns the vertices of this level to which something comes, and the latest of it
        """
        low, high = self.bounds[number], self.bounds[number + 1]
        if low == high:
            return self.vertex[low:high], values[:0]
        vertex = self.vertex[low:high]
        starts = np.flatnonzero(np.append(True, vertex[1:] != vertex[:-1]))
        there = values[self.source[low:high]] + delays[low:high]
        return vertex[starts], np.maximum.reduceat(there, starts, axis=0)
