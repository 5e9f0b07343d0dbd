# SPDX-License-Identifier: Apache-2.0
"""How long a step would have taken, had several things been repaired together: by replay.

One at a time, causes hide one another: of two slow ranks neither repair saves anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cadenza.causes.what_if import with_equal_attention
from cadenza.graph.graph import StepGraph
from cadenza.graph.lanes import COMPUTE
from cadenza.graph.pauses import taken_off
from cadenza.links.slow import SlowLink
from cadenza.links.what_if import Earlier
from cadenza.read.machine import Machine

SLOW, NO_CORE, PAUSED, WORK, INPUT, LATE_START, LINK, HOST, STAGE, ATTENTION = (
    "slow", "no core", "paused", "work", "input", "late start", "link", "host gap", "stage",
    "attention")
BETWEEN = "between steps"  # a phase


@dataclass(frozen=True)
class Trouble:
    """What is wrong with some ranks in some steps.

    `excess` is by (rank, step): of `slow` and `no core` the share of their computing time in
    `phases` that is too much, of `work` and `attention` the share beyond that of its peers, of
    `stage` the share by which its passes are longer than those of other stages; of
    `late start`, `input` and `host gap` seconds; of pauses it is not looked at, the trace knows
    them. `links` between two adapters are both's: they are repaired once both adapters are.
    """

    cause: str
    members: tuple[int, ...]
    steps: tuple[int, ...]
    trend: str
    phases: tuple[str, ...]
    excess: dict[tuple[int, int], float] = field(default_factory=dict)
    links: tuple[SlowLink, ...] = ()
    ends: tuple[str, ...] = ()  # of an adapter: whether it is slow as it sends, receives, or both
    share: float = 1.0  # of its usual rate, what an adapter reaches
    name: str = ""  # of a host gap: what filled it, where the trace says so
    # By (rank, step), of `slow`: the share of the computing time with a core, which `excess` is of.
    with_core: dict[tuple[int, int], float] = field(default_factory=dict)


def replayed(
    graph: StepGraph, troubles: Sequence[Trouble], cases: np.ndarray, machine: Machine | None
) -> np.ndarray:
    """Seconds of the step in each case.

    @param cases  (cases, troubles) of bool: what is repaired
    """
    mine = [number for number, one in enumerate(troubles) if graph.step in one.steps]
    seconds = np.full(len(cases), graph.seconds)
    if not mine:
        return seconds
    # Cases that repair the same here are one.
    chosen, case_of = np.unique(cases[:, mine], axis=0, return_inverse=True)
    repairs = _Repairs(graph, [troubles[number] for number in mine])
    own, rest, held = (np.stack(parts, axis=1) for parts in zip(
        *(repairs.of_ranks(case) for case in chosen), strict=True))
    own, rest = np.maximum(own, 0), np.maximum(rest, 0)
    links = [repairs.links(case) for case in chosen]
    earlier = Earlier(graph, machine).of_cases(links, own, rest)  # below 0: later
    earlier = np.where(held > 0, np.maximum(earlier, held), earlier)
    found = graph.replayed_seconds(own, rest, graph.transfer[:, None] - earlier)
    return found[case_of.ravel()]


class _Repairs:
    """What repairs take off a graph. Pauses are repaired at once, as it is not told apart what each
    of them held up."""

    def __init__(self, graph: StepGraph, troubles: Sequence[Trouble]) -> None:
        self._graph, self._troubles = graph, troubles
        self._computed = {one: _of_operations(graph, trouble)
                          for one, trouble in enumerate(troubles)
                          if trouble.cause not in (LINK, PAUSED)}

    def of_ranks(self, case: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`own` and `rest` of the graph with some troubles repaired, and what its `transfer` would
        have less as nobody stands still."""
        graph, on = self._graph, np.flatnonzero(case).tolist()
        own = graph.own - sum((self._computed[one] for one in on if one in self._computed),
                              np.zeros(len(graph.own)))
        paused = [rank for one in on if self._troubles[one].cause == PAUSED
                  for rank in self._troubles[one].members]
        stood, waited, held = taken_off(graph, np.array(paused, int))
        return own - stood, graph.rest - waited, held

    def links(self, case: np.ndarray) -> list[SlowLink]:
        """Those that are repaired: one of two adapters is slow as long as either is."""
        left = {link for one in np.flatnonzero(~case) for link in self._troubles[one].links}
        mine = (link for one in np.flatnonzero(case) for link in self._troubles[one].links)
        return [link for link in dict.fromkeys(mine) if link not in left]


