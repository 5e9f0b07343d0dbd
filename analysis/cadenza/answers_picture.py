# SPDX-License-Identifier: Apache-2.0
"""Answers by depth of the fact and length of the document, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cadenza.files import save_figure
from cadenza.positions import DEPTHS
from cadenza.words import shortened

# Inches.
_CELL, _MARGIN, _ABOVE, _DPI = 0.62, 0.95, 0.5, 150
_LONGEST = 40  # characters of a title


@matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "", "text.parse_math": False})
def draw(runs: Sequence[pd.DataFrame], names: Sequence[str], output: Path) -> None:
    """Writes a heat map of each run beside the others: the share of answers that are right.

    @param runs    by_depth() of each
    @param output  its ending says in which format
    """
    lengths = sorted({int(length) for run in runs for length in run["length"]})
    wide = _MARGIN + len(lengths) * _CELL
    height = _ABOVE + _MARGIN + DEPTHS * _CELL
    figure = Figure(figsize=(max(len(runs) * wide + 0.2, 4.0), height), dpi=_DPI)
    FigureCanvasAgg(figure)
    width = figure.get_figwidth()
    for i, (run, name) in enumerate(zip(runs, names, strict=True)):
        axes = figure.add_axes(((i * wide + _MARGIN) / width, _MARGIN * 0.75 / height,
                                len(lengths) * _CELL / width, DEPTHS * _CELL / height))
        _draw_map(axes, run, lengths)
        title = name if len(run) else f"{name}: no answers"
        axes.set_title(shortened(title, _LONGEST), fontsize=8)
        if i == 0:
            axes.set_ylabel("depth of the fact from, share of the document", fontsize=8)
    figure.text(0.01, 0.01, "In each cell: share of right answers, number of answers", fontsize=7)
    save_figure(figure, output, bbox_inches="tight")


def _draw_map(axes: Axes, run: pd.DataFrame, lengths: list[int]) -> None:
    """Cells of one run; those without answers stay empty."""
    cells = np.full((DEPTHS, len(lengths)), np.nan)
    for row in run.itertuples():
        at = round(row.depth * DEPTHS), lengths.index(int(row.length))
        cells[at] = row.accuracy
        axes.text(at[1], at[0], f"{100 * row.accuracy:.0f} %\n{row.answers}", ha="center",
                  va="center", fontsize=7, color="white" if row.accuracy < 0.5 else "black")
    axes.imshow(cells, cmap="cividis", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(lengths)), [str(length) for length in lengths], fontsize=7,
                    rotation=45)
    axes.set_yticks(range(DEPTHS), [f"{depth / DEPTHS:.1f}" for depth in range(DEPTHS)], fontsize=7)
    axes.set_xlabel("length of the document from, tokens", fontsize=8)
