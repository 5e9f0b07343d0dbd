# SPDX-License-Identifier: Apache-2.0
"""What a sweep says, in Markdown: its best points, or its views and their checks against published
numbers."""

from __future__ import annotations

import pandas as pd

from cadenza.sweep.points import Sweep, select, values_of
from cadenza.sweep.ranking import Table, effects, headlines, ranked, ranking
from cadenza.sweep.views import VALUE, Check, View

_ROUNDING = 0.005  # published numbers have two digits


def verdicts(sweep: Sweep) -> list[dict]:
    """A row per check: exhibit, what, published, ours, verdict, source."""
    rows = []
    for view in sweep.views:
        values = values_of(sweep, view)
        for check in view.checks:
            chosen = select(values, check.where)
            rows.append(
                {
                    "exhibit": view.title,
                    "what": check.what,
                    "published": _published(view, check),
                    "ours": _ours(view, check, chosen),
                    "verdict": _verdict(view, check, chosen),
                    "source": check.source,
                }
            )
    return rows


def _number(view: View, value: float) -> str:
    if view.unit == "percent":
        return f"{100 * value:.1f} %"
    return f"{value:.2f}"


def _published(view: View, check: Check) -> str:
    low, high = check.low, check.high
    if check.kind == "range":
        return f"{_number(view, low)} to {_number(view, high)}"
    if check.kind == "about":
        return f"{_number(view, (low + high) / 2)} (± {_number(view, (high - low) / 2)})"
    return f"{check.kind} at {', '.join(check.labels)}"


def _optima(view: View, check: Check, values: pd.DataFrame) -> pd.Series:
    """The label on x of each line's lowest (highest) value."""
    lines = [name for name in [*view.panels, *view.series] if name in values]
    pick = "idxmin" if check.kind == "lowest" else "idxmax"
    if not lines:
        return values.loc[[getattr(values[VALUE], pick)()], view.x]
    return values.loc[getattr(values.groupby(lines)[VALUE], pick)(), view.x]


def _ours(view: View, check: Check, values: pd.DataFrame) -> str:
    if values.empty:
        return "nothing was simulated"
    if check.labels:
        return "at " + ", ".join(sorted(set(_optima(view, check, values)), key=_sort_key))
    low, high = values[VALUE].min(), values[VALUE].max()
    if len(values) == 1:
        return _number(view, low)
    median = _number(view, values[VALUE].median())
    return f"{_number(view, low)} to {_number(view, high)}, median {median}"


def _sort_key(label: str) -> tuple[float, str]:
    try:
        return float(label), label
    except ValueError:
        return float("inf"), label


def _verdict(view: View, check: Check, values: pd.DataFrame) -> str:
    if values.empty:
        return "missing"
    if check.labels:
        agrees = set(_optima(view, check, values)) <= set(check.labels)
        return "agrees" if agrees else "differs"
    low, high = check.low - _ROUNDING, check.high + _ROUNDING
    inside = values[VALUE].between(low, high)
    if inside.all():
        return "agrees"
    if inside.any():
        return f"{inside.sum()} of {len(values)} inside"
    if (values[VALUE] > high).all():
        return "above"
    return "below" if (values[VALUE] < low).all() else "above and below"


def value_table(sweep: Sweep, view: View) -> list[str]:
    """Values of a view, x across; in brackets what does not fit into memory."""
    values = values_of(sweep, view)
    lines = [*view.panels, *view.series]
    across = list(dict.fromkeys(values[view.x]))
    rows = []
    for names, line in values.groupby(lines, sort=False) if lines else [((), values)]:
        cells = dict.fromkeys(across, "-")
        for label, value, status in zip(line[view.x], line[VALUE], line["status"], strict=True):
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
                    for cells in (table.names, *table.rows)]
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
    points = "1 point" if len(sweep.table) == 1 else f"{len(sweep.table)} points"
    return f"{points}: {', '.join(parts)}"
