# SPDX-License-Identifier: Apache-2.0
"""Threads of an export: one for each lane of a rank, more where events of a lane overlap.

Slices of a thread must nest. A thread's number is its own among all processes and never that of a
process, as Perfetto takes such threads for one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

_RANK, _LANE = 100_000, 10_000  # numbers of a rank, and of a lane of it


class Thread(NamedTuple):
    """Whose a thread is; `number` counts those of a lane from 0."""

    rank: int
    lane: int
    number: int = 0

    @property
    def id(self) -> int:
        """More than any number of a process, which there are at most as many of as ranks."""
        return (self.rank + 1) * _RANK + self.lane * _LANE + self.number


class Threads:
    """Gives each event of a lane the first thread on which it nests in others or is apart."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[int, int], list[_Open]] = {}

    def take(self, events: pd.DataFrame, lane: np.ndarray) -> np.ndarray:
        """The thread (its id) of each event.

        @param events  rank, begin_ns, end_ns; those of later calls begin later in their lanes
        @param lane    number of each event's lane
        """
        rank, begin, end = (events[name].to_numpy() for name in ("rank", "begin_ns", "end_ns"))
        order = np.lexsort((-end, begin, lane, rank))
        rank, lane, begin, end = (column[order] for column in (rank, lane, begin, end))
        starts = np.flatnonzero(np.diff(rank, prepend=-1) | np.diff(lane, prepend=-1))
        found = np.empty(len(order), np.int64)
        for first, last in pairwise([*starts.tolist(), len(order)]):
            place = int(rank[first]), int(lane[first])
            threads = self._lanes.setdefault(place, [])
            mine = zip(begin[first:last].tolist(), end[first:last].tolist(), strict=True)
            numbers = [_first_fit(threads, *times) for times in mine]
            found[order[first:last]] = Thread(*place).id + np.array(numbers)
        return found

    def used(self) -> list[Thread]:
        """All that have an event, in the order of their ids."""
        return [Thread(*place, number) for place, threads in sorted(self._lanes.items())
                for number in range(len(threads))]


class _Open:
    """The events of a thread that may still hold others."""

    __slots__ = ("begin", "ends")

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.ends = begin, [end]  # of the last one; of all, the innermost last


def _first_fit(threads: list[_Open], begin: int, end: int) -> int:
    """The number of the first of a lane's threads that can have the event, a new one if need be."""
    for number, thread in enumerate(threads):
        if begin < thread.begin:
            continue
        ends = thread.ends
        while ends and ends[-1] <= begin:
            ends.pop()
        if not ends or end <= ends[-1]:
            ends.append(end)
            thread.begin = begin
            return number
    threads.append(_Open(begin, end))
    return len(threads) - 1
