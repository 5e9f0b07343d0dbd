# SPDX-License-Identifier: Apache-2.0
"""Ranks that do all that they do alone, so that no other rank shows how long it should take.

Where the trace says what the machine gives (simulated runs), that is the measure: loads.lateness().
Else the rank's own best steps are: they show slowness that comes and goes, and none that stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

_BEST = 0.1  # quantile of the steps' pace
_SLOW = 1.3  # x the median pace of the steps
_OUTLYING = 6.0  # standard deviations of a normal, estimated by the median absolute deviation
_NORMAL_MAD = 1.4826
_FEWEST_STEPS = 8
_WORTH = 0.01  # of the time: less lost is not worth naming


@dataclass(frozen=True)
class Alone:
    """`steps` are those in which the rank was slow, `rate` its mean rate in them as a share of the
    best steps', `lost_seconds` what they took more than at the median pace."""

    rank: int
    steps: tuple[int, ...]
    rate: float
    lost_seconds: float


def ranks_alone(work: pd.DataFrame) -> list[int]:
    """Ranks whose kinds of work no other rank has, in no step. @param work  work_rates()"""
    ranks = work.groupby("kind")["rank"].nunique()
    shared = set(work.loc[work["kind"].map(ranks) > 1, "rank"])
    return sorted(int(rank) for rank in set(work["rank"]) - shared)


def beside_own_steps(work: pd.DataFrame, rank: int) -> Alone:
    """@param work  work_rates() of all steps; the first of them warms up and is left out"""
    mine = work[(work["rank"] == rank) & (work["flops"] > 0) & (work["step"] > work["step"].min())]
    pace = mine["seconds"] / mine["flops"]
    best, usual = (pace.groupby(mine["kind"]).quantile(q) for q in (_BEST, 0.5))
    steps = mine.assign(
        best=mine["flops"] * mine["kind"].map(best), usual=mine["flops"] * mine["kind"].map(usual)
    )
    steps = steps.groupby("step")[["seconds", "best", "usual"]].sum()
    nothing = Alone(rank, (), np.nan, 0.0)
    if len(steps) < _FEWEST_STEPS:
        return nothing
    slowness = steps["seconds"] / steps["usual"]
    spread = _NORMAL_MAD * (slowness - slowness.median()).abs().median()
    slow = steps[slowness > max(_SLOW, slowness.median() + _OUTLYING * spread)]
    lost = float((slow["seconds"] - slow["usual"]).sum())
    if lost < _WORTH * steps["seconds"].sum():
        return nothing
    rate = float(slow["best"].sum() / slow["seconds"].sum())
    return Alone(rank, tuple(int(step) for step in slow.index), rate, lost)


def lone_ranks(work: pd.DataFrame) -> list[Alone]:
    """Every rank without peers beside its own steps. @param work  work_rates() of all steps"""
    return [beside_own_steps(work, rank) for rank in ranks_alone(work)]


def sentence(one: Alone, machine_known: bool) -> str:
    """What is to be said of a rank without peers, on the page and the terminal; often nothing."""
    text = ""
    if one.steps:
        few = ", ".join(map(str, one.steps[:6])) + (", …" if len(one.steps) > 6 else "")
        text = (f"Rank {one.rank} ran at {one.rate:.2f} x the rate of its own best steps in "
                f"step{'s' if len(one.steps) > 1 else ''} {few}. ")
    if not machine_known:
        text += (f"No other rank does the work of rank {one.rank}, so the trace cannot show "
                 "whether it is always slow.")
    return text.strip()
