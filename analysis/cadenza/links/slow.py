# SPDX-License-Identifier: Apache-2.0
"""Which links between ranks are slow, by how much, and how surely that can be told.

A message has two ends, so its link is known. A collective goes over many links and is as slow as
the slowest: of a group it is known that one of its links is slow, and which one only where the
others' messages say that they are not, or where the group has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from cadenza.words import byte_rate, ranks_of

Pair = tuple[int, int]  # of world ranks, the lesser first
Group = tuple[bool, tuple[int, ...]]  # whether a tensor group, and its ranks

_EXACT = 0.9  # of the machine's rate: what is above is as fast as it should be
_NOISY = 2 / 3  # of the usual rate, where that is what others have
_STEADY = 0.75  # share of the steps in which a link must be slower than 4/5 of usual
_FEWEST_STEPS = 3
_WORTH = 0.01  # of the time of the steps: where rates are noisy, less is not worth naming
_MOST_NAMED = 4  # links of a group


@dataclass(frozen=True)
class SlowLink:
    """`pairs` has one pair where it is known which it is; `groups` are those whose collectives it
    slows down; rates are bytes per second, NaN where collectives alone tell of it."""

    name: str
    pairs: tuple[Pair, ...]
    groups: tuple[Group, ...]
    share: float  # of the usual rate
    achieved: float
    usual: float
    lost_seconds: float  # of all steps, transfers beyond their usual time
    explanation: str

    @property
    def known(self) -> bool:
        return len(self.pairs) == 1


def links(pairs: pd.DataFrame) -> pd.DataFrame:
    """Sums over both directions of each pair and the steps.

    @param pairs  pair_times() of the steps
    @returns low, high (world ranks), one_node, bytes, messages, timed_bytes, seconds, usual_seconds
             (NaN: nothing to compare with), achieved, usual (bytes per second), share (usual /
             seconds): slowest first
    """
    frame = pairs.assign(
        low=np.minimum(pairs["sender"], pairs["receiver"]),
        high=np.maximum(pairs["sender"], pairs["receiver"]),
    )
    judged = frame["usual_seconds"].notna()
    for name in ("seconds", "timed_bytes"):
        frame[f"judged_{name}"] = frame[name].where(judged, 0)
    sums = frame.groupby(["low", "high"], sort=True)[
        ["bytes", "messages", "timed_bytes", "seconds", "usual_seconds", "judged_seconds",
         "judged_timed_bytes"]
    ].sum()
    sums.insert(0, "one_node", frame.groupby(["low", "high"])["one_node"].first())
    known = sums["judged_seconds"] > 0
    sums["achieved"] = sums["timed_bytes"] / sums["seconds"].where(sums["seconds"] > 0)
    sums["usual"] = sums["judged_timed_bytes"] / sums["usual_seconds"].where(known)
    sums["share"] = (sums["usual_seconds"] / sums["judged_seconds"]).where(known)
    sums["usual_seconds"] = sums["usual_seconds"].where(known)
    sums = sums.drop(columns=["judged_seconds", "judged_timed_bytes"]).reset_index()
    return sums.sort_values("share", kind="stable", ignore_index=True)


def groups(collectives: pd.DataFrame) -> pd.DataFrame:
    """Sums over the steps.

    @param collectives  group_times() of the steps
    @returns tensor, members, bytes, collectives, seconds, usual_seconds, share: slowest first
    """
    keys = ["tensor", "members"]
    values = ["bytes", "collectives", "seconds", "usual_seconds"]
    sums = collectives.groupby(keys, sort=True)[values].sum(min_count=1).reset_index()
    sums["share"] = sums["usual_seconds"] / sums["seconds"].where(sums["seconds"] > 0)
    return sums.sort_values("share", kind="stable", ignore_index=True)


def of_group(frame: pd.DataFrame, group: Group) -> pd.Series:
    """Which rows, of columns `tensor` and `members`, are the group's."""
    return (frame["tensor"] == group[0]) & frame["members"].map(lambda own: own == group[1])


def least_share(exact: bool) -> float:
    """Of the usual rate, what a link reaches that is not slow. @param exact  see slow_links()"""
    return _EXACT if exact else _NOISY


