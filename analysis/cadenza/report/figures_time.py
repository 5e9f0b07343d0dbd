# SPDX-License-Identifier: Apache-2.0
"""Pictures of steps and of where their time went. Each function returns (figure, frame)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.colours import BUBBLE_COLOURS, LABEL_COLOURS, PART_NAMES, RUN_COLOURS
from cadenza.time.parts import BUSY, LOST, PARTS
from cadenza.report import style
from cadenza.report.places import rank_labels, step_and_time
from cadenza.report.style import Plot
from cadenza.study import Study

WAITS = tuple(part for part in LOST if part != "other")


def step_times(studies: list[Study], labels: list[str]) -> tuple[Plot, pd.DataFrame]:
    """Seconds of every step of every run. Frame: run, step, seconds."""
    made = style.figure(280, "step", "seconds", y_unit="s")
    frames, points = [], []
    for index, (study, label) in enumerate(zip(studies, labels, strict=True)):
        times = study.step_times[["step", "seconds"]]
        frames.append(times.assign(run=label))
        points.append(style.line(made, times["step"], times["seconds"],
                                 RUN_COLOURS[index % len(RUN_COLOURS)], name=label,
                                 step=[step_and_time(study, step) for step in times["step"]]))
    style.hover(made, "$name, step @step: @{y}{s}", points, upright=True)
    style.from_zero(made)
    style.step_axis(made, max(len(study.step_times) for study in studies))
    return made, pd.concat(frames, ignore_index=True)[["run", "step", "seconds"]]


def parts_by_rank(study: Study) -> tuple[Plot, pd.DataFrame]:
    """Mean seconds of a steady step by part, a bar per rank. Frame: rank, one column per part."""
    frame = study.steady(study.parts).groupby("rank")[list(PARTS)].mean() / 1e9
    parts = {PART_NAMES[part]: frame[part].to_numpy() for part in PARTS if frame[part].any()}
    made = style.stacked([f"rank {rank}" for rank in frame.index], frame.index, parts,
                         LABEL_COLOURS, "seconds of a step", "s", "@{value}{s}, @{share}{%}",
                         list(map(rank_labels(study).get, frame.index)))
    return made, frame.reset_index()


def heat_maps(study: Study) -> tuple[dict[str, Plot], pd.DataFrame]:
    """Rank by step, a picture for the whole step's time, for computing, and for each wait that
    there is.

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
    who = rank_labels(study)
    made = {title: _heat_map(frame, name, title, study.seconds, who)
            for name, title in titles.items() if frame[name].any()}
    return made, frame


def _heat_map(
    frame: pd.DataFrame, column: str, title: str, step_seconds: float, who: dict[int, str]
) -> Plot:
    """Seconds above or below the median, so that hundreds of nearly equal ranks can be told apart.

    The colours reach to the largest difference but for one cell in two hundred, and to a hundredth
    of a step at least, so that noise stays pale.
    """
    table = frame.pivot(index="rank", columns="step", values=column)
    values = table.to_numpy()
    off = values - np.nanmedian(values)
    reach = max(float(np.nanquantile(np.abs(off), 0.995)), 0.01 * step_seconds, 1e-9)
    return style.heat_map(
        [f"rank {rank}" for rank in table.index], [str(step) for step in table.columns], off,
        x="step", unit="s", text=f"@of_row, step @of_column<br>{title} @{{seconds}}{{s}}",
        least=-reach, most=reach, sizes=(160, 520), diverging=True, name=title,
        who=list(map(who.get, table.index)), seconds=values.ravel(),
    )


def bubbles_by_stage(study: Study) -> tuple[Plot, pd.DataFrame] | None:
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
    made = style.figure(300, "pipeline stage", "seconds of a step", y_unit="s")
    stages, below = frame["pipeline"], 0.0 * frame["ideal"]
    for name in ("warm_up", "steady", "cool_down"):
        label, above = name.replace("_", "-"), below + frame[name]
        data = style.source(at=stages, begin=below, end=above, value=frame[name])
        style.bars(made, data, "begin", "end", BUBBLE_COLOURS[label], upright=True, name=label)
        below = above
    data = style.source(value=frame["ideal"], left=stages - 0.4, right=stages + 0.4)
    made.segment("left", "value", "right", "value", source=data, line_width=3,
                 color=BUBBLE_COLOURS["ideal 1F1B"], name="ideal 1F1B")
    style.hover(made, "$name @{value}{s}")
    style.from_zero(made)
    style.step_axis(made, len(frame))
    return made, frame
