# SPDX-License-Identifier: Apache-2.0
"""Pictures of attention: its rate, and its plan. Each returns (figures, frame) or None."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from cadenza.colours import OTHER_COLOUR, PHASE_COLOURS
from cadenza.report import style
from cadenza.report.places import rank_labels
from cadenza.report.style import Plot
from cadenza.study import Study
from cadenza.time.imbalance import layer_shares

_POINTS = 4000  # of a picture: more cannot be told apart
_DOCUMENTS = 40


def roofline(study: Study) -> tuple[Plot, pd.DataFrame] | None:
    """Achieved rate of attention against the size of the work, and what the device could do.

    Frame: Study.attention_tasks, at most _POINTS rows of it, taken evenly.
    """
    tasks = study.attention_tasks
    tasks = tasks[(tasks["flops"] > 0) & (tasks["seconds"] > 0)]
    if tasks.empty:
        return None
    shown = tasks.iloc[:: -(-len(tasks) // _POINTS)]
    rates, peak = shown["flops"] / shown["seconds"], float(study.ranks["peak_flops"].max())
    made = style.figure(360, "FLOP of a call", "FLOP/s", x_axis_type="log", y_axis_type="log",
                        x_range=_beyond(shown["flops"]), y_range=_beyond([*rates, peak]))
    for phase, part in shown.groupby("phase", observed=True):
        data = style.source(flops=part["flops"], rate=rates[part.index],
                            rank=part["rank"], seconds=part["seconds"])
        made.scatter("flops", "rate", source=data, size=5, alpha=0.55, line_color=None,
                     color=PHASE_COLOURS.get(str(phase), OTHER_COLOUR), name=str(phase))
    style.hover(made, "rank @rank<br>@{flops}{FLOP} in @{seconds}{s}: @{rate}{FLOP/s}",
                made.renderers)
    if peak > 0:
        ends = style.line(made, [shown["flops"].min(), shown["flops"].max()], [peak, peak],
                          OTHER_COLOUR, dash="dashed", name="peak of matrix products")
        style.hover(made, "$name: @{y}{FLOP/s}", [ends])
    return made, shown


def _beyond(values: Sequence[float]) -> tuple[float, float]:
    """A logarithmic axis that all positive values are well inside of, equal ones, too."""
    positive = [value for value in values if value > 0]
    return min(positive) / 1.5, max(positive) * 1.5


def plan_by_tick(study: Study) -> tuple[dict[str, Plot], pd.DataFrame] | None:
    """Server by tick in the typical step: cost, tasks and bytes as the plan has them.

    Frame: server, tick, phase and what is shown, summed over halves and stages.
    """
    found = _summary_of_step(study)
    if found is None:
        return None
    frame, values = found
    figures = {
        title: _servers(frame.pivot_table(index="server", columns="tick", values=column,
                                          aggfunc="sum"), title, unit, rank_labels(study))
        for column, (title, unit) in values.items()
    }
    return figures, frame


def _servers(table: pd.DataFrame, title: str, unit: str, places: dict[int, str]) -> Plot:
    """A heat map; a bar per server where there is one tick, so that small differences are seen."""
    labels = [f"rank {server}" for server in table.index]
    who = list(map(places.get, table.index))
    if table.shape[1] > 1:
        return style.heat_map(
            labels, [str(tick) for tick in table.columns], table.to_numpy(float), x="tick",
            unit=unit, who=who,
            text=f"@of_row, tick @of_column<br>{title} @{{value}}{{{unit or '_'}}}")
    made = style.figure(style.row_height(len(table), 30, 160, 480),
                        f"{title}, {unit}" if unit else title, x_unit="s" if unit == "s" else "")
    values = table.iloc[:, 0]
    data = style.source(at=np.arange(len(table)), begin=0 * values, value=values, who=who)
    style.bars(made, data, "begin", "value", PHASE_COLOURS["forward"])
    style.hover(made, f"@who<br>{title} @{{value}}{{{unit or '_'}}}")
    style.rank_rows(made, labels)
    made.x_range.start = 0
    return made


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


def tasks_by_document(study: Study) -> tuple[Plot, pd.DataFrame] | None:
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
    who = list(map(rank_labels(study).get, cost.columns))
    made = style.heat_map(
        [f"rank {server}" for server in cost.columns], [str(name) for name in cost.index],
        cost.where(cost > 0).to_numpy().T, x="document, the most expensive first", unit="FLOP",
        sizes=(180, 480), who=who, text="document @of_column on @of_row<br>@{value}{FLOP}")
    return made, cost.stack().rename("cost").reset_index()
