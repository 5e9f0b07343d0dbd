# SPDX-License-Identifier: Apache-2.0
"""The views that a sweep.yaml asks for (docs/sweep.md, "Views"): a value per point, drawn over one
axis, and checks of it against published numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cadenza.errors import DataError
from cadenza.files import printable

VALUE = "_value"  # the column of a view's values
_KEYS = {"title", "value", "axis", "x", "series", "panels", "unit", "beyond_memory", "checks",
         "why"}
_CHECK_KEYS = {"what", "where", "range", "about", "within", "lowest", "highest", "source"}
_VERDICTS = ("range", "about", "lowest", "highest")
_COLUMNS = {"sum": None, "ratio": 2, "lost": 1, "relative_speed": 1}  # that a form is made of
_FORMS = (*_COLUMNS, "relative_to", "speed_up")
_BOOLEANS = {"true": True, "false": False}
_MOST = 1e30


@dataclass(frozen=True)
class Value:
    """How a view's numbers follow from columns: `form` is "column" or a key of docs/sweep.md."""

    form: str
    columns: list[str] = field(default_factory=list)
    where: dict[str, list[str]] = field(default_factory=dict)  # relative_to
    of: list[str] = field(default_factory=list)  # speed_up: labels
    over: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Check:
    """`kind` is "range" (low to high), "about" (low to high, around a number), "lowest" or
    "highest" (at one of the labels)."""

    kind: str
    what: str = ""
    where: dict[str, list[str]] = field(default_factory=dict)
    low: float = math.nan
    high: float = math.nan
    labels: list[str] = field(default_factory=list)
    source: str = ""


@dataclass(frozen=True)
class View:
    title: str
    value: Value
    x: str
    axis: str = ""
    series: list[str] = field(default_factory=list)
    panels: list[str] = field(default_factory=list)
    unit: str = ""
    beyond_memory: bool = False  # speed_up: points that do not fit into memory count too
    checks: list[Check] = field(default_factory=list)
    why: str = ""


def read_views(source: str, report: object, axes: list[str], columns: list[str]) -> list[View]:
    """@param report  a block of YAML in which everything is text
    @param columns  those of numbers
    @throws DataError for what is no view"""
    reader = _Reader(axes, columns)
    return [reader.view(f"{source}: report[{i}]", view)
            for i, view in enumerate(_list(f"{source}: report", report or []))]


