# SPDX-License-Identifier: Apache-2.0
"""Who is to be repaired, why, since when, and what it saves: the answer of `stragglers`, of the
page's first sentences and of `summary`, which are written from these rows and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from cadenza.causes.patterns import IN_TURN, ONCE, PERIODIC, RISING, STEADY, trend_of
from cadenza.causes.troubles import (
    BETWEEN, Facts, lost_by_phase, on_shared_cores, ranks_of_hosts,
)
from cadenza.causes.repair import (
    INPUT, LATE_START, LINK, NO_CORE, PAUSED, SLOW, WORK, Trouble, first_and_last, gains, in_order,
)
from cadenza.words import gpu, number, ranks_of, seconds, share

COLUMNS = ["kind", "members", "hosts", "phase", "cause", "since_step", "steps", "trend", "saves",
           "sentence"]
WORTH = 0.005  # of a step: what saves less is no verdict
_GAP = 0.01  # of the run: a pause between two steps that is shorter is none
_STILL = 0.5  # of that, what a rank stood still for
_SHORT = 0.2  # quantile of the gaps that is usual
_MAIN = 0.9  # of what is lost: where so much is in one phase, it is of that phase
_FEW = 6  # steps that a sentence lists
_PLACES = {"pipeline": "pipeline stage {}", "data": "data replica {}",
           "context": "context rank {}", "tensor": "tensor rank {}"}


def no_verdicts() -> pd.DataFrame:
    return pd.DataFrame(columns=COLUMNS)


def verdicts(
    found: Sequence[Trouble], gaps: pd.DataFrame, replay: Callable, facts: Facts
) -> pd.DataFrame:
    """@param found  troubles.find()
    @param gaps    `seconds` between each step and the one before it, by step, and how many of them
                   each rank is known to have stood still for, by its number
    @param replay  (troubles, cases) -> seconds of all steps by case: repair.replayed()
    @returns COLUMNS, the largest saving first. `saves` is the share of a step that a repair of all
             members saves once those above it are repaired, so that the sum is what all repairs
             save
    """
    whole = float(facts.step_seconds.sum())
    rows = [_row(one, value / whole, lost_by_phase(facts, one), facts)
            for one, value in zip(found, _saved(found, replay), strict=True)]
    rows += _pauses_between(gaps, whole, facts)
    rows = [row for row in rows if row["saves"] >= WORTH]
    rows.sort(key=lambda row: -row["saves"])
    return pd.DataFrame(rows, columns=COLUMNS)


def said(found: pd.DataFrame, ranks: int) -> list[str]:
    """The sentences of verdicts(), or that there is nothing to repair in a run of several ranks."""
    if found.empty and ranks > 1:
        return [f"No repair of ranks or links saves more than {share(WORTH)} of a step."]
    return [str(sentence) for sentence in found["sentence"]]


def _saved(troubles: Sequence[Trouble], replay: Callable) -> np.ndarray:
    """Seconds of all steps that each saves after those that save more."""
    if not troubles:
        return np.zeros(0)
    count = len(troubles)
    cases = first_and_last(count)
    if count == 1:
        seconds = replay(troubles, cases[:2])
        return seconds[:1] - seconds[1:]
    order = np.argsort(-gains(replay(troubles, cases), cases), kind="stable")
    saved = np.empty(count)
    saved[order] = -np.diff(replay(troubles, in_order(order)))
    return saved


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
        rows.append(_row(one, lost / (whole + float(gaps["seconds"].sum())),
                         pd.Series({BETWEEN: lost}), facts))
    return rows


def _row(one: Trouble, saves: float, lost: pd.Series, facts: Facts) -> dict:
    kind, name = _kind(one, facts.ranks)
    host = facts.ranks.set_index("rank")["host"]
    main = len(lost) > 0 and lost.max() >= _MAIN * lost.sum()
    row = {
        "kind": kind, "members": list(one.members),
        "hosts": list(dict.fromkeys(str(host.get(rank, "")) for rank in one.members)),
        "phase": str(lost.idxmax()) if main else "", "cause": one.cause,
        "since_step": one.steps[0], "steps": list(one.steps), "trend": one.trend,
        "saves": float(saves),
    }
    sentence = _sentence(row, name, one, len(facts.step_seconds))
    if one.cause == SLOW and on_shared_cores(facts)[np.isin(facts.cells.ranks, one.members)].any():
        sentence += " What else runs on its machine, or beside a virtual one, can do that."
    return {**row, "sentence": sentence}


def _kind(one: Trouble, ranks: pd.DataFrame) -> tuple[str, str]:
    """And how the members are called."""
    members = set(one.members)
    own = ranks_of_hosts(ranks)
    node = next((name for name, of in own.items()
                 if of == members and len(own) > 1 and len(of) > 1), "")
    text = ranks_of(one.members)
    if one.cause == LINK:
        if len(one.links) > 1 and node:
            return "adapter", f"the adapter of {node} (ranks {text})"
        return "link", one.links[0].name if len(one.links) == 1 else f"a link among ranks {text}"
    if len(members) == 1:
        mine = ranks.set_index("rank").loc[one.members[0]]
        place = filter(None, (mine["host"], gpu(mine["device"], mine["local_rank"])))
        return "rank", f"rank {one.members[0]} ({', '.join(place)})"
    if members == set(ranks["rank"]):
        return "all", "all ranks"
    if node:
        return "node", f"{node} (ranks {text})"
    group = _group(members, ranks)
    return ("group", f"{group} (ranks {text})") if group else ("ranks", f"ranks {text}")


def _group(members: set[int], ranks: pd.DataFrame) -> str:
    """The name of what the members have in common and no other rank has, or nothing."""
    mine = ranks["rank"].isin(members)
    if len(members) < 2:
        return ""
    for column, words in _PLACES.items():
        values = ranks.loc[mine, column].unique()
        if len(values) == 1 and (mine == (ranks[column] == values[0])).all():
            return words.format(int(values[0]))
    roles = ranks.loc[mine, "role"].unique()
    if len(roles) == 1 and (mine == (ranks["role"] == roles[0])).all():
        return f"the {roles[0]}s"
    places = ranks[["data", "pipeline", "context"]].apply(tuple, axis=1)
    values = places[mine].unique()
    if len(values) == 1 and (mine == (places == values[0])).all():
        return "tensor group"
    return ""


def _sentence(row: dict, name: str, one: Trouble, steps: int) -> str:
    many = len(row["members"]) > 1 and row["kind"] in ("ranks", "all")
    what = _what(one, many)
    where = {"forward": " in the forward pass", "backward": " in the backward pass",
             "optimizer": " in the optimizer"}.get(row["phase"], "")
    when = _when(row, steps)
    return (f"Repairing {name} saves {share(row['saves'])} of a step: {what}{where}{when}.")


def _what(one: Trouble, many: bool) -> str:
    they, es = ("they", "") if many else ("it", "s")
    amount = np.mean(list(one.excess.values())) if one.excess else np.nan
    if one.cause == LINK:
        worst = min(link.share for link in one.links)
        return f"it reaches {worst:.0%} of the usual rate"
    said = {
        SLOW: f"compute{es} at {number(1 - amount, '.2f')} x the usual rate",
        NO_CORE: f"ha{'ve' if many else 's'} no core for {share(amount)} of the computing time",
        PAUSED: f"stood still for {seconds(amount)}",
        WORK: f"ha{'ve' if many else 's'} {number(1 / (1 - amount), '.2f')} x their peers' work",
        INPUT: f"read{es} documents for {seconds(amount)} longer than is usual",
        LATE_START: f"begin{es} {seconds(amount)} after the others",
    }
    return f"{they} {said[one.cause]}"


def _when(row: dict, steps: int) -> str:
    found, trend = row["steps"], row["trend"]
    few = ", ".join(map(str, found[:_FEW])) + (", …" if len(found) > _FEW else "")
    if trend == ONCE:
        return f", in step {found[0]}"
    if trend == RISING:
        return f", more and more since step {found[0]}"
    if trend == PERIODIC:
        return f", every {found[1] - found[0]} steps (steps {few})"
    if trend == IN_TURN:
        return f", one after the other (steps {few})"
    if trend == STEADY:
        return ", in all steps" if len(found) == steps else f", since step {found[0]}"
    return f", in {len(found)} of {steps} steps ({few})"
