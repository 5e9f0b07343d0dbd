# SPDX-License-Identifier: Apache-2.0
"""Rows of the process itself: what it computes where there is no device, what it loads and saves,
and where it waits for a device."""

from __future__ import annotations

import re

import numpy as np

from cadenza.sources import neutral
from cadenza.sources.kineto.events import LAUNCH, OPERATION, RANGE, Events
from cadenza.sources.kineto.labels import Labels
from cadenza.sources.kineto.phases import OPTIMIZER, Phases
from cadenza.sources.kineto.rows import Rows, Words
from cadenza.sources.kineto.spans import Spans, enclosing, nesting, outermost

# kind, pattern of the whole name or of its begin, in lower case
_RANGES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (neutral.DATA, re.compile(r"enumerate\(dataloader\)|(data|batch)[-_ ]?(load|generat|fetch)|"
                              r"(get|next|fetch|load)[-_ ]?(next[-_ ])?(batch|data)\b")),
    (neutral.CHECKPOINT, re.compile(
        r"(torch\.)?(save|write)[-_ .]?(model|state|check|dcp|$)|"
        r"torch\.save|checkpoint[-_ ]?sav|(dist|async|dcp).*[-_. ]save")),
    (neutral.PAUSE, re.compile(
        r"(python[-_ ])?gc\b|garbage[-_ ]collect|<built-in function collect>")),
)
_SYNCHRONIZE = re.compile(r"^(cuda|hip|cu|xpu|ze|urQueue|mu)\w*Synchronize(_v\d+|_ptsz)?$|"
                          r"^(cuda|hip)Memcpy(2D|3D)?$|^cuMemcpy(HtoD|DtoH|DtoD)?(_v2)?$|"
                          r"^hipMemcpyWithStream$")
# Names of operations without their namespace: of products, and of attention.
_DENSE = re.compile(r"(add|baddb|b|_scaled_|_grouped_|_weight_int\w+_)?mm(_out)?$|(add)?mv$|linear|"
                    r"matmul|conv|einsum|dot$|bilinear|tensordot|gru|lstm|rnn_")
_ATTENTION = re.compile(r"scaled_dot_product|flash_attn|flash_attention|multi_head_attention|"
                        r"attention|flex_attention")
_NO_WORK = re.compile(r"^autograd::engine::|^c10d::|^record_param_comms$|^gloo:|^nccl:")


def add_computation(rows: Rows, events: Events, phases: Phases, labels: Labels, main: int,
                    ) -> None:
    """The outermost operations of tensors, and what encloses none, thread by thread.

    @param main number of the thread that runs the model
    """
    loading = _ranges(events, neutral.DATA)
    busy = Spans(events.lane[loading], events.begin[loading], events.end[loading])
    places = _working(events)
    places = places[~busy.hold(events.lane[places], events.begin[places])]
    places = places[outermost(events.lane[places], events.begin[places], events.end[places])]
    lane, begin = events.lane[places], events.begin[places]
    end = events.end[places].copy()
    follows = np.flatnonzero(lane[1:] == lane[:-1])  # times in whole microseconds overlap
    end[follows] = np.minimum(end[follows], begin[follows + 1])
    phase = phases.at(lane, begin)
    kinds = np.array([neutral.KINDS.index(_kind(name)) for name in events.names])
    kind = kinds[events.name[places]]
    kind[phase == OPTIMIZER] = neutral.KINDS.index(neutral.OPTIMIZER)
    rows.add(places.size, begin_ns=begin, end_ns=end, kind=Words(kind, list(neutral.KINDS)),
             phase=Words(phase, list(neutral.PHASES)),
             name=Words(events.name[places], events.names), stream=_streams(events, places, main),
             flops=_flops(events, lane, begin, end), bytes=_inputs(events)[places],
             **labels.at(lane, begin))


def _flops(events: Events, lane: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Of the calls in each of these operations."""
    calls, flops = events.work
    inside = enclosing((lane, begin, end), events.lane[calls], events.begin[calls])
    return np.bincount(inside[inside >= 0], flops[inside >= 0], len(lane))


def _inputs(events: Events) -> np.ndarray:
    """Bytes of the tensors that each event takes; -1: not known."""
    found = np.full(len(events), -1, np.int64)
    found[events.inputs[0]] = events.inputs[1]
    return found


def add_host(rows: Rows, events: Events, main: int) -> None:
    """Loading of data, checkpoints, collection of garbage, and waits for a device."""
    for kind, _ in _RANGES:
        places = _ranges(events, kind)
        places = places[outermost(events.lane[places], events.begin[places], events.end[places])]
        _add(rows, events, places, kind, main)
    waits = np.array([_SYNCHRONIZE.search(name) is not None for name in events.names], bool)
    _add(rows, events, np.flatnonzero((events.kind == LAUNCH) & waits[events.name]),
         neutral.SYNCHRONIZE, main)


def _add(rows: Rows, events: Events, places: np.ndarray, kind: str, main: int) -> None:
    rows.add(places.size, begin_ns=events.begin[places], end_ns=events.end[places], kind=kind,
             name=Words(events.name[places], events.names), stream=_streams(events, places, main))


def _ranges(events: Events, kind: str) -> np.ndarray:
    pattern = dict(_RANGES)[kind]
    named = np.array([pattern.match(name[:200].lower()) is not None for name in events.names], bool)
    return np.flatnonzero((events.kind == RANGE) & named[events.name])


def _working(events: Events) -> np.ndarray:
    """Operations with a namespace, which are those of tensors, and others that enclose none."""
    work = np.array([_NO_WORK.search(name) is None for name in events.names], bool)
    named = np.array(["::" in name for name in events.names], bool)
    places = np.flatnonzero(events.kind == OPERATION)
    places = places[nesting(events.lane[places], events.begin[places], events.end[places])]
    lane, begin, end = events.lane[places], events.begin[places], events.end[places]
    leaf = np.ones(places.size, bool)
    leaf[:-1] = (lane[1:] != lane[:-1]) | (begin[1:] >= end[:-1])
    name = events.name[places]
    return places[work[name] & (named[name] | leaf)]


def _kind(name: str) -> str:
    operation = name[:200].lower().rpartition("::")[2]
    if _ATTENTION.search(operation):
        return neutral.ATTENTION
    return neutral.DENSE if _DENSE.match(operation) else neutral.OTHER


def _streams(events: Events, places: np.ndarray, main: int) -> Words:
    lanes, number = np.unique(events.lane[places], return_inverse=True)
    return Words(number, [neutral.HOST if lane == main else f"{neutral.HOST} thread {at}"
                          for at, lane in enumerate(lanes.tolist())])
