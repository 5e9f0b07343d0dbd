# SPDX-License-Identifier: Apache-2.0
"""Rows of trace files as pandas frames."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from cadenza.errors import DataError
from cadenza.read.rank_file import RankFile
from cadenza.read.schema import SINCE_LATER, TABLES

EVENT_COLUMNS = (
    "rank", "step", "begin_ns", "end_ns", "category", "phase", "name", "lane", "peer", "flow",
    "microbatch", "layer", "document", "bytes", "flops", "non_blocking", "tick", "half", "stage",
    "sends", "simulated", "still_ns",
)  # fmt: skip
_FIELDS = {"begin_ns": "t_begin_ns", "end_ns": "t_end_ns", "category": "cat", "microbatch": "mb",
           "document": "doc"}  # fmt: skip
_FLAGS = ("non_blocking", "sends", "simulated")
_NAMED = ("category", "phase", "lane", "name")  # categoricals of names
_TYPES = {"rank": np.int32, "step": np.int64, "flow": np.int64, "category": np.int16,
          "phase": np.int16, "lane": np.int16, "name": np.int16}  # fmt: skip
_STEP_NAMES = {"t_begin": "begin_ns", "t_end": "end_ns", "docs": "documents",
               "sum_len2": "sum_length2", "grad_norm": "gradient_norm", "lr": "learning_rate",
               "bytes_recv": "bytes_received", "machine_s": "machine_seconds"}  # fmt: skip


def events_frame(
    files: Sequence[RankFile], steps: Sequence[int] | None, columns: Sequence[str]
) -> pd.DataFrame:
    """Events of all `files`, ordered by rank and begin. Names of the schema and of operations are
    categoricals, so that a million rows take tens of megabytes."""
    names: dict[str, dict[str, int]] = {column: {} for column in _NAMED}
    counts = [sum(e - b for b, e in file.event_ranges(steps)) for file in files]
    frame = {column: np.empty(sum(counts), _column_type(column)) for column in columns}
    for file, end in zip(files, np.cumsum(counts).tolist(), strict=True):
        rows = file.read_events(steps)
        begins = rows["t_begin_ns"]
        if (begins[1:] < begins[:-1]).any():
            rows = rows.take(np.argsort(begins, kind="stable"))  # 20 times as fast as rows[...]
        for column, values in frame.items():
            values[end - len(rows) : end] = _event_column(file, rows, column, names)
    for column in set(_NAMED) & set(columns):
        values = pd.Index(list(names[column]), dtype=object)
        frame[column] = pd.Categorical.from_codes(frame[column], categories=values)
    return pd.DataFrame(frame, columns=list(columns), copy=False)


def _column_type(column: str) -> np.dtype:
    """Of the values that _event_column() gives."""
    if column in _FLAGS:
        return np.dtype(bool)
    return np.dtype(_TYPES.get(column) or TABLES["/events"][_FIELDS.get(column, column)])


def _event_column(
    file: RankFile, rows: np.ndarray, column: str, names: dict[str, dict[str, int]]
) -> np.ndarray | int:
    """One column of one file; names as codes of the column's `names`, which grow."""
    if column == "rank":
        return file.rank
    field = _FIELDS.get(column, column)
    if column in _NAMED:
        if column == "name":
            own, index = file.names(), rows["name_id"]
        else:
            codes = file.codes("/events", field)
            own, index = codes.names, codes.index(rows[field])
        known = names[column]
        return np.array([known.setdefault(text, len(known)) for text in own], np.int16)[index]
    if column in _FLAGS:
        return (rows["flags"] & file.codes("/events", "flags").bit(column)) != 0
    if field in SINCE_LATER["/events"] and field not in rows.dtype.names:
        return -1
    values = rows[field]
    if column in ("begin_ns", "end_ns"):
        return file.to_global(values)
    return values


def steps_frame(files: Sequence[RankFile]) -> pd.DataFrame:
    """Complete steps, one row per rank and step."""
    rows = _joined([file.steps for file in files])
    frame = pd.DataFrame(rows).rename(columns=_STEP_NAMES).astype({"step": np.int64})
    for column, field in (("begin_ns", "t_begin"), ("end_ns", "t_end")):
        frame[column] = np.concatenate([file.to_global(file.steps[field]) for file in files])
    for column in ("machine_seconds", "dense_attention_flops"):
        if column not in frame:
            frame[column] = 0.0
    ranks = np.repeat([file.rank for file in files], [len(file.steps) for file in files])
    frame.insert(0, "rank", ranks)
    return frame.sort_values(["rank", "step"], kind="stable", ignore_index=True)


