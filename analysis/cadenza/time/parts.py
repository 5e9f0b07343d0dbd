# SPDX-License-Identifier: Apache-2.0
"""Where the time of a step went: every nanosecond of every rank belongs to exactly one part."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.time import intervals
from cadenza.time.axis import OneAxis
from cadenza.read.columns import one_of
from cadenza.time.pieces import BUSY, PARTS, lane_pieces

__all__ = ["BUSY", "LOST", "PARTS", "lost_shares", "rank_totals", "step_times", "time_parts"]

LOST = tuple(part for part in PARTS if part not in BUSY)


def time_parts(
    events: pd.DataFrame,
    steps: pd.DataFrame,
    ranks: pd.DataFrame,
    pieces: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Every nanosecond of every rank's step, assigned once.

    - `compute_attention`, `compute_dense`, `compute_other`, `optimizer`: the rank computes.
    - `no_core`: it would compute, but is stopped, swapped out or waits for a core (still_ns).
    - `communication`: it does nothing but move data (exposed communication): the part of a blocking
      operation in which all partners were there, and collectives inside a dense operation.
    - `attention_wait`: it waits for inputs or results of core attention that are not ready.
    - `pipeline_bubble`: it waits for another stage of its pipeline, or has no microbatch.
    - `tensor_parallel_wait`: in the middle of a dense operation it waits for the last rank of its
      tensor group.
    - `data_parallel_wait`: it waits for the last rank to come to a collective, or to ask for the
      parameters of a layer.
    - `host_gap`: nothing ran, as the process had not launched it (imported runs).
    - `other`: planning, data, checkpoints, the trace itself, and time without an event.

    Where several lanes are busy, the first of these in the order of PARTS counts. Collectives of a
    tensor group, and the wait for them, interrupt the dense operation around them. What is in
    flight while the rank does something else is not counted: non-blocking messages have no time of
    their own, the waits for them have.

    @param events  Run.events(): of all ranks, so that waits for a partner are seen
    @param steps   Run.steps(): a rank's step window is its [begin_ns, end_ns)
    @param ranks   Run.ranks()
    @param pieces  lane_pieces(events, ranks), where the caller has them
    @returns rank, step, window and one column per name of PARTS, in ns, which sum to the window
    """
    windows = steps[["rank", "step", "begin_ns", "end_ns"]].reset_index(drop=True)
    frame = windows[["rank", "step"]].copy()
    begin, end = (windows[name].to_numpy(np.int64) for name in ("begin_ns", "end_ns"))
    frame["window"] = end - begin
    pieces = lane_pieces(events, ranks) if pieces is None else pieces
    pieces = pieces[~pieces["in_flight"].to_numpy()]
    axis = OneAxis(pieces, windows)
    covered = intervals.EMPTY
    before = np.zeros(len(windows), np.int64)
    for name in PARTS[:-1]:
        chosen = one_of(pieces["part"], name)
        covered = intervals.union(covered, axis.pairs[chosen])
        total = intervals.covered_within(covered, axis.begin, axis.end)
        frame[name] = total - before
        before = total
    frame[PARTS[-1]] = frame["window"] - before
    return frame[["rank", "step", "window", *PARTS]]


def rank_totals(parts: pd.DataFrame) -> pd.DataFrame:
    """Per rank, in seconds over all its steps, with `busy_share` of its time."""
    totals = parts.groupby("rank")[["window", *PARTS]].sum() / 1e9
    busy = totals[list(BUSY)].sum(axis=1)
    totals.attrs.clear()  # pandas keeps the units of `parts`, which these are not
    totals["busy_share"] = (busy / totals["window"]).where(totals["window"] > 0)
    return totals.reset_index()


def lost_shares(parts: pd.DataFrame) -> pd.Series:
    """By part of LOST its share of all the time of these ranks and steps."""
    sums = parts[list(PARTS)].sum()
    return sums[list(LOST)] / sums.sum()


def step_times(steps: pd.DataFrame) -> pd.DataFrame:
    """Steps that all ranks completed: step, begin_ns (first rank), end_ns (last rank), seconds."""
    frame = steps.groupby("step").agg(
        begin_ns=("begin_ns", "min"), end_ns=("end_ns", "max"), ranks=("rank", "nunique")
    )
    frame = frame[frame["ranks"] == steps["rank"].nunique()].drop(columns="ranks")
    frame["seconds"] = (frame["end_ns"] - frame["begin_ns"]) / 1e9
    return frame.reset_index()
