# SPDX-License-Identifier: Apache-2.0
"""Pictures of what would or did change: waterfalls, what-if, the critical path."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from cadenza.causes.what_if import worth
from cadenza.colours import LABEL_COLOURS, MESSAGE_NAMES, PART_COLOURS, PART_NAMES, RUN_COLOURS
from cadenza.comparison import waterfall
from cadenza.report import style
from cadenza.study import Study
from cadenza.words import change, seconds

_OTHER = "#a3a39c"
_PATH_RANKS = 24
_RANKS = 5  # of a picture of scenarios


def speed_up_waterfall(
    first: Study, other: Study, labels: tuple[str, str]
) -> tuple[go.Figure, pd.DataFrame]:
    """From one run's step time to the other's, a bar per part. Frame: comparison.waterfall()."""
    frame = waterfall(first, other)
    shown = frame[frame["change"].abs() > 5e-4 * frame["first"].sum()]
    made = style.figure(330, "", "seconds of a step")
    start, end = frame["first"].sum(), frame["other"].sum()
    made.add_bar(x=[labels[0]], y=[start], marker={"color": RUN_COLOURS[0]},
                 text=[seconds(start)], hovertemplate="%{x}: %{y:.4s}s<extra></extra>")
    at = top = start
    for row in shown.itertuples():
        made.add_bar(x=[row.name], y=[abs(row.change)], base=[min(at, at + row.change)],
                     marker={"color": PART_COLOURS.get(row.part, _OTHER)},
                     text=[change(row.change)],
                     hovertemplate=f"{row.name}: {row.first:.4g} s to {row.other:.4g} s"
                                   "<extra></extra>")
        at += row.change
        top = max(top, at)
    made.add_bar(x=[labels[1]], y=[end], marker={"color": RUN_COLOURS[1]}, text=[seconds(end)],
                 hovertemplate="%{x}: %{y:.4s}s<extra></extra>")
    made.update_traces(textposition="outside", cliponaxis=False, marker_line_width=0)
    made.update_layout(barmode="overlay", margin={"t": 28})
    made.update_xaxes(type="category", showgrid=False)
    made.update_yaxes(range=[0, 1.1 * max(top, end)])
    return made, frame


def what_if(study: Study) -> tuple[go.Figure, pd.DataFrame]:
    """The mean step time under changed conditions. Frame: Study.what_if's."""
    frame = study.what_if()
    single = (frame["rank"] >= 0).to_numpy()
    saves = worth(frame).to_numpy()
    shown = frame[np.where(single, saves & (single.cumsum() <= _RANKS), True)]
    names = [
        row.scenario if row.rank < 0 else f"rank {row.rank} as fast as the median"
        for row in shown.itertuples()
    ]
    made = style.figure(style.row_height(len(shown), 36), "seconds of a step")
    colours = ["#667085" if name == "as recorded" else "#2f6db3" for name in names]
    made.add_bar(
        y=names, x=shown["seconds"], orientation="h", marker={"color": colours},
        text=[seconds(s) + (f"  −{saved / (s + saved):.1%}" if enough else "")
              for s, saved, enough in
              zip(shown["seconds"], shown["saved_seconds"], worth(shown), strict=True)],
        textposition="auto", insidetextanchor="end", customdata=shown["explanation"],
        insidetextfont={"color": "#ffffff"}, cliponaxis=False,
        hovertemplate="%{y}: %{x:.4s}s<br>%{customdata}<extra></extra>",
    )
    made.update_yaxes(autorange="reversed", showgrid=False)
    return made, shown.assign(name=names)


def path_label(kind: str, category: str) -> str:
    """What a piece of the critical path is, in the words of the other pictures."""
    known = {**PART_NAMES, **MESSAGE_NAMES, "wait": "waiting"}
    other = kind in ("gap", "host")
    return PART_NAMES["other"] if other else known.get(category, PART_NAMES["other"])


def critical_path(study: Study) -> tuple[go.Figure, pd.DataFrame]:
    """The chain of operations that the typical step's time is made of, on its ranks.

    Neighbouring pieces of the same kind on a rank are one bar. Frame: rank, begin_ns, end_ns,
    label, name of the longest piece.
    """
    path = study.critical_path(study.typical_step)
    frame = _joined(path)
    origin = int(frame["begin_ns"].min())
    longest = frame.assign(ns=frame["end_ns"] - frame["begin_ns"]).groupby("rank")["ns"].sum()
    kept = sorted(longest.sort_values(ascending=False).index[:_PATH_RANKS])
    row = {rank: index for index, rank in enumerate(kept)}
    shown = frame[frame["rank"].isin(kept)]
    made = style.figure(style.row_height(len(kept), 26, 130), "seconds of the step")
    for label, part in shown.groupby("label"):
        seconds = (part["end_ns"] - part["begin_ns"]) / 1e9
        made.add_bar(
            y=part["rank"].map(row), x=seconds, base=(part["begin_ns"] - origin) / 1e9, width=0.7,
            orientation="h", name=label, marker={"color": LABEL_COLOURS.get(label, _OTHER),
                                                    "line": {"width": 0}},
            customdata=list(zip(part["rank"], part["name"], seconds, strict=True)),
            hovertemplate=f"rank %{{customdata[0]}}: {label}<br>%{{customdata[1]}}, "
                          "%{customdata[2]:.4s}s<extra></extra>",
        )
    made.update_layout(barmode="overlay")
    style.rank_rows(made, [f"rank {rank}" for rank in kept])
    return made, frame


def _joined(path: pd.DataFrame) -> pd.DataFrame:
    table = path[["rank", "begin_ns", "end_ns", "name"]].copy()
    table["name"] = table["name"].astype(str)
    table["label"] = [path_label(str(k), str(c)) for k, c in
                      zip(path["kind"], path["category"], strict=True)]
    new = (table[["rank", "label"]] != table[["rank", "label"]].shift()).any(axis=1)
    table["ns"] = table["end_ns"] - table["begin_ns"]
    table["group"] = new.cumsum()
    named = table.loc[table.groupby("group")["ns"].idxmax(), ["group", "name"]]
    joined = table.groupby("group").agg(
        rank=("rank", "first"), begin_ns=("begin_ns", "first"), end_ns=("end_ns", "last"),
        label=("label", "first"),
    )
    return joined.join(named.set_index("group")).reset_index(drop=True)
