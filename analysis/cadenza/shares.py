# SPDX-License-Identifier: Apache-2.0
"""Where the time of a step went: pure functions of frames that return frames."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza import intervals
from cadenza.pieces import lane_pieces

# In the order of priority: a nanosecond that several classes cover belongs to the first of them.
CLASSES = {
    "attention": ("compute_attention",),
    "dense": ("compute_dense",),
    "other_compute": ("compute_other",),
    "optimizer": ("optimizer",),
    "communicating": (
        "p2p_send",
        "p2p_receive",
        "collective",
        "attention_dispatch",
        "attention_return",
    ),
    "waiting": ("wait",),
    "other": ("data", "checkpoint", "host", "plan", "trace_overhead"),
}
BUSY = ("attention", "dense", "other_compute", "optimizer")
SHARES = (*CLASSES, "idle")


def time_shares(events: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Every nanosecond of every rank's step, assigned once.

    @param events  Run.events(): of all ranks, so that waits for a partner are seen
    @param steps   Run.steps(): a rank's step window is its [begin_ns, end_ns)
    @returns rank, step, window and one column per class of SHARES, in ns, which sum to the window
    """
    pieces = lane_pieces(events)
    by_rank = {rank: part for rank, part in pieces.groupby("rank", sort=False)}
    rows = []
    for rank, windows in steps.groupby("rank"):
        part = by_rank.get(rank, pieces.iloc[:0])
        sets = {
            name: intervals.union(_pairs(part[part["category"].isin(categories)]))
            for name, categories in CLASSES.items()
        }
        for step, begin, end in windows[["step", "begin_ns", "end_ns"]].itertuples(index=False):
            rows.append({"rank": rank, "step": step, **_window_shares(sets, begin, end)})
    return pd.DataFrame(rows, columns=["rank", "step", "window", *SHARES])


def _pairs(frame: pd.DataFrame) -> np.ndarray:
    return intervals.make(frame["begin_ns"].to_numpy(), frame["end_ns"].to_numpy())


def _window_shares(sets: dict[str, np.ndarray], begin: int, end: int) -> dict[str, int]:
    covered = intervals.EMPTY
    row = {"window": int(end - begin)}
    for name, pairs in sets.items():
        first = np.searchsorted(pairs[:, 1], begin, side="right")
        last = np.searchsorted(pairs[:, 0], end, side="left")
        both = intervals.union(covered, intervals.clip(pairs[first:last], begin, end))
        row[name] = intervals.length(both) - intervals.length(covered)
        covered = both
    row["idle"] = row["window"] - intervals.length(covered)
    return row


def rank_totals(shares: pd.DataFrame) -> pd.DataFrame:
    """Per rank, in seconds over all its steps, with `busy_share` of its time."""
    totals = shares.groupby("rank")[["window", *SHARES]].sum() / 1e9
    busy = totals[list(BUSY)].sum(axis=1)
    totals["busy_share"] = (busy / totals["window"]).where(totals["window"] > 0)
    return totals.reset_index()


def serving_ranks(shares: pd.DataFrame, ranks: pd.DataFrame) -> list[int]:
    """Ranks that compute core attention: members of the pool; where none is marked, all ranks."""
    marked = ranks[(ranks["server"] >= 0) | (ranks["role"] != "trainer")]["rank"]
    if marked.empty:
        return sorted(int(rank) for rank in ranks["rank"])
    seen = shares.loc[shares["attention"] > 0, "rank"]
    return sorted({int(rank) for rank in marked} | {int(rank) for rank in seen})


def attention_imbalance(shares: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """Busy attention time over the serving ranks, for steps that all of them completed.

    @returns step, max and mean in seconds, imbalance = max / mean (NaN without attention), slowest
    """
    serving = serving_ranks(shares, ranks)
    table = shares[shares["rank"].isin(serving)].pivot(
        index="step", columns="rank", values="attention"
    )
    table = table.reindex(columns=serving).dropna()
    most, mean = table.max(axis=1), table.mean(axis=1)
    slowest = table.idxmax(axis=1) if len(table) else pd.Series(dtype=np.int64)
    frame = pd.DataFrame(
        {
            "max": most / 1e9,
            "mean": mean / 1e9,
            "imbalance": (most / mean).where(mean > 0),
            "slowest": slowest,
        }
    )
    return frame.rename_axis("step").reset_index()


def imbalance_over_run(imbalance: pd.DataFrame) -> pd.DataFrame:
    """One row: `median` over steps, and `run` = sum of max / sum of mean.

    The latter weights steps by their time: it is what the run lost, where a rank that is slow in
    one step and fast in the next does not cancel out.
    """
    mean = imbalance["mean"].sum()
    run = imbalance["max"].sum() / mean if mean > 0 else np.nan
    return pd.DataFrame([{"median": imbalance["imbalance"].median(), "run": run}])


def planned_imbalance(plans: pd.DataFrame, servers: int) -> pd.DataFrame:
    """What the plan promised: step, imbalance = max / mean of planned cost over `servers` ranks."""
    cost = plans.groupby(["step", "server"])["cost"].sum().groupby("step")
    mean = cost.sum() / max(servers, 1)
    return (cost.max() / mean).where(mean > 0).rename("imbalance").reset_index()


def step_times(steps: pd.DataFrame) -> pd.DataFrame:
    """Steps that all ranks completed: step, begin_ns (first rank), end_ns (last rank), seconds."""
    frame = steps.groupby("step").agg(
        begin_ns=("begin_ns", "min"), end_ns=("end_ns", "max"), ranks=("rank", "nunique")
    )
    frame = frame[frame["ranks"] == steps["rank"].nunique()].drop(columns="ranks")
    frame["seconds"] = (frame["end_ns"] - frame["begin_ns"]) / 1e9
    return frame.reset_index()
