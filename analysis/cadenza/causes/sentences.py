# SPDX-License-Identifier: Apache-2.0
"""Verdicts in words: how the members are called, what they did and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cadenza.causes.adapters import ranks_of_hosts
from cadenza.causes.patterns import IN_TURN, ONCE, PERIODIC, RISING, STEADY
from cadenza.causes.repair import (
    ATTENTION, BETWEEN, HOST, INPUT, LATE_START, LINK, NO_CORE, PAUSED, SLOW, STAGE, WORK, Trouble,
)
from cadenza.words import gpu, ranks_of, seconds, share

# Of slow ranks that compute on cores of a host.
OF_CORES = " Other programs on its machine can do that, or neighbours of a virtual machine."
_FEW = 6  # steps that a sentence lists
_OVER = 2  # steps without it, and as many as it lasted: it is over
_UNEQUAL = 1.1  # times the least: amounts of ranks that differ by less are told as one
_PLACES = {"pipeline": "pipeline stage {}", "data": "data replica {}",
           "context": "context rank {}", "tensor": "tensor rank {}"}
_WHERE = {"forward": " in the forward pass", "backward": " in the backward pass",
          "optimizer": " in the optimizer"}


@dataclass(frozen=True)
class Together:
    """How a repair belongs with others: of two ranks that are equally late, neither repair alone
    saves anything."""

    saves: float  # of a step, with that of the others
    others: tuple[str, ...]  # their names
    hidden: bool  # whether it saves what it does because those above it are repaired
    alone: float  # what it saves as the only one


ALONE = Together(0.0, (), False, 0.0)


def kind_and_name(one: Trouble, ranks: pd.DataFrame) -> tuple[str, str]:
    """The kind of a verdict, and how its members are called."""
    members = set(one.members)
    own = ranks_of_hosts(ranks)
    if one.cause == LINK:
        return _links(one, [name for name, of in own.items() if of & members])
    node = next((name for name, of in own.items()
                 if of == members and len(own) > 1 and len(of) > 1), "")
    text = ranks_of(one.members)
    if len(members) == 1:
        mine = ranks.set_index("rank").loc[one.members[0]]
        place = ", ".join(filter(None, (mine["host"], gpu(mine["device"], mine["local_rank"]))))
        name = f"rank {one.members[0]}" + (f" ({place})" if place else "")
        return ("rank" if len(ranks) > 1 else "all"), name
    if members == set(ranks["rank"]):
        return "all", "all ranks"
    if node:
        return "node", f"{node} (ranks {text})"
    group = _group(members, ranks)
    return ("group", f"{group} (ranks {text})") if group else ("ranks", f"ranks {text}")


def _links(one: Trouble, hosts: list[str]) -> tuple[str, str]:
    """@param hosts  of the members"""
    text = ranks_of(one.members)
    if len(one.links) == 1:
        return "link", one.links[0].name
    if not any(link.known for link in one.links):
        return "link", f"a link among ranks {text}"
    if len(hosts) == 1:
        return "adapter", f"the adapter of {hosts[0]} (ranks {text})"
    if len(hosts) == 2:
        return "link", f"the links between {hosts[0]} and {hosts[1]} (ranks {text})"
    return "link", f"the links between {len(hosts)} nodes (ranks {text})"


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


def sentence(
    row: dict, name: str, one: Trouble, together: Together, steps: Sequence[int]
) -> str:
    """@param row    the verdict's other columns
    @param name   kind_and_name()'s
    @param steps  of the run, in ascending order
    """
    over = _is_over(row["steps"], [int(step) for step in steps])
    what = _what(row, one, over, bool(together.others))
    what += _WHERE.get(row["phase"], "") + _when(row, over, len(steps))
    much = f"{share(row['saves'])} of a step"
    if together.others:
        much = (f"{share(together.saves)} of a step together with {' and '.join(together.others)}, "
                f"{share(row['saves'])} without")
    if together.hidden:
        name += " as well"
        much += f" (alone {share(together.alone)})"
    if over:
        return f"Lost to {name}: {much}; {what}."
    repairing = "Sharing core attention among" if one.cause == ATTENTION else "Repairing"
    return f"{repairing} {name} saves {much}: {what}."


def _is_over(found: Sequence[int], steps: list[int]) -> bool:
    """Whether it was in some steps in a row, and has not been since for as long."""
    first, last = steps.index(found[0]), steps.index(found[-1])
    lasted = last - first + 1
    return len(found) == lasted and len(steps) - 1 - last >= max(_OVER, lasted)


def _what(row: dict, one: Trouble, over: bool, beside_others: bool) -> str:
    many = len(row["members"]) > 1 and row["kind"] in ("ranks", "all")
    they = "the first" if beside_others else "they" if many else "it"
    whose = "their" if they == "they" else "its"
    if one.cause == LINK:
        if one.ends:
            return f"{they} {' and '.join(one.ends)} at {one.share:.0%} of the usual rate"
        return f"{they} reaches {min(link.share for link in one.links):.0%} of the usual rate"
    everywhere = row["kind"] == "all"
    if one.cause == HOST:
        return _of_gap(one, over, many, everywhere)
    verbs = {SLOW: ("computes", "compute", "computed"), PAUSED: ("stood still",) * 3,
             INPUT: ("reads", "read", "read"), LATE_START: ("begins", "begin", "began"),
             STAGE: ("takes", "take", "took")}
    verb = verbs.get(one.cause, ("has", "have", "had"))[2 if over else many]
    said = {SLOW: lambda v: f"{1 - v:.2f}", NO_CORE: share,
            **dict.fromkeys((PAUSED, INPUT, LATE_START), seconds)}
    much = _of_members(one, said.get(one.cause, lambda v: f"{1 / (1 - v):.2f}"))
    return f"{they} {verb} " + {
        SLOW: f"at {much} x the usual rate",
        NO_CORE: f"no core for {much} of the computing time",
        PAUSED: f"for {much}",
        WORK: f"{much} x {whose} peers' work",
        ATTENTION: f"{much} x {whose} peers' core attention",
        INPUT: f"documents for {much}" + ("" if everywhere else " longer than is usual"),
        LATE_START: f"{much} after the others",
        STAGE: f"{much} x as long as other stages for its passes (as it has more to do, or is "
               "slow)",
    }[one.cause]


def _of_gap(one: Trouble, over: bool, many: bool, everywhere: bool) -> str:
    whose, it = ("their processes", "them") if many else ("its process", "it")
    verb = "left" if over else "leave" if many else "leaves"
    why = f" (for {one.name})" if one.name else ""
    longer = "" if everywhere else " longer than the others"
    return f"{whose} {verb} {it} without work{why} for {_of_members(one, seconds)}{longer}"


def _of_members(one: Trouble, said: Callable[[float], str]) -> str:
    """The mean over the steps: of all members, or of the most and the least affected one, the
    smaller number first."""
    if not one.excess:
        return said(np.nan)
    of_rank = pd.Series(one.excess).groupby(level=0).mean()
    if of_rank.max() <= _UNEQUAL * of_rank.min():
        return said(float(of_rank.mean()))
    least, most = sorted((of_rank.min(), of_rank.max()), reverse=one.cause == SLOW)
    return f"{said(float(least))} to {said(float(most))}"


def _when(row: dict, over: bool, steps: int) -> str:
    found, trend = row["steps"], row["trend"]
    few = ", ".join(map(str, found[:_FEW])) + (", …" if len(found) > _FEW else "")
    at = "before" if (row["cause"], row["phase"]) == (PAUSED, BETWEEN) else "in"
    since = " and not since" if over and at == "in" else ""
    if trend == ONCE:
        return f", {at} step {found[0]}{since}"
    if over:
        return f", {at} steps {found[0]}–{found[-1]}{since}"
    if trend == RISING:
        return f", more and more since step {found[0]}"
    if trend == PERIODIC:
        return f", every {found[1] - found[0]} steps (steps {few})"
    if trend == IN_TURN:
        return f", one after the other (steps {few})"
    if trend == STEADY:
        return ", in all steps" if len(found) == steps else f", since step {found[0]}"
    return f", {at} {len(found)} of {steps} steps ({few})"
