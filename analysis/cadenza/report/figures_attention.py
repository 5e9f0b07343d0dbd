# SPDX-License-Identifier: Apache-2.0
"""Pictures of attention: its rate, and its plan. Each returns (figures, frame) or None."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from cadenza.report import style
from cadenza.study import Study
from cadenza.time.imbalance import layer_shares

_POINTS = 4000  # of a picture: more cannot be told apart
_DOCUMENTS = 40
_PHASE_COLOURS = {"forward": "#2f6db3", "backward": "#d6455d", "recompute": "#3f9c8a"}


def roofline(study: Study) -> tuple[go.Figure, pd.DataFrame] | None:
    """Achieved rate of attention against the size of the work, and what the device could do.

    Frame: Study.attention_tasks, at most _POINTS rows of it, taken evenly.
    """
    tasks = study.attention_tasks
    tasks = tasks[(tasks["flops"] > 0) & (tasks["seconds"] > 0)]
    if tasks.empty:
        return None
    shown = tasks.iloc[:: -(-len(tasks) // _POINTS)]
    made = style.figure(360, "FLOP of a call", "FLOP/s")
    for phase, part in shown.groupby("phase", observed=True):
        made.add_scatter(
            x=part["flops"], y=part["flops"] / part["seconds"], mode="markers", name=str(phase),
            marker={"size": 5, "opacity": 0.55, "color": _PHASE_COLOURS.get(str(phase), "#a3a39c")},
            customdata=np.stack([part["rank"], part["seconds"]], axis=-1),
            hovertemplate="rank %{customdata[0]}<br>%{x:.4s}FLOP in %{customdata[1]:.4s}s: "
                          "%{y:.4s}FLOP/s<extra></extra>",
        )
    peak = float(study.ranks["peak_flops"].max())
    if peak > 0:
        made.add_scatter(
            x=[shown["flops"].min(), shown["flops"].max()], y=[peak, peak], mode="lines",
            name="peak of matrix products", line={"color": "#a3a39c", "dash": "dash"},
            hovertemplate="peak %{y:.4s}FLOP/s<extra></extra>",
        )
    made.update_layout(showlegend=True, legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"})
    made.update_xaxes(type="log", tickformat="~s", dtick="D2")
    made.update_yaxes(type="log", tickformat="~s", dtick="D2", fixedrange=False)
    return made, shown


def plan_by_tick(study: Study) -> tuple[dict[str, go.Figure], pd.DataFrame] | None:
    """Server by tick in the typical step: cost, tasks and bytes as the plan has them.

    Frame: server, tick, phase and what is shown, summed over halves and stages.
    """
    found = _summary_of_step(study)
    if found is None:
        return None
    frame, values = found
    figures = {
        title: _servers(frame.pivot_table(index="server", columns="tick", values=column,
                                          aggfunc="sum"), title, unit)
        for column, (title, unit) in values.items()
    }
    return figures, frame


def _servers(table: pd.DataFrame, title: str, unit: str) -> go.Figure:
    """A heat map; a bar per server where there is one tick, so that small differences are seen."""
    labels = [f"rank {server}" for server in table.index]
    height = style.row_height(len(table), 30, 160, 480)
    if table.shape[1] > 1:
        made = style.figure(height, "tick")
        _heat_map(made, table, labels, unit, f"%{{customdata}}, tick %{{x}}<br>{title} ")
        return made
    made = style.figure(height, f"{title}, {unit}" if unit else title)
    made.add_bar(x=table.iloc[:, 0], y=list(range(len(table))), orientation="h", customdata=labels,
                 marker={"color": "#2f6db3", "line": {"width": 0}},
                 hovertemplate=f"%{{customdata}}<br>{title} %{{x:.4s}} {unit}<extra></extra>",
    )
    style.rank_rows(made, labels)
    made.update_xaxes(tickformat="~s")
    return made


def _heat_map(
    made: go.Figure, table: pd.DataFrame, labels: list[str], unit: str, hover: str
) -> None:
    """`table`'s rows are servers, its columns become categories along x."""
    made.add_heatmap(
        z=table.to_numpy(np.float32), x=[str(name) for name in table.columns], xgap=1,
        ygap=1 if len(table) <= 64 else 0, autocolorscale=True, zmin=0,
        zmax=max(float(np.nanmax(table.to_numpy())), 1e-9),
        customdata=np.repeat(np.array(labels, object)[:, None], table.shape[1], axis=1),
        colorbar={"thickness": 10, "outlinewidth": 0, "tickformat": "~s",
                  "title": {"text": unit, "side": "top"}},
        hovertemplate=f"{hover}%{{z:.4s}} {unit}<extra></extra>",
    )
    style.rank_rows(made, labels)
    made.update_xaxes(type="category", showgrid=False, nticks=20)


def _summary_of_step(study: Study) -> tuple[pd.DataFrame, dict[str, tuple[str, str]]] | None:
    """Rows of the typical step's forward plans and the columns to show, with titles and units."""
    summary = study.plan_summary
    mine = summary[(summary["step"] == study.typical_step) & (summary["phase"] == "forward")]
    if mine.empty:
        return None
    columns = {"cost": ("cost", "FLOP"), "tasks": ("tasks", ""), "bytes_in": ("bytes in", "B"),
               "bytes_out": ("bytes out", "B"),
               "attend_seconds": ("predicted attention", "s")}
    mine = mine.assign(**mine[list(columns)].mul(layer_shares(mine), axis=0))
    return mine.groupby(["server", "tick"])[list(columns)].sum().reset_index(), columns


def tasks_by_document(study: Study) -> tuple[go.Figure, pd.DataFrame] | None:
    """Which server computes how much of which document in the typical step.

    Frame: document, server, cost (FLOP, forward) of the _DOCUMENTS most expensive documents.
    """
    plans = study.run.plans()
    plans = plans[plans["step"] == study.typical_step]
    if plans.empty:
        return None
    plans = plans.assign(cost=plans["cost"] * layer_shares(plans))
    cost = plans.groupby(["document", "server"])["cost"].sum().unstack(fill_value=0.0)
    cost = cost.loc[cost.sum(axis=1).sort_values(ascending=False).index[:_DOCUMENTS]]
    made = style.figure(style.row_height(cost.shape[1], 30, 180, 480),
                        "document, the most expensive first")
    labels = [f"rank {server}" for server in cost.columns]
    _heat_map(made, cost.T, labels, "FLOP", "document %{x} on %{customdata}<br>")
    return made, cost.stack().rename("cost").reset_index()
