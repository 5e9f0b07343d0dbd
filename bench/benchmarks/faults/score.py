# SPDX-License-Identifier: Apache-2.0
"""What the analysis says of a run, beside the truth.

A verdict is an object of the list `verdicts` that `cadenza-analyze stragglers --json` prints."""

import contextlib
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, starmap
from pathlib import Path

import h5py
import numpy as np
from cadenza import cli

from benchmarks.faults.layouts import names_of
from benchmarks.faults.plant import Fault

_NEAR = 0.03  # of a step
_FELT = 0.01  # of a step: what costs less need not be named
_ABOUT = 2.2  # times slower: twice, but for what jitter makes of it
CHECKS = ("who", "phase", "cause", "time", "gain")


def verdicts_of(run: Path) -> list[dict]:
    """What `cadenza-analyze stragglers` says, largest first."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = cli.main(["stragglers", str(run), "--json"])
    if code != 0:
        raise SystemExit(f"cadenza-analyze stragglers {run}: exit code {code}")
    return json.loads(printed.getvalue())["verdicts"]


def seconds_of(run: Path) -> np.ndarray:
    """Of each step, with what passes between it and the step before; on one clock."""
    first, ends = [], []
    for path in sorted((run / "trace").glob("rank-*.h5")):
        with h5py.File(path, "r") as file:
            steps = file["/steps"][:]
        first.append(steps["begin_ns"][0])
        ends.append(steps["end_ns"])
    return np.diff([min(first), *np.max(ends, axis=0)]) / 1e9


def score(faults: Sequence[Fault], layout: str, verdicts: Sequence[dict], seconds: Sequence[float],
          without: Sequence[float], spared: Sequence[Sequence[float]],
          alone: Sequence[Sequence[float]]) -> dict[str, bool]:
    """Which of CHECKS hold; those that do not apply are left out.

    @param seconds  of each step of the run
    @param without  ... of the run without any fault; of the other documents that kind data plants
                    there is none, and they are not used
    @param spared   ... for each fault, of the run without this one alone
    @param alone    ... of the run with this one alone
    """
    if not faults:
        return {"who": not verdicts}
    # Where ranks have unequal documents, it is true to say so.
    work = any(fault.work for fault in faults)
    found = [one for one in verdicts if one["cause"] != "work" or not work]
    seconds, without = np.asarray(seconds), np.asarray(without)
    truths = [_Truth(fault, seconds, np.asarray(less),
                     _saved(np.asarray(only), without))
              for fault, less, only in zip(faults, spared, alone, strict=True)]
    lost = _saved(seconds, without)
    hidden = lost < _FELT and not any(truth.needed for truth in truths)
    if hidden and not found:
        return {"who": True}
    right = {"who": _who(truths, layout, found)}
    if hidden:
        return right
    right |= _each([truth for truth in truths if truth.needed], found, len(seconds))
    # What stands below other work is what is saved once that is repaired, which no run here is.
    if faults[0].kind != "data" and found == list(verdicts[:len(found)]):
        saves = [one["saves"] for one in found]
        told = [sum(saves), *(saves[:1] if len(faults) == 1 else [])]
        right["gain"] = bool(found) and all(abs(one - lost) <= _NEAR for one in told)
    return right


class _Truth:
    """A fault in its run: whether it is to be named, and the steps in which it is felt.

    It is needed if it costs a hundredth of the time by itself, as it does once the others are
    repaired, and felt in those of its steps that get shorter without it by more than jitter may
    hide.
    """

    def __init__(self, fault: Fault, seconds: np.ndarray, spared: np.ndarray, cost: float) -> None:
        self.fault = fault
        measured = fault.kind != "data"
        self.needed = not measured or cost >= _FELT
        self.felt = {step for step in fault.steps or range(len(seconds))
                     if not measured or seconds[step] - spared[step] > _NEAR * seconds[step]}


def _saved(seconds: np.ndarray, less: np.ndarray) -> float:
    return 1 - less.sum() / seconds.sum()


def _who(truths: Sequence[_Truth], layout: str, found: Sequence[dict]) -> bool:
    """Whether each verdict names faults that no other does, and none that is needed is missing."""
    named = [_named(truths, layout, one) for one in found]
    every = sum(named, [])
    return (all(named) and len(every) == len(set(every)) and bool(every)
            and all(i in every for i, truth in enumerate(truths) if truth.needed))


def _named(truths: Sequence[_Truth], layout: str, one: dict) -> list[int]:
    """The numbers of the faults that a verdict names: one, or several that are alike; of links that
    show no single one, all that it may mean."""
    single = [i for i, truth in enumerate(truths) if _names(truth.fault, layout, one, truth.felt)]
    if single:
        return single
    for size in range(2, len(truths) + 1):
        for some in combinations(range(len(truths)), size):
            faults = [truths[i].fault for i in some]
            together = replace(faults[0], ranks=set().union(*(fault.ranks for fault in faults)))
            if all(starmap(_alike, combinations(faults, 2))) and _names(together, layout, one,
                                                                        set()):
                return list(some)
    return []


def _alike(one: Fault, other: Fault) -> bool:
    """Whether one verdict may say both: the same but for the ranks, and about as slow; of pauses
    of one step, whatever phase they fall into."""
    if one.causes == other.causes == ("paused",):
        return one.steps == other.steps
    less, more = sorted(-np.log([one.share, other.share]))
    return ((one.causes, one.phase, one.steps) == (other.causes, other.phase, other.steps)
            and more <= _ABOUT * less)


def _each(truths: Sequence[_Truth], found: Sequence[dict], steps: int) -> dict[str, bool]:
    """Cause, phase and time, each right if it is right of every fault that has one."""
    right: dict[str, bool] = {}
    for truth in truths:
        fault = truth.fault
        one = _nearest(fault, found)
        checks = {"cause": one is not None and one["cause"] in fault.causes}
        if fault.phase:
            checks["phase"] = one is not None and one["phase"] == fault.phase
        if fault.timed:
            checks["time"] = one is not None and _dates(fault, one, truth.felt, steps)
        for check, holds in checks.items():
            right[check] = right.get(check, True) and holds
    return right


def _nearest(fault: Fault, found: Sequence[dict]) -> dict | None:
    """The first verdict of those with most of the fault's ranks."""
    return max(found, key=lambda one: len(fault.ranks & set(one["members"])), default=None)


