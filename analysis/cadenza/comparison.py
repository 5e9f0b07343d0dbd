# SPDX-License-Identifier: Apache-2.0
"""Runs against the first of them: what was changed, how long steps take, and where it went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from cadenza.colours import PART_NAMES
from cadenza.errors import DataError
from cadenza.time.parts import PARTS
from cadenza.summary import finite

if TYPE_CHECKING:
    from cadenza.study import Study

RESAMPLES = 10_000
_SEED = 20_240_607
_APART = "skew between ranks"
_NO_KEY = "(not set)"


def changed_keys(first: dict, other: dict) -> pd.DataFrame:
    """Keys of the experiments that differ: key (dotted), first, other; as text."""
    a, b = _flat(first), _flat(other)
    rows = [
        (key, str(a.get(key, _NO_KEY)), str(b.get(key, _NO_KEY)))
        for key in dict.fromkeys((*a, *b))
        if a.get(key, _NO_KEY) != b.get(key, _NO_KEY)
    ]
    return pd.DataFrame(rows, columns=["key", "first", "other"])


def _flat(config: dict, before: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{before}{key}.")
        else:
            flat[f"{before}{key}"] = value
    return flat


def common_steps(first: Study, other: Study) -> list[int]:
    """Steps of the same number that are steady in both runs."""
    steps = sorted(set(first.steady_steps) & set(other.steady_steps))
    if not steps:
        raise DataError(
            f"{first.run.path} and {other.run.path}: no step that both completed, so nothing "
            "to compare"
        )
    return steps


def bootstrap_ratio(first: np.ndarray, other: np.ndarray) -> dict:
    """Whether `other` takes another time than `first`: seconds of the same steps of two runs.

    Steps are drawn in pairs, as equal steps have equal documents in most comparisons.

    @returns first and other (means), ratio (other / first), speed_up, low and high (95 % of the
             ratios of RESAMPLES resamples; None for fewer than three steps) and verdict: faster,
             slower, not different, or unknown where there is no interval
    """
    a, b = np.asarray(first, float), np.asarray(other, float)
    ratio = float(b.mean() / a.mean())
    result = {"first": float(a.mean()), "other": float(b.mean()), "ratio": ratio,
              "speed_up": 1 / ratio, "steps": len(a), "low": None, "high": None,
              "verdict": "unknown"}
    if len(a) < 3:
        return result
    drawn = np.random.default_rng(_SEED).integers(0, len(a), (RESAMPLES, len(a)))
    ratios = b[drawn].sum(axis=1) / a[drawn].sum(axis=1)
    low, high = (float(q) for q in np.quantile(ratios, [0.025, 0.975]))
    verdict = "faster" if high < 1 else "slower" if low > 1 else "not different"
    return {**result, "low": low, "high": high, "verdict": verdict}


def step_time_ratio(first: Study, other: Study) -> dict:
    """bootstrap_ratio() of the steps that two runs have in common."""
    steps = common_steps(first, other)
    times = [s.step_times.set_index("step").loc[steps, "seconds"].to_numpy()
             for s in (first, other)]
    return bootstrap_ratio(*times)


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
    layers, other / first, medians of the steps. Far from 1, the machine was not equally fast (or
    calls became smaller), which is not the placement's merit or fault."""
    found = {}
    for kind in ("attention", "dense"):
        one, two = (s.utilization[f"{kind}_rate"].median() for s in (first, other))
        found[kind] = finite(two / one) if one > 0 else None
    return found


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
        "simulation_error": simulation_error(first, other) if events else None,
    }


def _plain(frame: pd.DataFrame) -> list[dict]:
    return [{key: None if value != value else value for key, value in row.items()}
            for row in frame.to_dict("records")]
