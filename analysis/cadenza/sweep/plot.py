# SPDX-License-Identifier: Apache-2.0
"""Pictures of a sweep's views: a line per series over x, a panel per combination."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import pandas as pd

from cadenza.errors import DataError
from cadenza.sweep.points import Sweep, View, select, values_of

_PANEL_INCHES = (3.6, 2.7)
_MOST_COLUMNS = 4


def draw_view(sweep: Sweep, view: View, output: Path) -> None:
    """Writes the picture. Ranges that were published are shaded."""
    values = values_of(sweep, view)
    labels = _labels(sweep, view.x, values)
    panels = list(values.groupby(view.panels, sort=False)) if view.panels else [((), values)]
    if not panels or values.empty:
        raise DataError(f"{sweep.path}: {view.title}: found no point to draw")
    columns = min(_MOST_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = (_PANEL_INCHES[0] * max(columns, 1.6) + 1.2, _PANEL_INCHES[1] * rows + 0.9)
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{sweep.title}\n{view.title}", fontsize=9)
    colours = {name: f"C{place % 10}" for place, name in enumerate(_lines(view, values))}
    legend = {}
    for number, (names, rows_of_panel) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.set_title(_text(names), fontsize=8)
        legend |= _draw_panel(axes, view, rows_of_panel, labels, colours)
    if view.series:  # once, in the order of the sweep
        shown = {name: legend[name] for name in colours}
        figure.legend(shown.values(), shown.keys(), loc="outside right upper", fontsize=7)
    try:
        figure.savefig(output, facecolor="white")
    except OSError as error:
        raise DataError(f"{output}: cannot be written: {error.strerror}") from error


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
        [drawn[name]] = axes.plot(ordered[view.x].map(places), scale * ordered["value"], "o-",
                                  markersize=3, linewidth=1, color=colours[name])  # fmt: skip
    for check in view.checks:
        if select(values, check.get("where", {})).empty:
            continue
        if "range" in check:
            axes.axhspan(*(scale * value for value in check["range"]), color="#888888", alpha=0.12)
        elif "about" in check and view.x in check.get("where", {}):
            label = str(check["where"][view.x])
            axes.errorbar(places[label], scale * check["about"], scale * check["within"],
                          color="#aa3333", fmt="x", markersize=5, capsize=2, linewidth=0.8)
    axes.set_xticks(range(len(labels)), labels, fontsize=7)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlabel(view.x, fontsize=7)
    if view.unit:
        axes.set_ylabel(view.unit, fontsize=7)
    axes.grid(visible=True, linewidth=0.3)
    return drawn