def _of_operations(graph: StepGraph, trouble: Trouble) -> np.ndarray:
    """ns of `own`: a share of computations, or seconds of reads or of a rank's begin."""
    lanes = graph.lanes
    world = lanes.ranks[lanes.rank]
    excess = np.zeros(len(world))
    for rank in trouble.members:
        place = (rank, graph.step)
        excess[world == rank] = trouble.excess.get(place, 0.0) * trouble.with_core.get(place, 1.0)
    if trouble.cause == LATE_START:
        return _on_time(graph, excess[lanes.starts] * 1e9)
    if trouble.cause == INPUT:
        reads = lanes.where("category", "data")
        return _taken(graph, reads, excess)
    if trouble.cause == HOST:
        gaps = lanes.where("category", "host", "checkpoint") & _of(graph, trouble.phases)
        return _taken(graph, gaps, excess)
    if trouble.cause == ATTENTION:
        return graph.own - with_equal_attention(graph)
    computes = lanes.where("category", *COMPUTE) & _of(graph, trouble.phases)
    return np.where(computes, (graph.own - graph.pause) * excess, 0.0)


def _taken(graph: StepGraph, nodes: np.ndarray, excess: np.ndarray) -> np.ndarray:
    """Seconds of a rank, `excess`, off those of its nodes, of each in proportion to its length."""
    lanes = graph.lanes
    took = np.where(nodes, graph.own, 0.0)
    whole = np.bincount(lanes.rank, took, minlength=len(lanes.ranks))[lanes.rank]
    return took * np.minimum(excess * 1e9 / np.where(whole > 0, whole, 1.0), 1.0)


def _on_time(graph: StepGraph, late: np.ndarray) -> np.ndarray:
    """ns that nodes take less if ranks begin so much earlier. A real step begins with the wait for
    its plan, which ends when all ranks have theirs: it is as long as the last to begin is late."""
    lanes = graph.lanes
    own = np.zeros(len(graph.own))
    own[lanes.starts] = late
    begin = lanes.end[lanes.starts]
    last = begin.max() - (begin - late).max()
    plans = np.flatnonzero(lanes.where("category", "plan"))
    _, first = np.unique(lanes.rank[plans], return_index=True)
    own[plans[first]] = last - late[lanes.rank[plans[first]]]
    return own


def _of(graph: StepGraph, phases: tuple[str, ...]) -> np.ndarray:
    known = (*phases, "recompute") if "backward" in phases else phases
    return graph.lanes.where("phase", *known)


def gains(seconds: np.ndarray, cases: np.ndarray) -> np.ndarray:
    """How much each repair saves where it is the first, and where it is the last: the mean.

    @param seconds  (cases,) sums over the steps, of the cases of first_and_last()
    """
    alone, last = alone_and_last(seconds, cases)
    return (alone + last) / 2


def alone_and_last(seconds: np.ndarray, cases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What each repair saves as the only one, and after all others. @param seconds  see gains()"""
    count = cases.shape[1]
    return seconds[0] - seconds[1 : count + 1], seconds[count + 2 :] - seconds[count + 1]


def first_and_last(count: int) -> np.ndarray:
    """Cases of gains(): nothing, each alone, all, all but each."""
    each = np.eye(count, dtype=bool)
    return np.concatenate([np.zeros((1, count), bool), each, np.ones((1, count), bool), ~each])


def in_order(order: np.ndarray) -> np.ndarray:
    """Cases in which the first 0, 1, 2, ... of `order` are repaired."""
    place = np.empty(len(order), int)
    place[order] = np.arange(len(order))
    return place[None, :] < np.arange(len(order) + 1)[:, None]
