# SPDX-License-Identifier: Apache-2.0
"""One rank's trace file: its facts, and rows of it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import h5py
import numpy as np

from cadenza.errors import DamagedError, DataError
from cadenza.rank_tables import checked, open_table
from cadenza.schema import REQUIRED, SCHEMA, STATUS_CLEAN, STATUS_FAILED, STATUS_SIGNALLED
from cadenza.superblock import open_hdf5

_ATTRIBUTES = ("producer", "run_id", "code_version", "code_revision", "build", "seed",
               "created_utc")  # fmt: skip
_MOST_RANKS = 1 << 20
_ATTEMPTS = 10  # to read a file that is being written
_DRIFT_SPAN_NS = 10_000_000_000  # measurements closer than that say nothing about drift

Result = TypeVar("Result")


def text(value: object) -> str:
    """An HDF5 string of any kind as str."""
    if isinstance(value, bytes | np.bytes_):
        return bytes(value).split(b"\0", 1)[0].decode("utf-8", "replace")
    return str(value)


class RankFile:
    """Facts of the file are read once; the file itself is open only while something is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ended = True  # by its writer
        self._looked_at: set[str] = set()  # tables that are as they should be
        self.read(self._read_facts)
        # A file that its writer closed may still be of a run that did not end as planned.
        self.truncated = not self.ended or self.state != STATUS_CLEAN

    def _read_facts(self, file: h5py.File) -> None:
        self._check_schema(file)
        self.attributes = {name: _attribute(file, name) for name in _ATTRIBUTES}
        self.run_id = text(self.attributes["run_id"])
        self.info = self._first_row(file, "/meta/rank")
        self.rank, self.world = int(self.info["rank"]), int(self.info["world"])
        if not 0 <= self.rank < self.world <= _MOST_RANKS:
            raise ValueError(f"/meta/rank says rank {self.rank} of {self.world}")
        self.steps = self._complete_steps(file)
        self.clock = self._rows(file, "/clock/sync") if "/clock/sync" in file else None
        self.committed = int(self.steps["n_events_end"][-1]) if len(self.steps) else 0
        self.tail_events = file["/events"].shape[0] - self.committed
        status = self._first_row(file, "/meta/status") if "/meta/status" in file else {}
        self.dropped_events = int(status.get("n_dropped", 0))
        self.writer_ns = int(status.get("writer_ns", 0))
        self.state, self.signal = int(status.get("state", STATUS_CLEAN)), status.get("signal", 0)

    @property
    def ending(self) -> str:
        """How the run ended, for a person: "" where it ended as planned."""
        if not self.truncated:
            return ""
        last = f" after step {self.steps['step'][-1]}" if len(self.steps) else ""
        if self.ended and self.state == STATUS_SIGNALLED:
            return f"ended by {_signal_name(int(self.signal))}{last}"
        if self.ended and self.state == STATUS_FAILED:
            return f"ended by an error{last}"
        return f"did not end cleanly{last}: killed, or still running"

    def read(self, action: Callable[[h5py.File], Result]) -> Result:
        """What `action` reads from the open file; whatever HDF5 says about it becomes one line.

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
                    return action(file)
            except (OSError, RuntimeError, KeyError, ValueError, IndexError, TypeError) as error:
                if attempts > 0 and not self.ended and self.path.stat().st_size > size:
                    continue
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                reason = reason.strip(chr(39))
                raise DamagedError(f"{self.path}: cannot be read: {reason}") from error

    def _check_schema(self, file: h5py.File) -> None:
        found = text(_attribute(file, "schema"))
        if not found:
            raise DamagedError(f"{self.path}: not a Cadenza trace (no attribute 'schema')")
        if found != SCHEMA:
            raise DataError(f"{self.path}: schema {found!r} is not known here; valid is '{SCHEMA}'")
        for name in REQUIRED:
            if name not in file:
                raise DamagedError(f"{self.path}: no dataset {name}: the file is damaged")

    def _complete_steps(self, file: h5py.File) -> np.ndarray:
        """Rows of /steps whose events are in the file: all of them, but where it was cut off."""
        steps, rows = self._rows(file, "/steps"), self._readable(self._table(file, "/events"))
        complete = steps["n_events_end"] <= rows
        if self.ended and not complete.all():
            raise DamagedError(
                f"{self.path}: /steps commits {steps['n_events_end'][-1]} events, /events holds "
                f"{rows}: the file is damaged"
            )
        return steps[: len(steps) if complete.all() else int(np.argmin(complete))]

    def _table(self, file: h5py.File, name: str) -> h5py.Dataset:
        if name in self._looked_at:
            return file[name]
        data = open_table(file, name)
        self._looked_at.add(name)
        return data

    def _rows(self, file: h5py.File, name: str) -> np.ndarray:
        data = self._table(file, name)
        return checked(name, data[: self._readable(data)])

    def _first_row(self, file: h5py.File, name: str) -> dict:
        rows = self._rows(file, name)
        if len(rows) == 0:
            raise ValueError(f"{name} has no row")
        return {field: rows[0][field] for field in rows.dtype.names}

    def _readable(self, data: h5py.Dataset) -> int:
        """How many rows can be read: all, but where the file was cut off before its end."""
        if self.ended or data.chunks is None:
            return data.shape[0]
        size = self.path.stat().st_size
        for row in range(0, data.shape[0], data.chunks[0]):
            try:
                chunk = data.id.get_chunk_info_by_coord((row,))
            except (OSError, RuntimeError):  # the index itself is behind the cut
                return row
            if chunk.byte_offset is None or chunk.byte_offset + chunk.size > size:
                return row
        return data.shape[0]

    def event_range(self, steps: Sequence[int] | None) -> list[tuple[int, int]]:
        """Row ranges of /events that were committed with `steps` (all: None)."""
        if steps is None:
            return [(0, self.committed)]
        ends = self.steps["n_events_end"].astype(np.int64)
        begins = np.concatenate(([0], ends[:-1]))
        chosen = np.isin(self.steps["step"], np.asarray(steps))
        return [(int(b), int(e)) for b, e in zip(begins[chosen], ends[chosen], strict=True)]

    def read_events(self, steps: Sequence[int] | None) -> tuple[np.ndarray, list[str]]:
        """Rows of /events and the table of names."""

        def action(file: h5py.File) -> tuple[np.ndarray, list[str]]:
            data = self._table(file, "/events")
            parts = [data[b:e] for b, e in self.event_range(steps)]
            rows = checked("/events", np.concatenate(parts) if parts else data[:0])
            names = self._rows(file, "/meta/strings") if "/meta/strings" in file else []
            return rows, [text(name) for name in names]

        return self.read(action)

    def read_table(self, name: str) -> np.ndarray | None:
        """A whole dataset, or None where the file has none."""
        return self.read(lambda file: self._rows(file, name) if name in file else None)

    def read_step_rows(self, name: str) -> np.ndarray | None:
        """Rows of a dataset with a field `step`, of complete steps; None where there is none."""
        rows = self.read_table(name)
        return None if rows is None else rows[np.isin(rows["step"], self.steps["step"])]

    def to_global(self, local_ns: np.ndarray) -> np.ndarray:
        """Local times on rank 0's clock, by offsets that are linear between measurements.

        Outside them the clocks drift on as over the whole of the measurements, where those span 10
        seconds or more; else the nearest offset holds. Differences are taken before anything
        becomes floating point, so whole nanoseconds survive.
        """
        local = np.asarray(local_ns, dtype=np.int64)
        if self.clock is None or len(self.clock) == 0 or len(local) == 0:
            return local
        order = np.argsort(self.clock["t_local_ns"], kind="stable")
        times = self.clock["t_local_ns"].astype(np.int64)[order]
        offsets = self.clock["offset_ns"].astype(np.int64)[order]
        since = local - times[0]
        change = np.interp(since, times - times[0], offsets - offsets[0])
        span = int(times[-1] - times[0])
        if span >= _DRIFT_SPAN_NS:
            slope = float(offsets[-1] - offsets[0]) / span
            change += slope * (np.minimum(since, 0) + np.maximum(since - span, 0))
        return local + offsets[0] + np.rint(change).astype(np.int64)


def _attribute(file: h5py.File, name: str) -> object:
    """One value, "" where the file does not have it."""
    value = file.attrs.get(name, "")
    if isinstance(value, np.ndarray | h5py.Empty):
        raise ValueError(f"attribute '{name}' is not one value")
    return value


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
