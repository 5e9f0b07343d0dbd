# SPDX-License-Identifier: Apache-2.0
"""Pictures of the balance of attention and of its sparsity. Each returns (figures, frame)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from cadenza.report import style
from cadenza.study import Study

_PHASE_COLOURS = {"forward": "#2f6db3", "backward": "#d6455d", "recompute": "#3f9c8a"}
_DASHES = {"worker": "solid", "lockstep": "dot"}
_LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}


def work_by_stage(study: Study) -> tuple[dict[str, go.Figure], pd.DataFrame]:
    """Rank by stage in the typical step, a picture for each pass: the mean over its layers.

    Frame: phase, rank, stage, seconds.
    """
    work = study.stage_work(study.typical_step)
    passes = work.groupby("phase", observed=True)[["tick", "layer"]].apply(
        lambda rows: len(rows.drop_duplicates())
    )
    frame = work.groupby(["phase", "rank", "stage"], as_index=False, observed=True)["seconds"].sum()
    frame["seconds"] /= frame["phase"].astype(str).map(passes).astype(float)
    phases = [phase for phase in _PHASE_COLOURS if phase in set(frame["phase"])]
    return {phase: _heat_map(frame[frame["phase"] == phase]) for phase in phases}, frame


def _heat_map(frame: pd.DataFrame) -> go.Figure:
    table = frame.pivot(index="rank", columns="stage", values="seconds").fillna(0.0)
    labels = [f"rank {rank}" for rank in table.index]
    made = style.figure(style.row_height(len(table), 30, 160, 480), "stage")
    made.add_heatmap(
        z=table.to_numpy(np.float32), x=[str(stage) for stage in table.columns], xgap=1,
        ygap=1 if len(table) <= 64 else 0, autocolorscale=True, zmin=0,
        zmax=max(float(table.to_numpy().max()), 1e-9),
        customdata=np.repeat(np.array(labels, object)[:, None], table.shape[1], axis=1),
        colorbar={"thickness": 10, "outlinewidth": 0, "tickformat": "~s",
                  "title": {"text": "s", "side": "top"}},
        hovertemplate="%{customdata}, stage %{x}<br>%{z:.4s}s a layer<extra></extra>",
    )
    style.rank_rows(made, labels)
    made.update_xaxes(type="category", showgrid=False, nticks=20)
    return made


def imbalance_by_layer(study: Study) -> tuple[go.Figure, pd.DataFrame]:
    """Worker and lockstep imbalance of each layer. Frame: Study.layer_imbalance without sums."""
    frame = study.layer_imbalance
    frame = frame[frame["layer"] >= 0]
    made = style.figure(300, "layer", "slowest / mean")
    number = frame.groupby("phase", observed=True).cumcount()
    for phase, mine in frame.groupby("phase", observed=True):
        for level, dash in _DASHES.items():
            made.add_scatter(
                x=number[mine.index], y=mine[level], name=f"{phase}, {level}", mode="lines+markers",
                line={"color": _PHASE_COLOURS[str(phase)], "width": 2, "dash": dash},
                marker={"size": 6}, hovertemplate=f"layer %{{x}}<br>{phase}, {level} %{{y:.3f}}"
                                                  "<extra></extra>",
            )
    made.update_layout(showlegend=True, legend=_LEGEND)
    style.step_axis(made, int(number.max()) + 1)
    return made, frame


def sparsity(study: Study) -> tuple[dict[str, go.Figure], pd.DataFrame]:
    """The share that was left out, by step and by layer. Frame: step, flops, dense_flops,
    sparsity."""
    steps = study.sparsity
    layers = study.layer_sparsity
    layers = layers[layers["layer"] >= 0]
    shown = {"step": (steps["step"], steps["sparsity"]),
             "layer": (np.arange(len(layers)), layers["sparsity"])}
    made = {}
    for axis, (x, y) in shown.items():
        made[f"by {axis}"] = figure = style.figure(280, axis, "share of dense FLOPs left out")
        figure.add_scatter(x=x, y=y, mode="lines+markers", marker={"size": 6},
                           line={"color": "#2f6db3", "width": 2},
                           hovertemplate=f"{axis} %{{x}}: %{{y:.2%}}<extra></extra>")
        figure.update_yaxes(rangemode="tozero", tickformat=".0%")
        style.step_axis(figure, len(x))
    return made, steps
