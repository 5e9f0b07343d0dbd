# SPDX-License-Identifier: Apache-2.0
"""What the analysis says of a run, beside the truth."""

from dataclasses import dataclass

from cadenza.graph import build
from cadenza.run import Run
from cadenza.stragglers import persistent, stragglers
from cadenza.study import Study
from cadenza.what_if import what_if
from fault_runs.faults import Fault

_ITSELF = ("persistent", "intermittent", "paused")  # a rank is late by itself, not by its data
_NEAR = 0.03  # of a step
_ALARM = 0.01  # of the run: who is late by less is not named
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
    events, steps, ranks = run.events(), study.steps, study.ranks
    late = persistent(stragglers(events, ranks), ranks)
    chosen = late[late["persistence"].isin(_ITSELF)]
    if chosen.empty:
        chosen = late[late["persistence"] == "data"].head(1)
    first = chosen.iloc[0] if len(chosen) else None
    rank = -1 if first is None else int(first["rank"])
    frame = what_if(build(events, steps, ranks, step))
    slow = frame[frame["rank"] >= 0]
    mine = slow[slow["rank"] == rank]
    links = [set(pair) for one in getattr(study, "slow_links", []) for pair in one.pairs]
    seconds = study.step_times["seconds"]
    return Answer(
        ranks={int(r) for r in chosen["rank"]},
        cause="none" if first is None else str(first["persistence"]),
        phase="" if first is None else str(first["phase"]),
        seconds=float(mine["seconds"].iloc[0]) if len(mine) else float("nan"),
        alarm=bool(late["late_seconds"].max() >= _ALARM * seconds.sum())
        or bool((slow["saved_seconds"] >= _ALARM * seconds.mean()).any())
        or bool(links),
        links=links,
        text="" if first is None else str(first["explanation"]),
    )


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
