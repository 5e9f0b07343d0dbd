# SPDX-License-Identifier: Apache-2.0
"""Runs against the first of them: what was changed, how long steps take, and where it went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from cadenza.colours import PART_NAMES
from cadenza.comparable import changed_keys, other_products, unequal_machine, unequal_work
from cadenza.errors import DataError
from cadenza.paired import paired_ratio
from cadenza.time.parts import PARTS
from cadenza.summary import finite

if TYPE_CHECKING:
    from cadenza.study import Study

_APART = "skew between ranks"


def common_steps(first: Study, other: Study) -> list[int]:
    """Steps of the same number that are steady in both runs."""
    steps = sorted(set(first.steady_steps) & set(other.steady_steps))
    if not steps:
        raise DataError(
            f"{first.run.path} and {other.run.path}: no step that both completed, so nothing "
            "to compare"
        )
    return steps


def step_time_ratio(first: Study, other: Study) -> dict:
    """paired_ratio() of the steps that two runs have in common; its verdict is "not comparable",
    with a reason, where the work or the machine was not the same."""
    steps = common_steps(first, other)
    times = paired_ratio(*(s.step_times.set_index("step").loc[steps, "seconds"]
                           for s in (first, other)))
    reason = unequal_work(first, other, steps, times["ratio"])
    real = all(study.run.info["producer"] != "simulator" for study in (first, other))
    if not reason and real and not other_products(first, other):
        reason = unequal_machine(times, _rates(first, other, "dense"))
    return {**times, "verdict": "not comparable", "reason": reason} if reason else times


def waterfall(first: Study, other: Study) -> pd.DataFrame:
    """From the mean step time of one run to that of the other, part by part.

    A part's seconds are its mean over ranks and common steps, so that the parts of a run sum to
    its step time; what ranks begin later or end earlier than the step does is a part of its own.

    @returns part, name, first, other, change (seconds); the changes sum to the step times' change
    """
    steps = common_steps(first, other)
    columns = [_mean_parts(study, steps) for study in (first, other)]
    frame = pd.DataFrame({"first": columns[0], "other": columns[1]}).rename_axis("part")
    frame["change"] = frame["other"] - frame["first"]
    frame = frame.reset_index()
    frame.insert(1, "name", frame["part"].map(PART_NAMES).fillna(_APART))
    return frame


def _mean_parts(study: Study, steps: list[int]) -> pd.Series:
    times = study.step_times.set_index("step").loc[steps, "seconds"]
    parts = study.parts[study.parts["step"].isin(steps)]
    mean = parts[list(PARTS)].mean() / 1e9
    mean["apart"] = times.mean() - mean.sum()
    return mean


def operations(first: Study, other: Study) -> pd.DataFrame:
    """Each kind of operation in both runs, per rank and step; what changed most comes first.

    @returns category, phase, name, count_first, count_other, seconds_first, seconds_other,
             change (seconds), ratio; means over ranks and common steps
    """
    steps = common_steps(first, other)
    both = [_per_operation(study, steps) for study in (first, other)]
    named = [one.add_suffix(f"_{name}") for one, name in zip(both, ("first", "other"), strict=True)]
    frame = named[0].join(named[1], how="outer").fillna(0.0)
    frame["change"] = frame["seconds_other"] - frame["seconds_first"]
    frame["ratio"] = (frame["seconds_other"] / frame["seconds_first"]).replace(np.inf, np.nan)
    order = frame["change"].abs().sort_values(ascending=False, kind="stable").index
    return frame.loc[order].reset_index()


def _per_operation(study: Study, steps: list[int]) -> pd.DataFrame:
    """count and seconds by category, phase and name, of a rank in a step."""
    times = study.operation_times
    group = times[times["step"].isin(steps)].groupby(["category", "phase", "name"])
    return group[["count", "seconds"]].sum() / (len(study.ranks) * len(steps))


def rate_ratio(first: Study, other: Study) -> dict[str, float | None]:
    """How much faster the other run's ranks compute the same: FLOP/s of attention and of dense
    layers, other / first, of a typical step. Far from 1, the machine was not equally fast (or
    calls became smaller: other_products()), which is not the placement's merit or fault."""
    return {kind: finite(_rates(first, other, kind)["ratio"]) for kind in ("attention", "dense")}


