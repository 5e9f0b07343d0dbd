# SPDX-License-Identifier: Apache-2.0
"""What is kept of the events of one file: some columns, as arrays.

Names and threads are numbers that stand for what `Events.names` and `Events.lanes` hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from operator import itemgetter
from typing import Any

import numpy as np

from cadenza.sources.kernels import COMMUNICATION, class_of
from cadenza.sources.kineto.flops import Packed, flops_of, tells_flops
from cadenza.sources.kineto.parameters import ParameterRecorder, Parameters, input_bytes
from cadenza.sources.kineto.texts import Codes
from cadenza.words import counted

# What an event is, by its category in lower case; those that are not listed are not kept.
OPERATION, RANGE, LAUNCH, KERNEL, COPYING = 1, 2, 3, 4, 5
_PYTHON = 6
CATEGORIES = {
    "cpu_op": OPERATION, "operator": OPERATION, "user_annotation": RANGE,
    "cuda_runtime": LAUNCH, "cuda_driver": LAUNCH, "runtime": LAUNCH, "hip_runtime": LAUNCH,
    "xpu_runtime": LAUNCH, "mtia_runtime": LAUNCH, "privateuse1_runtime": LAUNCH,
    "kernel": KERNEL, "concurrent_kernel": KERNEL, "gpu_memcpy": COPYING, "gpu_memset": COPYING,
    "memcpy": COPYING, "memset": COPYING, "python_function": _PYTHON,
}
COLLECTOR = "<built-in function collect>"  # the one function of Python that is kept
LATEST = 4e15  # microseconds: with what a file adds to its times, ns fit in 64 bits
MOST = 12_000_000  # events that are kept of a file, of 34 bytes each

_COLUMNS = itemgetter("cat", "name", "pid", "tid", "ts", "dur")
_PHASE, _ARGUMENTS = itemgetter("ph"), itemgetter("args")
_OTHERS, _NUMBERS = frozenset("iM"), frozenset((int, float))
_NONE: dict[str, Any] = {}
_OF_COMMUNICATION, _OF_WORK = 1, 2


@dataclass
class Events:
    """Arrays of equal length, in the order of the file. Times are ns of the rank's clock."""

    begin: np.ndarray
    end: np.ndarray
    kind: np.ndarray  # OPERATION, RANGE, ...
    name: np.ndarray  # number in `names`
    lane: np.ndarray  # number in `lanes`
    link: np.ndarray  # of a launch, kernel or copy: their common number, -1 if none; of an
    # operation: 1 if the pass back has to mirror it, 0 if not
    names: list[str]
    lanes: list[tuple[Any, Any]]  # process and thread, or device and stream, as the file has them
    copied: tuple[np.ndarray, np.ndarray]  # rows of copies, and their bytes
    work: tuple[np.ndarray, np.ndarray]  # rows of operations whose FLOPs are told, and these
    packed: tuple[np.ndarray, list[Packed]]  # likewise, where they need lengths of documents
    # Rows of operations and the bytes of their inputs, where nothing is launched on a device.
    inputs: tuple[np.ndarray, np.ndarray]
    parameters: Parameters
    memory: np.ndarray  # of shape (n, 3): ns, bytes that are allocated, 1 on a device and 0 if not
    labels: dict[Any, str]  # words by process
    cannot: list[str]

    def __len__(self) -> int:
        return len(self.begin)

    @cached_property
    def said(self) -> np.ndarray:
        """Of each event, the place of what it says in `parameters`; -1: it says nothing."""
        place = np.full(len(self), -1, np.int64)
        place[self.parameters.row] = np.arange(self.parameters.row.size)
        return place

    def of(self, own: np.ndarray) -> Events:
        """Those that `own` holds for, without memory, which says no thread."""
        row = np.cumsum(own) - 1
        copied, work, packed, taken = (own[rows[0]] for rows in (
            self.copied, self.work, self.packed, self.inputs))
        return replace(
            self, begin=self.begin[own], end=self.end[own], kind=self.kind[own],
            name=self.name[own], lane=self.lane[own], link=self.link[own],
            copied=(row[self.copied[0][copied]], self.copied[1][copied]),
            work=(row[self.work[0][work]], self.work[1][work]),
            packed=(row[self.packed[0][packed]], list(compress(self.packed[1], packed))),
            inputs=(row[self.inputs[0][taken]], self.inputs[1][taken]),
            parameters=self.parameters.of(own, row), memory=self.memory[:0])


