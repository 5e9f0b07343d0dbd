# SPDX-License-Identifier: Apache-2.0
"""Where a rank is and when a step was: what somebody needs who goes and looks."""

from __future__ import annotations

from datetime import timedelta

from cadenza.study import Study
from cadenza.words import NONE, gpu

COORDINATES = ("data", "pipeline", "tensor", "context")


def places(study: Study, short: bool = False) -> dict[int, str]:
    """Per rank its host, its GPU, and its coordinates of which the run has more than one; of an
    attention server, which has no coordinates, its number. In short host and GPU alone."""
    ranks = study.ranks
    several = [name for name in COORDINATES if ranks[name].nunique() > 1]
    found = {}
    for row in ranks.to_dict("records"):
        parts = [str(row["host"])]
        if on := gpu(row["device"], row["local_rank"]):
            parts.append(on if short else f"{on} ({row['device']})")
        server = row["role"] == "attention_server"
        at = [f"server {row['server']}"] if server else [f"{name} {row[name]}" for name in several]
        parts += [", ".join(at)] if at and not short else []
        found[int(row["rank"])] = " · ".join(filter(None, parts))
    return found


def rank_labels(study: Study) -> dict[int, str]:
    """ "rank 3 · node-00001 · GPU 3 (h200) · data 1": what a pointer shows of a rank."""
    return {rank: " · ".join(filter(None, (f"rank {rank}", place)))
            for rank, place in places(study).items()}


def started(study: Study) -> str:
    """Date and time, UTC."""
    begin = study.run.started
    return NONE if begin is None else f"{begin:%Y-%m-%d %H:%M:%S} UTC"


def step_and_time(study: Study, step: int) -> str:
    """A step's number and, in a real run, about when it began: the run's start and what its steps
    took until then. Simulated steps have no such time."""
    begin, times = study.run.started, study.step_times
    at = times.loc[times["step"] == step, "begin_ns"]
    if begin is None or study.run.info["producer"] == "simulator" or at.empty:
        return str(step)
    since = timedelta(seconds=float(at.iloc[0] - times["begin_ns"].iloc[0]) / 1e9)
    return f"{step} ({begin + since:%m-%d %H:%M:%S} UTC)"
