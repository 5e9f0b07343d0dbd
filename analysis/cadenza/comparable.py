# SPDX-License-Identifier: Apache-2.0
"""Whether the step times of two runs can be compared: of equal work on as many ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from cadenza.paired import verdict_of
from cadenza.words import shortened

if TYPE_CHECKING:
    from cadenza.study import Study

_NO_KEY = "(not set)"
_EQUAL_WORK = ("model.norm_eps", "model.rope.")  # of a model: what a step costs is the same
_IMPORTED = "imported."  # where a run comes from is no key of an experiment
_BATCHES = ("batch.", "data.", "seed")
# What decides the size or the type of dense products: small ones have lower rates.
_PRODUCTS = ("attention.overlap", "batch.microbatch", "parallel.context", "parallel.tensor",
             "run.device", "run.dtype")
FAR = 0.1  # dense rates of runs that differ by more are of unequal machines
_MOST, _LENGTH = 3, 40  # keys that are named, characters of a value


def changed_keys(first: dict, other: dict) -> pd.DataFrame:
    """Keys of the experiments that differ: key (dotted), first, other; as text."""
    a, b = _flat(first), _flat(other)
    a, b = ({key: value for key, value in keys.items() if not key.startswith(_IMPORTED)}
            for keys in (a, b))
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


def unequal_work(first: Study, other: Study, steps: list[int], ratio: float) -> str:
    """Why times of equal steps say nothing about how the runs did their work; empty where they do.

    Documents are compared as the traces have them: other keys may give equal ones. Another type,
    kind of attention or recomputation is a way to do the work, and what it gains a fair question.
    Another number of ranks is not: for scaling, the reason has the ratio of rank-seconds.

    @param ratio  of the times of `steps`, other / first
    """
    changed = changed_keys(first.run.config, other.run.config)
    evaluates = [study.run.info["producer"] == "evaluator" for study in (first, other)]
    differ, a, b = _other_documents(first, other, steps), first.run.world, other.run.world
    model, found = changed[_of_other_models(changed["key"])], []
    if len(model):
        found.append(f"the models differ{_named(model)}")
    if _unknown_documents(first, steps) or _unknown_documents(other, steps):
        found.append("the traces do not say which documents the steps had")
    if evaluates[0] != evaluates[1]:
        found.append("only one of the runs trains")
    if differ:
        batches = changed[changed["key"].str.startswith(_BATCHES)]
        found.append(f"{differ} of {len(steps)} equal steps have other documents{_named(batches)}")
    if a != b:
        found.append(f"{a} ranks against {b}; a step takes {ratio * b / a:.2f} x the rank-seconds")
    return "; ".join(found)


def _of_other_models(keys: pd.Series) -> pd.Series:
    return keys.str.startswith("model.") & ~keys.str.startswith(_EQUAL_WORK)


def _other_documents(first: Study, other: Study, steps: list[int]) -> int:
    """Steps of which documents, tokens or the sum of squared lengths differ."""
    work = [study.steps.groupby("step")[["documents", "tokens", "sum_length2"]].max().loc[steps]
            for study in (first, other)]
    return int((work[0] != work[1]).any(axis=1).sum())


def _unknown_documents(study: Study, steps: list[int]) -> bool:
    """Of imported runs, which rarely tell."""
    return bool((study.steps.set_index("step")["tokens"].loc[steps] < 0).any())


def _named(rows: pd.DataFrame) -> str:
    said = [f"{row.key} {shortened(row.first, _LENGTH)} against {shortened(row.other, _LENGTH)}"
            for row in rows.head(_MOST).itertuples()]
    more = f" and {len(rows) - _MOST} more" if len(rows) > _MOST else ""
    return f" ({', '.join(said)}{more})" if said else ""


def other_products(first: Study, other: Study) -> list[str]:
    """Changed keys by which dense layers may run at another rate on an equal machine."""
    keys = changed_keys(first.run.config, other.run.config)["key"]
    return keys[keys.isin(_PRODUCTS) | _of_other_models(keys)].tolist()


def unequal_machine(times: dict, dense: dict) -> str:
    """Why the machine, which was busy or slow in one of the runs, may be what differs; empty where
    it hardly differs and the verdict stays with its speed, that of dense layers, divided out.

    Of 28 pairs of equal runs on a busy host the interval alone took 22 for different, with this one
    1. Steps may take longer by more than dense layers do, as ranks wait for one another.

    @param times, dense  paired_ratio() of seconds, and of the rates of equal dense products
    """
    if dense["verdict"] in ("unknown", "not different") or times["low"] is None:
        return ""
    speed = dense["ratio"]
    stays = verdict_of(times["low"] * speed, times["high"] * speed) == times["verdict"]
    if stays and abs(speed - 1) <= FAR:
        return ""
    return (f"dense layers, whose work is the same, ran at {speed:.3f} x the rate: the machine's "
            "speed may be what differs")
