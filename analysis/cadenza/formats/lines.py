# SPDX-License-Identifier: Apache-2.0
"""Slices as lines of JSON, many at once: text is made once for all that are alike, and joined."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from cadenza.read.partners import alike

_ARGUMENTS = {"step": -1, "phase": "", "microbatch": -1, "layer": -1, "tick": -1, "half": -1,
              "stage": -1, "peer": -1, "bytes": 0, "flops": 0}  # and what says that there is none
_FRACTIONS = np.array([f".{ns:03}" for ns in range(1000)], object)

# Perfetto shows escapes of other than ASCII as they are.
compact = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def slices(frame: pd.DataFrame, bindings: np.ndarray | str = "") -> str:
    """Complete events ("X"), a line for each row.

    @param frame     process, thread, begin_ns, end_ns (since the export begins), name, category,
                     and of _ARGUMENTS those that there are
    @param bindings  flows.bindings() of the rows
    """
    begin, end = (frame[name].to_numpy(np.int64) for name in ("begin_ns", "end_ns"))
    pieces = (_places(frame), *_time("ts", begin), *_time("dur", np.maximum(end - begin, 0)),
              bindings, _descriptions(frame))
    flat = np.empty((len(frame), len(pieces)), object)
    for column, piece in enumerate(pieces):
        flat[:, column] = piece
    return "".join(flat.ravel().tolist())


def _time(key: str, ns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Microseconds to the nanosecond: key and sign, those before the point, those behind it."""
    whole, fraction = np.divmod(np.abs(ns), 1000)
    keys = np.array([f',"{key}":', f',"{key}":-'], object)
    return keys[(ns < 0).astype(int)], list(map(str, whole.tolist())), _FRACTIONS[fraction]


def _places(frame: pd.DataFrame) -> np.ndarray:
    """On which thread of which process a slice is."""
    code, first = _distinct(frame["thread"].to_numpy())
    rows = frame[["process", "thread"]].iloc[first].to_numpy().tolist()
    return np.array([f'{{"ph":"X","pid":{pid},"tid":{tid}' for pid, tid in rows], object)[code]


def _descriptions(frame: pd.DataFrame) -> np.ndarray:
    """What a slice is, and the end of its line."""
    names = ["name", "category", *(name for name in _ARGUMENTS if name in frame)]
    columns = [frame[name] for name in names]
    code, first = _distinct(alike(*map(_number, columns)))
    rows = zip(*(column.take(first).tolist() for column in columns), strict=True)
    return np.array([_described(dict(zip(names, row, strict=True))) for row in rows], object)[code]


def _number(column: pd.Series) -> pd.Series | np.ndarray:
    """What alike() tells apart."""
    if pd.api.types.is_float_dtype(column):
        return column.to_numpy(np.float64).view(np.int64)
    return column if pd.api.types.is_numeric_dtype(column) else column.astype("category")


def _described(what: dict[str, str | float]) -> str:
    head = {"name": what.pop("name"), "cat": what.pop("category")}
    arguments = {name: value for name, value in what.items() if value != _ARGUMENTS[name]}
    return f",{compact({**head, 'args': arguments})[1:]},\n"


def _distinct(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number of each key among those that differ, and where the first of each number is."""
    code, found = pd.factorize(keys)
    first = np.empty(len(found), np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]
    return code, first