class Recorder:
    """`add` takes the events of a piece and keeps nothing else of them."""

    def __init__(self) -> None:
        self._names, self._lanes = Codes(), Codes((None, None))
        self._kinds = _Kinds()
        self._tells = np.zeros(0, np.int8)  # by name: of communication, of work
        self._parts: list[tuple[np.ndarray, ...]] = []
        self._copied: list[tuple[int, int]] = []
        self._work: list[tuple[int, int]] = []
        self._packed: list[tuple[int, Packed]] = []
        self._inputs: list[tuple[int, int]] = []
        self._launched = False
        self._memory: list[tuple[float, float, int, int]] = []
        self._parameters = ParameterRecorder()
        self._labels: dict[Any, str] = {}
        self._unusable = 0
        self.count = 0

    @property
    def full(self) -> bool:
        return self.count >= MOST

    def add(self, events: list[Any]) -> None:
        """What is no event, or has times that are none, is counted and left out."""
        try:
            self._take(events)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            sound = [event for event in map(_sound, events) if event is not None]
            self._unusable += len(events) - len(sound)
            self._take(sound)

    def _take(self, events: list[dict[str, Any]]) -> None:
        phases = list(map(_PHASE, events))
        complete = [event for event, phase in zip(events, phases, strict=True) if phase == "X"]
        self._take_others([event for event, phase in zip(events, phases, strict=True)
                           if phase in _OTHERS])
        if not complete:
            return
        categories, names, pids, tids, times, lengths = zip(*map(_COLUMNS, complete), strict=True)
        kind = np.fromiter(map(self._kinds.__getitem__, categories), np.int8, len(complete))
        for at in np.flatnonzero(kind == _PYTHON).tolist():
            kind[at] = RANGE if names[at] == COLLECTOR else 0
        begin, length, sound = _times(complete, times, lengths)
        self._unusable += int(np.count_nonzero(~sound & (kind > 0)))
        keep = sound & (kind > 0)
        args = _arguments(list(compress(complete, keep)))
        kind, begin = kind[keep], begin[keep]
        part = (begin, begin + length[keep], kind,
                _numbers(map(self._names.__getitem__, compress(names, keep)), len(args)),
                _numbers(map(self._lanes.__getitem__, compress(zip(pids, tids, strict=True), keep)),
                         len(args)),
                _links(args, kind))
        self._take_details(args, part)
        self._parts.append(part)
        self.count += len(args)

    def _take_details(self, args: list[dict[str, Any]], part: tuple[np.ndarray, ...]) -> None:
        _, _, kind, name, _, _ = part
        for at in np.flatnonzero(kind == COPYING).tolist():
            amount = args[at].get("bytes", -1)
            if type(amount) is int and 0 <= amount < 1 << 60:
                self._copied.append((self.count + at, amount))
        new = range(len(self._tells), len(self._names))
        telling = np.fromiter(map(self._telling, new), np.int8)
        self._tells = np.concatenate((self._tells, telling))
        tells = self._tells[name]
        for at in np.flatnonzero((tells == _OF_COMMUNICATION) & (kind != LAUNCH)).tolist():
            self._parameters.add(self.count + at, self._names.thing(int(name[at])), args[at])
        for at in np.flatnonzero((tells == _OF_WORK) & (kind == OPERATION)).tolist():
            flops = flops_of(self._names.thing(int(name[at])), args[at])
            if isinstance(flops, Packed):
                self._packed.append((self.count + at, flops))
            elif flops:
                self._work.append((self.count + at, flops))
        self._launched |= bool((kind >= LAUNCH).any())
        if not self._launched:  # else kernels compute, and reading so much more takes time
            self._inputs += [(self.count + at, input_bytes(args[at]))
                             for at in np.flatnonzero(kind == OPERATION).tolist()]

    def _telling(self, number: int) -> int:
        """What events of this name may say something about."""
        name = self._names.thing(number)
        if tells_flops(name):
            return _OF_WORK
        return _OF_COMMUNICATION if name == "record_param_comms" \
            or name.startswith(("c10d::", "gloo:")) or class_of(name) == COMMUNICATION else 0

    def _take_others(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            name, args = event["name"], event.get("args", _NONE)
            if name == "[memory]":
                moment = (event["ts"], event.get("ts_part", 0), args.get("Total Allocated"))
                if _NUMBERS.issuperset(map(type, moment)):
                    self._memory.append((*moment, args.get("Device Type") not in (0, None)))
            elif name in ("process_name", "process_labels") and len(self._labels) < 1 << 16:
                word = str(args.get("name", args.get("labels", "")))[:200]
                self._labels[event["pid"]] = f"{self._labels.get(event['pid'], '')} {word}".strip()

    def finish(self, base: int) -> Events:
        """@param base ns that are added to all times"""
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)] \
            if self._parts else [np.zeros(0, np.int64)] * 6
        self._parts = []
        columns[0] += base
        columns[1] += base
        copied, work, inputs = (np.array(rows, np.int64).reshape(-1, 2).T
                                for rows in (self._copied, self._work, self._inputs))
        packed = np.array([row for row, _ in self._packed], np.int64)
        memory = np.array(self._memory, np.float64).reshape(-1, 4)
        memory = memory[np.isfinite(memory).all(axis=1) & (np.abs(memory[:, 0]) < LATEST)
                        & (np.abs(memory[:, 2]) < 1 << 60)]
        moments = _nanoseconds(memory[:, 0], memory[:, 1]) + base
        return Events(*columns, self._names.things(), self._lanes.things(), (copied[0], copied[1]),
                      (work[0], work[1]), (packed, [call for _, call in self._packed]),
                      (inputs[0], inputs[1]), self._parameters.finish(),
                      np.column_stack((moments, memory[:, 2:].astype(np.int64))), self._labels,
                      list(self._told()))

    def _told(self) -> Iterator[str]:
        if self._unusable:
            yield f"{counted(self._unusable, 'event')} left out: no sound times or words"
        if self._names.full:
            yield "the file has too many different names: later ones are not told"
        if self._lanes.full:
            yield "the file has too many different threads: later ones are taken for one"


