# SPDX-License-Identifier: Apache-2.0
"""Pictures of a sweep's views: a line per series over x, a panel per combination."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import pandas as pd

from cadenza.errors import DataError
from cadenza.files import written
from cadenza.sweep.points import Sweep, select, values_of
from cadenza.sweep.views import VALUE, View

_PANEL_INCHES = (3.6, 2.7)
_MOST_COLUMNS = 4
_MOST_PANELS, _MOST_LINES, _MOST_LABELS = 64, 256, 1024  # what a picture has room for


@matplotlib.rc_context({"text.parse_math": False})  # a dollar sign in a name is no formula
def draw_view(sweep: Sweep, view: View, output: Path) -> None:
    """Writes the picture. Ranges that were published are shaded."""
    values = values_of(sweep, view)
    labels = _labels(sweep, view.x, values)
    panels = list(values.groupby(view.panels, sort=False)) if view.panels else [((), values)]
    if not panels or values.empty:
        raise DataError(f"{sweep.path}: {view.title}: found no point to draw")
    lines = _lines(view, values)
    for count, most, what in ((len(panels), _MOST_PANELS, "panels"), (len(lines), _MOST_LINES,
                              "series"), (len(labels), _MOST_LABELS, "labels of x")):
        if count > most:
            raise DataError(f"{sweep.path}: {view.title}: found {count} {what}; valid: at most "
                            f"{most}")
    columns = min(_MOST_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = (_PANEL_INCHES[0] * max(columns, 1.6) + 1.2, _PANEL_INCHES[1] * rows + 0.9)
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{sweep.title}\n{view.title}", fontsize=9)
    colours = {name: f"C{place % 10}" for place, name in enumerate(lines)}
    legend = {}
    for number, (names, rows_of_panel) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.set_title(_text(names), fontsize=8)
        legend |= _draw_panel(axes, view, rows_of_panel, labels, colours)
    if view.series:  # once, in the order of the sweep
        shown = {name: legend[name] for name in colours}
        figure.legend(shown.values(), shown.keys(), loc="outside right upper", fontsize=7)
    with written(output) as file:
        figure.savefig(file, format="png", facecolor="white")


def _labels(sweep: Sweep, x: str, values: pd.DataFrame) -> list[str]:
    """In the order of the sweep."""
    there = set(values[x])
    return [label for label in dict.fromkeys(sweep.table[x]) if label in there]


def _text(names: object) -> str:
    return " ".join(map(str, names if isinstance(names, tuple) else (names,)))


def _lines(view: View, values: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The points of each series, by name."""
    groups = values.groupby(view.series, sort=False) if view.series else [((), values)]
    return {_text(names): line for names, line in groups}


def _draw_panel(
    axes: Axes, view: View, values: pd.DataFrame, labels: list[str], colours: dict[str, str]
) -> dict[str, Line2D]:
    """Returns the lines by name: a series has the same colour in all panels."""
    scale = 100 if view.unit == "percent" else 1
    places = {label: place for place, label in enumerate(labels)}
    drawn = {}
    for name, line in _lines(view, values).items():
        ordered = line.sort_values(view.x, key=lambda column: column.map(places))
        [drawn[name]] = axes.plot(ordered[view.x].map(places), scale * ordered[VALUE], "o-",
                                  markersize=3, linewidth=1, color=colours[name])
    for check in view.checks:
        if select(values, check.where).empty:
            continue
        if check.kind == "range":
            axes.axhspan(scale * check.low, scale * check.high, color="#888888", alpha=0.12)
        elif check.kind == "about":
            at = [places[label] for label in check.where.get(view.x, []) if label in places]
            middle, half = (check.low + check.high) / 2, (check.high - check.low) / 2
            axes.errorbar(at, [scale * middle] * len(at), scale * half, color="#aa3333", fmt="x",
                          markersize=5, capsize=2, linewidth=0.8)
    axes.set_xticks(range(len(labels)), labels, fontsize=7)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlabel(view.x, fontsize=7)
    if view.unit:
        axes.set_ylabel(view.unit, fontsize=7)
    axes.grid(visible=True, linewidth=0.3)
    return drawn
