# SPDX-License-Identifier: Apache-2.0
"""Pictures of the balance of attention and of its sparsity. Each returns (figures, frame)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.colours import PHASE_COLOURS
from cadenza.report import style
from cadenza.report.places import rank_labels
from cadenza.report.style import Plot
from cadenza.study import Study

_DASHES = {"worker": "solid", "lockstep": "dotted"}


def work_by_stage(study: Study) -> tuple[dict[str, Plot], pd.DataFrame]:
    """Rank by stage in the typical step, a picture for each pass: the mean over its layers.

    Frame: phase, rank, stage, seconds.
    """
    work = study.stage_work(study.typical_step)
    passes = work.groupby("phase", observed=True)[["tick", "layer"]].apply(
        lambda rows: len(rows.drop_duplicates())
    )
    frame = work.groupby(["phase", "rank", "stage"], as_index=False, observed=True)["seconds"].sum()
    frame["seconds"] /= frame["phase"].astype(str).map(passes).astype(float)
    phases = [phase for phase in PHASE_COLOURS if phase in set(frame["phase"])]
    who = rank_labels(study)
    return {phase: _heat_map(frame[frame["phase"] == phase], who) for phase in phases}, frame


def _heat_map(frame: pd.DataFrame, who: dict[int, str]) -> Plot:
    table = frame.pivot(index="rank", columns="stage", values="seconds").fillna(0.0)
    return style.heat_map(
        [f"rank {rank}" for rank in table.index], [str(stage) for stage in table.columns],
        table.to_numpy(), x="stage", unit="s",
        who=list(map(who.get, table.index)),
        text="@of_row, stage @of_column<br>@{value}{s} a layer")


def imbalance_by_layer(study: Study) -> tuple[Plot, pd.DataFrame]:
    """Worker and lockstep imbalance of each layer. Frame: Study.layer_imbalance without sums."""
    frame = study.layer_imbalance
    frame = frame[frame["layer"] >= 0]
    made = style.figure(300, "layer", "slowest / mean")
    number = frame.groupby("phase", observed=True).cumcount()
    points = []
    for phase, mine in frame.groupby("phase", observed=True):
        for level, dash in _DASHES.items():
            points.append(style.line(made, number[mine.index], mine[level],
                                     PHASE_COLOURS[str(phase)], name=str(phase), dash=dash))
    style.hover(made, "layer @x<br>$name @{y}{_}", points)
    style.step_axis(made, int(number.max()) + 1)
    return made, frame


def sparsity(study: Study) -> tuple[dict[str, Plot], pd.DataFrame]:
    """The share that was left out, by step and by layer. Frame: step, flops, dense_flops,
    sparsity."""
    steps = study.sparsity
    layers = study.layer_sparsity
    layers = layers[layers["layer"] >= 0]
    shown = {"step": (steps["step"], steps["sparsity"]),
             "layer": (np.arange(len(layers)), layers["sparsity"])}
    made = {}
    for axis, (x, y) in shown.items():
        made[f"by {axis}"] = figure = style.figure(280, axis, "share of dense FLOPs left out",
                                                       y_unit="%")
        points = style.line(figure, x, y, PHASE_COLOURS["forward"])
        style.hover(figure, f"{axis} @x: @{{y}}{{%}}", [points])
        style.from_zero(figure)
        style.step_axis(figure, len(x))
    return made, steps
