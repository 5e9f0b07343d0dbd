# SPDX-License-Identifier: Apache-2.0
"""The page's first sentences: who was late, why, and what another run got back."""

from __future__ import annotations

from dataclasses import dataclass

from cadenza.causes.repair import ATTENTION
from cadenza.causes.verdicts import said
from cadenza.colours import PART_NAMES
from cadenza.comparable import FAR
from cadenza.time.parts import lost_shares
from cadenza.study import Study
from cadenza.summary import between_steps_said, out_of_memory
from cadenza.words import change, number, seconds, share, signed

_WORTH = 0.005  # of a step: less is not worth a sentence
_SAID = 3  # verdicts: the others are in the table
_SPREAD = 0.02  # of a step: a saving that differs by less between steps is said once
_WITH = {
    "all ranks balanced": "With all ranks balanced",
    "no attention imbalance": "Without attention imbalance",
}
_SHARED = {
    "no attention imbalance": "If the ranks shared core attention evenly (core attention "
                              "disaggregation, its messages not counted)",
}


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
    sentences = said(study.verdicts, len(study.ranks))
    more = f"More in the table: {len(sentences) - _SAID}." if len(sentences) > _SAID else ""
    parts = (out_of_memory(study), *sentences[:_SAID], more, study.silence, _lost(study),
             between_steps_said(study), _gain(study))
    kind = "plain" if study.verdicts.empty else "late"
    return [Headline(kind, lead, " ".join(filter(None, parts)))]


def _lost(study: Study) -> str:
    """The share of all ranks' time that is not work, and its largest part."""
    lost = lost_shares(study.steady(study.parts))
    if lost.sum() < _WORTH:
        return "Ranks compute almost all the time."
    largest = str(lost.idxmax())
    whole, most, name = share(lost.sum()), share(lost[largest]), PART_NAMES[largest]
    why = "because computations had no core" if largest == "no_core" else f"to {name}"
    if most == whole:
        return f"{whole} of the ranks' time is lost {why}."
    return f"{whole} of the ranks' time is lost, mainly {why} ({most})."


def _gain(study: Study) -> str:
    """What balance would get back beyond repairs. What nobody can buy, as a free network, is in the
    table alone. Of an imported run, whose ranks could share core attention: what that alone would
    get back."""
    lead, beside = _WITH, float(study.verdicts["saves"].sum())
    if (study.verdicts["cause"] == ATTENTION).any():
        return ""
    if study.run.info["producer"] == "importer":
        lead, beside = _SHARED, 0.0
    frame = study.what_if()
    found = frame[frame["scenario"].isin(lead)]
    if found.empty:
        return ""
    row = found.loc[found["saved_seconds"].idxmax()]
    after, saved = float(row["seconds"]), float(row["saved_seconds"])
    if saved < (_WORTH + beside) * (after + saved):
        return ""
    low, high = float(row["low_share"]), float(row["high_share"])
    first = f"{low:.0%}" if low >= 0 else _less(low)  # "0% to 25% less"
    spread = f"; in most steps {first} to {_less(high)}" if high - low >= _SPREAD else ""
    return (
        f"{lead[row['scenario']]}, a step would take {seconds(after)} instead "
        f"of {seconds(after + saved)} on average ({_less(saved / (after + saved))}{spread})."
    )


def _less(saved: float) -> str:
    return f"{abs(saved):.0%} {'less' if saved >= 0 else 'more'}"


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
