# SPDX-License-Identifier: Apache-2.0
"""A sweep's folder: sweep.csv as a frame, and the views that its sweep.yaml asks for.

A view is a value per point (a column, or one derived from columns), drawn over one axis, and checks
of it against published numbers. docs/sweep.md describes the keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import yaml

from cadenza.errors import DataError

SIMULATED = ("ok", "out_of_memory")
_VIEW_KEYS = {"title", "value", "axis", "x", "series", "panels", "unit", "beyond_memory", "checks",
              "why"}  # fmt: skip
_CHECK_KEYS = {"what", "where", "range", "about", "within", "lowest", "highest", "source"}
_VERDICTS = ("range", "about", "lowest", "highest")
# Keys that say what is computed, and on what; all others say how.
_WORKLOAD = ("seed", "model", "data", "cluster", "batch.tokens", "shape.sequence",
             "shape.sequences")  # fmt: skip


@dataclass
class View:
    title: str
    value: object
    x: str
    axis: str = ""
    series: list[str] = field(default_factory=list)
    panels: list[str] = field(default_factory=list)
    unit: str = ""
    beyond_memory: bool = False  # speed_up: points that do not fit into memory count too
    checks: list[dict] = field(default_factory=list)
    why: str = ""


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
    """Reads DIR/sweep.yaml and DIR/sweep.csv. Labels are text."""
    path = Path(path)
    config = _read_yaml(path / "sweep.yaml")
    labels = config.get("axes") or {}
    if not isinstance(labels, dict):
        raise DataError(f"{path / 'sweep.yaml'}: axes: found no block of keys; valid: axes")
    axes = [str(name) for name in labels]
    table = _read_table(path / "sweep.csv", axes)
    table["attention_seconds"] = table["attention_share"] * table["seconds"]
    name = str(config.get("name", "sweep"))
    views = [
        _read_view(path / "sweep.yaml", i, view, axes)
        for i, view in enumerate(config.get("report") or [])
    ]
    workload = [str(name) for name in labels if _is_workload(str(name), labels[name])]
    return Sweep(path, name, str(config.get("title", name)), axes, table, views, workload)


def _is_workload(axis: str, labels: object) -> bool:
    """Whether any label sets a key of what is computed: a list of values sets the axis itself."""
    keys = {axis}
    if isinstance(labels, dict):
        blocks = [settings for settings in labels.values() if isinstance(settings, dict)]
        keys = {str(key) for settings in blocks for key in settings}
    return any(f"{key}.".startswith(f"{block}.") for key in keys for block in _WORKLOAD)


def _read_yaml(path: Path) -> dict:
    try:
        config = yaml.safe_load(path.read_text())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise DataError(f"{path}: broken YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(config, dict):
        raise DataError(f"{path}: found no block of keys; valid: a sweep")
    return config


def _read_table(path: Path, axes: list[str]) -> pd.DataFrame:
    try:
        table = pd.read_csv(path, dtype=dict.fromkeys(axes, str), keep_default_na=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: broken table: {str(error).splitlines()[0]}") from error
    expected = [*axes, "status", "reason", "ranks", "seconds", "tokens", "tokens_per_second",
                "model_flops_utilization", "attention_imbalance", "attention_share",
                "largest_memory_bytes"]  # fmt: skip
    missing = [name for name in expected if name not in table]
    if missing:
        raise DataError(f"{path}: has no column '{missing[0]}'; valid: the table of a sweep")
    return table


def _read_view(path: Path, number: int, view: object, axes: list[str]) -> View:
    place = f"{path}: report[{number}]"
    if not isinstance(view, dict):
        raise DataError(f"{place}: found {view!r}; valid: a block of keys")
    _require_keys(place, view, _VIEW_KEYS)
    for key in ("title", "value", "x"):
        if key not in view:
            raise DataError(f"{place}: has no '{key}'")
    for name in [view["x"], *view.get("series", []), *view.get("panels", [])]:
        if name not in axes:
            raise DataError(f"{place}: found no axis '{name}'; valid: {', '.join(axes)}")
    for i, check in enumerate(view.get("checks", [])):
        _require_keys(f"{place}.checks[{i}]", check, _CHECK_KEYS)
        if sum(key in check for key in _VERDICTS) != 1:
            raise DataError(f"{place}.checks[{i}]: valid: one of {', '.join(_VERDICTS)}")
        if ("about" in check) != ("within" in check):
            raise DataError(f"{place}.checks[{i}]: found only one of about and within; valid: both")
    return View(**view)


def _require_keys(place: str, block: dict, known: set[str]) -> None:
    for key in block:
        if key not in known:
            raise DataError(f"{place}: unknown key '{key}'; valid: {', '.join(sorted(known))}")


def select(table: pd.DataFrame, where: dict) -> pd.DataFrame:
    """The rows whose labels are among the named ones."""
    for name, wanted in where.items():
        if name not in table:
            raise DataError(f"where: found no axis '{name}'")
        labels = {str(label) for label in (wanted if isinstance(wanted, list) else [wanted])}
        table = table[table[name].isin(labels)]
    return table


def values_of(sweep: Sweep, view: View) -> pd.DataFrame:
    """The view's axes, status and `value`, a row per point; where the value compares labels of one
    axis, a row per point of the others, with the labels that were best."""
    simulated = sweep.table[sweep.table["status"].isin(SIMULATED)].copy()
    if isinstance(view.value, str):
        return _with_value(simulated, sweep.axes, _column(simulated, view.value))
    if not isinstance(view.value, dict) or len(view.value) != 1:
        raise DataError(f"{view.title}: value: found {view.value!r}; valid: a column, or one key "
                        "such as ratio")  # fmt: skip
    ((form, what),) = view.value.items()
    if form == "speed_up":
        return _speed_up(sweep, view, what)
    if form not in _FORMS:
        valid = ", ".join([*_FORMS, "speed_up"])
        raise DataError(f"{view.title}: value: unknown form '{form}'; valid: {valid}")
    return _with_value(simulated, sweep.axes, _FORMS[form](simulated, sweep, view, what))


def _with_value(table: pd.DataFrame, axes: list[str], value: pd.Series) -> pd.DataFrame:
    return table[[*axes, "status"]].assign(value=value).dropna(subset=["value"])


def _column(table: pd.DataFrame, name: str) -> pd.Series:
    if name not in table:
        raise DataError(f"value: found no column '{name}'; valid: {', '.join(table.columns)}")
    return table[name]


def _sum(table, _sweep, _view, names):
    return sum(_column(table, name) for name in names)


def _ratio(table, _sweep, _view, names):
    return _column(table, names[0]) / _column(table, names[1])


def _lost(table, _sweep, _view, name):
    return 1 - 1 / _column(table, name)


def _relative_speed(table, sweep, view, name):
    """Least seconds of all points that differ in x alone, over those of the point."""
    others = [axis for axis in sweep.axes if axis != view.x]
    seconds = _column(table, name)
    groups = seconds.groupby([table[axis] for axis in others]) if others else None
    return (groups.transform("min") if groups is not None else seconds.min()) / seconds


def _relative_to(table, sweep, view, what):
    """The column over its value at the point with the labels `where`, all others being equal."""
    column = _column(table, what["column"])
    others = [axis for axis in sweep.axes if axis not in what["where"]]
    base = select(table, what["where"]).assign(_base=column)[[*others, "_base"]]
    joined = table[sweep.axes].reset_index().merge(base, on=others, how="left").set_index("index")
    return column / joined["_base"]


_FORMS = {"sum": _sum, "ratio": _ratio, "lost": _lost, "relative_speed": _relative_speed,
          "relative_to": _relative_to}  # fmt: skip


def _speed_up(sweep: Sweep, view: View, what: dict) -> pd.DataFrame:
    """Seconds of the best label in `over` divided by those of the best in `of`; of points that fit
    into memory, unless the view says otherwise."""
    axis = view.axis
    if axis not in sweep.axes:
        raise DataError(f"speed_up: found no axis '{axis}'; valid: {', '.join(sweep.axes)}")
    counted = SIMULATED if view.beyond_memory else ("ok",)
    fits = sweep.table[sweep.table["status"].isin(counted)]
    others = [name for name in sweep.axes if name != axis]

    def best(labels: list) -> pd.DataFrame:
        rows = select(fits, {axis: labels})
        return rows.loc[rows.groupby(others)["seconds"].idxmin(), [*others, axis, "seconds"]]

    joined = best(what["of"]).merge(best(what["over"]), on=others, suffixes=("", " over"))
    return joined.assign(value=joined["seconds over"] / joined["seconds"])
