# SPDX-License-Identifier: Apache-2.0
"""Pipeline bubbles: when they were, and what the schedule's formula makes of them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.read.columns import one_of, rows_of
from cadenza.time import intervals
from cadenza.time.axis import OneAxis
from cadenza.time.pieces import lane_pieces


def pipeline_bubbles(
    events: pd.DataFrame,
    steps: pd.DataFrame,
    ranks: pd.DataFrame,
    config: dict,
    pieces: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Time in which a rank waits for another stage of its pipeline.

    Warm-up is what lies before a rank's first own pass over a microbatch, cool-down what lies after
    its last one, steady the rest.

    The ideal is that of 1F1B and of GPipe for p stages of equal speed and m microbatches, of which
    a stage takes v chunks in turn (Megatron-LM, arXiv 2104.04473, section 2.2): idle / ideal
    computing time = (p - 1) / (v m), so idle / step = (p - 1) / (v m + p - 1). `ideal_ns` is that
    share of the rank's time in passes and bubbles.

    @param config  the resolved experiment
    @param pieces  lane_pieces(events, ranks), where the caller has them
    @returns rank, step, bubble_ns = warm_up_ns + steady_ns + cool_down_ns, ideal_ns, fraction and
             ideal_fraction (of the rank's step)
    """
    columns = ["rank", "step", "bubble_ns", "warm_up_ns", "steady_ns", "cool_down_ns",
               "ideal_ns", "fraction", "ideal_fraction"]
    if len(events) == 0 or len(steps) == 0:
        return pd.DataFrame(columns=columns)
    pieces = lane_pieces(events, ranks) if pieces is None else pieces
    pieces = pieces[one_of(pieces["part"], "pipeline_bubble")]
    frame = steps[["rank", "step", "begin_ns", "end_ns"]].reset_index(drop=True)
    axis = OneAxis(pieces, frame)
    bubbles = intervals.union(axis.pairs)
    first, last = _own_passes(events, frame)
    edges = [axis.begin, axis.shifted(frame, first), axis.shifted(frame, last), axis.end]
    names = ["warm_up_ns", "steady_ns", "cool_down_ns"]
    for name, begin, end in zip(names, edges[:-1], edges[1:], strict=True):
        frame[name] = intervals.covered_within(bubbles, begin, end)
    frame["bubble_ns"] = frame[names].sum(axis=1)
    window = frame["end_ns"] - frame["begin_ns"]
    trainers = frame["rank"].map(ranks.set_index("rank")["role"]) != "attention_server"
    ideal = np.where(trainers, ideal_bubble_fraction(config), 0.0)
    passes = last - first + frame["warm_up_ns"] + frame["cool_down_ns"]
    frame["ideal_ns"] = np.rint(ideal * passes)
    frame["fraction"] = (frame["bubble_ns"] / window).where(window > 0)
    frame["ideal_fraction"] = (frame["ideal_ns"] / window).where(window > 0)
    return frame[columns]


def _own_passes(events: pd.DataFrame, frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Per row of `frame` the begin of the rank's first pass over an own microbatch in the step and
    the end of its last; the step's end where there is none."""
    own = one_of(events["category"], "compute_dense", "compute_attention", "compute_other")
    own &= events["microbatch"].to_numpy() >= 0
    own = rows_of(events, np.flatnonzero(own), ["rank", "step", "begin_ns", "end_ns"])
    group = own.groupby(["rank", "step"])
    found = pd.DataFrame({"first": group["begin_ns"].min(), "last": group["end_ns"].max()})
    found = found.reindex(pd.MultiIndex.from_frame(frame[["rank", "step"]]))
    first, last = (found[name].to_numpy() for name in ("first", "last"))
    begin, end = (frame[name].to_numpy(np.int64) for name in ("begin_ns", "end_ns"))
    known = ~np.isnan(first)
    first = np.where(known, np.nan_to_num(first), end).astype(np.int64)
    last = np.where(known, np.nan_to_num(last), end).astype(np.int64)
    return np.clip(first, begin, end), np.clip(last, begin, end)


def ideal_bubble_fraction(config: dict) -> float:
    """Idle share of a step under the 1F1B formula, (p - 1) / (v m + p - 1); 0 without a pipeline.

    @param config  the resolved experiment: parallel.{data, pipeline, chunks}, batch.{tokens,
                   microbatch}
    """
    stages, microbatches, chunks = pipeline_shape(config)
    return (stages - 1) / (chunks * microbatches + stages - 1)


def pipeline_shape(config: dict) -> tuple[int, int, int]:
    """Stages p, microbatches per pipeline m, chunks per stage v."""
    parallel, batch = config.get("parallel", {}), config.get("batch", {})
    stages = int(parallel.get("pipeline", 1))
    chunks = int(parallel.get("chunks", 1))
    tokens, microbatch = batch.get("tokens"), batch.get("microbatch")
    if not tokens or not microbatch:
        return stages, 1, chunks
    return stages, max(1, round(tokens / microbatch / int(parallel.get("data", 1)))), chunks
