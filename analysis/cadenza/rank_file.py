# SPDX-License-Identifier: Apache-2.0
"""One rank's trace file: opening it in any state a run can leave it in, and reading rows of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np

from cadenza.errors import DataError
from cadenza.schema import SCHEMA, STATUS_CLEAN

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_REQUIRED = ("/meta/rank", "/steps", "/events")


def text(value: object) -> str:
    """An HDF5 string of any kind as str."""
    if isinstance(value, bytes | np.bytes_):
        return bytes(value).split(b"\0", 1)[0].decode("utf-8", "replace")
    return str(value)


class RankFile:
    """Facts of the file are read once; the file itself is open only while something is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.swmr = False  # left open by a writer that was killed or still runs
        _check_signature(path)
        with self.reading() as file:
            self._check_schema(file)
            self.run_id = text(file.attrs.get("run_id", ""))
            self.info = {k: file["/meta/rank"][0][k] for k in file["/meta/rank"].dtype.names}
            self.rank = int(self.info["rank"])
            self.world = int(self.info["world"])
            self.steps = file["/steps"][:]
            self.clock = file["/clock/sync"][:] if "/clock/sync" in file else None
            self.committed = int(self.steps["n_events_end"][-1]) if len(self.steps) else 0
            if self.committed > file["/events"].shape[0]:
                raise DataError(
                    f"{path}: /steps commits {self.committed} events, /events holds "
                    f"{file['/events'].shape[0]}: the file is damaged"
                )
            self.tail_events = file["/events"].shape[0] - self.committed
            self.dropped_events = self._status(file, "n_dropped", 0)
            # A file that opens plainly may still be of a run that did not end (other durability).
            self.truncated = self.swmr or self._status(file, "state", STATUS_CLEAN) != STATUS_CLEAN

    @contextlib.contextmanager
    def reading(self) -> Iterator[h5py.File]:
        """The open file; whatever HDF5 says about it becomes one line."""
        try:
            with self._open() as file:
                yield file
        except (OSError, RuntimeError, KeyError, ValueError, IndexError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataError(f"{self.path}: cannot be read: {reason.strip(chr(39))}") from error

    def _open(self) -> h5py.File:
        if not self.swmr:
            try:
                return h5py.File(self.path, "r")
            except OSError:
                # The mark of a writer is still in the file. It is read around, never cleared:
                # clearing it destroys what was flushed.
                file = h5py.File(self.path, "r", libver="latest", swmr=True)
                self.swmr = True
                return file
        return h5py.File(self.path, "r", libver="latest", swmr=True)

    def _check_schema(self, file: h5py.File) -> None:
        found = text(file.attrs.get("schema", ""))
        if not found:
            raise DataError(f"{self.path}: not a Cadenza trace (no attribute 'schema')")
        if found != SCHEMA:
            raise DataError(f"{self.path}: schema '{found}' is not known here; valid is '{SCHEMA}'")
        for name in _REQUIRED:
            if name not in file:
                raise DataError(f"{self.path}: no dataset {name}: the file is damaged")

    @staticmethod
    def _status(file: h5py.File, field: str, default: int) -> int:
        status = file.get("/meta/status")
        if status is None or field not in (status.dtype.names or ()) or status.shape[0] == 0:
            return default
        return int(status[0][field])

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
        with self.reading() as file:
            data = file["/events"]
            parts = [data[b:e] for b, e in self.event_range(steps)]
            rows = np.concatenate(parts) if parts else data[:0]
            names = file["/meta/strings"][:] if "/meta/strings" in file else []
            return rows, [text(name) for name in names]

    def read_table(self, name: str) -> np.ndarray | None:
        """A whole dataset, or None where the file has none."""
        with self.reading() as file:
            return file[name][:] if name in file else None

    def to_global(self, local_ns: np.ndarray) -> np.ndarray:
        """Local times on rank 0's clock: offsets interpolated between measurements, held outside.

        Differences are taken before anything becomes floating point, so whole nanoseconds survive.
        """
        local = np.asarray(local_ns, dtype=np.int64)
        if self.clock is None or len(self.clock) == 0 or len(local) == 0:
            return local
        order = np.argsort(self.clock["t_local_ns"], kind="stable")
        times = self.clock["t_local_ns"].astype(np.int64)[order]
        offsets = self.clock["offset_ns"].astype(np.int64)[order]
        change = np.interp(local - times[0], times - times[0], offsets - offsets[0])
        return local + offsets[0] + np.rint(change).astype(np.int64)


def _check_signature(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(len(_SIGNATURE))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if head != _SIGNATURE:
        raise DataError(f"{path}: not an HDF5 file")
