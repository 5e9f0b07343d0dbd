# SPDX-License-Identifier: Apache-2.0
"""Panels of a timeline, drawn with matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cadenza.colours import LABEL_COLOURS
from cadenza.files import written
from cadenza.plots import Picture
from cadenza.timeline.panels import Panel

_LANES = {"work": (-0.40, 0.16), "messages": (0.20, 0.40)}  # of a row of height 1
_WIDTH, _DPI = 12.8, 100  # inches, so 1280 pixels
_MAX_LABELS = 40
_LEGEND_COLUMNS = 7  # all labels, of which there are 14, find room in two rows
_INK, _FAINT = "#222222", "#e8e8e8"


# A dollar sign in a name is no formula.
_PLAIN = {"svg.fonttype": "none", "text.parse_math": False}


@matplotlib.rc_context(_PLAIN)
def save(figure: Figure, output: Path) -> None:
    """Writes the picture; the ending of `output` says in which format."""
    with written(output) as file:
        figure.savefig(file, format=output.suffix[1:].lower(), facecolor="white")


@matplotlib.rc_context(_PLAIN)
def draw(panels: list[Panel]) -> Figure:
    """The panels below one another, on one time axis."""
    rows = [len(p.labels) for p in panels]
    row_inches = min(0.65, max(0.16, 16 / sum(rows)))
    heights = [n * row_inches for n in rows]
    gap, top, bottom = 0.5, 0.85, 0.55  # titles of panels, legend, time axis
    height = sum(heights) + gap * (len(panels) - 1) + top + bottom
    figure = Picture(figsize=(_WIDTH, height), dpi=_DPI)
    longest = max(p.duration_ns for p in panels)
    scale, unit = _unit(longest)
    y = height - top
    first: Axes | None = None
    for one, inches in zip(panels, heights, strict=True):
        y -= inches
        place = (0.135, y / height, 0.805, inches / height)
        axes = figure.add_axes(place, sharex=first)
        first = first or axes
        _draw_panel(axes, one, scale)
        axes.tick_params(labelbottom=one is panels[-1])
        y -= gap
    axes.set_xlim(0, longest / scale)
    axes.set_xlabel(f"time in the step ({unit})", color=_INK)
    _legend(figure, panels, height)
    return figure


def _draw_panel(axes: Axes, panel: Panel, scale: float) -> None:
    for (lane, label), bars in panel.bars.groupby(["lane", "label"], sort=False):
        low, high = _LANES[lane]
        corners = [
            [(b / scale, r + low), (e / scale, r + low), (e / scale, r + high),
             (b / scale, r + high)]
            for r, b, e in bars[["row", "begin_ns", "end_ns"]].itertuples(index=False)
        ]
        axes.add_collection(PolyCollection(corners, facecolors=LABEL_COLOURS[label], linewidths=0))
    count = len(panel.labels)
    axes.set_ylim(count - 0.5, -0.5)
    every = -(-count // _MAX_LABELS)
    axes.set_yticks(range(0, count, every), panel.labels[::every])
    axes.tick_params(axis="y", length=0, labelsize=9 if every == 1 else 7, labelcolor=_INK)
    axes.tick_params(axis="x", color=_FAINT, labelsize=9, labelcolor=_INK)
    axes.set_title(panel.title, loc="left", fontsize=11, color=_INK, pad=7)
    axes.grid(axis="x", color=_FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    for row in range(1, count):
        axes.axhline(row - 0.5, color=_FAINT, linewidth=0.8)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color("#999999")
    axes.axvline(panel.duration_ns / scale, color=_INK, linewidth=1, linestyle=(0, (3, 2)))
    for row in range(0, count, every):
        if panel.busy[row] == panel.busy[row]:
            axes.text(1.008, row, f"{panel.busy[row]:.0%} busy", fontsize=8, color="#555555",
                      transform=axes.get_yaxis_transform(), va="center")


def _legend(figure: Figure, panels: list[Panel], height: float) -> None:
    seen = {label for p in panels for label in p.bars["label"]}
    handles = [Patch(color=colour, label=label) for label, colour in LABEL_COLOURS.items()
               if label in seen]
    figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 1 - 0.08 / height),
                  ncols=min(len(handles), _LEGEND_COLUMNS), frameon=False, fontsize=9,
                  handlelength=1.1, handleheight=1.0, columnspacing=1.1, handletextpad=0.5)


def _unit(nanoseconds: int) -> tuple[float, str]:
    for size, name in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if nanoseconds >= 2 * size:
            return size, name
    return 1.0, "ns"