def _names(fault: Fault, layout: str, one: dict, felt: set[int]) -> bool:
    """Whether the verdict says who it is: all of them, by a kind that says so."""
    members = set(one["members"])
    if fault.link:
        if fault.vague:
            return bool(members & fault.ranks) and one["cause"] == "link"
        return ((one["kind"] == fault.link and members == fault.ranks)
                or (one["kind"] == "link" and members in fault.alike))
    needed = {rank for step, rank in fault.turns.items() if step in felt} or fault.ranks
    return needed <= members <= fault.ranks and one["kind"] in names_of(members, layout)


def _dates(fault: Fault, one: dict, felt: set[int], steps: int) -> bool:
    """Whether the verdict has the steps of the fault, but for some in which it is not felt."""
    said = one["steps"]
    return (bool(said) and felt <= set(said) <= set(fault.steps) and one["since_step"] == min(said)
            and one["trend"] in ({fault.trend} if fault.trend else trends_of(said, steps)))


def trends_of(said: Sequence[int], steps: int) -> set[str]:
    """How these steps, of so many of the run, may be called."""
    said = sorted(said)
    apart = set(np.diff(said).tolist())
    names = {"steady"} if said == list(range(said[0], steps)) else set()
    if len(said) == 1:
        names.add("once")
    elif len(said) >= 3 and len(apart) == 1 and apart != {1}:
        names.add("periodic")
    return names or {"intermittent"}
