# SPDX-License-Identifier: Apache-2.0
"""Pictures of memory. Each function returns (figure, frame), or None where nothing is known."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from cadenza.colours import MEMORY_COLOURS
from cadenza.report import style
from cadenza.study import Study

_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}


def memory_by_rank(study: Study) -> tuple[go.Figure, pd.DataFrame] | None:
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
    many = len(peaks) > style.ROW_LABELS
    made = style.figure(320 if many else style.row_height(len(peaks)),
                        "rank" if many else unit, unit if many else "", barmode="stack",
    )
    made.update_layout(bargap=0.0 if many else 0.3)
    labels = [f"rank {rank}" for rank in peaks.index]
    for kind in kinds:
        values = {"x": peaks.index, "y": peaks[kind]} if many else {"x": peaks[kind], "y": labels}
        made.add_bar(**values, orientation="v" if many else "h", name=kind, customdata=labels,
                     marker={"color": MEMORY_COLOURS[kind], "line": {"width": 0}},
                     hovertemplate=f"%{{customdata}}<br>{kind} "
                                   f"%{{{'y' if many else 'x'}:,.4~g}} {unit}<extra></extra>",
        )
    values = {"x": peaks.index, "y": peaks["total"]} if many else {"x": peaks["total"], "y": labels}
    made.add_scatter(
        **values, mode="lines" if many else "markers", name="highest sum",
        line={"color": "#e9803f", "width": 1.5, "shape": "hvh"},
        marker={"symbol": "diamond", "size": 9, "color": "#ffffff",
                "line": {"width": 1.5, "color": "#26292e"}},
        hovertemplate=f"highest sum %{{{'y' if many else 'x'}:,.4~g}} {unit}<extra></extra>",
    )
    if not many:
        made.update_yaxes(autorange="reversed", showgrid=False)
    return made, peaks[[*kinds, "total"]].reset_index()


def memory_by_step(study: Study) -> tuple[go.Figure, pd.DataFrame] | None:
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
    made = style.figure(260, "step", unit, hovermode="x unified")
    for name, dash in (("max", "solid"), ("mean", "dash"), ("min", "dot")):
        made.add_scatter(x=frame.index, y=frame[name], name=name, mode="lines+markers",
                         line={"color": "#d6455d" if name == "max" else "#2f6db3", "dash": dash},
                         marker={"size": 5}, hovertemplate=f"%{{y:,.5~g}} {unit}")
    made.update_layout(showlegend=True, legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"})
    style.step_axis(made, len(frame))
    made.update_yaxes(rangemode="tozero")
    return made, frame.reset_index()


def _unit(most: float) -> str:
    """The largest unit in which `most` bytes are ten or more."""
    return next((unit for unit, size in _UNITS.items() if most >= 10 * size), "B")
