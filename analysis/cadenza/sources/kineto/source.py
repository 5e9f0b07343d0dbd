# SPDX-License-Identifier: Apache-2.0
"""Files of PyTorch's profiler (Kineto), read into the neutral columns."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.errors import DataError
from cadenza.sources import neutral
from cadenza.sources.json_pieces import ChromeTrace, first_bytes
from cadenza.sources.kineto import device, processor
from cadenza.sources.kineto.events import KERNEL, OPERATION, Events, Recorder
from cadenza.sources.kineto.gloo import add_gloo
from cadenza.sources.kineto.groups import Groups
from cadenza.sources.kineto.labels import Labels
from cadenza.sources.kineto.nccl import add_device_communication
from cadenza.sources.kineto.packed import flops_of_packed
from cadenza.sources.kineto.phases import Phases, Steps, steps_of
from cadenza.sources.kineto.ranks import Origin, lanes_by_rank, origin
from cadenza.sources.kineto.rows import Rows
from cadenza.words import counted

_SIGNS = (b'"traceEvents"', b'"schemaVersion"', b'"ph"')


def claims(path: Path) -> bool:
    """Chrome traces, which other profilers write, too."""
    if not path.is_file() or not path.name.endswith((".json", ".json.gz")):
        return False
    begin = first_bytes(path, 1 << 16)
    return begin.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") \
        and any(sign in begin for sign in _SIGNS)


def read(path: Path, lengths: neutral.Lengths = neutral.NO_LENGTHS) -> list[neutral.RankTrace]:
    """@throws DataError: the file is no trace, or nothing of it can be told"""
    trace, recorder = ChromeTrace(path), Recorder()
    with _no_collection():
        for events in trace.pieces():
            recorder.add(events)
            del events  # before the next ones are made
            if recorder.full:
                trace.lost.append(f"only the first {recorder.count:,} events were read")
                break
    events = recorder.finish(_base(trace.beside))
    if not len(events):
        raise DataError(f"{path}: found no events of PyTorch's profiler"
                        + "".join(f"; {sentence}" for sentence in trace.lost))
    told = origin(path, trace.beside)
    told.cannot += [*trace.lost, *events.cannot]
    ranks = lanes_by_rank(events)
    if not ranks:
        return [_rank(events, told, lengths)]
    return [_rank(events.of(own[events.lane]), told.of(rank), lengths)
            for rank, own in ranks.items()]


def _rank(events: Events, told: Origin, lengths: neutral.Lengths) -> neutral.RankTrace:
    phases, labels, rows = Phases(events), Labels(events), Rows()
    steps = steps_of(events, phases)
    mine = lengths.get(told.rank, {})
    events, unknown = _with_packed(events, steps, mine)
    main = steps.lane if steps.lane >= 0 else _busiest(events)
    groups = Groups(told, events.parameters)
    cannot = [*told.cannot, steps.told]
    if unknown and mine:
        cannot.append("the lengths given are not those of the attention in "
                      f"{counted(unknown, 'step')}: its FLOPs there are not known")
    rows.add(steps.number.size, step=steps.number, begin_ns=steps.begin, end_ns=steps.end,
             kind=neutral.STEP)
    if (events.kind == KERNEL).any():
        device.add_computation(rows, events, phases, labels)
    else:
        processor.add_computation(rows, events, phases, labels, main)
    cannot += add_device_communication(rows, events, phases, groups)
    cannot += add_gloo(rows, events, phases, groups)
    processor.add_host(rows, events, main)
    if not phases.known:
        cannot.append("the file does not tell forward from backward passes")
    return neutral.RankTrace(
        told.rank, told.world, rows.frame(told.rank), told.host, told.device, told.place,
        told.groups, _peaks(events, steps), [sentence for sentence in cannot if sentence])


def _with_packed(
    events: Events, steps: Steps, lengths: Mapping[int, Sequence[int]]
) -> tuple[Events, int]:
    """With the work of calls that need lengths of documents, and in how many steps it is not
    known."""
    rows, calls = events.packed
    at = np.searchsorted(steps.begin, events.begin[rows], side="right") - 1
    step = np.where(at >= 0, steps.number[at], -1) if steps.number.size else np.full(rows.size, -1)
    found = flops_of_packed(calls, step.tolist(), lengths)
    known, flops = events.work
    made = replace(events, work=(np.append(known, rows[found > 0]),
                                 np.append(flops, found[found > 0])))
    return made, len(np.unique(step[found == 0]))


def _busiest(events: Events) -> int:
    """The thread with most operations."""
    lanes = events.lane[events.kind == OPERATION]
    return int(np.bincount(lanes).argmax()) if lanes.size else -1


def _peaks(events: Events, steps: Steps) -> dict[int, int]:
    """By step, the most bytes that the allocator of the device gave, or else of the processor."""
    on_device = events.memory[:, 2] == 1
    moment, allocated, _ = events.memory[on_device if on_device.any() else ~on_device].T
    peaks = {}
    for number, begin, end in zip(steps.number, steps.begin, steps.end, strict=True):
        within = allocated[(begin <= moment) & (moment < end)]
        if within.size:
            peaks[int(number)] = int(within.max())
    return peaks


def _base(beside: Mapping[str, Any]) -> int:
    """ns that are added to all times."""
    base = beside.get("baseTimeNanoseconds", 0)
    if isinstance(base, str) and base.isdecimal() and len(base) < 20:
        base = int(base)
    return base if type(base) is int and 0 <= base < 1 << 61 else 0


@contextmanager
def _no_collection() -> Iterator[None]:
    """Many objects are made and dropped, none of which refers to itself."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


KINETO = neutral.Source("kineto", "traces of PyTorch's profiler (Kineto): .json, .json.gz", claims,
                        read)
