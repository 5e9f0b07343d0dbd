# SPDX-License-Identifier: Apache-2.0
"""What the watch knows of a step, whoever wrote it: sums by rank and operation, and nothing of what
they are made of. A feed gives steps as a run completes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pandas as pd


class Operation(NamedTuple):
    """What ranks do alike: one usual pace holds for all of them."""

    phase: str  # forward, backward or optimizer
    category: str
    name: str
    device: str  # machines of two kinds have two paces


class Link(NamedTuple):
    """What a transfer goes over: two ranks of a message, or the members of a collective."""

    name: str  # of the transfers, which one usual pace holds for
    members: tuple[int, ...]  # world ranks, ascending
    message: bool
    one_node: bool


@dataclass(frozen=True)
class Sums:
    """Rows of `what` (an index into a feed's list), with seconds, how many and how much: FLOPs, or
    bytes of copies and transfers."""

    what: np.ndarray
    seconds: np.ndarray
    count: np.ndarray
    amount: np.ndarray

    @staticmethod
    def of(what: np.ndarray, seconds: np.ndarray, amount: np.ndarray) -> Sums:
        """Of rows in any order."""
        found, place = np.unique(what, return_inverse=True)
        return Sums(found, np.bincount(place, seconds, len(found)),
                    np.bincount(place, minlength=len(found)).astype(float),
                    np.bincount(place, amount, len(found)))


class Stop(NamedTuple):
    """A rank stood still in one operation."""

    rank: int
    phase: str
    name: str
    seconds: float
    waits: bool  # the operation was a wait: what it stood still for may have cost nothing


@dataclass(frozen=True)
class RankStep:
    """One rank's step. Times are of its own clock."""

    number: int
    begin_ns: int
    end_ns: int
    work: Sums  # by index of feed.operations
    still: np.ndarray  # of the same rows: seconds without a core
    reads: float  # seconds of loading its documents
    outside: float  # seconds before the step that are known: checkpoints, validation, the trace
    stops: tuple[Stop, ...]


@dataclass(frozen=True)
class Step:
    """A step that all ranks completed."""

    number: int
    ranks: np.ndarray  # world ranks, ascending
    each: tuple[RankStep, ...]  # in their order
    transfers: Sums  # by index of feed.links

    @property
    def seconds(self) -> float:
        return max(one.end_ns - one.begin_ns for one in self.each) / 1e9


def of_all(waiting: Sequence[deque]) -> Iterator[tuple[int, list]]:
    """Takes the next steps that all ranks have: their number, and what waits of each rank, a tuple
    that begins with its RankStep. Steps that another rank does not have are dropped."""
    while waiting and all(waiting):
        number = max(mine[0][0].number for mine in waiting)
        behind = [mine for mine in waiting if mine[0][0].number < number]
        if behind:
            for mine in behind:
                mine.popleft()
            continue
        yield number, [mine.popleft() for mine in waiting]


class Feed(Protocol):
    """What gives steps. A second kind of run is a second one of these."""

    operations: list[Operation]
    links: list[Link]
    ranks: pd.DataFrame  # rank, host, role, local_rank, data, pipeline, tensor, context, device
    processors: int  # that the run computes with
    together: int  # steps that are written at once
    written: float  # when the run last wrote something, in seconds since 1970

    def poll(self) -> list[Step]:
        """Steps that have become complete since the last call, in ascending order: not all at once
        where there are many. @throws DataError where the run cannot be read"""

    @property
    def begun(self) -> bool:
        """Whether there is a run yet."""

    @property
    def behind(self) -> bool:
        """Whether more steps are there already."""

    @property
    def ending(self) -> str | None:
        """How the run ended, "" where that was as planned; None while it goes on."""

    @property
    def left(self) -> bool:
        """Whether nobody is there who would write more."""

    def silent(self) -> list[tuple[int, int]]:
        """Ranks that stopped writing while others went on, and the last step of each, since the
        last call."""
