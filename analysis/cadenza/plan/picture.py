# SPDX-License-Identifier: Apache-2.0
"""Plans drawn with matplotlib: loads of the ranks, and who computes which part of attention."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure

from cadenza.colours import RANK_COLOURS
from cadenza.files import printable, save_figure
from cadenza.plan.matrix import NOBODY, Matrix, matrices
from cadenza.plan.read import Plan, Step
from cadenza.words import byte_count, seconds, shortened

_MOST_PLANS, _MOST_MATRICES = 16, 48  # what a picture has room for
_OF_A_PLAN = 12  # matrices, also where there are many plans
_GOLDEN = 0.618034
_MOST_LABELS = 40  # of ranks
_LONGEST = 110  # characters of a line
_INK, _FAINT = "#222222", "#bbbbbb"
# Inches.
_WIDTH, _DPI = 9.6, 150
_MARGIN, _LINE = 0.15, 0.2
_BARS_LEFT, _BARS_WIDTH, _BARS_ABOVE = 0.75, 1.3, 0.35
_LEFT = 3.1  # of the matrices
_LARGEST, _LEAST = 1.9, 0.3  # sides of matrices
_COLUMN = 0.95  # at least: a matrix with its title
_TITLE = 0.14  # a line of a matrix's title
_BELOW = 0.3  # the name of the axis of keys


@dataclass
class _Panel:
    """A matrix and where it is: inches from the left, and from the plan's first line down."""

    matrix: Matrix
    x: float
    y: float
    side: float


# A dollar sign in a name is no formula.
@matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "", "text.parse_math": False})
def draw(step: Step, output: Path) -> None:
    """Writes the picture; the ending of `output` says in which format."""
    plans = step.plans[:_MOST_PLANS]
    colours = _colours(step.ranks)
    most = max(_OF_A_PLAN, _MOST_MATRICES // len(plans))
    drawn = [_panels(step, plan, most) for plan in plans]
    bars = min(max(0.2 * step.ranks, 0.4), 3.2)
    heights = [3 * _LINE + max([_BARS_ABOVE + bars + _BELOW] + [p.y + p.side for p in panels])
               for panels, _ in drawn]
    notes = _notes(step)
    height = 2 * _MARGIN + sum(heights) + _LINE * len(notes)
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI)
    FigureCanvasAgg(figure)

    def axes_at(x: float, y: float, width: float, tall: float) -> Axes:
        return figure.add_axes((x / _WIDTH, 1 - (y + tall) / height, width / _WIDTH, tall / height))

    def line_at(x: float, y: float, text: str, **style: object) -> None:
        figure.text(x / _WIDTH, 1 - y / height, text, va="top", color=_INK, **style)

    y = _MARGIN
    for plan, (panels, more), tall in zip(plans, drawn, heights, strict=True):
        line_at(_MARGIN, y, _title(plan), fontsize=9, fontweight="bold")
        _draw_loads(axes_at(_BARS_LEFT, y + _LINE + _BARS_ABOVE, _BARS_WIDTH, bars), plan, colours)
        for panel in panels:
            axes = axes_at(panel.x, y + _LINE + panel.y, panel.side, panel.side)
            _draw_matrix(axes, panel.matrix, colours, panel is panels[0])
        if more:
            line_at(_LEFT, y + tall - _LINE, f"and {more} more of shorter documents", fontsize=8)
        y += tall
    for note in notes:
        line_at(_MARGIN, y, note, fontsize=8)
        y += _LINE
    save_figure(figure, output)


def _colours(ranks: int) -> np.ndarray:
    """Of each rank, as red, green, blue and opacity; last the colour of nobody. Of many ranks
    neighbours, which often share a document, are far apart on the map."""
    few = to_rgba_array(RANK_COLOURS[:ranks])
    places = np.argsort(np.argsort(np.arange(ranks) * _GOLDEN % 1))
    many = matplotlib.colormaps["viridis"](places / ranks)
    return np.concatenate([few if ranks <= len(few) else many, np.zeros((1, 4))])


