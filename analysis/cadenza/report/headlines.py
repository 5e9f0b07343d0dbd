# SPDX-License-Identifier: Apache-2.0
"""The page's first sentences: who was late, why, and what another run got back."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from cadenza.causes.what_if import worth
from cadenza.colours import PART_NAMES
from cadenza.comparable import FAR
from cadenza.links.facts import said_of_link, saved_by_link
from cadenza.time.parts import BUSY, PARTS
from cadenza.study import Study
from cadenza.summary import out_of_memory
from cadenza.words import change, number, seconds, share, signed

_WORTH = 0.005  # of a step: less is not worth a sentence
_LATE = 0.01  # of the run: a rank that is late by less is not worth naming
_SPREAD = 0.02  # of a step: a saving that differs by less between steps is said once
_WITH = {
    "all ranks balanced": "With all ranks balanced",
    "no attention imbalance": "Without attention imbalance",
    "communication free": "With free communication",
    "no rank stands still": "Without pauses of ranks",
    "rank as fast as the median": "With rank {} at the usual rate",
}


_CLASSES = {"persistent": "persistent", "data": "because of its work",
            "intermittent": "intermittent", "paused": "paused",
            "none": "not more often than others"}


@dataclass
class Headline:
    kind: str  # plain, late, gain or loss: the colour of its mark
    lead: str
    text: str


def headlines(studies: list[Study], names: list[str], comparisons: list[dict]) -> list[Headline]:
    """A sentence per run about its late rank and its lost time, and one per comparison."""
    lines = [line for study, name in zip(studies, names, strict=True) for line in _run(study, name)]
    return lines + [line for one in comparisons for line in _comparison(one)]


def _run(study: Study, name: str) -> list[Headline]:
    count, complete = len(study.steady_steps), len(study.step_times)
    lead = f"{name}: {seconds(study.seconds)} a step"
    lead += f" (mean of {count}" if complete > 1 else ""
    lead += ", without the first" if count < complete else ""
    lead += ")." if complete > 1 else "."
    if not study.has_events:
        return [Headline("plain", lead, "The trace has no events, so where the time went is not "
                                        "known.")]
    late, why = _late(study)
    of_links = saved_by_link(study)
    link = _dearest_link(study, of_links)
    gain = _gain(study, max(of_links["saved_seconds"], default=0.0), bool(link))
    parts = (out_of_memory(study), link, why, _lost(study), gain)
    return [Headline("late" if late or link else "plain", lead, " ".join(filter(None, parts)))]


def is_late(study: Study) -> bool:
    """Whether a rank is late by so much of the run that a sentence names it."""
    return _late_share(study) >= _LATE


def _late_share(study: Study) -> float:
    """Of the run, what its latest rank is late by."""
    longest = study.persistent["late_seconds"].max() if len(study.persistent) else 0.0
    return longest / (study.seconds * len(study.steady_steps))


def _late(study: Study) -> tuple[bool, str]:
    """Whether a rank was late more often than by chance, which, and why."""
    worst = study.persistent
    if worst.empty:
        return False, ""
    row = worst.iloc[0]
    of_run = _late_share(study)
    if not is_late(study):
        even = "No rank is late by more than 1 % of a step. " * (len(study.ranks) > 1)
        return any(one.steps for one in study.lone_ranks), even + study.said_of_lone_ranks
    others = f" ({_others(int(row['as_late']))})" if row["as_late"] else ""
    return True, (
        f"Rank {row['rank']} is late by {share(of_run)} of a step{others}. It is the slowest in "
        f"{row['slowest_share']:.0%} of the steps ({_CLASSES.get(row['persistence'])}). "
        f"{_sentence(str(row['explanation']))}"
    )


def _others(count: int) -> str:
    return "another rank is as late" if count == 1 else f"{count} other ranks are as late"


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _lost(study: Study) -> str:
    """The share of all ranks' time that is not work, and its largest part."""
    sums = study.steady(study.parts)[list(PARTS)].sum()
    shares = sums / sums.sum()
    lost = shares.drop(list(BUSY))
    if lost.sum() < _WORTH:
        return "Ranks compute almost all the time."
    largest = str(lost.idxmax())
    whole, most, name = share(lost.sum()), share(lost[largest]), PART_NAMES[largest]
    if most == whole:
        return f"{whole} of the ranks' time is lost to {name}."
    return f"{whole} of the ranks' time is lost, mainly to {name} ({most})."


