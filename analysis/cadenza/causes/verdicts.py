# SPDX-License-Identifier: Apache-2.0
"""Who is to be repaired, why, since when, and what it saves: the answer of `stragglers`, of the
page's first sentences and of `summary`, which are written from these rows and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from cadenza.causes.patterns import IN_TURN, trend_of
from cadenza.causes.repair import (
    BETWEEN, PAUSED, SLOW, Trouble, alone_and_last, first_and_last, gains, in_order,
)
from cadenza.causes.sentences import ALONE, OF_CORES, Together, kind_and_name, sentence
from cadenza.causes.troubles import (
    MAIN, Facts, lost_by_phase, on_shared_cores, unseen_cores,
)
from cadenza.words import share

COLUMNS = ["kind", "members", "hosts", "phase", "cause", "since_step", "steps", "trend", "saves",
           "sentence"]
WORTH = 0.005  # of a step: what saves less is no verdict
# The same of an imported run on cores of a host: no profiler says when these were taken away.
_WORTH_UNSEEN = 0.02
_GAP = 0.01  # of the run: a pause between two steps that is shorter is none
_STILL = 0.5  # of that, what a rank stood still for
_SHORT = 0.2  # quantile of the gaps that is usual
_HIDDEN = 2.0  # times what it saves: a later repair that saves more was hidden by this one
_RIDES = 0.03  # of all that repairs save: a member that saves less rides along
_FEW_MEMBERS = 16  # of a verdict, that are looked at one by one


def no_verdicts() -> pd.DataFrame:
    return pd.DataFrame(columns=COLUMNS)


def verdicts(
    found: Sequence[Trouble], gaps: pd.DataFrame, replay: Callable, facts: Facts
) -> pd.DataFrame:
    """@param found  troubles.find()
    @param gaps    `seconds` between each step and the one before it, by step, and how many of them
                   each rank is known to have stood still for, by its number
    @param replay  (troubles, cases) -> seconds of all steps by case: repair.replayed()
    @returns COLUMNS, in the order of repair, what saves most first. `saves` is the share of a step
             that a repair of all members saves once those above it are repaired, so that the sum is
             what all repairs save. What hides another stands above it: of two ranks that are
             equally late, the first alone saves nothing
    """
    whole = float(facts.step_seconds.sum())
    found = _without_free_riders(found, replay, whole, facts)
    worth = _WORTH_UNSEEN if unseen_cores(facts) else WORTH
    kept = [one for one in _repaired(found, replay) if max(one.saved, one.last) >= worth * whole]
    rows = [_row(one.trouble, one.saved / whole, together, facts)
            for one, together in zip(kept, _together(kept, whole, facts), strict=True)]
    most = np.maximum.accumulate([row["saves"] for row in rows][::-1])[::-1].tolist()
    between = [row for row in _pauses_between(gaps, whole, facts) if row["saves"] >= WORTH]
    most += [row["saves"] for row in between]
    rows += between
    frame = pd.DataFrame(rows, columns=COLUMNS)
    frame = frame.iloc[np.argsort(-np.array(most), kind="stable")].reset_index(drop=True)
    frame.attrs["worth"] = worth
    return frame


def _together(kept: Sequence[_Repaired], whole: float, facts: Facts) -> list[Together]:
    """Which of the repairs, in their order, hide later ones that save much more, and which save
    much more than alone."""
    found = []
    names = [kind_and_name(one.trouble, facts.ranks)[1] for one in kept]
    for i, one in enumerate(kept):
        least = max(WORTH * whole, _HIDDEN * one.saved)
        to = next((j for j, later in enumerate(kept) if j > i and later.saved >= least), i)
        saves = sum(later.saved for later in kept[i : to + 1]) / whole
        hidden = i > 0 and one.saved > _HIDDEN * one.alone
        found.append(Together(saves, tuple(names[i + 1 : to + 1]), hidden, one.alone / whole))
    return found


def said(found: pd.DataFrame, ranks: int) -> list[str]:
    """The sentences of verdicts(), or that there is nothing to repair in a run of several ranks."""
    if found.empty and ranks > 1:
        worth = found.attrs.get("worth", WORTH)
        return [f"No repair of ranks or links saves more than {share(worth)} of a step."]
    return [str(sentence) for sentence in found["sentence"]]


@dataclass(frozen=True)
class _Repaired:
    """Seconds of all steps that a repair saves: after those before it in their order, as the only
    one, and after all others."""

    trouble: Trouble
    saved: float
    alone: float
    last: float


def _repaired(troubles: Sequence[Trouble], replay: Callable) -> list[_Repaired]:
    """In the order of repair."""
    count = len(troubles)
    if not count:
        return []
    if count == 1:
        first, repaired = replay(troubles, first_and_last(1)[:2])
        return [_Repaired(troubles[0], *(float(first - repaired),) * 3)]
    cases = first_and_last(count)
    seconds = replay(troubles, cases)
    alone, last = alone_and_last(seconds, cases)
    order = np.argsort(-gains(seconds, cases), kind="stable")
    saved = -np.diff(replay(troubles, in_order(order)))
    return [_Repaired(troubles[i], float(s), float(alone[i]), float(last[i]))
            for i, s in zip(order, saved, strict=True)]


def _without_free_riders(
    found: Sequence[Trouble], replay: Callable, whole: float, facts: Facts
) -> list[Trouble]:
    """Without members whose repair saves too little for a word, alone or after all others, of
    troubles that nothing but time joins."""
    parts = []  # (number of the trouble, it or a part of it)
    for number, one in enumerate(found):
        loose = (one.excess and one.trend != IN_TURN and len(one.members) <= _FEW_MEMBERS
                 and kind_and_name(one, facts.ranks)[0] == "ranks")
        each = [_of_members(one, {rank}) for rank in one.members] if loose else [one]
        parts += [(number, part) for part in each]
    if len(parts) == len(found):
        return list(found)
    cases = first_and_last(len(parts))
    seconds = replay([part for _, part in parts], cases)
    every = seconds[0] - seconds[len(parts) + 1]
    worth = np.maximum(*alone_and_last(seconds, cases)) >= max(WORTH * whole, _RIDES * every)
    left = []
    for number, one in enumerate(found):
        mine = [(part, of_worth) for (of, part), of_worth in zip(parts, worth, strict=True)
                if of == number]
        stay = {rank for part, of_worth in mine if of_worth or len(mine) == 1
                for rank in part.members}
        if stay:
            left.append(one if len(stay) == len(one.members) else _of_members(one, stay))
    return left


def _of_members(one: Trouble, members: set[int]) -> Trouble:
    excess = {place: value for place, value in one.excess.items() if place[0] in members}
    with_core = {place: value for place, value in one.with_core.items() if place[0] in members}
    return replace(one, members=tuple(sorted(members)), excess=excess, with_core=with_core)


def _pauses_between(gaps: pd.DataFrame, whole: float, facts: Facts) -> list[dict]:
    """What a gap between two steps is longer than the shorter ones. Ranks begin together: it is of
    those that stood still for most of it, or, where none is known to have, of all."""
    longer = gaps["seconds"] - gaps["seconds"].quantile(_SHORT)
    long = longer[longer > _GAP * whole]
    ranks = facts.ranks["rank"].to_numpy()
    still = gaps.reindex(columns=ranks).reindex(long.index).fillna(0.0).to_numpy()
    those = still > _STILL * long.to_numpy()[:, None]
    those[~those.any(axis=1)] = True
    rows = []
    for which in np.unique(those, axis=0):
        mine = long[(those == which).all(axis=1)]
        steps, members = tuple(int(step) for step in mine.index), ranks[which]
        excess = {(int(members[0]), int(step)): float(value) for step, value in mine.items()}
        one = Trouble(PAUSED, tuple(int(rank) for rank in members), steps,
                      trend_of(np.isin(facts.step_seconds.index, steps)), (BETWEEN,), excess)
        lost = float(mine.sum())
        saves = lost / (whole + float(gaps["seconds"].sum()))
        rows.append(_row(one, saves, ALONE, facts))
    return rows


def _row(one: Trouble, saves: float, together: Together, facts: Facts) -> dict:
    kind, name = kind_and_name(one, facts.ranks)
    host = facts.ranks.set_index("rank")["host"]
    lost = lost_by_phase(facts, one)
    main = len(lost) > 0 and lost.max() >= MAIN * lost.sum()
    steps, named = [int(step) for step in facts.cells.steps], list(one.steps)
    if facts.optimizer_first and main and lost.idxmax() == "optimizer":
        before = [steps[0] - 1, *steps[:-1]]  # the step that launched it
        named, steps = [before[steps.index(step)] for step in named], before
    row = {
        "kind": kind, "members": list(one.members),
        "hosts": list(dict.fromkeys(str(host.get(rank, "")) for rank in one.members)),
        "phase": str(lost.idxmax()) if main else "", "cause": one.cause,
        "since_step": named[0], "steps": named, "trend": one.trend,
        "saves": float(saves),
    }
    text = sentence(row, name, one, together, steps)
    if one.cause == SLOW and on_shared_cores(facts)[np.isin(facts.cells.ranks, one.members)].any():
        text += OF_CORES
    return {**row, "sentence": text}
