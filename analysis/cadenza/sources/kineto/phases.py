# SPDX-License-Identifier: Apache-2.0
"""Steps, and the phase of what a thread does or launches, from the ranges around it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cadenza.sources.kineto.events import OPERATION, RANGE, Events
from cadenza.sources.kineto.spans import Spans, outermost
from cadenza.sources.neutral import PHASES

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, NO_PHASE = range(len(PHASES))

_NODE = re.compile(r"^autograd::engine::evaluate_function")
_BACKWARD = re.compile(r"^(## ?)?backward( ##|[-_]step|[-_]compute)?$")
_OPTIMIZER = re.compile(r"^Optimizer\.step#|^(## ?)?optimizer( ##|[-_]step)?$", re.IGNORECASE)
_OPTIMIZER_CALL = re.compile(r"^Optimizer\.step#")
_NEITHER = re.compile(r"zero_grad|^enumerate\(DataLoader\)")
_STEP = re.compile(r"^ProfilerStep#(\d{1,18})$")


class Phases:
    """Asked for moments of threads, `at` answers with numbers of PHASES."""

    def __init__(self, events: Events) -> None:
        nodes = _spans(events, _NODE)
        self._back = nodes or _spans(events, _BACKWARD)
        self._optimizer = _spans(events, _OPTIMIZER)
        self._neither = _spans(events, _NEITHER)
        again = np.flatnonzero((events.kind == OPERATION) & (events.link == 1))
        again = again[nodes.hold(events.lane[again], events.begin[again])]
        self._again = Spans(events.lane[again], events.begin[again], events.end[again])
        self.known = bool(self._back)
        steps = _ranges(events, lambda name: _STEP.match(name) is not None)
        borders = np.concatenate([events.begin[steps], events.end[steps]])
        marks = {BACKWARD: self._back.begins, OPTIMIZER: self._optimizer.begins, FORWARD: borders}
        times = np.concatenate([*marks.values()])
        order = np.argsort(times, kind="stable")
        kinds = np.repeat([*marks], [one.size for one in marks.values()])[order]
        self._marks, self._kinds = times[order], np.concatenate([[FORWARD], kinds, [BACKWARD]])

    def goes_back(self, earliest: int, latest: int) -> bool:
        """Whether gradients are computed in this time."""
        return self._back.any_begins(earliest, latest)

    def at(self, lane: np.ndarray, moment: np.ndarray) -> np.ndarray:
        phase = self._between(moment) if self.known else np.full(lane.size, NO_PHASE, np.int8)
        phase[self._neither.hold(lane, moment)] = NO_PHASE
        phase[self._back.hold(lane, moment)] = BACKWARD
        phase[self._again.hold(lane, moment)] = RECOMPUTE
        phase[self._optimizer.hold(lane, moment)] = OPTIMIZER
        return phase

    def _between(self, moment: np.ndarray) -> np.ndarray:
        """Forward, but for what follows the last pass back of a step: that finishes its gradients,
        and after the optimizer nothing goes forward until the next step."""
        at = np.searchsorted(self._marks, moment, side="right")
        last, over = self._kinds[at], self._kinds[at + 1] != BACKWARD
        return np.select([over & (last == BACKWARD), over & (last == OPTIMIZER)],
                         [BACKWARD, NO_PHASE], FORWARD).astype(np.int8)


class Steps(NamedTuple):
    number: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    lane: int  # of the thread that tells them; -1: none does
    told: str  # how, if not by the profiler: a sentence


def steps_of(events: Events, phases: Phases) -> Steps:
    """From the profiler's own ranges; else from the ends of the optimizer's; else none."""
    numbers = {number: int(match[1]) for number, name in enumerate(events.names)
               if (match := _STEP.match(name))}
    places = _ranges(events, lambda name: _STEP.match(name) is not None)
    if places.size:
        lane = int(events.lane[places[0]])
        places = places[events.lane[places] == lane]
        places = places[np.argsort(events.begin[places], kind="stable")]
        number = np.array([numbers[name] for name in events.name[places].tolist()], np.int64)
        begin, end = events.begin[places], events.end[places].copy()
        follows = np.flatnonzero((np.diff(number) == 1) | (begin[1:] < end[:-1]))
        end[follows] = begin[follows + 1]
        return Steps(number, begin, end, lane, "")
    return _steps_by_optimizer(events, phases)


def _steps_by_optimizer(events: Events, phases: Phases) -> Steps:
    places = _ranges(events, lambda name: _OPTIMIZER_CALL.match(name) is not None)
    if not places.size:
        return Steps(*[np.zeros(0, np.int64)] * 3, -1, "the file does not tell steps")
    lane = int(events.lane[places[0]])
    places = places[events.lane[places] == lane]
    places = places[outermost(events.lane[places], events.begin[places], events.end[places])]
    last = _last_of_a_step(events.begin[places], events.end[places], phases)
    end = events.end[places][last]
    begin = np.append(events.begin[events.lane == lane].min(), end[:-1])
    return Steps(np.arange(end.size), begin, end, lane,
                 "steps are told from optimizer calls: the first may have begun earlier")


def _last_of_a_step(begin: np.ndarray, end: np.ndarray, phases: Phases) -> np.ndarray:
    """Which of successive calls are the last before gradients are computed again."""
    if not phases.known:
        return np.ones(begin.size, bool)
    return np.append([phases.goes_back(earlier, later) for earlier, later in
                      zip(end[:-1].tolist(), begin[1:].tolist(), strict=True)], True).astype(bool)


def _ranges(events: Events, fits: Callable[[str], bool]) -> np.ndarray:
    """Places of ranges and operations whose name fits."""
    named = np.fromiter((fits(name) for name in events.names), bool, len(events.names))
    on_host = (events.kind == OPERATION) | (events.kind == RANGE)
    return np.flatnonzero(named[events.name] & on_host)


def _spans(events: Events, pattern: re.Pattern[str]) -> Spans:
    places = _ranges(events, lambda name: pattern.search(name) is not None)
    return Spans(events.lane[places], events.begin[places], events.end[places])
