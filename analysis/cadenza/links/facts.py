# SPDX-License-Identifier: Apache-2.0
"""What a run's links come to, in words and as plain values: for the terminal, JSON and the page."""

from __future__ import annotations

import pandas as pd

from cadenza.causes.repair import LINK
from cadenza.causes.verdicts import WORTH
from cadenza.links.slow import groups, links
from cadenza.study import Study
from cadenza.words import counted, share


def verdict(study: Study) -> list[str]:
    """The verdicts on links, and a sentence on slow ones that cost nothing; or one that says why
    there is none."""
    mine = study.verdicts[study.verdicts["cause"] == LINK]
    found = [str(sentence) for sentence in mine["sentence"]]
    ends = [set(members) for members in mine["members"]]
    cheap = [one.share for one in study.slow_links
             if not any({rank for pair in one.pairs for rank in pair} & own for own in ends)]
    if cheap:
        found.append(_of_cheap(cheap, bool(found)))
    return found or [_silence(study)]


def _of_cheap(shares: list[float], more: bool) -> str:
    other = "other " if more else ""
    links = f"1 {other}link reaches" if len(shares) == 1 else f"{len(shares)} {other}links reach"
    rates = f"{min(shares):.0%}" + (f" to {max(shares):.0%}" if len(shares) > 1 else "")
    return f"{links} {rates} of the usual rate, which costs less than {share(WORTH)} of a step."


def _silence(study: Study) -> str:
    pairs, of_groups = links(study.pair_times), groups(study.group_times)
    judged = int(pairs["share"].notna().sum()), int(of_groups["share"].notna().sum())
    if pairs.empty and of_groups.empty:
        return "Ranks exchange nothing."
    compared = f"{judged[0]} of {counted(len(pairs), 'pair')} and {judged[1]} of "
    compared += counted(len(of_groups), "group")
    if study.run.machine is not None:
        return f"No link is slow: all reach the machine's rate (compared: {compared})."
    if not any(judged):
        return "The links cannot be judged: no two are of the same kind."
    return f"No link is slower than the others by more than noise (compared: {compared})."


def as_values(study: Study) -> dict:
    """Everything, for JSON: frames are left to the caller."""
    return {
        "verdict": verdict(study),
        "usual_is": "machine" if study.run.machine is not None else "others",
        "slow": [
            {"name": one.name, "links": [list(pair) for pair in one.pairs],
             "groups": [list(members) for _, members in one.groups], "share": one.share,
             "achieved": _or_none(one.achieved), "usual": _or_none(one.usual),
             "lost_seconds": one.lost_seconds,
             "explanation": one.explanation}
            for one in study.slow_links
        ],
    }


def _or_none(value: float) -> float | None:
    return None if value != value else value


def matrix(study: Study) -> pd.DataFrame:
    """What each rank sent to each other in the steady steps: sender, receiver, bytes, messages,
    timed_bytes, seconds (of these, of transfer alone), usual_seconds."""
    keys = ["sender", "receiver"]
    values = ["bytes", "messages", "timed_bytes", "seconds", "usual_seconds"]
    frame = study.pair_times
    sums = frame.groupby(keys)[values].sum(min_count=1)
    return sums.reset_index()
