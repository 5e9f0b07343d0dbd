# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run's time for notebooks, drawn with matplotlib."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from cadenza.colours import PART_COLOURS, PART_NAMES
from cadenza.time.parts import PARTS

if TYPE_CHECKING:
    from cadenza.study import Study


class Picture(Figure):
    """A figure that a notebook shows where no pyplot has been set up, too."""

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def parts(study: Study) -> Figure:
    """A bar for each rank: mean seconds of a steady step by part; parts without time are left
    out."""
    totals = study.totals
    left, names = totals["rank"] * 0.0, [f"rank {rank}" for rank in totals["rank"]]
    figure = Picture(figsize=(9, 1.6 + 0.22 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    for part in PARTS:
        seconds = totals[part] / len(study.steady_steps)
        if seconds.any():
            axes.barh(names, seconds, left=left, label=PART_NAMES[part], color=PART_COLOURS[part])
        left += seconds
    axes.invert_yaxis()
    axes.set_xlabel("seconds of a step")
    figure.legend(loc="outside right upper")
    return figure


def steps(study: Study) -> Figure:
    """Seconds of every step that all ranks completed."""
    figure = Picture(figsize=(9, 3), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(study.step_times["step"], study.step_times["seconds"], marker="o")
    axes.set_ylim(bottom=0)
    axes.set(xlabel="step", ylabel="seconds")
    return figure
