# SPDX-License-Identifier: Apache-2.0
"""Ranges of time on threads: what lies in them, and what encloses it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cadenza.time.intervals import make, union


def nesting(lane: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """An order in which what encloses stands before what it encloses, thread by thread."""
    return np.lexsort((-end, begin, lane))


def by_lane(lane: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each thread that occurs, and where."""
    if not lane.size:
        return
    order = np.argsort(lane, kind="stable")
    cuts = np.flatnonzero(np.diff(lane[order])) + 1
    for places in np.split(order, cuts):
        yield int(lane[places[0]]), places


_NOTHING = (np.zeros(0, np.int64), np.zeros(0, np.int64))


class Spans:
    """The union of ranges of time, thread by thread."""

    def __init__(self, lane: np.ndarray, begin: np.ndarray, end: np.ndarray) -> None:
        self._of = {number: union(make(begin[places], end[places])).T
                    for number, places in by_lane(lane)}

    def __bool__(self) -> bool:
        return bool(self._of)

    @property
    def begins(self) -> np.ndarray:
        """Of all threads, in any order."""
        return np.concatenate([_NOTHING[0], *(begin for begin, _ in self._of.values())])

    def any_begins(self, earliest: int, latest: int) -> bool:
        """Whether a range of any thread begins in this time."""
        return any(np.searchsorted(begin, latest) > np.searchsorted(begin, earliest)
                   for begin, _ in self._of.values())

    def hold(self, lane: np.ndarray, moment: np.ndarray) -> np.ndarray:
        """Which moments lie in a range of their thread."""
        held = np.zeros(lane.size, bool)
        for number, places in by_lane(lane) if self._of else ():
            begin, end = self._of.get(number, _NOTHING)
            if not begin.size:
                continue
            at = np.searchsorted(begin, moment[places], side="right") - 1
            held[places] = (at >= 0) & (moment[places] < end[at])
        return held


def outermost(lane: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Places of ranges that no other encloses, by thread and time."""
    order = nesting(lane, begin, end)
    kept = []
    for _, places in by_lane(lane[order]):
        inside = order[places]
        reached = np.maximum.accumulate(end[inside])
        first = np.ones(inside.size, bool)
        first[1:] = begin[inside][1:] >= reached[:-1]
        kept.append(inside[first])
    return np.concatenate(kept) if kept else np.zeros(0, np.int64)


def enclosing(of: tuple[np.ndarray, np.ndarray, np.ndarray], lane: np.ndarray, moment: np.ndarray,
              ) -> np.ndarray:
    """By moment, the place of the range of its thread that began last, if it goes on; else -1.

    @param of threads, begins and ends of ranges, none of which encloses another
    """
    found = np.full(lane.size, -1, np.int64)
    ranges = dict(by_lane(of[0]))
    for number, asked in by_lane(lane) if ranges else ():
        if number not in ranges:
            continue
        places = ranges[number]
        places = places[np.argsort(of[1][places], kind="stable")]
        at = np.searchsorted(of[1][places], moment[asked], side="right") - 1
        goes_on = (at >= 0) & (moment[asked] <= of[2][places[at]])
        found[asked[goes_on]] = places[at[goes_on]]
    return found