def _rates(first: Study, other: Study, kind: str) -> dict:
    """paired_ratio() of the rates of equal steps."""
    steps = common_steps(first, other)
    return paired_ratio(*(s.utilization.set_index("step").loc[steps, f"{kind}_rate"]
                          for s in (first, other)))


def simulation_error(first: Study, other: Study) -> dict | None:
    """How right a simulation is: None unless one run is real and the other simulated, on as many
    ranks.

    @returns median_error and bias of kinds of operations that compute (|simulated / real − 1| and
             simulated / real − 1, the latter of their sums) and rank_correlation of the ranks'
             busy times (Spearman; None for fewer than three ranks or equal times)
    """
    by_producer = {study.run.info["producer"]: study for study in (first, other)}
    if set(by_producer) != {"trainer", "simulator"} or len(first.ranks) != len(other.ranks):
        return None
    frame = operations(by_producer["trainer"], by_producer["simulator"])
    frame = frame[frame["category"].str.startswith(("compute", "optimizer"))]
    frame = frame[(frame["seconds_first"] > 0) & (frame["seconds_other"] > 0)]
    if frame.empty:
        return None
    busy = [_busy(by_producer[producer]) for producer in ("trainer", "simulator")]
    varied = len(busy[0]) > 2 and all(b.nunique() > 1 for b in busy)
    return {
        "median_error": float((frame["ratio"] - 1).abs().median()),
        "bias": float(frame["seconds_other"].sum() / frame["seconds_first"].sum() - 1),
        "rank_correlation": float(busy[0].rank().corr(busy[1].rank())) if varied else None,
    }


def _busy(study: Study) -> pd.Series:
    """Seconds a rank computed in a step, by rank."""
    totals = study.totals.set_index("rank")
    return totals["busy_share"] * totals["window"] / len(study.steady_steps)


def by_phase(frame: pd.DataFrame) -> pd.DataFrame:
    """Sums of operations() per phase: phase, first, other, change, in seconds."""
    columns = {"seconds_first": "first", "seconds_other": "other", "change": "change"}
    return frame.groupby("phase")[list(columns)].sum().rename(columns=columns).reset_index()


def compare(first: Study, other: Study, labels: tuple[str, str]) -> dict:
    """All of the above as plain values for JSON, tables and the page."""
    events = first.has_events and other.has_events
    found = operations(first, other) if events else None
    imbalance = {
        label: finite(study.steady(study.imbalance)["imbalance"].median())
        for label, study in zip(labels, (first, other), strict=True)
    }
    return {
        "first": labels[0],
        "other": labels[1],
        "step_time": step_time_ratio(first, other),
        "attention_imbalance": imbalance,
        "changed_keys": changed_keys(first.run.config, other.run.config).to_dict("records"),
        "waterfall": waterfall(first, other).to_dict("records") if events else [],
        "phases": [] if found is None else by_phase(found).to_dict("records"),
        "operations": [] if found is None else _plain(found),
        "rate_ratio": rate_ratio(first, other),
        "other_products": other_products(first, other),
        "simulation_error": simulation_error(first, other) if events else None,
    }


def slower_than(one: dict, share: float) -> tuple[bool, str]:
    """Whether compare() is sure that the other run is slower by more than a share of the first's
    time, and the line that says so, or why this is not decided."""
    times = one["step_time"]
    asked = f"{one['other']} is slower than {one['first']} by more than {100 * share:g}%"
    if times["reason"]:
        return False, f"not decided whether {asked}: {times['reason']}"
    interval = f"step time x {times['ratio']:.3f}, 95 % interval {times['low']:.3f} to "
    interval += f"{times['high']:.3f}"
    if times["low"] > 1 + share:
        return True, f"failed: {asked} ({interval})"
    return False, f"passed: it is not shown that {asked} ({interval})"


def _plain(frame: pd.DataFrame) -> list[dict]:
    return [{key: None if value != value else value for key, value in row.items()}
            for row in frame.to_dict("records")]
