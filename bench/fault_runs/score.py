# SPDX-License-Identifier: Apache-2.0
"""What the analysis says of a run, beside the truth."""

from dataclasses import dataclass

from cadenza.report.headlines import headlines
from cadenza.study import Study
from fault_runs.faults import Fault

_ITSELF = ("persistent", "intermittent", "paused")  # a rank is late by itself, not by its data
_NEAR = 0.03  # of a step
CHECKS = ("rank", "phase", "cause", "gain")


@dataclass
class Answer:
    """What a reader takes from the analysis."""

    ranks: set[int]  # that are late by themselves; where there is none, the one with most data
    cause: str
    phase: str  # of the first of them; "": of no single one
    seconds: float  # of a step, were the first of them as fast as usual: mean over the steps
    alarm: bool
    saves: int  # the rank that would save most
    text: str


def answer(study: Study) -> Answer:
    late = study.persistent
    chosen = late[late["persistence"].isin(_ITSELF)]
    if chosen.empty:
        chosen = late[late["persistence"] == "data"].head(1)
    single = study.what_if()
    single = single[single["rank"] >= 0]
    first = chosen.iloc[0] if len(chosen) else None
    rank = -1 if first is None else int(first["rank"])
    mine = single[single["rank"] == rank]
    line = headlines([study], ["run"], [])[0]
    return Answer(
        ranks={int(r) for r in chosen["rank"]},
        cause="none" if first is None else str(first["persistence"]),
        phase="" if first is None else str(first.get("phase", "")),
        seconds=float(mine["seconds"].iloc[0]) if len(mine) else float("nan"),
        alarm=line.kind == "late",
        saves=int(single["rank"].iloc[0]) if len(single) else -1,
        text=line.text,
    )


def score(fault: Fault, said: Answer, without: float, seconds: float) -> dict[str, bool]:
    """Which of CHECKS hold; those that do not apply are left out.

    @param without  seconds of a step of the simulated run without the fault, mean over the steps
    @param seconds  ... of the run with it
    """
    if fault.kind == "clean":
        return {"cause": not said.alarm}
    right = {"cause": said.cause == fault.cause}
    right["rank"] = bool(said.ranks) and said.ranks <= fault.ranks
    if fault.phase:
        right["phase"] = said.phase == fault.phase
    if fault.kind in ("slow", "phase", "intermittent", "pause"):
        right["gain"] = abs(said.seconds - without) <= _NEAR * seconds
    return right
