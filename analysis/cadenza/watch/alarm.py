# SPDX-License-Identifier: Apache-2.0
"""What an alarm says: whose, why, since when, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cadenza.causes.repair import PAUSED, SLOW
from cadenza.graph.loads import PHASES_OF_WORK
from cadenza.watch.signal import Signal
from cadenza.watch.step import Link, Stop
from cadenza.watch.table import PARTS, Row

_PHASE = 0.4  # of the largest rise of a phase, what another has that is slow as well
_TOGETHER = 3  # steps
_PHASE_OF = np.array([PHASES_OF_WORK.index(phase) for phase, _ in PARTS])


@dataclass(frozen=True)
class Alarm:
    """Something that is wrong. `excess` is what causes.repair.Trouble has."""

    cause: str
    members: tuple[int, ...]  # world ranks
    phases: tuple[str, ...]
    since: int
    last: int  # step of which it is known
    costs: float  # mean share of a step
    excess: dict[tuple[int, int], float] = field(default_factory=dict)
    links: tuple[tuple[Link, float], ...] = ()  # with the share of its usual rate that each reaches
    standing: bool = True  # else it is over as it is told


def slow_ranks(members: Sequence[int], rows: Sequence[Row], usual: Sequence[np.ndarray],
               unexplained: Sequence[float], since: int) -> Alarm:
    """Ranks that compute slowly. That costs what the longest computing time is longer by it, and
    what steps are longer than their longest computing time says: other ranks wait in a pipeline for
    one that does not compute longest. It is no more than what the ranks lose.

    @param members  by index
    @param rows  the steps in which they do, or the last of them
    @param usual  of each what ranks take at the pace of others, as Row.run
    @param unexplained  of each Usual.unexplained()
    @param since  the first step
    """
    ranks = rows[-1].ranks
    run = sum(row.run[:, members].sum(axis=1) for row in rows)
    should = sum(one[:, members].sum(axis=1) for one in usual)
    took, took_usual = (np.bincount(_PHASE_OF, part, len(PHASES_OF_WORK)) for part in (run, should))
    rise = np.where(took_usual > 0, took / np.where(took_usual > 0, took_usual, 1.0), 1.0) - 1
    slow = rise >= _PHASE * rise.max()
    phases = tuple(phase for phase, one in zip(PHASES_OF_WORK, slow, strict=True) if one)
    parts = slow[_PHASE_OF]
    excess, costs = {}, []
    for row, one, waits in zip(rows, usual, unexplained, strict=True):
        mine, should = row.run[parts].sum(axis=0), one[parts].sum(axis=0)
        lost = np.zeros(len(ranks))
        lost[members] = np.maximum(mine - should, 0.0)[members]
        excess |= {(int(ranks[rank]), row.number): float(lost[rank] / mine[rank])
                   for rank in members if mine[rank] > 0}
        longer = row.busy.max() - (row.busy - lost).max()
        costs.append(np.array([longer, longer + waits, lost.max()]) / row.seconds)
    least, all_, most = np.mean(costs, axis=0)
    return _made(SLOW, members, phases, rows, float(np.clip(all_, least, most)), excess, since)


def of_series(signal: Signal, members: Sequence[int], rows: Sequence[Row],
              much: Sequence[float], costs: Sequence[float], since: int) -> Alarm:
    """@param much  of each row, what causes.repair.Trouble has as `excess`
    @param costs  of each row, in shares of the step"""
    ranks = rows[-1].ranks
    excess = {(int(ranks[rank]), row.number): max(value, 0.0)
              for rank in members for row, value in zip(rows, much, strict=True)}
    mean = max(float(np.mean(costs)), 0.0)
    return _made(signal.cause, members, signal.phases, rows, mean, excess, since)


def lasting(cause: str, phases: tuple[str, ...], rows: Sequence[Row], lost: float,
            since: int) -> Alarm:
    """What all ranks have in every step. @param lost  seconds of each of the rows"""
    members = list(range(len(rows[-1].ranks)))
    excess = {(int(rank), row.number): lost for row in rows for rank in row.ranks}
    costs = float(np.mean([lost / row.seconds for row in rows]))
    return _made(cause, members, phases, rows, costs, excess, since)


def stopped(stop: Stop, row: Row, unexplained: float) -> Alarm:
    """A rank stood still once. In a wait that costs no more than the step is longer than its work
    says; in what it computes, that by which it was busy longest."""
    rank = int(np.flatnonzero(row.ranks == stop.rank)[0])
    if stop.waits:
        lost = min(stop.seconds, unexplained)
    else:
        repaired = row.busy.copy()
        repaired[rank] -= stop.seconds
        lost = row.busy.max() - repaired.max()
    excess = {(stop.rank, row.number): stop.seconds}
    made = _made(PAUSED, [rank], (stop.phase,), [row], max(lost, 0.0) / row.seconds, excess,
                 row.number)
    return replace(made, standing=False)


def _made(cause: str, members: Sequence[int], phases: tuple[str, ...], rows: Sequence[Row],
          costs: float, excess: dict, since: int) -> Alarm:
    ranks = tuple(sorted(int(rows[-1].ranks[rank]) for rank in members))
    return Alarm(cause, ranks, phases, since, rows[-1].number, costs, excess)


def merged(alarms: Sequence[Alarm]) -> list[Alarm]:
    """One of each cause, phases and step of begin: a node, or all ranks, have it together."""
    groups: dict[tuple, list[Alarm]] = {}
    for one in alarms:
        groups.setdefault((one.cause, one.phases, one.standing), []).append(one)
    found = []
    for of in groups.values():
        of.sort(key=lambda one: one.since)
        parts: list[list[Alarm]] = []
        for one in of:
            if parts and one.since - parts[-1][0].since <= _TOGETHER:
                parts[-1].append(one)
            else:
                parts.append([one])
        for part in parts:
            excess = {place: value for one in part for place, value in one.excess.items()}
            members = tuple(sorted({rank for one in part for rank in one.members}))
            found.append(replace(part[0], members=members, last=part[-1].last, excess=excess,
                                 costs=max(one.costs for one in part)))
    return found
