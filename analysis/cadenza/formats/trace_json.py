# SPDX-License-Identifier: Apache-2.0
"""Trace events in JSON, as chrome://tracing defined them and ui.perfetto.dev reads them.

A process is a host. A rank has a thread for its steps, within which its waits lie, and one for each
lane that it recorded, or several where events of a lane overlap.
Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMBy8kRkHLA1ThwyH3A
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from cadenza.colours import PART_NAMES
from cadenza.files import written
from cadenza.formats.copies import originals
from cadenza.formats.flows import bindings, flow_numbers
from cadenza.formats.lines import compact, slices
from cadenza.formats.threads import Thread, Threads
from cadenza.processes import mapped
from cadenza.read.columns import rows_of
from cadenza.read.run import EVENTS_AT_ONCE, Run, of_step
from cadenza.time.pieces import lane_pieces
from cadenza.time.waits import wait_spans
from cadenza.words import ranks_of

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
        self._kept = list(run.events_of_steps(steps)) if run.event_count <= EVENTS_AT_ONCE else None
        # By the lowest rank, from 1: Perfetto keeps process 0 for itself.
        numbers = pd.factorize(self._ranks["host"])[0] + 1
        self._process = dict(zip(self._ranks["rank"].tolist(), numbers.tolist(), strict=True))
        windows = run.steps()
        self._origin = self._first_time(windows)
        self._alike = self._same(ranks, _part(windows, ranks, steps))
        self._windows = _part(windows, self._alike, steps)

    def _events(self) -> Iterable[tuple[list[int], pd.DataFrame]]:
        """Events of all ranks, of several steps at a time."""
        return self._run.events_of_steps(self._steps) if self._kept is None else self._kept

    def _same(self, ranks: list[int], windows: pd.DataFrame) -> dict[int, list[int]]:
        """By each rank that is drawn those that did the same, which only simulated ones do."""
        if self._run.info["producer"] != "simulator":
            return {rank: [rank] for rank in ranks}
        windows = windows[["rank", "step", "begin_ns", "end_ns"]]
        frames = chain([windows], (events for _, events in self._events()))
        found = originals(self._ranks[self._ranks["rank"].isin(ranks)], frames)
        return {rank: list(same) for rank, same in found.groupby(found).groups.items()}

    def _first_time(self, windows: pd.DataFrame) -> int:
        """Of the whole run, ns: when something was does not depend on what is exported."""
        first = self._run.chosen_steps(None)[:1]
        events = self._run.events(steps=first, columns=["begin_ns"])
        times = (events["begin_ns"], windows["begin_ns"])
        return min((int(column.min()) for column in times if len(column)), default=0)

    def parts(self, packed: Callable[[str], bytes]) -> Iterator[bytes]:
        """All events and what ends the file, some at a time, as `packed` makes them of text."""
        threads, lanes = Threads(), ["steps"]
        windows = self._windows
        windows = windows.assign(thread=threads.take(windows, np.zeros(len(windows), np.int64)))
        for batch, events in self._events():
            lanes[1:] = events["lane"].cat.categories  # the same in all batches
            rows = np.flatnonzero(events["rank"].isin(self._alike))
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
        # In the order of time, in which both ends of a message are near, which packs better.
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
        samples = _part(self._run.memory_samples(), self._alike, self._steps)
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
        """Of processes, and of threads, which Perfetto shows in the order of their numbers; of
        processes it shows the one with the most slices first, whatever is said here."""
        drawn = self._ranks[self._ranks["rank"].isin(self._alike)]
        for host, rank in drawn.groupby("host")["rank"].min().items():
            process = self._process[rank]
            yield _named(process, "process_name", name=host)
            yield _named(process, "process_sort_index", sort_index=process)
        places = _places(self._ranks)
        labels = {rank: _label(places.loc[same]) for rank, same in self._alike.items()}
        for thread in threads:
            more = f" ({thread.number + 1})" if thread.number else ""
            name = f"{labels[thread.rank]} · {lanes[thread.lane]}{more}"
            yield {**_named(self._process[thread.rank], "thread_name", name=name), "tid": thread.id}


def _part(frame: pd.DataFrame, ranks: Collection[int], steps: list[int]) -> pd.DataFrame:
    return frame[frame["rank"].isin(ranks) & frame["step"].isin(steps)]


def _named(process: int, what: str, **arguments: str | int) -> dict:
    return {"ph": "M", "name": what, "pid": process, "args": arguments}


def _places(ranks: pd.DataFrame) -> pd.DataFrame:
    """By rank its place in words, in each direction in which the layout has several ranks."""
    found = pd.DataFrame(index=ranks["rank"])
    found["role"] = np.where(ranks["role"] == "attention_server", "server", "")
    for name, short in _COORDINATES.items():
        if ranks[name].nunique() > 1:
            found[name] = [f"{short}{place}" if place >= 0 else "" for place in ranks[name]]
    return found


def _label(places: pd.DataFrame) -> str:
    """Which ranks these are that did the same, and what they have in common."""
    common = [words.iloc[0] for _, words in places.items() if words.nunique() == 1]
    which = f"rank{'s' * (len(places) > 1)} {ranks_of(tuple(places.index))}"
    return " ".join(filter(None, [which, *common]))
