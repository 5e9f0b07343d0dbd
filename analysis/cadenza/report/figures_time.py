# SPDX-License-Identifier: Apache-2.0
"""Pictures of steps and of where their time went. Each function returns (figure, frame)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from cadenza.colours import PART_COLOURS, PART_NAMES, RUN_COLOURS
from cadenza.time.parts import BUSY, LOST, PARTS
from cadenza.report import style
from cadenza.study import Study

WAITS = tuple(part for part in LOST if part != "other")


def step_times(studies: list[Study], labels: list[str]) -> tuple[go.Figure, pd.DataFrame]:
    """Seconds of every step of every run. Frame: run, step, seconds."""
    made = style.figure(280, "step", "seconds", hovermode="x unified")
    frames = []
    for index, (study, label) in enumerate(zip(studies, labels, strict=True)):
        times = study.step_times[["step", "seconds"]]
        frames.append(times.assign(run=label))
        colour = RUN_COLOURS[index % len(RUN_COLOURS)]
        made.add_scatter(x=times["step"], y=times["seconds"], name=label, mode="lines+markers",
                         line={"color": colour, "width": 2}, marker={"size": 6},
                         hovertemplate="%{y:.4s}s")
    made.update_yaxes(rangemode="tozero")
    style.step_axis(made, max(len(study.step_times) for study in studies))
    return made, pd.concat(frames, ignore_index=True)[["run", "step", "seconds"]]


def parts_by_rank(study: Study) -> tuple[go.Figure, pd.DataFrame]:
    """Mean seconds of a steady step by part, a bar per rank. Frame: rank, one column per part."""
    frame = study.steady(study.parts).groupby("rank")[list(PARTS)].mean() / 1e9
    share = frame.div(frame.sum(axis=1), axis=0)
    many = len(frame) > style.ROW_LABELS
    height = 340 if many else style.row_height(len(frame))
    made = style.figure(height, "rank" if many else "seconds of a step",
                        "seconds of a step" if many else "", barmode="stack")
    made.update_layout(bargap=0.0 if many else 0.3)
    labels = [f"rank {rank}" for rank in frame.index]
    for part in PARTS:
        hover = f"%{{customdata[0]}}<br>{PART_NAMES[part]} %{{customdata[1]:.4s}}s, " \
                "%{customdata[2]:.1%}<extra></extra>"
        custom = np.stack([labels, frame[part], share[part]], axis=-1).tolist()
        values = {"x": frame.index, "y": frame[part]} if many else {"x": frame[part], "y": labels}
        made.add_bar(**values, orientation="v" if many else "h", name=PART_NAMES[part],
                     marker={"color": PART_COLOURS[part], "line": {"width": 0}},
                     customdata=custom, hovertemplate=hover)
    if not many:
        made.update_yaxes(autorange="reversed", showgrid=False)
    return made, frame.reset_index()


def heat_maps(study: Study) -> tuple[dict[str, go.Figure], pd.DataFrame]:
    """Rank by step, a picture for the whole step's time, for computing, and for each wait.

    Frame: rank, step, window, busy and WAITS, in seconds.
    """
    parts = study.parts
    frame = parts[["rank", "step"]].copy()
    frame["window"] = parts["window"] / 1e9
    frame["busy"] = parts[list(BUSY)].sum(axis=1) / 1e9
    frame["core attention"] = parts["compute_attention"] / 1e9
    for name in WAITS:
        frame[name] = parts[name] / 1e9
    titles = {"busy": "computing", "core attention": "core attention",
              **{name: PART_NAMES[name] for name in WAITS}, "window": "step time"}
    made = {title: _heat_map(frame, name, title, study.seconds) for name, title in titles.items()}
    return made, frame


def _heat_map(frame: pd.DataFrame, column: str, title: str, step_seconds: float) -> go.Figure:
    """Seconds above or below the median, so that hundreds of nearly equal ranks can be told apart.

    The colours reach to the largest difference but for one cell in two hundred, and to a hundredth
    of a step at least, so that noise stays pale.
    """
    table = frame.pivot(index="rank", columns="step", values=column)
    values = table.to_numpy()
    off = values - np.nanmedian(values)
    reach = max(float(np.nanquantile(np.abs(off), 0.995)), 0.01 * step_seconds, 1e-9)
    labels = [f"rank {rank}" for rank in table.index]
    custom = np.empty((*values.shape, 2), object)  # an array: plotly looks at each item of lists
    custom[..., 0], custom[..., 1] = np.array(labels, object)[:, None], np.round(values, 9)
    made = style.figure(style.row_height(len(table), 30, 160, 520), "step")
    made.add_heatmap(
        z=off.astype(np.float32), x=[str(s) for s in table.columns], name=title, xgap=1,
        ygap=1 if len(table) <= 64 else 0, autocolorscale=True, customdata=custom,
        zmin=-reach, zmax=reach,
        colorbar={"thickness": 10, "outlinewidth": 0, "tickformat": "+~s",
                  "title": {"text": "s", "side": "top"}},
        hovertemplate=f"%{{customdata[0]}}, step %{{x}}<br>{title} %{{customdata[1]:.4s}}s"
                      "<extra></extra>",
    )
    style.rank_rows(made, labels)
    made.update_xaxes(type="category", nticks=12, showgrid=False)
    return made


def bubbles_by_stage(study: Study) -> tuple[go.Figure, pd.DataFrame] | None:
    """Bubble of each pipeline stage, mean of its ranks and steady steps, beside 1F1B's formula.

    None where there is one stage. Frame: pipeline, warm_up, steady, cool_down, ideal in seconds.
    """
    stages = study.ranks.loc[study.ranks["role"] != "attention_server", ["rank", "pipeline"]]
    if stages["pipeline"].nunique() < 2 or study.bubbles.empty:
        return None
    columns = {"warm_up_ns": "warm_up", "steady_ns": "steady", "cool_down_ns": "cool_down",
               "ideal_ns": "ideal"}
    frame = study.steady(study.bubbles).merge(stages, on="rank").rename(columns=columns)
    frame = (frame.groupby("pipeline")[list(columns.values())].mean() / 1e9).reset_index()
    made = style.figure(300, "pipeline stage", "seconds of a step", barmode="stack")
    shades = {"warm_up": "#c9b3da", "steady": "#9a6fb8", "cool_down": "#6c4590"}
    for name, colour in shades.items():
        made.add_bar(x=frame["pipeline"], y=frame[name], name=name.replace("_", "-"),
                     marker={"color": colour, "line": {"width": 0}},
                     hovertemplate=f"{name.replace('_', '-')} %{{y:.4s}}s<extra></extra>",
        )
    made.add_scatter(x=frame["pipeline"], y=frame["ideal"], name="ideal 1F1B", mode="markers",
                     marker={"symbol": "line-ew", "size": 46,
                             "line": {"width": 3, "color": "#e9803f"}},
                     hovertemplate="ideal 1F1B %{y:.4s}s<extra></extra>")
    made.update_layout(showlegend=True, legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"})
    made.update_xaxes(dtick=1)
    return made, frame
