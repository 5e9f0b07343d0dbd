# SPDX-License-Identifier: Apache-2.0
"""From when to when a step is on each rank.

Programs begin and end their steps by themselves, so a rank that is late in one begins the next one
late. Where all ranks meet in a collective in every step, a step is from when they leave the last
one of a step to when they leave that of the next: then all begin and end together, and no time
counts twice. Else a step ends when the last rank is done with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from cadenza.errors import DataError
from cadenza.sources.neutral import COLLECTIVE


@dataclass(frozen=True)
class Windows:
    """Steps that all ranks have: `edges[rank]` are their borders, ns, one more than `steps`."""

    steps: list[int]
    edges: dict[int, np.ndarray]
    told: str  # a sentence: what a step is here


def step_of(began: np.ndarray, steps: pd.DataFrame) -> np.ndarray:
    """The number of the step that each time is in; -1: before the first.

    @param steps  STEP rows of the rank, sorted: step, begin_ns
    """
    at = np.searchsorted(steps["begin_ns"].to_numpy(), began, side="right") - 1
    return np.where(at >= 0, steps["step"].to_numpy()[np.maximum(at, 0)], -1)


def windows(
    steps: dict[int, pd.DataFrame], done: dict[int, pd.Series], rows: pd.DataFrame,
    meeting: np.ndarray, step: np.ndarray,
) -> Windows:
    """@param steps    by rank: step, begin_ns, end_ns of its STEP rows, on one clock
    @param done     by rank: when it was done with what it began in each step, ns by step
    @param rows     meetings.COLUMNS of all ranks, on one clock
    @param meeting  meetings.matched()
    @param step     in which each was begun
    @throws DataError where no step is on all ranks
    """
    common = sorted(set.intersection(*(set(mine["step"]) for mine in steps.values())))
    # A profiler may leave a first or last step in which nothing is done.
    common = [int(number) for number in common
              if number >= 0 and all(number in mine.index for mine in done.values())]
    if not common:
        raise DataError("no step is in the traces of all ranks")
    first = {rank: int(mine.loc[mine["step"] == common[0], "begin_ns"].iloc[0])
             for rank, mine in steps.items()}
    leave = _last_meetings(list(steps), common, rows, meeting, step)
    if leave is not None and len(leave[0]) > 1:
        # What lies before the first meeting is a part of a step.
        return Windows(leave[0][1:], leave[1], "A step is from when all ranks leave the last "
                       "collective of one step to when they leave that of the next.")
    last = np.array([max(int(done[rank].get(number, 0)) for rank in steps) for number in common])
    last = np.maximum.accumulate(last)
    edges = {rank: np.maximum.accumulate(np.append(begin, last)) for rank, begin in first.items()}
    told = "A step ends when the last rank is done with it."
    if len(common) > 1:
        told = "No collective of all ranks is in every step: a step ends when the last rank is " \
            "done with it."
    return Windows(common, edges, told)


def same_steps(steps: dict[int, pd.DataFrame]) -> Windows:
    """Of ranks whose STEP rows are the same, and follow one another.

    @param steps  by rank, as of windows()
    """
    mine = next(iter(steps.values()))
    edges = np.append(mine["begin_ns"].to_numpy(np.int64), mine["end_ns"].iloc[-1])
    return Windows([int(step) for step in mine["step"]], dict.fromkeys(steps, edges),
                   "The trace says where a step begins on all ranks.")


def _last_meetings(
    ranks: list[int], common: list[int], rows: pd.DataFrame, meeting: np.ndarray, step: np.ndarray
) -> tuple[list[int], dict[int, np.ndarray]] | None:
    """Steps in which all ranks meet, and by rank when it left the last such collective of each;
    None where they do not in a step between two in which they do."""
    chosen = (rows["kind"] == COLLECTIVE).to_numpy() & (meeting >= 0)
    part = pd.DataFrame({"rank": rows["rank"].to_numpy(), "meeting": meeting, "step": step,
                         "end": rows["end_ns"].to_numpy(np.int64)})[chosen]
    together = part.groupby("meeting").agg(ranks=("rank", "nunique"), step=("step", "min"))
    together = together[(together["ranks"] == len(ranks)) & together["step"].isin(common)]
    meet = sorted(int(number) for number in together["step"].unique())
    first = common.index(meet[0]) if meet else 0
    if len(ranks) < 2 or not meet or meet != common[first : first + len(meet)]:
        return None
    # Several may be under way at once, and end in another order on each rank.
    mine = part[part["meeting"].isin(together.index)]
    of_step = mine["meeting"].map(together["step"]).rename("of")
    ends = mine.groupby([of_step, "rank"])["end"].max()
    found = {rank: ends.xs(rank, level="rank").sort_index().to_numpy(np.int64) for rank in ranks}
    ascending = all((np.diff(edges) > 0).all() for edges in found.values())
    return (meet, found) if ascending else None
