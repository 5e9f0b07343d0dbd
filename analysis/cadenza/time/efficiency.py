# SPDX-License-Identifier: Apache-2.0
"""How much of the machine was used: POP's efficiencies, utilisation of FLOPs, overlap.

Sources: POP standard metrics (co-design.pop-coe.eu/metrics), model-FLOPs utilisation as in PaLM
(arXiv 2204.02311, appendix B).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from cadenza.time import intervals
from cadenza.time.axis import OneAxis
from cadenza.time.parts import BUSY, step_times
from cadenza.read.columns import one_of, rows_of
from cadenza.read.schema import COMMUNICATION

_WORK = {"attention": "compute_attention", "dense": "compute_dense"}


def efficiency_of_run(found: pd.DataFrame) -> pd.Series:
    """POP's efficiencies of the steps for which all are known, weighted by their times, so that
    products of the mean values hold as those of one step.

    @param found  efficiencies()
    """
    known = found.dropna(subset=["transfer_efficiency"])
    steps = known if len(known) else found
    total = steps["seconds"]
    mean = (steps["parallel_efficiency"] * total).sum()
    most = (steps["communication_efficiency"] * total).sum()
    free = (steps["transfer_efficiency"] * total).sum(min_count=1)
    return pd.Series(
        {
            "parallel_efficiency": mean / total.sum(),
            "load_balance": mean / most,
            "communication_efficiency": most / total.sum(),
            "serialization_efficiency": most / free,
            "transfer_efficiency": free / total.sum(),
        }
    )


def efficiencies(
    parts: pd.DataFrame, steps: pd.DataFrame, network_free: Mapping[int, float] | None = None
) -> pd.DataFrame:
    """POP's efficiencies of each step, between 0 and 1, with U the time a rank computes, T that of
    the step, T0 that of the step on a network of no latency and infinite bandwidth:

    - load_balance = mean U / max U, communication_efficiency = max U / T,
      parallel_efficiency = their product = mean U / T
    - serialization_efficiency = max U / T0, transfer_efficiency = T0 / T: their product is the
      communication efficiency. NaN for steps whose T0 is not known.
    - additive losses, which sum with parallel_efficiency to 1: load_balance_loss =
      (max U - mean U) / T, communication_loss = (T - max U) / T, of which serialization_loss =
      (T0 - max U) / T and transfer_loss = (T - T0) / T

    @param parts         time_parts() of all ranks
    @param steps         Run.steps()
    @param network_free  T0 in seconds, by step; a replay may give a T0 off by its own error, so it
                         is held between max U and T
    @returns step, seconds and the columns above
    """
    useful = parts[["rank", "step"]].assign(seconds=parts[list(BUSY)].sum(axis=1) / 1e9)
    group = useful.groupby("step")["seconds"]
    times = step_times(steps).set_index("step")["seconds"]
    frame = pd.DataFrame({"mean": group.mean(), "max": group.max()}).join(times, how="inner")
    mean, most, total = frame["mean"], frame["max"], frame["seconds"]
    free = pd.Series(dict(network_free or {}), dtype=float).reindex(frame.index)
    free = free.clip(lower=most, upper=total)
    found = pd.DataFrame(
        {
            "seconds": total,
            "load_balance": mean / most,
            "communication_efficiency": most / total,
            "serialization_efficiency": most / free,
            "transfer_efficiency": free / total,
            "parallel_efficiency": mean / total,
            "load_balance_loss": (most - mean) / total,
            "communication_loss": (total - most) / total,
            "serialization_loss": (free - most) / total,
            "transfer_loss": (total - free) / total,
        }
    )
    return found.replace([np.inf, -np.inf], np.nan).rename_axis("step").reset_index()


def work_rates(events: pd.DataFrame) -> pd.DataFrame:
    """What ranks computed and how long it took them: rank, step, kind (attention or dense),
    seconds, flops (executed). Collectives inside an operation count as its time."""
    frames = []
    for kind, category in _WORK.items():
        rows = np.flatnonzero(one_of(events["category"], category))
        rows = rows_of(events, rows, ["rank", "step", "flops", "begin_ns", "end_ns"])
        seconds = (rows.pop("end_ns") - rows.pop("begin_ns")) / 1e9
        rows = rows.assign(seconds=seconds, kind=kind)
        frames.append(rows.groupby(["rank", "step", "kind"], as_index=False).sum())
    found = pd.concat(frames, ignore_index=True)
    return found[["rank", "step", "kind", "seconds", "flops"]]


def utilization(steps: pd.DataFrame, ranks: pd.DataFrame, work: pd.DataFrame) -> pd.DataFrame:
    """FLOP rates of each step against the peak of all ranks, attention servers included.

    - mfu: model FLOPs (3 x the forward pass, of attention the visible pairs) / (step time * peak)
    - hfu: the same of executed FLOPs: with the scores that attention's backward pass makes again
      and all recomputation
    - attention_rate, dense_rate: FLOP/s of a rank while it computes it, the mean over ranks
      weighted by time; attention_of_peak, dense_of_peak: against the mean rank's peak

    Shares are NaN where the peak is not known (peak_flops of /meta/rank).

    @param steps  Run.steps()
    @param ranks  Run.ranks()
    @param work   work_rates() of the same steps; may be empty
    @returns step, seconds, tokens_per_second, mfu, hfu, attention_rate, attention_of_peak,
             dense_rate, dense_of_peak
    """
    times = step_times(steps).set_index("step")
    peak = float(ranks["peak_flops"].sum()) if "peak_flops" in ranks else 0.0
    peak = peak if peak > 0 else np.nan
    group = steps.groupby("step")
    seconds = times["seconds"]
    frame = pd.DataFrame({"seconds": seconds})
    frame["tokens_per_second"] = group["tokens"].max() / seconds
    frame["mfu"] = group["model_flops"].max() / (seconds * peak)
    frame["hfu"] = group["executed_flops"].sum() / (seconds * peak)
    for kind in _WORK:
        mine = work[(work["kind"] == kind).to_numpy()].groupby("step")[["flops", "seconds"]].sum()
        rate = (mine["flops"] / mine["seconds"]).where(mine["seconds"] > 0)
        frame[f"{kind}_rate"] = rate.reindex(frame.index)
        frame[f"{kind}_of_peak"] = frame[f"{kind}_rate"] / (peak / len(ranks))
    return frame.rename_axis("step").reset_index()


def overlap(pieces: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """How much of each rank's communication was hidden behind its computing.

    A message counts from when its data could move until it was complete.

    @param pieces  lane_pieces()
    @param steps   Run.steps()
    @returns rank, step, communication_ns, overlapped_ns, exposed_ns, ratio = overlapped /
             communication (NaN without communication)
    """
    windows = steps[["rank", "step", "begin_ns", "end_ns"]].reset_index(drop=True)
    axis = OneAxis(pieces, windows)
    moves, computes = one_of(pieces["category"], *COMMUNICATION), one_of(pieces["part"], *BUSY)
    unions = {"moves": intervals.union(axis.pairs[moves]),
              "computes": intervals.union(axis.pairs[computes])}
    unions["both"] = intervals.union(*unions.values())
    total = {name: intervals.covered_within(union, axis.begin, axis.end)
             for name, union in unions.items()}
    frame = windows[["rank", "step"]].copy()
    frame["communication_ns"] = total["moves"]
    frame["overlapped_ns"] = total["moves"] + total["computes"] - total["both"]
    frame["exposed_ns"] = frame["communication_ns"] - frame["overlapped_ns"]
    known = frame["communication_ns"] > 0
    frame["ratio"] = (frame["overlapped_ns"] / frame["communication_ns"]).where(known)
    return frame
