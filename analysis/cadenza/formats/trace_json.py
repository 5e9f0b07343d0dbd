# SPDX-License-Identifier: Apache-2.0
"""Trace events in JSON, as chrome://tracing defined them and ui.perfetto.dev reads them.

A process is a host. A rank has a thread for its steps, within which its waits lie, and one for each
lane that it recorded, or several where events of a lane overlap.
Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMBy8kRkHLA1ThwyH3A
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from cadenza.colours import PART_NAMES
from cadenza.files import written
from cadenza.formats.flows import bindings, flow_numbers
from cadenza.formats.lines import compact, slices
from cadenza.formats.threads import Thread, Threads
from cadenza.processes import mapped
from cadenza.read.columns import rows_of
from cadenza.read.run import Run, of_step
from cadenza.time.pieces import lane_pieces
from cadenza.time.waits import wait_spans

_COORDINATES = {"data": "dp", "pipeline": "pp", "tensor": "tp", "context": "cp"}


def write_trace_json(run: Run, output: Path, ranks: list[int], steps: list[int]) -> None:
    """@param output  compressed where its name ends in .gz"""
    output.parent.mkdir(parents=True, exist_ok=True)
    packed = _packed if output.suffix == ".gz" else str.encode
    with written(output) as file:
        file.write(packed('{"displayTimeUnit":"ns","traceEvents":[\n'))
        for part in _Exported(run, ranks, steps).parts(packed):
            file.write(part)


def _packed(text: str) -> bytes:
    """A member of a gzip file: it may have many, which processes make side by side."""
    return gzip.compress(text.encode(), 6, mtime=0)


class _Exported:
    """Some ranks and steps of a run. Of these steps all ranks are read: what a rank waited for
    depends on the others."""

    def __init__(self, run: Run, ranks: list[int], steps: list[int]) -> None:
        self._run, self._ranks, self._steps = run, run.ranks(), steps
        # By the lowest rank, from 1: Perfetto keeps process 0 for itself.
        numbers = pd.factorize(self._ranks["host"])[0] + 1
        self._process = dict(zip(self._ranks["rank"].tolist(), numbers.tolist(), strict=True))
        self._drawn = self._ranks[self._ranks["rank"].isin(ranks)]
        windows = run.steps()
        self._origin = self._first_time(windows)
        self._windows = self._part(windows)

    def _first_time(self, windows: pd.DataFrame) -> int:
        """Of the whole run, ns: when something was does not depend on what is exported."""
        first = self._run.chosen_steps(None)[:1]
        events = self._run.events(steps=first, columns=["begin_ns"])
        times = (events["begin_ns"], windows["begin_ns"])
        return min((int(column.min()) for column in times if len(column)), default=0)

    def _part(self, frame: pd.DataFrame) -> pd.DataFrame:
        """What of the frame is exported."""
        return frame[frame["rank"].isin(self._drawn["rank"]) & frame["step"].isin(self._steps)]

    def parts(self, packed: Callable[[str], bytes]) -> Iterator[bytes]:
        """All events and what ends the file, some at a time, as `packed` makes them of text."""
        threads, lanes = Threads(), ["steps"]
        windows = self._windows
        windows = windows.assign(thread=threads.take(windows, np.zeros(len(windows), np.int64)))
        for batch, events in self._run.events_of_steps(self._steps):
            lanes[1:] = events["lane"].cat.categories  # the same in all batches
            rows = np.flatnonzero(events["rank"].isin(self._drawn["rank"]))
            places = rows_of(events, rows, ["rank", "begin_ns", "end_ns"])
            thread = np.zeros(len(events), np.int64)
            thread[rows] = threads.take(places, events["lane"].array.codes[rows] + 1)
            events["thread"] = thread

            def text(step: int, events: pd.DataFrame = events) -> bytes:
                return packed(self._of_step(step, of_step(events, step), of_step(windows, step)))

            yield from mapped(text, batch, len(events))
        rest = (*self._counters(), *self._names(threads.used(), lanes))
        yield packed(",\n".join(map(compact, rest)) + "\n]}\n")

    def _of_step(self, step: int, events: pd.DataFrame, windows: pd.DataFrame) -> str:
        """@param events   of all ranks; those that are exported have a thread
        @param windows  the step of each rank that is exported"""
        waits = wait_spans(lane_pieces(events, self._ranks), windows)
        waits = waits.merge(windows[["rank", "thread"]])
        waits = waits.assign(step=step, category="wait_cause", name=waits["part"].map(PART_NAMES))
        steps = windows[["rank", "thread", "step", "begin_ns", "end_ns"]]
        steps = steps.assign(category="step", name=f"step {step}")
        chosen = np.flatnonzero(events["thread"])
        begin, end, sends = (events[name].to_numpy()[chosen]
                             for name in ("begin_ns", "end_ns", "sends"))
        # Side by side is what ranks did alike, which packs better.
        events = events.take(chosen[np.lexsort((~sends, -end, begin))]).reset_index(drop=True)
        flows = flow_numbers(events, self._ranks)
        bound = bindings(flows, self._steps.index(step), len(self._steps))
        return "".join(map(self._slices, (steps, waits, events), ("", "", bound)))

    def _slices(self, frame: pd.DataFrame, bound: np.ndarray | str) -> str:
        times = {name: frame[name] - self._origin for name in ("begin_ns", "end_ns")}
        return slices(frame.assign(process=frame["rank"].map(self._process), **times), bound)

    def _counters(self) -> Iterator[dict]:
        """Memory in use by kind, stacked, and the process's resident set. Perfetto gives counters
        to processes, so the name says whose it is."""
        samples = self._part(self._run.memory_samples())
        kinds = samples["kind"].cat.categories.tolist()
        rows = samples.iloc[:: len(kinds)]
        values = samples["bytes"].to_numpy().reshape(-1, len(kinds)).tolist()
        columns = (rows["rank"].tolist(), rows["time_ns"].tolist(), values)
        for rank, time, of_kinds in zip(*columns, strict=True):
            memory = dict(zip(kinds, of_kinds, strict=True))
            resident = {"bytes": memory.pop("host_rss", 0)}
            for name, arguments in (("memory", memory), ("resident", resident)):
                yield {"ph": "C", "pid": self._process[rank], "name": f"rank {rank} {name}",
                       "ts": (time - self._origin) / 1000, "args": arguments}

    def _names(self, threads: list[Thread], lanes: list[str]) -> Iterator[dict]:
        """Of processes, and of threads, which are shown in the order of their numbers."""
        for host, rank in self._drawn.groupby("host")["rank"].min().items():
            process = self._process[rank]
            yield _named(process, "process_name", name=host)
            yield _named(process, "process_sort_index", sort_index=process)
        labels = _labels(self._drawn, self._ranks)
        for thread in threads:
            more = f" ({thread.number + 1})" if thread.number else ""
            name = f"{labels[thread.rank]} · {lanes[thread.lane]}{more}"
            yield {**_named(self._process[thread.rank], "thread_name", name=name), "tid": thread.id}


def _named(process: int, what: str, **arguments: str | int) -> dict:
    return {"ph": "M", "name": what, "pid": process, "args": arguments}


def _labels(drawn: pd.DataFrame, ranks: pd.DataFrame) -> dict[int, str]:
    """By rank: which it is, and its place in a layout that has several in that direction."""
    several = {name: short for name, short in _COORDINATES.items() if ranks[name].nunique() > 1}
    labels = {}
    for row in drawn.to_dict("records"):
        place = [f"{short}{row[name]}" for name, short in several.items() if row[name] >= 0]
        server = ["server"] if row["role"] == "attention_server" else []
        labels[row["rank"]] = " ".join([f"rank {row['rank']}", *server, *place])
    return labels