def highwater_frame(files: Sequence[RankFile]) -> pd.DataFrame:
    """High-water marks: rank, step, kind (or `total`), peak_bytes."""
    rows, ranks = _rows(files, "/memory/highwater")
    if rows is None:
        return pd.DataFrame(columns=["rank", "step", "kind", "peak_bytes"])
    kinds = dict(zip(_kinds(files, "/memory/highwater"), rows["peak"].T, strict=True))
    return _melt({"rank": ranks, "step": rows["step"].astype(np.int64)},
                 {**kinds, "total": rows["peak_total"]}, "peak_bytes")  # fmt: skip


def samples_frame(files: Sequence[RankFile]) -> pd.DataFrame:
    """Memory over time: rank, step, time_ns, kind (or `host_rss`), bytes."""
    rows, ranks = _rows(files, "/memory/samples")
    if rows is None:
        return pd.DataFrame(columns=["rank", "step", "time_ns", "kind", "bytes"])
    times = [file.to_global(rows["t_ns"][ranks == file.rank]) for file in files]
    found = {"rank": ranks, "step": rows["step"].astype(np.int64), "time_ns": np.concatenate(times)}
    kinds = dict(zip(_kinds(files, "/memory/samples"), rows["bytes"].T, strict=True))
    return _melt(found, {**kinds, "host_rss": rows["host_rss"]}, "bytes")


def table_frame(files: Sequence[RankFile], name: str, columns: Sequence[str]) -> pd.DataFrame:
    """Rows of complete steps of a dataset whose fields have simple types; `columns` that a file
    does not have are -1."""
    rows, _ = _rows(files, name)
    frame = pd.DataFrame(columns=list(columns)) if rows is None else pd.DataFrame(rows)
    if "phase" in columns and rows is not None:
        frame["phase"] = _phases(files, name)
    for column in columns:
        if column not in frame:
            frame[column] = -1
    return frame.astype({"step": np.int64}) if rows is not None else frame


def clock_frame(files: Sequence[RankFile]) -> pd.DataFrame:
    """Measurements of the ranks' clocks: rank, time_ns (the rank's own), offset_ns (rank 0's clock
    - the rank's), error_ns (at most; half the shortest round trip), phase (start, periodic or
    end)."""
    frames = [
        pd.DataFrame(
            {
                "rank": file.rank,
                "time_ns": file.clock["t_local_ns"],
                "offset_ns": file.clock["offset_ns"],
                "error_ns": file.clock["rtt_min_ns"] / 2,
                "phase": file.codes("/clock/sync", "phase").named(file.clock["phase"]),
            }
        )
        for file in files
        if file.clock is not None and len(file.clock)
    ]
    if not frames:
        return pd.DataFrame(columns=["rank", "time_ns", "offset_ns", "error_ns", "phase"])
    return pd.concat(frames, ignore_index=True)


def _phases(files: Sequence[RankFile], name: str) -> np.ndarray:
    """Names of the field `phase` in rows of complete steps."""
    found = [(file, file.read_step_rows(name)) for file in files]
    return np.concatenate([
        file.codes(name, "phase").named(rows["phase"])
        for file, rows in found if rows is not None and len(rows)
    ])  # fmt: skip


def _rows(files: Sequence[RankFile], name: str) -> tuple[np.ndarray | None, np.ndarray]:
    """Rows of complete steps of all files, and whose each is."""
    found = [(file.rank, file.read_step_rows(name)) for file in files]
    found = [(rank, rows) for rank, rows in found if rows is not None and len(rows)]
    if not found:
        return None, np.empty(0, np.int64)
    ranks = np.repeat([rank for rank, _ in found], [len(rows) for _, rows in found])
    return _joined([rows for _, rows in found]), ranks


def _joined(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of all, with the fields that all have: a file may have newer ones, or damaged names."""
    names = [n for n in tables[0].dtype.names if all(n in t.dtype.names for t in tables)]
    return np.concatenate([table[names] for table in tables])


def _kinds(files: Sequence[RankFile], table: str) -> tuple[str, ...]:
    """Of memory: the columns of the arrays of a table that was read, the same in all files."""
    found = [file for file in files if file.read_step_rows(table) is not None]
    for file in found:
        if file.kinds(table) != found[0].kinds(table):
            raise DataError(f"{file.path}: {table} has other kinds of memory than {found[0].path}")
    return found[0].kinds(table)


def _melt(keys: dict[str, np.ndarray], kinds: dict[str, np.ndarray], name: str) -> pd.DataFrame:
    """One row per key and kind, from one column per kind."""
    values = np.stack(list(kinds.values()), axis=1)
    labels = list(kinds)
    frame = {key: np.repeat(column, len(labels)) for key, column in keys.items()}
    codes = np.tile(np.arange(len(labels), dtype=np.int8), len(values))
    frame["kind"] = pd.Categorical.from_codes(codes, categories=pd.Index(labels))
    frame[name] = values.ravel()
    return pd.DataFrame(frame)
