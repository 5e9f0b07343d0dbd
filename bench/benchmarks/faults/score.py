# SPDX-License-Identifier: Apache-2.0
"""What the analysis says of a run, beside the truth.

A verdict is an object of the list `verdicts` that `cadenza-analyze stragglers --json` prints."""

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
from cadenza import cli

from benchmarks.faults.layouts import names_of
from benchmarks.faults.plant import Fault

_NEAR = 0.03  # of a step
_FELT = 0.01  # of a step: what costs less need not be named
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


def score(fault: Fault, layout: str, verdicts: Sequence[dict], without: Sequence[float],
          seconds: Sequence[float]) -> dict[str, bool]:
    """Which of CHECKS hold; those that do not apply are left out.

    @param without  seconds of each step of the run without the fault; of the other documents that
                    kind data plants there is none, and they are not used
    @param seconds  ... with it
    """
    if not fault.ranks:
        return {"who": not verdicts}
    # Where ranks have unequal documents, it is true to say so.
    found = [one for one in verdicts if one["cause"] != "work" or not fault.work]
    without, seconds = np.asarray(without), np.asarray(seconds)
    lost = 1 - without.sum() / seconds.sum()
    hidden = fault.kind != "data" and lost < _FELT
    if hidden and not found:
        return {"who": True}
    first = found[0] if found else None
    felt = _felt(fault, without, seconds)
    right = {"who": len(found) == 1 and _names(fault, layout, first, felt)}
    if hidden:
        return right
    right["cause"] = first is not None and first["cause"] in fault.causes
    if fault.phase:
        right["phase"] = first is not None and first["phase"] == fault.phase
    if fault.timed:
        right["time"] = first is not None and _dates(fault, first, felt, len(seconds))
    # What stands below other work is what is saved once that is repaired, which no run here is.
    if fault.kind != "data" and (first is None or first is verdicts[0]):
        saves = [one["saves"] for one in found]
        right["gain"] = first is not None and all(
            abs(one - lost) <= _NEAR for one in (saves[0], sum(saves)))
    return right


def _felt(fault: Fault, without: np.ndarray, seconds: np.ndarray) -> set[int]:
    """The steps of the fault that it makes longer, by more than jitter may hide."""
    steps = fault.steps or range(len(seconds))
    if fault.kind == "data":
        return set(steps)
    return {step for step in steps if seconds[step] - without[step] > _NEAR * seconds[step]}


def _names(fault: Fault, layout: str, one: dict, felt: set[int]) -> bool:
    """Whether the verdict says who it is: all of them, by a kind that says so."""
    members = set(one["members"])
    if fault.link:
        if fault.vague:
            return bool(members & fault.ranks) and one["cause"] == "link"
        return one["kind"] == fault.link and (members == fault.ranks or members in fault.alike)
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