def _dearest_link(study: Study, costs: pd.DataFrame) -> str:
    """The slow link that costs most, where that is worth a sentence.

    @param costs  saved_by_link()
    """
    dear = costs[worth(costs, _WORTH)]
    if dear.empty:
        return ""
    name = dear["saved_seconds"].idxmax()
    (link,) = (one for one in study.slow_links if one.name == name)
    return said_of_link(link, dear.loc[name])


def _gain(study: Study, of_link: float, link_is_said: bool) -> str:
    """What would get most back, of all that was replayed but links.

    @param of_link  seconds that the dearest slow link costs
    """
    frame = study.what_if()
    found = frame[frame["scenario"].isin(_WITH)]
    if found.empty:
        return ""
    row = found.loc[_own_savings(found, of_link).idxmax()]
    after, saved = float(row["seconds"]), float(row["saved_seconds"])
    if saved < _WORTH * (after + saved):
        if link_is_said:
            return ""
        return "Neither balanced ranks nor a faster network would shorten a step."
    low, high = float(row["low_share"]), float(row["high_share"])
    first = f"{low:.0%}" if low >= 0 else _less(low)  # "0% to 25% less"
    spread = f"; in most steps {first} to {_less(high)}" if high - low >= _SPREAD else ""
    return (
        f"{_WITH[row['scenario']].format(row['rank'])}, a step would take {seconds(after)} instead "
        f"of {seconds(after + saved)} on average ({_less(saved / (after + saved))}{spread})."
    )


def _less(saved: float) -> str:
    return f"{abs(saved):.0%} {'less' if saved >= 0 else 'more'}"


def _own_savings(found: pd.DataFrame, of_link: float) -> pd.Series:
    """A free network saves what slow links cost, too: what it saves beyond that is its own."""
    saved = found["saved_seconds"].copy()
    saved[found["scenario"] == "communication free"] -= of_link
    return saved


def _comparison(one: dict) -> list[Headline]:
    times, first, other = one["step_time"], one["first"], one["other"]
    kind = {"faster": "gain", "slower": "loss"}.get(times["verdict"], "plain")
    lines = [Headline(kind, _verdict(times, first, other), _where(one))]
    dense, products = one["rate_ratio"]["dense"], one["other_products"]
    said = times["verdict"] == "not comparable" or one["simulation_error"]
    if dense is not None and abs(dense - 1) > FAR and not said:
        ran = f"ran at {dense:.2f} times the rate in {other}"
        lines.append(Headline(
            "plain", "Products of dense layers differ:",
            f"they {ran}, as other sizes or types of products do ({', '.join(products)})."
        ) if products else Headline(
            "loss", "The machine's speed differed between the runs:",
            f"dense layers, whose work no placement changes, {ran}. Compare the waits, not the "
            "step times.",
        ))
    error = one["simulation_error"]
    if error:
        lines.append(Headline(
            "plain", "Simulated against real:",
            f"operation times differ by {share(error['median_error'])} (median), their "
            f"sum by {signed(error['bias'], '.1%')}."
        ))
    return lines


def _verdict(times: dict, first: str, other: str) -> str:
    both = f"mean {seconds(times['first'])} → {seconds(times['other'])}"
    if times["verdict"] == "not comparable":
        return f"{other} and {first} are not comparable: {times['reason']} ({both})."
    if times["verdict"] == "unknown":
        return (f"{other} takes {times['ratio']:.2f} times as long as {first} ({both}); too few "
                f"steps to tell this from chance: {times['reason']}.")
    low, high = times["low"], times["high"]
    if times["verdict"] == "faster":  # the sentence has the speed-up, 1 / ratio
        low, high = 1 / high, 1 / low
    both += f"; 95 % interval of equal steps {low:.2f} to {high:.2f}"
    if times["verdict"] == "faster":
        return f"{other} is {times['speed_up']:.2f} times as fast as {first} ({both})."
    if times["verdict"] == "slower":
        return f"{other} takes {times['ratio']:.2f} times as long as {first} ({both})."
    return f"{other} and {first} do not differ by more than chance ({both})."


def _where(one: dict) -> str:
    """What of the change is which part, largest first, and the imbalances."""
    rows = sorted(one["waterfall"], key=lambda row: -abs(row["change"]))
    total = sum(row["first"] for row in rows)
    told = [f"{row['name']} {change(row['change'])}" for row in rows
            if abs(row["change"]) > _WORTH * total][:4]
    text = f"In a step, mean over ranks: {', '.join(told)}." if told else ""
    imbalance = one["attention_imbalance"]
    if all(value is not None for value in imbalance.values()):
        text += (f" Median attention imbalance {number(imbalance[one['first']], '.2f')} → "
                 f"{number(imbalance[one['other']], '.2f')}.")
    return text.strip()
