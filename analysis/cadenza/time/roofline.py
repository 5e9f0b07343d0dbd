# SPDX-License-Identifier: Apache-2.0
"""Roofline of core attention: the rate that each kernel call reached, against its size."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.read.columns import one_of, rows_of

_COLUMNS = ["rank", "step", "phase", "microbatch", "layer", "tick", "half", "stage", "flops",
            "seconds", "rate", "of_peak"]


def attention_tasks(events: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """Kernel calls of core attention, each of which computes all tasks of a rank in a stage.

    Core attention has far more FLOPs per byte than any machine's ridge point, so that its roof is
    the peak of matrix products, taken from /meta/rank; the trace has no memory bandwidth.

    @returns rank, step, phase, microbatch, layer, tick, half, stage, flops (FLOP), seconds, rate
             (FLOP/s), of_peak (of the rank's peak; NaN where that is not known); calls without
             FLOPs are left out
    """
    chosen = one_of(events["category"], "compute_attention") & (events["flops"].to_numpy() > 0)
    columns = [name for name in events if name in (*_COLUMNS, "begin_ns", "end_ns")]
    frame = rows_of(events, np.flatnonzero(chosen), columns)
    seconds = (frame["end_ns"] - frame["begin_ns"]) / 1e9
    frame["seconds"] = seconds
    frame["rate"] = (frame["flops"] / seconds).where(seconds > 0)
    peaks = ranks.set_index("rank")["peak_flops"] if "peak_flops" in ranks else pd.Series()
    peak = frame["rank"].map(peaks).astype(float)
    frame["of_peak"] = (frame["rate"] / peak).where(peak > 0)
    return frame.reindex(columns=_COLUMNS)


def rate_by_size(tasks: pd.DataFrame, bins: int = 12) -> pd.DataFrame:
    """The roofline's curve: calls grouped into `bins` sizes, evenly spaced in the logarithm.

    @param tasks  attention_tasks()
    @returns phase, flops (geometric mean of the bin), calls, rate_median, rate_low, rate_high
             (10th and 90th percentile), in FLOP and FLOP/s
    """
    columns = ["phase", "flops", "calls", "rate_median", "rate_low", "rate_high"]
    tasks = tasks[tasks["rate"].notna().to_numpy()]
    if tasks.empty:
        return pd.DataFrame(columns=columns)
    size = np.log(tasks["flops"])
    edges = np.linspace(size.min(), size.max() + 1e-9, bins + 1)
    place = np.clip(np.searchsorted(edges, size, side="right") - 1, 0, bins - 1)
    group = tasks.assign(log=size, bin=place).groupby(["phase", "bin"], observed=True)
    rate = group["rate"]
    found = pd.DataFrame(
        {
            "flops": np.exp(group["log"].mean()),
            "calls": group.size(),
            "rate_median": rate.median(),
            "rate_low": rate.quantile(0.1),
            "rate_high": rate.quantile(0.9),
        }
    )
    return found.reset_index()[columns]
