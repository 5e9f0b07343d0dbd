# SPDX-License-Identifier: Apache-2.0
"""Steps in, troubles out: which ranks or links, why, since which step, and what it costs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cadenza.causes.repair import BETWEEN, INPUT, LATE_START, NO_CORE, PAUSED, SLOW
from cadenza.causes.troubles import CORES
from cadenza.graph.loads import PHASES_OF_WORK
from cadenza.graph.pauses import LEAST_NS
from cadenza.watch.alarm import Alarm, lasting, merged, of_series, slow_ranks, stopped
from cadenza.watch.cusum import AT_ONCE, IN_THREE, IN_TWO
from cadenza.watch.link_watch import LinkWatch
from cadenza.watch.pace import Pace
from cadenza.watch.signal import Signal
from cadenza.watch.step import Feed, RankStep, Step
from cadenza.watch.table import PARTS, Row, row_of
from cadenza.watch.usual import WAITS, Usual, waits_of_all
from cadenza.words import on_host

FAULT = 0.05  # of a step: what a fault costs that is to be told within three steps
LEARNT = (8, 16, 32, 64)  # steps from which what is usual is learnt, one time after the other
_VETTED = 3  # steps after those: a fault in them would have been told by then
_KEPT = 64  # rows
_WORTH = 0.01  # of a step: what costs less is no alarm, however sure it is
_FALSE_ALARMS = 1e-6  # of all series together, in a step
_LEAST_SHARE = 0.01  # of a step: of a smaller part a fault is looked for as of one of this size


class _Learnt(NamedTuple):
    step: Step
    before: dict[int, RankStep]  # each rank's step before it


class Watcher:
    """Learns what is usual, then tests every step; the learnt ones as well."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._before: dict[int, RankStep] = {}
        self._start()

    def _start(self) -> None:
        self._pace = Pace()
        self._learnt: list[_Learnt] = []
        self._rows: deque[Row] = deque(maxlen=_KEPT)
        self._usual: Usual | None = None
        self._links = LinkWatch(self._feed, _FALSE_ALARMS, FAULT)

    @property
    def seconds(self) -> float:
        """Of a usual step; 0: nothing is learnt yet."""
        return self._usual.seconds if self._usual else 0.0

    @property
    def sees(self) -> tuple[float, float]:
        """The noise of a step, and the share of a step from which on a fault is told within
        three."""
        share = float(np.clip(self._usual.share[-1], _LEAST_SHARE, 1.0))
        rise = float(self._slow.told_after_three[-1])
        return float(self._usual.slow_noise[-1]), share * float(np.expm1(rise))

    def add(self, step: Step) -> list[Alarm]:
        """@returns what this step shows that was not known before"""
        before = self._before
        self._before = {int(rank): one for rank, one in zip(step.ranks, step.each, strict=True)}
        if not before:  # the first one also pays for memory that is touched for the first time
            return []
        if before.keys() != self._before.keys():  # a rank is gone: all begins anew
            self._start()
            return []
        if self._usual is None:
            return self._first(_Learnt(step, before))
        if len(self._learnt) < LEARNT[-1] + _VETTED and not self._spoilt():
            self._learnt.append(_Learnt(step, before))
            if len(self._learnt) - _VETTED in LEARNT[1:]:
                self._learn(self._learnt[:-_VETTED])
        self._rows.append(self._row(_Learnt(step, before)))
        return self._tested(self._rows[-1], step)

    def _first(self, one: _Learnt) -> list[Alarm]:
        """Of one of the steps that are learnt first; the last of them tests them all."""
        self._learnt.append(one)
        if len(self._learnt) < LEARNT[0]:
            return []
        self._learn(self._learnt)
        found = []
        for learnt in self._learnt:
            self._rows.append(self._row(learnt))
            found += self._tested(self._rows[-1], learnt.step)
        return found

    def _spoilt(self) -> bool:
        """Whether so many ranks are slow that what is usual cannot be learnt."""
        slow = self._slow.active
        return bool(self._all.active.any()) or 2 * int(slow.sum()) >= len(slow)

    def _row(self, one: _Learnt) -> Row:
        return row_of(one.step, self._pace, self._feed.operations, one.before)

    def _learn(self, of: Sequence[_Learnt]) -> None:
        """What is usual. The rows that are kept become what they are beside that."""
        self._pace.learn([one.work for learnt in of for one in learnt.step.each],
                         np.arange(len(self._feed.operations)))
        rows = [self._row(one) for one in of]
        first, self._usual = self._usual is None, Usual(rows)
        self._links.learn([one.step for one in of])
        kept = {row.number for row in self._rows}
        self._rows = deque((self._row(one) for one in self._learnt if one.step.number in kept),
                           maxlen=_KEPT)
        if first:
            self._make_signals(len(rows[0].ranks))
        self._tune(rows[0].ranks)

    def _make_signals(self, ranks: int) -> None:
        series, each = len(PARTS) + 1, (1, ranks)
        rate = _FALSE_ALARMS / (series * (ranks + 1) + 4 * ranks + 1)
        # Of attention the FLOPs do not tell all: the shape of its tasks counts, too.
        most = np.array([*(IN_THREE if attention else IN_TWO for _, attention in PARTS), IN_TWO])
        most = most[:, None]
        self._slow = Signal(SLOW, (), lambda of: of.slow, (series, ranks), rate, most)
        self._all = Signal(SLOW, (), lambda of: of.all_slow, (series, 1), rate, most)
        self._core = Signal(NO_CORE, PHASES_OF_WORK, lambda of: of.core, each, rate, IN_TWO)
        self._reads = Signal(INPUT, ("forward",), lambda of: of.reads, each, rate, AT_ONCE)
        self._late = Signal(LATE_START, (BETWEEN,), lambda of: of.late, each, rate, AT_ONCE)
        self._gap = Signal(PAUSED, (BETWEEN,), lambda of: of.gap, (1, 1), rate, AT_ONCE)
        self._signals = (self._slow, self._all, self._core, self._reads, self._late, self._gap)

    def _tune(self, ranks: np.ndarray) -> None:
        usual, share = self._usual, np.clip(self._usual.share, _LEAST_SHARE, 1.0)
        rise = np.log1p(FAULT / share)
        devices = self._feed.ranks.set_index("rank")["device"]
        if all(on_host(str(devices[rank])) for rank in ranks):
            rise = np.maximum(rise, 2 * CORES)  # half of it is allowed for
        self._slow.tune(usual.slow_noise, rise)
        self._all.tune(usual.all_noise, rise)
        self._core.tune(usual.core_noise, FAULT / share[-1])
        self._reads.tune(usual.reads_noise, FAULT)
        self._late.tune(usual.late_noise, FAULT)
        self._gap.tune(usual.gap_noise, FAULT)

    def _tested(self, row: Row, step: Step) -> list[Alarm]:
        levels = self._usual.levels(row)
        found = [self._alarm(signal, rank) for signal in self._signals
                 for rank in signal.add(row.number, levels)]
        unexplained = max(self._usual.unexplained(row), 0.0)
        stops = [stopped(stop, row, unexplained) for stop in row.stops
                 if stop.phase != BETWEEN and stop.seconds > self._usual.longest_stop]
        found += [one for one in stops if one.costs >= FAULT]
        return _worth(merged(found)) + self._links.add(step, unexplained)

    def current(self) -> list[Alarm]:
        """What is wrong as of the last step."""
        if self._usual is None:
            return []
        active = [self._alarm(signal, int(rank)) for signal in self._signals
                  for rank in np.flatnonzero(signal.active)]
        return _worth(merged(active)) + self._links.current()

    def standing(self) -> list[Alarm]:
        """Waits that all ranks have had since the first steps: no step tells of them by a rise."""
        if self._usual is None:
            return []
        rows = list(self._rows)[-LEARNT[0] :]
        least = np.minimum(self._usual.waits, waits_of_all(rows))
        return [lasting(cause, phases, rows, float(lost), self._learnt[0].step.number)
                for (cause, phases), lost in zip(WAITS, least, strict=True)
                if lost >= max(FAULT * self.seconds, LEAST_NS / 1e9 if cause == PAUSED else 0.0)]

    def _alarm(self, signal: Signal, rank: int) -> Alarm:
        since = signal.since(rank)
        rows = [row for row in self._rows if row.number >= since]
        members = list(range(len(rows[-1].ranks))) if signal.of_all else [rank]
        if signal.cause == SLOW:
            usual = [self._usual.expected(row, signal.of_all) for row in rows]
            waits = [self._usual.unexplained(row) for row in rows]
            return slow_ranks(members, rows, usual, waits, since)
        much = [float(signal.values(self._usual.levels(row))[0, rank]) for row in rows]
        if signal is self._core:
            costs = [value * row.busy[rank] / row.seconds
                     for value, row in zip(much, rows, strict=True)]
            return of_series(signal, members, rows, much, costs, since)
        if signal is self._gap:
            stood = {stop.rank for stop in rows[-1].stops if stop.phase == BETWEEN}
            members = [i for i in members if rows[-1].ranks[i] in stood] or members
        lost = [value * self.seconds for value in much]
        costs = [value / row.seconds for value, row in zip(lost, rows, strict=True)]
        return of_series(signal, members, rows, lost, costs, since)


def _worth(alarms: list[Alarm]) -> list[Alarm]:
    return [one for one in alarms if one.costs >= _WORTH]
