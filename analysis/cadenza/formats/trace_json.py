# SPDX-License-Identifier: Apache-2.0
"""Trace events in JSON, as chrome://tracing defined them and ui.perfetto.dev reads them.

A process is a rank, a thread a lane. Events of a thread must nest there, so what overlaps gets
threads of its own: messages, which are under way side by side.
Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMBy8kRkHLA1ThwyH3A
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pandas as pd

from cadenza.files import written
from cadenza.read.partners import both_ends, message_ends
from cadenza.read.run import Run

_THREADS = 10_000  # of a lane
_ARGUMENTS = {"microbatch": -1, "layer": -1, "tick": -1, "half": -1, "stage": -1,
              "peer": -1, "flow": 0, "bytes": 0, "flops": 0}


def write_trace_json(run: Run, output: Path, ranks: list[int], steps: list[int]) -> None:
    """@param output  compressed where its name ends in .gz"""
    output.parent.mkdir(parents=True, exist_ok=True)
    line = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    with written(output) as raw, _packed(raw, output) as file:
        file.write(b'{"displayTimeUnit":"ns","traceEvents":[')
        between = b"\n"
        for event in chain(_process_names(run, ranks), _events(run, ranks, steps)):
            file.write(between + line(event).encode())
            between = b",\n"
        file.write(b"\n]}\n")


def _packed(file: BinaryIO, output: Path) -> AbstractContextManager[BinaryIO]:
    if output.suffix == ".gz":
        return gzip.GzipFile("", "wb", 5, file)
    return nullcontext(file)


def _process_names(run: Run, ranks: list[int]) -> Iterator[dict]:
    for row in run.ranks().to_dict("records"):
        if row["rank"] not in ranks:
            continue
        place = "".join(
            f" {short}{row[name]}"
            for short, name in (("dp", "data"), ("pp", "pipeline"), ("tp", "tensor"),
                                ("cp", "context"))
            if row.get(name, -1) >= 0
        )
        name = f"rank {row['rank']} {row['role']}{place}"
        yield _metadata("process_name", row["rank"], 0, {"name": name})
        yield _metadata("process_sort_index", row["rank"], 0, {"sort_index": row["rank"]})


def _metadata(name: str, process: int, thread: int, arguments: dict) -> dict:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": arguments}


def _events(run: Run, ranks: list[int], steps: list[int]) -> Iterator[dict]:
    """Step by step, as all at once may not fit into memory."""
    threads = _Threads()
    origin, arrows = None, 0
    for step in steps:
        events = run.events(ranks=ranks, steps=[step])
        lanes = events["lane"].cat.categories  # the same in all steps
        if origin is None and len(events):
            origin = int(events["begin_ns"].min())
        columns = (events["rank"], events["lane"].cat.codes, events["begin_ns"], events["end_ns"])
        rows = zip(*(column.tolist() for column in columns), strict=True)
        thread = np.array([threads.take(*row) for row in rows], dtype=np.int64)
        yield from _slices(events, thread, origin)
        yield from _arrows(events, thread, origin, arrows)
        arrows += len(events)
    samples = run.memory_samples()
    if len(samples):
        chosen = samples[samples["rank"].isin(ranks) & samples["step"].isin(steps)]
        yield from _counters(chosen, origin)
    for (rank, lane), count in threads.used():
        for number in range(count):
            name = lanes[lane].replace("2", " 2") + (f" ({number + 1})" if number else "")
            yield _metadata("thread_name", rank, _thread(lane, number), {"name": name})


def _thread(lane: int, number: int) -> int:
    """Never 0, which Perfetto takes for the thread whose number is the process's: rank 2's compute
    lane would be its lane 2."""
    return (lane + 1) * _THREADS + number


class _Threads:
    """Gives each event of a lane the first thread on which it nests in others or is apart."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[int, int], list[tuple[list[int], list[int]]]] = {}

    def take(self, rank: int, lane: int, begin: int, end: int) -> int:
        threads = self._lanes.setdefault((rank, lane), [])
        for number, (open_, latest) in enumerate(threads):
            if begin < latest[0]:
                continue
            while open_ and open_[-1] <= begin:
                open_.pop()
            if not open_ or end <= open_[-1]:
                open_.append(end)
                latest[0] = begin
                return _thread(lane, number)
        threads.append(([end], [begin]))
        return _thread(lane, len(threads) - 1)

    def used(self) -> list[tuple[tuple[int, int], int]]:
        """(rank, lane) and how many threads it took."""
        return [(key, len(threads)) for key, threads in sorted(self._lanes.items())]


def _microseconds(ns: int) -> float:
    """To the nanosecond, up to 104 days."""
    return ns / 1000


def _slices(events: pd.DataFrame, thread: np.ndarray, origin: int | None) -> Iterator[dict]:
    """A complete event ("X") for each row."""
    arguments = [(name, events[name].tolist(), none) for name, none in _ARGUMENTS.items()]
    columns = [events[name].tolist() for name in
               ("rank", "begin_ns", "end_ns", "name", "category", "phase", "step")]
    for row, (rank, begin, end, name, category, phase, step) in enumerate(
        zip(*columns, strict=True)
    ):
        extra = {a: values[row] for a, values, none in arguments
                 if values[row] != none and math.isfinite(values[row])}
        yield {"ph": "X", "name": name, "cat": category, "pid": rank, "tid": int(thread[row]),
               "ts": _microseconds(begin - origin), "dur": _microseconds(end - begin),
               "args": {"step": step, "phase": phase, **extra}}


def _arrows(
    events: pd.DataFrame, thread: np.ndarray, origin: int | None, first: int
) -> Iterator[dict]:
    """From each message's sender to its receiver."""
    ends = both_ends(message_ends(events)).sort_values(["message", "sends"])
    receivers, senders = ends.iloc[::2], ends.iloc[1::2]
    rank, begin, end = (events[name].tolist() for name in ("rank", "begin_ns", "end_ns"))
    columns = (receivers["event"].tolist(), senders["event"].tolist())
    for number, (to, source) in enumerate(zip(*columns, strict=True), start=first):
        start = begin[source]
        # Within the receiver's event, which does not include its end.
        stop = max(end[to] - 1, begin[to], start)
        for phase, row, time, more in (("s", source, start, {}), ("f", to, stop, {"bp": "e"})):
            yield {"ph": phase, "name": "message", "cat": "flow", "id": number, "pid": rank[row],
                   "tid": int(thread[row]), "ts": _microseconds(time - origin), **more}


def _counters(samples: pd.DataFrame, origin: int | None) -> Iterator[dict]:
    """Memory in use by kind, stacked, and the process's resident set."""
    for (rank, time), kinds in samples.groupby(["rank", "time_ns"], sort=True):
        values = dict(zip(kinds["kind"], kinds["bytes"].tolist(), strict=True))
        parts = {"resident": {"bytes": values.pop("host_rss", 0)}, "memory": values}
        for name, arguments in parts.items():
            yield {"ph": "C", "name": name, "pid": int(rank), "tid": 0,
                   "ts": _microseconds(int(time) - (origin or 0)), "args": arguments}
