# SPDX-License-Identifier: Apache-2.0
"""What a sweep says, in Markdown: its best points, or its views and their checks against published
numbers."""

from __future__ import annotations

import pandas as pd

from cadenza.sweep.points import Sweep, View, select, values_of
from cadenza.sweep.ranking import Table, effects, headlines, ranked, ranking

_ROUNDING = 0.005  # published numbers have two digits


def verdicts(sweep: Sweep) -> list[dict]:
    """A row per check: exhibit, what, published, ours, verdict, source."""
    rows = []
    for view in sweep.views:
        values = values_of(sweep, view)
        for check in view.checks:
            chosen = select(values, check.get("where", {}))
            rows.append(
                {
                    "exhibit": view.title,
                    "what": check.get("what", ""),
                    "published": _published(view, check),
                    "ours": _ours(view, check, chosen),
                    "verdict": _verdict(view, check, chosen),
                    "source": check.get("source", ""),
                }
            )
    return rows


def _number(view: View, value: float) -> str:
    if view.unit == "percent":
        return f"{100 * value:.1f} %"
    return f"{value:.2f}"


def _published(view: View, check: dict) -> str:
    if "range" in check:
        return " to ".join(_number(view, value) for value in check["range"])
    if "about" in check:
        return f"{_number(view, check['about'])} (± {_number(view, check['within'])})"
    word = "lowest" if "lowest" in check else "highest"
    return f"{word} at {', '.join(map(str, check[word]))}"


def _optima(view: View, check: dict, values: pd.DataFrame) -> pd.Series:
    """The label on x of each line's lowest (highest) value."""
    lines = [name for name in [*view.panels, *view.series] if name in values]
    pick = "idxmin" if "lowest" in check else "idxmax"
    if not lines:
        return values.loc[[getattr(values["value"], pick)()], view.x]
    return values.loc[getattr(values.groupby(lines)["value"], pick)(), view.x]


def _ours(view: View, check: dict, values: pd.DataFrame) -> str:
    if values.empty:
        return "nothing was simulated"
    if "lowest" in check or "highest" in check:
        return "at " + ", ".join(sorted(set(_optima(view, check, values)), key=_sort_key))
    low, high = values["value"].min(), values["value"].max()
    if len(values) == 1:
        return _number(view, low)
    median = _number(view, values["value"].median())
    return f"{_number(view, low)} to {_number(view, high)}, median {median}"


def _sort_key(label: str) -> tuple[float, str]:
    try:
        return float(label), label
    except ValueError:
        return float("inf"), label


def _verdict(view: View, check: dict, values: pd.DataFrame) -> str:
    if values.empty:
        return "missing"
    if "lowest" in check or "highest" in check:
        wanted = {str(label) for label in check.get("lowest", check.get("highest"))}
        return "agrees" if set(_optima(view, check, values)) <= wanted else "differs"
    if "about" in check:
        low, high = check["about"] - check["within"], check["about"] + check["within"]
    else:
        low, high = check["range"]
    low, high = low - _ROUNDING, high + _ROUNDING
    inside = values["value"].between(low, high)
    if inside.all():
        return "agrees"
    if inside.any():
        return f"{inside.sum()} of {len(values)} inside"
    if (values["value"] > high).all():
        return "above"
    return "below" if (values["value"] < low).all() else "above and below"


def value_table(sweep: Sweep, view: View) -> list[str]:
    """Values of a view, x across; in brackets what does not fit into memory."""
    values = values_of(sweep, view)
    lines = [*view.panels, *view.series]
    across = list(dict.fromkeys(values[view.x]))
    rows = []
    for names, line in values.groupby(lines, sort=False) if lines else [((), values)]:
        cells = dict.fromkeys(across, "-")
        for label, value, status in zip(line[view.x], line["value"], line["status"], strict=True):
            number = _number(view, value)
            cells[label] = number if status == "ok" else f"({number})"
        rows.append([*names, *cells.values()])
    return _table([*lines, *(f"{view.x} {label}" for label in across)], rows)


def _table(names: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of a table in Markdown."""
    return [
        "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"
        for cells in (names, ["---"] * len(names), *rows)
    ]


def _aligned(table: Table) -> list[str]:
    """A table in Markdown that can be read in a terminal too."""
    widths = [max(map(len, column)) for column in zip(table.names, *table.rows, strict=True)]
    names, *rows = [[cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
                    for cells in (table.names, *table.rows)]  # fmt: skip
    lines = _table(names, rows)
    lines[1] = "| " + " | ".join("-" * width for width in widths) + " |"
    return [*lines, "", *([f"({table.caption})", ""] if table.caption else [])]


def markdown(sweeps: list[Sweep]) -> str:
    """One table of all checks, where there are any; what each sweep says of its differences, and
    the values of views that have nothing to be checked against. Of a sweep without views: its best
    points, all points ranked, and what each axis does."""
    lines = _checks(sweeps)
    for sweep in sweeps:
        name = sweep.title.split(":")[0]
        if not sweep.views:
            lines += _best_points(sweep)
        for view in sweep.views:
            if view.why:
                lines += [f"**{name}, {view.title}.** {view.why.strip()}", ""]
            if not view.checks:
                lines += [f"**{sweep.title}: {view.title}.**", "", *value_table(sweep, view), ""]
        lines += [f"{name}: {counts(sweep)}.", ""]
    return "\n".join(lines)


def _checks(sweeps: list[Sweep]) -> list[str]:
    rows = []
    for sweep in sweeps:
        for row in verdicts(sweep):
            exhibit = f"{sweep.title.split(':')[0]}: {row['exhibit']}"
            rows.append([exhibit, *(row[name] for name in list(row)[1:])])
    names = ["exhibit", "what", "published", "ours", "verdict", "source"]
    return [*_table(names, rows), ""] if rows else []


def _best_points(sweep: Sweep) -> list[str]:
    lines = [f"**{sweep.title}.** " + "  \n".join(headlines(sweep)), ""]
    if not ranked(sweep).empty:
        lines += [*_aligned(ranking(sweep)), *_aligned(effects(sweep))]
    return lines


def counts(sweep: Sweep) -> str:
    """ "30 points: 28 ok, 2 out of memory"."""
    found = sweep.table["status"].value_counts()
    parts = [f"{found[status]} {status.replace('_', ' ')}" for status in found.index]
    return f"{len(sweep.table)} points: {', '.join(parts)}"
