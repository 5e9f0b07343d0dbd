# SPDX-License-Identifier: Apache-2.0
"""One rank's trace file: its facts, and rows of it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from cadenza.errors import DamagedError, DataError
from cadenza.files import printable
from cadenza.read.codes import Codes
from cadenza.read.rank_tables import Table, Tables
from cadenza.read.schema import SCHEMA, TABLES
from cadenza.read.superblock import open_hdf5

_ATTRIBUTES = ("producer", "run_id", "code_version", "code_revision", "build", "seed",
               "created_utc")
_MOST_RANKS = 1 << 20
_ATTEMPTS = 10  # to read a file that is being written
_DRIFT_SPAN_NS = 10_000_000_000  # measurements closer than that say nothing about drift
# Read when the file is opened, as opening takes longer than reading them, unless they are large.
_KEPT = ("/meta/strings", "/memory/highwater", "/plan", "/plan_summary")
_KEPT_BYTES = 1 << 15

Result = TypeVar("Result")


def text(value: object) -> str:
    """An HDF5 string of any kind as str, on one line."""
    if isinstance(value, bytes | np.bytes_):
        value = bytes(value).split(b"\0", 1)[0].decode("utf-8", "replace")
    return printable(str(value))


class RankFile:
    """Facts of the file are read once; the file itself is open only while something is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ended = True  # by its writer
        self.ahead_ns = 0  # by what its clock was ahead, unknown to /clock/sync: clocks.py
        self._kept: dict[str, np.ndarray] = {}
        self._codes: dict[str, dict[str, Codes]] = {}  # by table and field
        self._kinds: dict[str, tuple[str, ...]] = {}  # of memory, by table
        self.read(self._read_facts)
        # A file that its writer closed may still be of a run that did not end as planned.
        self.truncated = not self.ended or self.state != "clean"

    def _read_facts(self, tables: Tables) -> None:
        events = self._check_schema(tables)
        self._codes["/events"] = events.codes
        self.run_id = text(tables.attribute("run_id"))
        self.info = self._first_row(tables, "/meta/rank")
        self.rank, self.world = int(self.info["rank"]), int(self.info["world"])
        if not 0 <= self.rank < self.world <= _MOST_RANKS:
            raise ValueError(f"/meta/rank says rank {self.rank} of {self.world}")
        self.role = self._name(tables, "/meta/rank", "role", self.info)
        self.steps = self._complete_steps(tables, events)
        self.clock = self._rows(tables, "/clock/sync")
        self.committed = int(self.steps["n_events_end"][-1]) if len(self.steps) else 0
        self.tail_events = events.rows - self.committed
        status = self._first_row(tables, "/meta/status")
        self.dropped_events = int(status["n_dropped"])
        self.writer_ns = int(status["writer_ns"])
        self.state = self._name(tables, "/meta/status", "state", status)
        self.signal = status["signal"]
        for name in _KEPT if self.ended else ():  # else they may still grow
            table = tables.find(name)
            if table.rows * table.dtype.itemsize <= _KEPT_BYTES:
                self._kept[name] = self._rows(tables, name)

    @property
    def ending(self) -> str:
        """How the run ended, for a person: "" where it ended as planned."""
        if not self.truncated:
            return ""
        last = f" after step {self.steps['step'][-1]}" if len(self.steps) else ""
        if self.ended and self.state == "signalled":
            return f"ended by {_signal_name(int(self.signal))}{last}"
        if self.ended and self.state == "error":
            return f"ended by an error{last}"
        return f"did not end cleanly{last}: killed, or still running"

    def read(self, action: Callable[[Tables], Result]) -> Result:
        """What `action` reads from the file's tables; whatever HDF5 says about it becomes one line.

        A file that grew meanwhile has a living writer, and what was read may have been half old
        and half new: then it is read again.
        """
        attempts = _ATTEMPTS
        while True:
            size = self.path.stat().st_size if self.path.exists() else 0
            attempts -= 1
            try:
                file, self.ended = open_hdf5(self.path)
                with file:
                    return action(Tables(file))
            except (OSError, RuntimeError, KeyError, ValueError, IndexError, TypeError) as error:
                if attempts > 0 and not self.ended and self.path.stat().st_size > size:
                    continue
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                reason = "it is cut short" if "addr overflow" in reason else reason.strip(chr(39))
                raise DamagedError(f"{self.path}: cannot be read: {reason}") from error

    def _check_schema(self, tables: Tables) -> Table:
        """@returns /events"""
        found = text(tables.attribute("schema"))
        if not found:
            raise DamagedError(f"{self.path}: not a Cadenza trace (no attribute 'schema')")
        if found != SCHEMA:
            raise DataError(f"{self.path}: schema {found!r} is not known here; valid is '{SCHEMA}'")
        return tables.find("/events")

    def _complete_steps(self, tables: Tables, events: Table) -> np.ndarray:
        """Rows of /steps whose events are in the file: all of them, but where it was cut off."""
        steps, rows = self._rows(tables, "/steps"), self._readable(events)
        ends = steps["n_events_end"]
        if (ends[1:] < ends[:-1]).any():
            raise ValueError("/steps: a step commits fewer events than the one before it")
        complete = ends <= rows
        if self.ended and not complete.all():
            raise DamagedError(
                f"{self.path}: /steps commits {ends[-1]} events, /events holds "
                f"{rows}: the file is damaged"
            )
        return steps[: len(steps) if complete.all() else int(np.argmin(complete))]

    def _rows(self, tables: Tables, name: str) -> np.ndarray:
        """A whole table."""
        table = tables.find(name)
        self._note(name, table)
        return table.read(0, self._readable(table))

    def _note(self, name: str, table: Table) -> None:
        """What the file says of the table's numbers and columns."""
        self._codes[name] = table.codes
        for field in ("bytes", "peak_bytes") if name.startswith("/memory/") else ():
            if field in table.dtype.names:
                columns = table.dtype[field].shape[0]
                self._kinds[name] = table.texts("kinds")
                named = len(set(self._kinds[name]))
                if named != columns:
                    raise ValueError(
                        f"{name}: {field} has {columns} columns, and names for {named}"
                    )

    def _name(self, tables: Tables, table: str, field: str, row: dict) -> str:
        """Of a number in a table's one row."""
        return tables.find(table).codes[field].name(int(row[field]))

    def _first_row(self, tables: Tables, name: str) -> dict:
        """By field."""
        rows = self._rows(tables, name)
        if len(rows) == 0:
            raise ValueError(f"{name} has no row")
        return {field: rows[0][field] for field in rows.dtype.names}

    def _readable(self, table: Table) -> int:
        """How many rows can be read: all, but where the file was cut off before its end."""
        if self.ended or not table.chunk:
            return table.rows
        size = self.path.stat().st_size
        for row in range(0, table.rows, table.chunk):
            try:
                chunk = table.data.get_chunk_info_by_coord((row,))
            except (OSError, RuntimeError):  # the index itself is behind the cut
                return row
            if chunk.byte_offset is None or chunk.byte_offset + chunk.size > size:
                return row
        return table.rows

    def event_ranges(self, steps: Sequence[int] | None) -> list[tuple[int, int]]:
        """Row ranges of /events that were committed with `steps` (all: None)."""
        if steps is None:
            return [(0, self.committed)]
        ends = self.steps["n_events_end"].astype(np.int64)
        begins = np.concatenate(([0], ends[:-1]))
        chosen = np.isin(self.steps["step"], np.asarray(steps))
        if not chosen.any():
            return []
        begins, ends = begins[chosen], ends[chosen]
        apart = begins[1:] != ends[:-1]  # what follows one another is read at once
        begins, ends = begins[np.append(True, apart)], ends[np.append(apart, True)]
        return list(zip(begins.tolist(), ends.tolist(), strict=True))

    def read_events(self, steps: Sequence[int] | None) -> np.ndarray:
        """Rows of /events."""

        def action(tables: Tables) -> np.ndarray:
            table = tables.find("/events")
            parts = [table.read(b, e) for b, e in self.event_ranges(steps)]
            rows = parts[0] if len(parts) == 1 else np.concatenate([table.read(0, 0), *parts])
            self._check_steps(rows, steps)
            if len(rows) and rows["name_id"].max() >= names:
                raise ValueError(f"/events: name_id {rows['name_id'].max()} is not known")
            return rows

        names = len(self.read_table("/meta/strings"))
        return self.read(action)

    def _check_steps(self, rows: np.ndarray, steps: Sequence[int] | None) -> None:
        """Events carry the step that they were committed with."""
        known = self.steps["step"]
        counts = np.diff(self.steps["n_events_end"].astype(np.int64), prepend=0)
        if steps is not None:
            chosen = np.isin(known, np.asarray(steps))
            known, counts = known[chosen], counts[chosen]
        expected = np.repeat(known, counts)
        if len(expected) != len(rows) or (rows["step"] != expected).any():
            raise ValueError("/events: there are some of another step than that they belong to")

    def codes(self, table: str, field: str) -> Codes:
        """Of a table that was read."""
        return self._codes[table][field]

    def kinds(self, table: str) -> tuple[str, ...]:
        """Of memory, by column of a table that was read."""
        return self._kinds[table]

    def names(self) -> list[str]:
        """Of events, by their `name_id`."""
        return [text(name) for name in self.read_table("/meta/strings")]

    def read_whole(self) -> None:
        """Reads all there is, for what may be wrong in the middle of the file."""
        self.read_events(None)
        self.read(lambda tables: [self._rows(tables, name) for name in TABLES if name != "/events"])

    def attributes(self) -> dict[str, object]:
        """Who made the run."""
        return self.read(lambda tables: {name: tables.attribute(name) for name in _ATTRIBUTES})

    def read_table(self, name: str) -> np.ndarray:
        """A whole dataset."""
        if name in self._kept:
            return self._kept[name]
        return self.read(lambda tables: self._rows(tables, name))

    def read_step_rows(self, name: str) -> np.ndarray:
        """Rows of a dataset with a field `step`, of complete steps."""
        rows = self.read_table(name)
        return rows[np.isin(rows["step"], self.steps["step"])]

    def to_global(self, local_ns: np.ndarray) -> np.ndarray:
        """Local times on rank 0's clock, by offsets that are linear between measurements.

        Outside them the clocks drift on as over the whole of the measurements, where those span 10
        seconds or more; else the nearest offset holds. Differences are taken before anything
        becomes floating point, so whole nanoseconds survive. What other ranks show the clock to be
        off by beyond that (`ahead_ns`) is taken away.
        """
        local = np.asarray(local_ns, dtype=np.int64)
        if len(self.clock) == 0 or len(local) == 0:
            return local - self.ahead_ns
        order = np.argsort(self.clock["time_ns"], kind="stable")
        times = self.clock["time_ns"].astype(np.int64)[order]
        offsets = self.clock["offset_ns"].astype(np.int64)[order]
        since = local - times[0]
        change = np.interp(since, times - times[0], offsets - offsets[0])
        span = int(times[-1] - times[0])
        if span >= _DRIFT_SPAN_NS:
            slope = float(offsets[-1] - offsets[0]) / span
            change += slope * (np.minimum(since, 0) + np.maximum(since - span, 0))
        return local + (offsets[0] - self.ahead_ns) + np.rint(change).astype(np.int64)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
