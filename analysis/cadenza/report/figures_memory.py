# SPDX-License-Identifier: Apache-2.0
"""Pictures of memory. Each function returns (figure, frame), or None where nothing is known."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.colours import MEMORY_COLOURS, PHASE_COLOURS
from cadenza.report import style
from cadenza.report.places import rank_labels
from cadenza.report.style import GAP, INK, Plot
from cadenza.study import Study

_SUM_COLOUR, _MOST_COLOUR, _COLOUR = "#e9803f", PHASE_COLOURS["backward"], PHASE_COLOURS["forward"]
_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}


def memory_by_rank(study: Study) -> tuple[Plot, pd.DataFrame] | None:
    """Highest bytes of each kind on each rank, over all steps, stacked; a mark at the highest sum.

    Kinds peak at different moments, so the stack is at least as high as the mark.
    Frame: rank, one column per kind, total; in the unit of the axis.
    """
    memory = study.memory
    if memory.empty:
        return None
    peaks = memory.groupby(["rank", "kind"])["peak_bytes"].max().unstack()
    unit = _unit(peaks["total"].max())
    peaks = peaks / _UNITS[unit]
    kinds = [kind for kind in MEMORY_COLOURS if kind in peaks and peaks[kind].max() > 0]
    parts = {kind: peaks[kind].to_numpy() for kind in kinds}
    made = style.stacked([f"rank {rank}" for rank in peaks.index], peaks.index, parts,
                         MEMORY_COLOURS, unit, "", f"@{{value}}{{{unit}}}",
                         list(map(rank_labels(study).get, peaks.index)))
    many, total = len(peaks) > style.ROW_LABELS, peaks["total"]
    data = style.source(rank=peaks.index, row=np.arange(len(peaks)), total=total)
    drawn = made.step("rank", "total", source=data, mode="center", line_width=1.5,
                      color=_SUM_COLOUR, name="highest sum") if many else \
        made.scatter("total", "row", source=data, marker="diamond", size=12, line_width=1.5,
                     fill_color=GAP, line_color=INK, name="highest sum")
    style.hover(made, f"rank @rank<br>highest sum @{{total}}{{{unit}}}", [drawn])
    return made, peaks[[*kinds, "total"]].reset_index()


def memory_by_step(study: Study) -> tuple[Plot, pd.DataFrame] | None:
    """Highest memory of a step: the fullest rank, the mean, the emptiest.

    Frame: step, max, mean, min, in the unit of the axis.
    """
    memory = study.memory
    total = memory[memory["kind"] == "total"] if len(memory) else memory
    if total.empty:
        return None
    frame = total.groupby("step")["peak_bytes"].agg(["max", "mean", "min"])
    unit = _unit(frame["max"].max())
    frame = frame / _UNITS[unit]
    made = style.figure(260, "step", unit)
    points = [style.line(made, frame.index, frame[name],
                         _MOST_COLOUR if name == "max" else _COLOUR, name=name, dash=dash)
              for name, dash in (("max", "solid"), ("mean", "dashed"), ("min", "dotted"))]
    style.hover(made, f"step @x: $name @{{y}}{{{unit}}}", points, upright=True)
    style.step_axis(made, len(frame))
    style.from_zero(made)
    return made, frame.reset_index()


def _unit(most: float) -> str:
    """The largest unit in which `most` bytes are ten or more."""
    return next((unit for unit, size in _UNITS.items() if most >= 10 * size), "B")
