# SPDX-License-Identifier: Apache-2.0
"""The step as a picture that can be zoomed: rank by time."""

from __future__ import annotations

from functools import partial

import pandas as pd
from bokeh.models import Range1d
from bokeh.transform import stack

from cadenza.colours import LABEL_COLOURS
from cadenza.processes import mapped
from cadenza.timeline.panels import Panel, panel
from cadenza.time.parts import BUSY
from cadenza.report import style
from cadenza.report.places import rank_labels
from cadenza.report.style import Plot
from cadenza.study import Study
from cadenza.time.typical import typical
from cadenza.words import counted

_BARS = 12_000  # of a picture: more make a browser slow
_ALL_BARS = 48_000  # of a run's pictures, which the file has to hold
_SETS = 8  # of ranks to choose from
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
    group = _tensor_groups(study)
    chosen: dict[int, int] = {}  # tensor group: rank
    told = [rank for members in study.verdicts["members"] for rank in members]
    for order, limit in ((busy, 3), (busy[::-1], 5), (told, 6), (path, _RANKS)):
        for rank in order:
            if len(chosen) >= limit:
                break
            chosen.setdefault(int(group[rank]), int(rank))
    return sorted(chosen.values())


def shown_steps(study: Study) -> dict[int, str]:
    """Steps worth a picture, and why: the typical one, that of each other kind, the slowest."""
    features, kinds = study.step_features, study.step_kinds
    steps = {study.typical_step: "typical"}
    for kind in sorted(set(kinds) - {kinds[study.typical_step]}):
        mine = features[(kinds == kind).to_numpy()]
        steps.setdefault(typical(mine), f"typical of {counted(len(mine), 'other')}")
    slowest = study.step_times["seconds"].idxmax()
    steps.setdefault(int(study.step_times.loc[slowest, "step"]), "the slowest")
    return steps


def timelines(study: Study, longest_ns: int) -> dict[str, Plot]:
    """Pictures to choose from: the steps worth one, and of the typical step the other ranks.

    @param longest_ns  least length of the time axis, equal in the pictures of all runs
    """
    told, others = chosen_ranks(study), rank_sets(study)
    few = "" if len(told) == len(study.ranks) else ", ranks that tell most"
    wanted = [(f"step {step}, {why}{few}", step, told) for step, why in shown_steps(study).items()]
    step = study.typical_step
    wanted += [(f"step {step}, ranks {mine[0]} to {mine[-1]}", step, mine) for mine in others]
    most = min(_BARS, _ALL_BARS // len(wanted))
    study.step_pieces(step)  # of which most of the pictures are
    which = [(step, ranks) for _, step, ranks in wanted]
    panels = mapped(partial(_panel, study, longest_ns, most), which, study.run.event_count)
    who = rank_labels(study)
    return {label: _drawn(made_of, longest_ns, [who[rank] for rank in ranks])
            for (label, _, ranks), made_of in zip(wanted, panels, strict=True)}


def rank_sets(study: Study) -> list[list[int]]:
    """All ranks, one of each tensor group, a dozen at a time; the first hundred or so of them."""
    if len(study.ranks) <= _RANKS:
        return []
    first = study.ranks.groupby(_tensor_groups(study).to_numpy(), sort=False)["rank"].min()
    ranks = [int(rank) for rank in sorted(first)][: _SETS * _RANKS]
    return [ranks[at : at + _RANKS] for at in range(0, len(ranks), _RANKS)]


def _tensor_groups(study: Study) -> pd.Series:
    """By rank the number of its tensor group, whose ranks do the same at the same time."""
    ranks = study.ranks.set_index("rank")
    server = ranks["server"].where(ranks["role"] == "attention_server", -1)
    keys = ["data", "pipeline", "context", "server"]
    return ranks.assign(server=server).groupby(keys, sort=False).ngroup()


def _panel(study: Study, longest_ns: int, most: int, which: tuple[int, list[int]]) -> Panel:
    """What to draw of a step and ranks (`which`).

    @param longest_ns  least length of the time axis
    @param most        bars; where there are more, longer pieces are merged too, once
    """
    step, ranks = which
    return panel(study, step, max(1.0, longest_ns / _COLUMNS), ranks, most)


def _drawn(made_of: Panel, longest_ns: int, who: list[str]) -> Plot:
    """A step of some ranks: what each does above, its messages beneath.

    @param who  what a pointer shows of each rank
    """
    rows = len(made_of.labels)
    made = style.figure(max(170, 58 + 46 * rows), "seconds of the step", x_unit="s")
    what, texts = pd.factorize(made_of.bars["what"])
    for (lane, label), bars in made_of.bars.assign(what=what).groupby(["lane", "label"],
                                                                      sort=False):
        centre, height = _LANES[str(lane)]
        data = style.source(at=bars["row"] + centre, row=bars["row"], begin=bars["begin_ns"] / 1e9,
                            what=bars["what"], seconds=(bars["end_ns"] - bars["begin_ns"]) / 1e9)
        style.bars(made, data, "begin", stack("begin", "seconds"), LABEL_COLOURS[str(label)],
                   width=height, name=label)
    style.hover(made, "<b>$name</b> @{seconds}{s}<br>@{what}{_}<br>from @{begin}{s}<br>@{row}{_}",
                words={"what": [text or "several" for text in texts], "row": who})
    style.rank_rows(made, [label.split(" · ")[0] for label in made_of.labels])
    made.x_range = Range1d(0, max(longest_ns, made_of.duration_ns) / 1e9)
    return made