class _Kinds(dict[str, int]):
    """By the category as it is written."""

    def __missing__(self, category: str) -> int:
        kind = CATEGORIES.get(category.lower(), 0)
        if len(self) < 1000:
            self[category] = kind
        return kind


def _numbers(numbers: Iterator[int], count: int) -> np.ndarray:
    return np.fromiter(numbers, np.int32, count)


def _times(complete: list[dict[str, Any]], times: tuple[float, ...], lengths: tuple[float, ...],
           ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Begins and lengths in ns, and which are sound."""
    begin, length = np.array(times, np.float64), np.array(lengths, np.float64)
    sound = (np.abs(begin) < LATEST) & (length >= 0) & (length < LATEST / 1000)
    part = np.array([event.get("ts_part", 0) for event in complete], np.float64) \
        if any("ts_part" in event for event in complete) else np.zeros(len(complete))
    return (_nanoseconds(np.where(sound, begin, 0), part),
            np.rint(np.where(sound, length, 0) * 1000).astype(np.int64), sound)


def _nanoseconds(microseconds: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Exact, where float64 has no room for so many ns."""
    whole = np.floor(microseconds)
    part = np.where((part >= 0) & (part < 1), part, 0)
    return whole.astype(np.int64) * 1000 \
        + np.rint((microseconds - whole + part) * 1000).astype(np.int64)


def _arguments(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    try:
        return list(map(_ARGUMENTS, events))
    except KeyError:
        return [event.get("args", _NONE) for event in events]


def _links(args: list[dict[str, Any]], kind: np.ndarray) -> np.ndarray:
    link = np.full(len(args), -1, np.int64)
    launched = (kind >= LAUNCH) & (kind <= COPYING)
    link[launched] = [one.get("correlation", -1) for one in compress(args, launched)]
    operations = kind == OPERATION
    threads = [one.get("Fwd thread id", 1) for one in compress(args, operations)]
    link[operations] = np.array(threads, np.int64) == 0
    return link


def _sound(event: object) -> dict[str, Any] | None:
    """The event with words and numbers where others are expected; None: it is no event."""
    if not isinstance(event, dict) or not isinstance(event.get("ph"), str):
        return None
    args = event.get("args")
    sound = {key: value for key, value in args.items() if key not in _WHOLE or (
        type(value) is int and abs(value) < 1 << 62)} if isinstance(args, dict) else {}
    return {"ph": event["ph"], "cat": _word(event.get("cat")), "name": _word(event.get("name")),
            "pid": _thread(event.get("pid")), "tid": _thread(event.get("tid")),
            "ts": _number(event.get("ts")), "ts_part": _number(event.get("ts_part", 0)),
            "dur": _number(event.get("dur")), "args": sound}


_WHOLE = ("correlation", "Sequence number", "Fwd thread id", "Total Allocated")


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _thread(value: object) -> int | str | None:
    return value if isinstance(value, int | str) else None


def _number(value: object) -> float:
    """Not a number where it is none: such an event is counted and left out."""
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        return math.nan
