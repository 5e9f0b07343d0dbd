# SPDX-License-Identifier: Apache-2.0
"""Rows of what a device computes and copies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cadenza.sources import neutral
from cadenza.sources.kernels import COMMUNICATION, class_of
from cadenza.sources.kineto.events import COPYING, KERNEL, LAUNCH, Events
from cadenza.sources.kineto.labels import Labels
from cadenza.sources.kineto.phases import BACKWARD, FORWARD, NO_PHASE, OPTIMIZER, Phases
from cadenza.sources.kineto.rows import Rows, Words
from cadenza.sources.kineto.spans import enclosing


class Launches(NamedTuple):
    """Where the process launched something, by its row: arrays of equal length."""

    lane: np.ndarray  # -1: not known
    begin: np.ndarray  # ns; 0: not known


def launches(events: Events, rows: np.ndarray) -> Launches:
    """@param rows of kernels and copies"""
    calls = np.flatnonzero((events.kind == LAUNCH) & (events.link >= 0))
    calls = calls[np.argsort(events.link[calls], kind="stable")]
    at = np.searchsorted(events.link[calls], events.link[rows])
    call = calls[np.minimum(at, calls.size - 1)] if calls.size else np.zeros(rows.size, np.int64)
    known = (at < calls.size) & (events.link[rows] >= 0)
    known[known] = events.link[call[known]] == events.link[rows[known]]
    lane, begin = np.full(rows.size, -1, np.int64), np.zeros(rows.size, np.int64)
    lane[known], begin[known] = events.lane[call[known]], events.begin[call[known]]
    return Launches(lane, begin)


def phases_of(launched: Launches, phases: Phases) -> np.ndarray:
    """Of each row, the phase in which it was launched."""
    phase = phases.at(launched.lane, launched.begin)
    phase[launched.lane < 0] = NO_PHASE
    return phase


def classes(events: Events) -> list[str]:
    """Of each name that a kernel or copy has; "" of others, and if it is not known."""
    used = np.zeros(len(events.names), bool)
    used[events.name[(events.kind == KERNEL) | (events.kind == COPYING)]] = True
    return [class_of(name) if use else "" for name, use in zip(events.names, used, strict=True)]


def _phases_of_names(events: Events) -> np.ndarray:
    """What kernels of attention say themselves."""
    return np.array([BACKWARD if "bwd" in name or "backward" in name else
                     FORWARD if "fwd" in name or "forward" in name else NO_PHASE
                     for name in map(str.lower, events.names)], np.int8)


def _flops(events: Events, rows: np.ndarray, launched: Launches) -> np.ndarray:
    """Of a call for the longest kernel that it launched; 0 for all others."""
    calls, flops = events.work
    found = np.zeros(rows.size)
    which = enclosing((events.lane[calls], events.begin[calls], events.end[calls]),
                      launched.lane, launched.begin)
    took = events.end[rows] - events.begin[rows]
    mine = np.flatnonzero(which >= 0)
    order = mine[np.lexsort((-took[mine], which[mine]))]
    first = order[np.append(True, np.diff(which[order]) > 0)] if order.size else order
    found[first] = flops[which[first]]
    return found


def stream_words(events: Events, rows: np.ndarray) -> Words:
    """Streams by their numbers, and by device where the rank has several."""
    lanes = events.lane[rows]
    devices = {events.lanes[lane][0] for lane in np.unique(lanes).tolist()}
    several = len(devices) > 1
    texts = [f"device {device} stream {stream}" if several else f"stream {stream}"
             for device, stream in events.lanes]
    return Words(lanes, texts)


def add_computation(rows: Rows, events: Events, phases: Phases, labels: Labels) -> None:
    """Kernels that do not communicate, and copies."""
    kinds = np.array([neutral.KINDS.index(kind or neutral.OTHER) if kind != COMMUNICATION else -1
                      for kind in classes(events)], np.int64)
    copying = events.kind == COPYING
    places = np.flatnonzero((events.kind == KERNEL) & (kinds[events.name] >= 0) | copying)
    launched = launches(events, places)
    phase = phases_of(launched, phases)
    kind = np.where(copying[places], neutral.KINDS.index(neutral.COPY), kinds[events.name[places]])
    products = np.isin(kind, [neutral.KINDS.index(kind) for kind in (neutral.DENSE, neutral.OTHER)])
    kind[products & (phase == OPTIMIZER)] = neutral.KINDS.index(neutral.OPTIMIZER)
    phase[kind == neutral.KINDS.index(neutral.OPTIMIZER)] = OPTIMIZER
    by_name = _phases_of_names(events)[events.name[places]]
    phase = np.where((phase == NO_PHASE) & (kind == neutral.KINDS.index(neutral.ATTENTION)),
                     by_name, phase)
    amount = np.full(len(events), -1, np.int64)
    amount[events.copied[0]] = events.copied[1]
    rows.add(places.size, begin_ns=events.begin[places], end_ns=events.end[places],
             kind=Words(kind, list(neutral.KINDS)), phase=Words(phase, list(neutral.PHASES)),
             name=Words(events.name[places], events.names), stream=stream_words(events, places),
             bytes=amount[places], enqueued_ns=launched.begin,
             flops=_flops(events, places, launched),
             **labels.at(launched.lane, launched.begin))