def slow_links(
    pairs: pd.DataFrame, collectives: pd.DataFrame, exact: bool, seconds: float
) -> list[SlowLink]:
    """Links that are slower than usual beyond noise, the one that loses most first.

    @param pairs, collectives  pair_times() and group_times() of the steps
    @param exact    whether usual is what the machine gives; else what others have, and then a link
                    must be slower in most steps and than the other links of both its ranks
    @param seconds  sum of the times of the steps
    """
    each, of_groups = links(pairs), groups(collectives)
    slow = each[each["share"] < least_share(exact)]
    late = of_groups[of_groups["share"] < least_share(exact)]
    if not exact:
        slow = slow[[_stands_out(row, each, pairs, seconds) for row in slow.itertuples()]]
        late = late[[_lasts(row, collectives, seconds) for row in late.itertuples()]]
    healthy = each[each["share"] >= _EXACT] if exact else each[:0]
    found: dict[tuple[Pair, ...], dict] = {}
    for row in slow.itertuples():
        found[((row.low, row.high),)] = {"row": row, "groups": []}
    for row in late.itertuples():
        fine = set(zip(healthy["low"], healthy["high"], strict=True))
        known = {pair[0] for pair in found if len(pair) == 1}
        for one in _blamed(row.members, known, fine, exact):
            found.setdefault(one, {"row": None, "groups": []})["groups"].append(row)
    made = [_described(pair, of["row"], of["groups"]) for pair, of in found.items()]
    return sorted(made, key=lambda one: -one.lost_seconds)


def _blamed(
    members: tuple[int, ...], slow: set[Pair], healthy: set[Pair], exact: bool
) -> list[tuple[Pair, ...]]:
    """Which links a group's slowness is put down to: those of its links known to be slow, each by
    itself; else one of those that are not known to be fine."""
    # A simulated collective goes round a ring; what MPI does is not known.
    if exact:
        around = zip(members, members[1:] + members[:1], strict=True)
        candidates = sorted({(min(pair), max(pair)) for pair in around})
    else:
        candidates = list(combinations(members, 2))
    known = [pair for pair in candidates if pair in slow]
    if known:
        return [(pair,) for pair in known]
    left = [pair for pair in candidates if pair not in healthy]
    return [tuple(left or candidates)]


def _lasts(row: tuple, collectives: pd.DataFrame, seconds: float) -> bool:
    """Whether a group is slower in most steps, and it matters."""
    return _steady(collectives[of_group(collectives, (row.tensor, row.members))], seconds)


def _steady(steps: pd.DataFrame, seconds: float) -> bool:
    known = steps[steps["usual_seconds"].notna()]
    by_step = known.groupby("step")[["seconds", "usual_seconds"]].sum()
    slower = by_step["usual_seconds"] < 0.8 * by_step["seconds"]
    lost = (by_step["seconds"] - by_step["usual_seconds"]).sum()
    return len(slower) >= _FEWEST_STEPS and slower.mean() >= _STEADY and lost > _WORTH * seconds


def _stands_out(row: tuple, each: pd.DataFrame, pairs: pd.DataFrame, seconds: float) -> bool:
    """Whether a link is slower in most steps and than the other links of its ranks: a rank that is
    taken away from its processor makes all of them slow."""
    own = {row.low, row.high}
    mine = pairs["sender"].isin(own) & pairs["receiver"].isin(own)
    if not _steady(pairs[mine], seconds):
        return False
    for rank in own:
        others = each[((each["low"] == rank) | (each["high"] == rank)) & each["share"].notna()]
        others = others[(others["low"] != row.low) | (others["high"] != row.high)]
        if len(others) and row.share > _NOISY * others["share"].median():
            return False
    return True


def _described(pairs: tuple[Pair, ...], row: tuple | None, late: list) -> SlowLink:
    name = _name(pairs, late)
    of_groups = tuple((bool(one.tensor), tuple(one.members)) for one in late)
    lost = sum(one.seconds - one.usual_seconds for one in late)
    if row is not None:
        lost += row.seconds * (1 - row.share)
        text = f"{name} reaches {byte_rate(row.achieved)}; usual rate {byte_rate(row.usual)}"
        return SlowLink(name, pairs, of_groups, row.share, row.achieved, row.usual, lost, text)
    worst = min(late, key=lambda one: one.share)
    text = (f"{name} is slow: collectives of ranks {ranks_of(worst.members)} take "
            f"{1 / worst.share:.2f} x their usual time")
    return SlowLink(name, pairs, of_groups, worst.share, np.nan, np.nan, lost, text)


def _name(pairs: tuple[Pair, ...], late: list) -> str:
    links = [f"{low}-{high}" for low, high in pairs]
    if len(links) == 1:
        return f"link {links[0]}"
    if len(links) <= _MOST_NAMED:
        return f"one of the links {', '.join(links)}"
    return f"a link among ranks {ranks_of(late[0].members)}"
