# SPDX-License-Identifier: Apache-2.0
"""The step as a picture that can be zoomed: rank by time."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from cadenza.colours import LABEL_COLOURS
from cadenza.panels import panel
from cadenza.parts import BUSY
from cadenza.report import style
from cadenza.study import Study

_BARS = 12_000  # of a picture: more make a browser slow
_COLUMNS = 4000  # a piece shorter than this part of the step is merged with its neighbours
_RANKS = 12
_LANES = {"work": (-0.14, 0.58), "messages": (0.31, 0.2)}  # centre and height, of a row of 1


def chosen_ranks(study: Study) -> list[int]:
    """All ranks if they are few; else the busiest, the least busy, the one most often late, and
    those that are longest on the critical path. Of a tensor group, whose ranks do the same at the
    same time, one is enough."""
    if len(study.ranks) <= _RANKS:
        return [int(rank) for rank in study.ranks["rank"]]
    mine = study.parts[study.parts["step"] == study.typical_step].set_index("rank")
    busy = mine[list(BUSY)].sum(axis=1).sort_values(ascending=False, kind="stable").index
    path = study.critical_path(study.typical_step)
    path = path.assign(ns=path["end_ns"] - path["begin_ns"]).groupby("rank")["ns"].sum()
    path = path.sort_values(ascending=False, kind="stable").index
    ranks = study.ranks.set_index("rank")
    server = ranks["server"].where(ranks["role"] == "attention_server", -1)
    group = ranks.assign(server=server).groupby(
        ["data", "pipeline", "context", "server"], sort=False).ngroup()  # fmt: skip
    chosen: dict[int, int] = {}  # tensor group: rank
    for order, limit in ((busy, 3), (busy[::-1], 5), (study.persistent["rank"], 6), (path, _RANKS)):
        for rank in order:
            if len(chosen) >= limit:
                break
            chosen.setdefault(int(group[rank]), int(rank))
    return sorted(chosen.values())


def timeline(study: Study, longest_ns: int) -> tuple[go.Figure, pd.DataFrame]:
    """The typical step of the chosen ranks: what each does above, its messages beneath.

    @param longest_ns  length of the time axis, equal in the pictures of all runs
    Frame: Panel.bars of all pieces shown.
    """
    chosen = chosen_ranks(study)
    made_of = panel(study, study.typical_step, max(1.0, longest_ns / _COLUMNS), chosen)
    if len(made_of.bars) > _BARS:
        coarse = longest_ns / _COLUMNS * len(made_of.bars) / _BARS
        made_of = panel(study, study.typical_step, coarse, chosen)
    made = style.figure(max(170, 58 + 46 * len(chosen)), "seconds of the step", barmode="overlay")
    for (lane, label), bars in made_of.bars.groupby(["lane", "label"], sort=False):
        centre, height = _LANES[str(lane)]
        seconds = (bars["end_ns"] - bars["begin_ns"]) / 1e9
        made.add_bar(
            y=bars["row"] + centre, x=seconds, base=bars["begin_ns"] / 1e9, width=height,
            orientation="h", name=label, customdata=bars["what"].where(bars["what"] != "", label),
            marker={"color": LABEL_COLOURS[str(label)], "line": {"width": 0}},
            hovertemplate=f"<b>{label}</b> %{{x:.4s}}s<br>%{{customdata}}<br>from %{{base:.6~g}} s"
                          "<extra></extra>",
        )  # fmt: skip
    style.rank_rows(made, [label.split(" · ")[0] for label in made_of.labels])
    made.update_xaxes(range=[0, longest_ns / 1e9])
    return made, made_of.bars
