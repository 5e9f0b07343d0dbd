# SPDX-License-Identifier: Apache-2.0
"""What the analysis says of a run, beside the truth."""

from dataclasses import dataclass

import pandas as pd
from cadenza.read.run import Run
from cadenza.report.headlines import is_late
from cadenza.study import Study

from benchmarks.faults.plant import Fault

_ITSELF = ("persistent", "intermittent", "paused")  # a rank is late by itself, not by its data
_NO_PAUSE = "no rank stands still"  # of what_if()
_NEAR = 0.03  # of a step
_ALARM = 0.01  # of a step: what a scenario of one rank saves of it
CHECKS = ("rank", "phase", "cause", "gain")


@dataclass
class Answer:
    """What a reader takes from the analysis."""

    ranks: set[int]  # that are late by themselves; where there is none, the one with most data
    cause: str
    phase: str  # of the first of them; "": of no single one
    seconds: float  # of the step, were the first of them as fast as usual
    alarm: bool  # somebody is late
    links: list[set[int]]  # that are slow, or one of them is
    text: str


def answer(run: Run, step: int) -> Answer:
    """@param step  that is replayed"""
    study = Study(run)
    late = study.persistent
    chosen = late[late["persistence"].isin(_ITSELF)]
    if chosen.empty:
        chosen = late[late["persistence"] == "data"].head(1)
    first = chosen.iloc[0] if len(chosen) else None
    frame = study.what_if(step)
    slow = frame[frame["rank"] >= 0]
    links = [set(pair) for one in study.slow_links for pair in one.pairs]
    seconds = study.step_times["seconds"]
    return Answer(
        ranks={int(r) for r in chosen["rank"]},
        cause="none" if first is None else str(first["persistence"]),
        phase="" if first is None else str(first["phase"]),
        seconds=_without(frame, first),
        alarm=is_late(study)
        or bool((slow["saved_seconds"] >= _ALARM * seconds.mean()).any())
        or bool(links),
        links=links,
        text="" if first is None else str(first["explanation"]),
    )


def _without(frame: pd.DataFrame, late: pd.Series | None) -> float:
    """Seconds of the step, had the rank that is late not been so.

    @param frame  what_if()
    """
    if late is None:
        return float("nan")
    paused = late["persistence"] == "paused"
    mine = frame["scenario"] == _NO_PAUSE if paused else frame["rank"] == late["rank"]
    return float(frame.loc[mine, "seconds"].iloc[0]) if mine.any() else float("nan")


def score(fault: Fault, said: Answer, without: float, seconds: float) -> dict[str, bool]:
    """Which of CHECKS hold; those that do not apply are left out.

    @param without  seconds of the replayed step in the simulated run without the fault
    @param seconds  ... in the run with it
    """
    if fault.kind == "clean":
        return {"cause": not said.alarm}
    if fault.kind == "link":
        blamed = said.cause in _ITSELF
        return {"rank": fault.ranks in said.links, "cause": bool(said.links) and not blamed}
    right = {"cause": said.cause == fault.cause}
    right["rank"] = bool(said.ranks) and said.ranks <= fault.ranks
    if fault.phase:
        right["phase"] = said.phase == fault.phase
    if fault.kind in ("slow", "phase", "intermittent", "pause"):
        right["gain"] = abs(said.seconds - without) <= _NEAR * seconds
    return right
