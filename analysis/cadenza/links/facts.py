# SPDX-License-Identifier: Apache-2.0
"""What a run's links come to, in words and as plain values: for the terminal, JSON and the page."""

from __future__ import annotations

import pandas as pd

from cadenza.causes.what_if import WORTH, worth
from cadenza.links.slow import SlowLink, groups, links
from cadenza.study import Study
from cadenza.words import seconds, share


def verdict(study: Study) -> list[str]:
    """A sentence per slow link that costs time, and one for the others; or one that says why there
    is none."""
    costs = saved_by_link(study)
    dear = set(costs.index[worth(costs)])
    found = [said_of_link(one, costs.loc[one.name]) for one in study.slow_links if one.name in dear]
    cheap = [one.share for one in study.slow_links if one.name not in dear]
    if cheap:
        found.append(_of_cheap(cheap, bool(found)))
    return found or [_silence(study)]


def _of_cheap(shares: list[float], more: bool) -> str:
    other = "other " if more else ""
    links = f"1 {other}link reaches" if len(shares) == 1 else f"{len(shares)} {other}links reach"
    rates = f"{min(shares):.0%}" + (f" to {max(shares):.0%}" if len(shares) > 1 else "")
    return f"{links} {rates} of the usual rate, which costs less than {share(WORTH)} of a step."


def saved_by_link(study: Study) -> pd.DataFrame:
    """Per name of a slow link the mean time of a step with it at the usual rate: seconds,
    saved_seconds."""
    frame = study.what_if()
    frame = frame[frame["rank"] < 0].set_index("scenario")[["seconds", "saved_seconds"]]
    slow = study.slow_links
    return frame.reindex([one.scenario for one in slow]).set_axis([one.name for one in slow])


def said_of_link(link: SlowLink, cost: pd.Series) -> str:
    """How slow it is and what that costs.

    @param cost  its row of saved_by_link()
    """
    text = f"{link.explanation[:1].upper()}{link.explanation[1:]}"
    after, saved = float(cost["seconds"]), float(cost["saved_seconds"])
    return (f"{text}. At the usual rate a step would take {seconds(after)} instead of "
            f"{seconds(after + saved)} (−{share(saved / (after + saved))}).")


def _silence(study: Study) -> str:
    pairs, of_groups = links(study.pair_times), groups(study.group_times)
    judged = int(pairs["share"].notna().sum()), int(of_groups["share"].notna().sum())
    if pairs.empty and of_groups.empty:
        return "Ranks exchange nothing."
    compared = f"{judged[0]} of {len(pairs)} pairs and {judged[1]} of {len(of_groups)} groups"
    if study.run.machine is not None:
        return f"No link is slow: all reach the machine's rate (compared: {compared})."
    if not any(judged):
        return ("The links cannot be judged: no two are of the same kind, and the trace has no "
                "machine file to compare them with.")
    return f"No link is slower than the others by more than noise (compared: {compared})."


def as_values(study: Study) -> dict:
    """Everything, for JSON: frames are left to the caller."""
    costs = saved_by_link(study)
    return {
        "verdict": verdict(study),
        "usual_is": "machine" if study.run.machine is not None else "others",
        "slow": [
            {"name": one.name, "links": [list(pair) for pair in one.pairs],
             "groups": [list(members) for _, members in one.groups], "share": one.share,
             "achieved": _or_none(one.achieved), "usual": _or_none(one.usual),
             "lost_seconds": one.lost_seconds,
             "saved_seconds": float(costs.loc[one.name, "saved_seconds"]),
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
