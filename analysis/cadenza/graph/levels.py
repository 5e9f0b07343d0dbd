# SPDX-License-Identifier: Apache-2.0
"""An order in which a dependency graph can be worked through, many vertices at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def levels(count: int, source: np.ndarray, target: np.ndarray) -> tuple[list[np.ndarray], bool]:
    """Vertices 0 .. count - 1 in levels: every edge goes from a level to a later one.

    @returns the levels, each in ascending order, and whether all vertices are in one (not so where
             edges make a circle)
    """
    missing = np.bincount(target, minlength=count)
    target = target[np.argsort(source, kind="stable")]
    first = np.concatenate(([0], np.cumsum(np.bincount(source, minlength=count))))
    ready = np.flatnonzero(missing == 0)
    found, done = [], 0
    while len(ready):
        found.append(ready)
        done += len(ready)
        following = target[_ranges(first[ready], first[ready + 1])]
        np.subtract.at(missing, following, 1)
        ready = _distinct(following[missing[following] == 0])
    return found, done == count


def _distinct(values: np.ndarray) -> np.ndarray:
    """In ascending order. There are thousands of levels, most of them small: of few values
    np.unique() takes several times as long."""
    values = np.sort(values)
    return values[np.append(values[1:] != values[:-1], True)] if len(values) > 1 else values


def _ranges(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """begin[0] .. end[0] - 1, begin[1] .. end[1] - 1, ..."""
    size = end - begin
    offset = np.repeat(end - np.cumsum(size), size)
    return offset + np.arange(len(offset))


@dataclass(frozen=True)
class Places:
    """Vertices numbered anew, level by level: those of a level lie side by side in memory."""

    vertex: np.ndarray  # old numbers in the new order
    place: np.ndarray  # new numbers in the old order
    bounds: np.ndarray  # where each level begins, and the end of the last


def split_places(found: list[np.ndarray], count: int) -> tuple[Places, Places]:
    """Of the first `count` vertices, and of the others, both numbered from 0.

    @param found  levels()
    """
    vertices = np.concatenate(found)
    ends = np.cumsum([0, *map(len, found)])
    return tuple(
        _places(vertices[chosen] - shift, np.concatenate(([0], np.cumsum(chosen)))[ends])
        for chosen, shift in ((vertices < count, 0), (vertices >= count, count))
    )


def _places(vertex: np.ndarray, bounds: np.ndarray) -> Places:
    place = np.empty(len(vertex), np.int64)
    place[vertex] = np.arange(len(vertex))
    return Places(vertex, place, bounds)


class Arrivals:
    """For each of some vertices the latest of what comes to it, level by level. All are known by
    their places."""

    def __init__(self, vertex: np.ndarray, source: np.ndarray, bounds: np.ndarray) -> None:
        """@param bounds  of the levels of the vertices"""
        self.order = np.argsort(vertex, kind="stable")
        self.source, self.vertex = source[self.order], vertex[self.order]
        self.bounds = np.searchsorted(self.vertex, bounds)
        # Where the arrivals of each vertex begin.
        self._first = np.flatnonzero(np.diff(self.vertex, prepend=-1))
        self._first_bounds = np.searchsorted(self._first, self.bounds)

    def of_level(self, number: int, values: np.ndarray, delays: np.ndarray):
        """@param values  (places, cases) of all sources of earlier levels
        @param delays  (arrivals, cases) in the order of `order`
        @returns the vertices of this level to which something comes, and the latest of it
        """
        low, high = self.bounds[number], self.bounds[number + 1]
        first = self._first[self._first_bounds[number] : self._first_bounds[number + 1]]
        there = values.take(self.source[low:high], axis=0) + delays[low:high]
        if len(first) < len(there):
            there = np.maximum.reduceat(there, first - low, axis=0)
        return self.vertex[first], there