def _panels(step: Step, plan: Plan, most: int) -> tuple[list[_Panel], int]:
    """Matrices in lines from left to right, and how many more there are."""
    found, more = matrices(step, plan, most)
    panels: list[_Panel] = []
    above = max((_TITLE * (len(_lines(matrix)) + 1) for matrix in found), default=0)
    x, y, tall = _LEFT, above, 0.0
    for matrix in found:
        side = max(_LEAST, _LARGEST * matrix.length / found[0].length)
        width = max(side + 0.15, _COLUMN)
        if x > _LEFT and x + width > _WIDTH:
            x, y, tall = _LEFT, y + tall, 0.0
        panels.append(_Panel(matrix, x, y, side))
        x, tall = x + width, max(tall, side + above + (_BELOW if len(panels) == 1 else 0))
    return panels, more


def _title(plan: Plan) -> str:
    predicted, best = map(seconds, (plan.predicted_seconds, plan.lower_bound_seconds))
    return (f"{plan.name}: imbalance {plan.imbalance_before:.3f} before balancing, "
            f"{plan.imbalance:.3f} planned; forward of a layer {predicted} predicted, {best} at "
            "best")


def _notes(step: Step) -> list[str]:
    notes = []
    if len(step.plans) > _MOST_PLANS:
        notes.append(f"and {len(step.plans) - _MOST_PLANS} more plans")
    if step.patterns:
        notes.append("sparse documents: blocks and columns of head 0, under the index given")
    elif any(plan.densities for plan in step.plans):
        notes.append("sparse documents: the fainter, the fewer of their pairs are expected to be "
                     "computed")
    if step.rates:
        notes.append(shortened(f"predicted for {printable(step.rates)}", _LONGEST))
    return notes


def _draw_loads(axes: Axes, plan: Plan, colours: np.ndarray) -> None:
    """A bar for each rank, in its colour, so that this is the legend of the matrices."""
    ranks, loads = len(plan.loads), 100 * plan.loads
    corners = [[(0, rank - 0.4), (load, rank - 0.4), (load, rank + 0.4), (0, rank + 0.4)]
               for rank, load in enumerate(loads)]
    axes.add_collection(PolyCollection(corners, facecolors=colours[:-1], linewidths=0))
    axes.axvline(100, color=_INK, linewidth=0.8, linestyle=(0, (3, 2)))
    every = max(1, -(-ranks // _MOST_LABELS))
    labels = range(0, ranks, every)
    axes.set_yticks(labels, [f"rank {rank}" for rank in labels])
    axes.set_ylim(max(ranks, 1) - 0.5, -0.5)
    axes.set_xlim(0, max(110, 1.05 * loads.max(initial=0)))
    axes.set_xlabel("load (% of a fair share)", fontsize=7.5, color=_INK)
    title = "load and bytes sent" if every == 1 else "load"
    axes.set_title(title, loc="left", fontsize=8, color=_INK)
    axes.tick_params(labelsize=7.5 if ranks <= _MOST_LABELS / 2 else 5, labelcolor=_INK,
                     color=_FAINT)
    axes.tick_params(axis="y", length=0)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(_FAINT)
    for rank in labels if every == 1 else ():
        axes.text(1.04, rank, byte_count(plan.sent[rank]), va="center", color=_INK,
                  fontsize=7.5 if ranks <= _MOST_LABELS / 2 else 5,
                  transform=axes.get_yaxis_transform())


def _lines(matrix: Matrix) -> list[str]:
    lines = [f"document {matrix.document}", f"{matrix.length} tokens"]
    if matrix.heads:
        lines.append(f"heads {matrix.heads[0]} to {matrix.heads[1] - 1}")
    if matrix.shown < matrix.length:
        lines.append(f"the first {matrix.shown}")
    return lines


def _draw_matrix(axes: Axes, matrix: Matrix, colours: np.ndarray, names_axes: bool) -> None:
    cells = (255 * colours[np.where(matrix.servers == NOBODY, -1, matrix.servers)]).astype(np.uint8)
    cells[..., 3] = (cells[..., 3] * matrix.opacity).astype(np.uint8)
    axes.imshow(cells, extent=(0, matrix.shown, matrix.shown, 0), aspect="auto")
    axes.set_title("\n".join(_lines(matrix)), loc="left", fontsize=7.5, color=_INK, pad=3)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(_FAINT)
    axes.set_xticks([])
    axes.set_yticks([])
    if names_axes:
        axes.set_xlabel("keys", fontsize=7.5, color=_INK, labelpad=2)
        axes.set_ylabel("queries", fontsize=7.5, color=_INK, labelpad=2)
