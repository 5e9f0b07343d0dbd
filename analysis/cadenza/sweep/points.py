# SPDX-License-Identifier: Apache-2.0
"""A sweep's folder: sweep.csv as a frame, and what its sweep.yaml says of its axes and views."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from cadenza.errors import DataError
from cadenza.files import printable, read_text, read_yaml
from cadenza.sweep.views import VALUE, View, read_views

SIMULATED = ("ok", "out_of_memory")
# Columns of text, and those of numbers that every sweep has; of a simulated point the first are
# more than 0.
_TEXTS = ("status", "reason")
_POSITIVE = ("ranks", "seconds", "tokens", "tokens_per_second")
_NUMBERS = (*_POSITIVE, "model_flops_utilization", "attention_imbalance", "attention_share",
            "largest_memory_bytes")
_MOST = 1e30  # of any number: what is beyond comes from no sweep, and its products overflow
# Columns that are added to the table.
SECONDS_OF_ATTENTION = "attention_seconds"
_ADDED = (SECONDS_OF_ATTENTION, VALUE, "_fits", "_workload", "_place", "_slower")
# Keys that say what is computed, and on what; all others say how.
_WORKLOAD = ("seed", "model", "data", "cluster", "batch.tokens", "shape.sequence",
             "shape.sequences")


@dataclass
class Sweep:
    path: Path
    name: str
    title: str
    axes: list[str]
    table: pd.DataFrame
    views: list[View]
    workload: list[str] = field(default_factory=list)  # axes that change what is computed


def open_sweep(path: Path) -> Sweep:
    """Reads DIR/sweep.yaml and DIR/sweep.csv. Labels are text, as it stands there.

    @throws DataError for what `cadenza sweep` does not write, and for views that docs/sweep.md
            does not describe
    """
    place = Path(path) / "sweep.yaml"
    if not place.exists() and (Path(path) / "trace").is_dir():
        raise DataError(f"{path}: a run, not a sweep; valid: cadenza-analyze summary {path}")
    config = read_yaml(str(place), read_text(place), typed=False)
    labels = config.get("axes") or {}
    if not isinstance(labels, dict):
        raise DataError(f"{place}: axes: found no block of keys; valid: axes")
    for name in labels:
        if name in (*_TEXTS, *_NUMBERS, *_ADDED):
            raise DataError(f"{place}: axes: found '{name}', the name of a column; valid: another")
    table = _read_table(Path(path) / "sweep.csv", list(labels))
    name = str(config.get("name", "sweep"))
    if not name or "/" in name or len(name) > 200:
        raise DataError(f"{place}: name: found '{name}'; valid: the name of a file")
    numbers = [column for column in table if pd.api.types.is_numeric_dtype(table[column])]
    views = read_views(str(place), config.get("report"), list(labels), numbers)
    workload = [axis for axis in labels if _is_workload(axis, labels[axis])]
    title = printable(str(config.get("title", name)))
    return Sweep(Path(path), name, title, list(labels), table, views, workload)


def _is_workload(axis: str, labels: object) -> bool:
    """Whether any label sets a key of what is computed: a list of values sets the axis itself."""
    keys = {axis}
    if isinstance(labels, dict):
        blocks = [settings for settings in labels.values() if isinstance(settings, dict)]
        keys = {str(key) for settings in blocks for key in settings}
    return any(f"{key}.".startswith(f"{block}.") for key in keys for block in _WORKLOAD)


def _read_table(path: Path, axes: list[str]) -> pd.DataFrame:
    """Whole lines alone: a sweep that was ended may have left a part of one."""
    text = read_text(path)
    try:
        lines = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1]), strict=True))
    except csv.Error as error:
        raise DataError(f"{path}: broken table: {error}") from error
    names, rows = (lines[0], lines[1:]) if lines else ([], [])
    for name in (*axes, *_TEXTS, *_NUMBERS):
        if names.count(name) != 1:
            found = "has no column" if name not in names else "has more than one column"
            raise DataError(f"{path}: {found} '{name}'; valid: the table of a sweep")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(names):
            raise DataError(f"{path}:{number}: broken table: found {len(row)} cells, expected "
                            f"{len(names)}")
    # A column of a later version may come twice; nothing asks for it.
    table = pd.DataFrame({name: pd.Series([row[i] for row in rows], dtype=object)
                          for i, name in enumerate(names)})
    texts = (*axes, *_TEXTS)
    for name in texts:
        table[name] = table[name].map(printable)
    for name in [name for name in table if name not in texts]:
        table[name] = _numbers(path, name, table[name])
    _check_points(path, axes, table)
    table[SECONDS_OF_ATTENTION] = table["attention_share"] * table["seconds"]
    return table


def _numbers(path: Path, name: str, cells: pd.Series) -> pd.Series:
    """A column of numbers, NaN where it says nothing; as text what need not be of numbers."""
    empty = cells == ""
    found = pd.to_numeric(cells.where(~empty, "nan"), errors="coerce").astype(float)
    bad = (found.isna() & ~empty & (cells != "nan")) | (found.abs() > _MOST)
    if not bad.any():
        return found
    if name not in _NUMBERS:
        return cells.map(printable)
    at = int(np.flatnonzero(bad)[0])
    raise DataError(f"{path}:{at + 2}: {name}: found '{printable(cells[at])}'; valid: a number")


def _check_points(path: Path, axes: list[str], table: pd.DataFrame) -> None:
    simulated = table["status"].isin(SIMULATED)
    for name in _NUMBERS:
        wrong = simulated & ~(table[name] > 0 if name in _POSITIVE else table[name].notna())
        for at in np.flatnonzero(wrong)[:1]:
            raise DataError(f"{path}:{at + 2}: {name}: found {table[name][at]:g} at a point that "
                            "was simulated; valid: a number of a step")
    again = table.duplicated(axes) if axes else pd.Series(range(len(table))) > 0
    for at in np.flatnonzero(again)[:1]:
        raise DataError(f"{path}:{at + 2}: found the labels of a row before; valid: each point "
                        "once")


def select(table: pd.DataFrame, where: dict[str, list[str]]) -> pd.DataFrame:
    """The rows whose labels are among the named ones."""
    for name, labels in where.items():
        table = table[table[name].isin(labels)]
    return table


def values_of(sweep: Sweep, view: View) -> pd.DataFrame:
    """The view's axes, status and VALUE, a row per point; where the value compares labels of one
    axis, a row per point of the others, with the labels that were best."""
    if view.value.form == "speed_up":
        return _speed_up(sweep, view)
    simulated = sweep.table[sweep.table["status"].isin(SIMULATED)]
    value = _FORMS[view.value.form](simulated, sweep, view)
    found = simulated[[*sweep.axes, "status"]].assign(**{VALUE: value})
    return found[np.isfinite(found[VALUE])]


def _column(table, _sweep, view):
    return table[view.value.columns[0]]


def _sum(table, _sweep, view):
    return table[view.value.columns].sum(axis=1, skipna=False)


def _ratio(table, _sweep, view):
    above, below = (table[name] for name in view.value.columns)
    return above / below


def _lost(table, sweep, view):
    return 1 - 1 / _column(table, sweep, view)


def _relative_speed(table, sweep, view):
    """Least of all points that differ in x alone, over that of the point."""
    others = [axis for axis in sweep.axes if axis != view.x]
    column = _column(table, sweep, view)
    groups = column.groupby([table[axis] for axis in others]) if others else None
    return (groups.transform("min") if groups is not None else column.min()) / column


def _relative_to(table, sweep, view):
    """The column over its value at the point with the labels `where`, all others being equal."""
    column = _column(table, sweep, view)
    keys = _keys(table, [axis for axis in sweep.axes if axis not in view.value.where])
    base: dict[tuple, float] = {}
    for at in select(table, view.value.where).index:
        if keys[at] in base:
            raise DataError(f"{sweep.path}: {view.title}: value.where: names more than one point; "
                            "valid: one label of each axis")
        base[keys[at]] = column[at]
    return column / keys.map(base).astype(float)


def _keys(table: pd.DataFrame, axes: list[str]) -> pd.Series:
    """Of each row its labels on `axes`."""
    labels = [tuple(row) for row in table[axes].to_numpy().tolist()]
    return pd.Series(labels, index=table.index, dtype=object)


_FORMS = {"column": _column, "sum": _sum, "ratio": _ratio, "lost": _lost,
          "relative_speed": _relative_speed, "relative_to": _relative_to}


def _speed_up(sweep: Sweep, view: View) -> pd.DataFrame:
    """Seconds of the best label in `over` divided by those of the best in `of`; of points that fit
    into memory, unless the view says otherwise."""
    fits = sweep.table[sweep.table["status"].isin(SIMULATED if view.beyond_memory else ("ok",))]
    others = [name for name in sweep.axes if name != view.axis]

    def best(labels: list[str]) -> dict[tuple, pd.Series]:
        rows = select(fits, {view.axis: labels}).sort_values("seconds", kind="stable")
        first = rows[~_keys(rows, others).duplicated()].sort_index()
        return dict(zip(_keys(first, others), first.to_dict("records"), strict=True))

    ours, theirs = best(view.value.of), best(view.value.over)
    rows = []
    for key in ours.keys() & theirs.keys():
        one, other = ours[key], theirs[key]
        status = one["status"] if one["status"] != "ok" else other["status"]
        rows.append({**one, "status": status, VALUE: other["seconds"] / one["seconds"]})
    places = {key: place for place, key in enumerate(ours)}
    rows.sort(key=lambda row: places[tuple(row[name] for name in others)])
    found = pd.DataFrame(rows, columns=[*sweep.axes, "status", VALUE])
    return found[np.isfinite(found[VALUE].astype(float))]