class _Reader:
    def __init__(self, axes: list[str], columns: list[str]) -> None:
        self._axes, self._columns = axes, columns

    def view(self, place: str, block: object) -> View:
        found = _block(place, block, _KEYS)
        for key in ("title", "value", "x"):
            if key not in found:
                raise DataError(f"{place}: has no '{key}'")
        drawn = {key: self._names(f"{place}.{key}", found.get(key, [])) for key in
                 ("x", "series", "panels")}
        names = [*drawn["x"], *drawn["series"], *drawn["panels"]]
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"{place}: found axis '{name}' twice; valid: once among x, series "
                                "and panels")
        axis = _text(f"{place}.axis", found.get("axis", ""))
        value = self._value(f"{place}.value", found["value"])
        if axis or value.form == "speed_up":
            self._axis(f"{place}.axis", axis)
        beyond = found.get("beyond_memory", "false")
        if not isinstance(beyond, str) or beyond not in _BOOLEANS:
            raise DataError(f"{place}.beyond_memory: found {_said(beyond)}; valid: true, false")
        checks = _list(f"{place}.checks", found.get("checks", []))
        return View(
            _text(f"{place}.title", found["title"]), value, self._x(place, drawn["x"]), axis,
            drawn["series"], drawn["panels"], _text(f"{place}.unit", found.get("unit", "")),
            _BOOLEANS[beyond],
            [self._check(f"{place}.checks[{i}]", one) for i, one in enumerate(checks)],
            _text(f"{place}.why", found.get("why", "")),
        )

    def _x(self, place: str, names: list[str]) -> str:
        if len(names) != 1:
            raise DataError(f"{place}.x: found {len(names)} axes; valid: one")
        return names[0]

    def _value(self, place: str, what: object) -> Value:
        if isinstance(what, str):
            return Value("column", [self._column(place, what)])
        if not isinstance(what, dict) or len(what) != 1:
            raise DataError(f"{place}: found {_said(what)}; valid: a column, or one key such as "
                            "ratio")
        ((form, of),) = what.items()
        if form not in _FORMS:
            raise DataError(f"{place}: unknown form '{form}'; valid: {', '.join(_FORMS)}")
        place = f"{place}.{form}"
        if form == "relative_to":
            block = _block(place, of, {"column", "where"}, whole=True)
            column = self._column(f"{place}.column", block["column"])
            return Value(form, [column], self._where(f"{place}.where", block["where"]))
        if form == "speed_up":
            block = _block(place, of, {"of", "over"}, whole=True)
            of, over = (_texts(f"{place}.{key}", block[key]) for key in ("of", "over"))
            return Value(form, of=of, over=over)
        names = [self._column(place, name) for name in _texts(place, of)]
        count = _COLUMNS[form]
        if not names or len(names) != (count or len(names)):
            raise DataError(f"{place}: found {len(names)} columns; valid: {count or 'one or more'}")
        return Value(form, names)

    def _check(self, place: str, block: object) -> Check:
        found = _block(place, block, _CHECK_KEYS)
        kinds = [key for key in _VERDICTS if key in found]
        if len(kinds) != 1:
            raise DataError(f"{place}: valid: one of {', '.join(_VERDICTS)}")
        if ("about" in found) != ("within" in found):
            raise DataError(f"{place}: found only one of about and within; valid: both")
        what, source = (_text(f"{place}.{key}", found.get(key, "")) for key in ("what", "source"))
        where = self._where(f"{place}.where", found.get("where", {}))
        (kind,) = kinds
        if kind in ("lowest", "highest"):
            labels = _texts(f"{place}.{kind}", found[kind])
            return Check(kind, what, where, labels=labels, source=source)
        if kind == "about":
            about, within = (_number(f"{place}.{key}", found[key]) for key in ("about", "within"))
            ends = [about - within, about + within]
        else:
            place = f"{place}.range"
            ends = [_number(place, end) for end in _list(place, found["range"])]
        if len(ends) != 2 or ends[0] > ends[1]:
            raise DataError(f"{place}: found {ends}; valid: [low, high]")
        return Check(kind, what, where, *ends, source=source)

    def _where(self, place: str, block: object) -> dict[str, list[str]]:
        if not isinstance(block, dict):
            raise DataError(f"{place}: found {_said(block)}; valid: axes and their labels")
        return {self._axis(place, name): _texts(f"{place}.{name}", labels)
                for name, labels in block.items()}

    def _names(self, place: str, names: object) -> list[str]:
        return [self._axis(place, name) for name in _texts(place, names)]

    def _axis(self, place: str, name: str) -> str:
        if name not in self._axes:
            valid = ", ".join(self._axes)
            raise DataError(f"{place}: found no axis '{printable(name)}'; valid: {valid}")
        return name

    def _column(self, place: str, name: object) -> str:
        if not isinstance(name, str) or name not in self._columns:
            raise DataError(f"{place}: found no column {_said(name)}; valid: "
                            f"{', '.join(self._columns)}")
        return name


def _said(value: object) -> str:
    text = printable(str(value))
    return f"'{text if len(text) < 60 else text[:60] + '...'}'"


def _block(place: str, block: object, known: set[str], whole: bool = False) -> dict:
    """@param whole  all of `known` are there"""
    if not isinstance(block, dict):
        raise DataError(f"{place}: found {_said(block)}; valid: a block of keys")
    for key in block:
        if key not in known:
            valid = ", ".join(sorted(known))
            raise DataError(f"{place}: unknown key '{printable(key)}'; valid: {valid}")
    for key in sorted(known) if whole else ():
        if key not in block:
            raise DataError(f"{place}: has no '{key}'")
    return block


def _list(place: str, value: object) -> list:
    if not isinstance(value, list):
        raise DataError(f"{place}: found {_said(value)}; valid: a list")
    return value


def _texts(place: str, value: object) -> list[str]:
    """One label or a list of them."""
    return [_text(place, one) for one in (value if isinstance(value, list) else [value])]


def _text(place: str, value: object) -> str:
    if not isinstance(value, str):
        raise DataError(f"{place}: found {_said(value)}; valid: text")
    return printable(value) if "\n" not in value else value


def _number(place: str, value: object) -> float:
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = math.nan
    if not abs(found) <= _MOST:
        raise DataError(f"{place}: found {_said(value)}; valid: a number")
    return found
