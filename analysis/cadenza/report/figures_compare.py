# SPDX-License-Identifier: Apache-2.0
"""Pictures of what would or did change: waterfalls, what-if, the critical path."""

from __future__ import annotations

import numpy as np
import pandas as pd
from bokeh.models import Range1d

from cadenza.causes.what_if import worth
from cadenza.colours import (
    LABEL_COLOURS, MESSAGE_NAMES, OTHER_COLOUR, PART_COLOURS, PART_NAMES, PHASE_COLOURS,
    RECORDED_COLOUR, RUN_COLOURS,
)
from cadenza.comparison import waterfall
from cadenza.report import style
from cadenza.report.places import rank_labels
from cadenza.report.style import INK, Plot
from cadenza.study import Study
from cadenza.words import change, seconds

_PATH_RANKS = 24
_RANKS = 5  # of a picture of scenarios


def speed_up_waterfall(
    first: Study, other: Study, labels: tuple[str, str]
) -> tuple[Plot, pd.DataFrame]:
    """From one run's step time to the other's, a bar per part. Frame: comparison.waterfall()."""
    frame = waterfall(first, other)
    shown = frame[frame["change"].abs() > 5e-4 * frame["first"].sum()]
    start, end = frame["first"].sum(), frame["other"].sum()
    at = start + np.append(0.0, shown["change"].cumsum())
    rows = pd.DataFrame({
        "who": [labels[0], *shown["name"], labels[1]],
        "begin": [0.0, *np.minimum(at[:-1], at[1:]), 0.0],
        "end": [start, *np.maximum(at[:-1], at[1:]), end],
        "first": [start, *shown["first"], start], "other": [end, *shown["other"], end],
        "told": [seconds(start), *map(change, shown["change"]), seconds(end)],
        "colour": [RUN_COLOURS[0], *shown["part"].map(PART_COLOURS).fillna(OTHER_COLOUR),
                   RUN_COLOURS[1]],
    })
    return _named_bars(rows, "@who: @{first}{s} to @{other}{s}"), frame


def what_if(study: Study) -> tuple[Plot, pd.DataFrame]:
    """The mean step time under changed conditions. Frame: Study.what_if's."""
    frame = study.what_if()
    single = (frame["rank"] >= 0).to_numpy()
    saves = worth(frame).to_numpy()
    shown = frame[np.where(single, saves & (single.cumsum() <= _RANKS), True)]
    names = [
        row.scenario if row.rank < 0 else f"rank {row.rank} as fast as the median"
        for row in shown.itertuples()
    ]
    rows = pd.DataFrame({
        "who": names, "begin": 0.0, "end": shown["seconds"].to_numpy(),
        "told": [seconds(s) + (f"  −{saved / (s + saved):.1%}" if enough else "")
                 for s, saved, enough in
                 zip(shown["seconds"], shown["saved_seconds"], worth(shown), strict=True)],
        "colour": [RECORDED_COLOUR if name == "as recorded" else PHASE_COLOURS["forward"]
                   for name in names],
        "explanation": shown["explanation"].to_numpy(),
    })
    return _named_bars(rows, "@who: @{end}{s}<br>@explanation"), shown.assign(name=names)


def _named_bars(rows: pd.DataFrame, text: str) -> Plot:
    """A bar from `begin` to `end` (s) for each row, called `who`, beside it `told`."""
    made = style.figure(style.row_height(len(rows), 32), "seconds of a step", x_unit="s")
    data = style.source(at=np.arange(len(rows)), **rows)
    style.hover(made, text, [style.bars(made, data, "begin", "end", "colour")])
    most = rows["end"].max()
    inside = rows["end"] - rows["begin"] > 0.4 * most
    before = ~inside & (rows["end"] > 0.6 * most)
    for here, at, offset, ink in ((inside, "end", -6, "#ffffff"), (before, "begin", -6, INK),
                                  (~inside & ~before, "end", 6, INK)):
        mine = style.source(row=np.flatnonzero(here), at=rows[at][here], told=rows["told"][here])
        made.text("at", "row", "told", source=mine, x_offset=offset, text_baseline="middle",
                  text_align="right" if offset < 0 else "left", text_font_size="12px",
                  text_color=ink)
    style.rank_rows(made, list(rows["who"]))
    made.x_range = Range1d(0, 1.05 * most)
    return made


def path_label(kind: str, category: str) -> str:
    """What a piece of the critical path is, in the words of the other pictures."""
    known = {**PART_NAMES, **MESSAGE_NAMES, "wait": "waiting"}
    other = kind in ("gap", "host")
    return PART_NAMES["other"] if other else known.get(category, PART_NAMES["other"])


def critical_path(study: Study) -> tuple[Plot, pd.DataFrame]:
    """The chain of operations that the typical step's time is made of, on its ranks.

    Neighbouring pieces of the same kind on a rank are one bar. Frame: rank, begin_ns, end_ns,
    label, name of the longest piece.
    """
    path = study.critical_path(study.typical_step)
    frame = _joined(path)
    origin = int(frame["begin_ns"].min())
    longest = frame.assign(ns=frame["end_ns"] - frame["begin_ns"]).groupby("rank")["ns"].sum()
    kept = sorted(longest.sort_values(ascending=False).index[:_PATH_RANKS])
    who = rank_labels(study)
    row = {rank: index for index, rank in enumerate(kept)}
    shown = frame[frame["rank"].isin(kept)]
    made = style.figure(style.row_height(len(kept), 26, 130), "seconds of the step", x_unit="s")
    for label, part in shown.groupby("label"):
        begin, end = (part[name] - origin for name in ("begin_ns", "end_ns"))
        data = style.source(at=part["rank"].map(row), begin=begin / 1e9, end=end / 1e9,
                            who=part["rank"].map(who), what=part["name"],
                            seconds=(end - begin) / 1e9)
        style.bars(made, data, "begin", "end", LABEL_COLOURS.get(label, OTHER_COLOUR), name=label)
    style.hover(made, "$name<br>@what, @{seconds}{s}<br>@who")
    style.rank_rows(made, [f"rank {rank}" for rank in kept])
    made.x_range.start = 0
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
