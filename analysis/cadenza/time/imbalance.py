# SPDX-License-Identifier: Apache-2.0
"""How evenly core attention is spread over the ranks that serve it, measured and planned."""

from __future__ import annotations

import numpy as np
import pandas as pd


def serving_ranks(parts: pd.DataFrame, ranks: pd.DataFrame) -> list[int]:
    """Ranks that compute core attention: members of the pool; where none is marked, all ranks."""
    marked = ranks[(ranks["server"] >= 0) | (ranks["role"] != "trainer")]["rank"]
    if marked.empty:
        return sorted(int(rank) for rank in ranks["rank"])
    seen = parts.loc[parts["compute_attention"] > 0, "rank"]
    return sorted({int(rank) for rank in marked} | {int(rank) for rank in seen})


def attention_imbalance(parts: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """Busy attention time over the serving ranks, for steps that all of them completed.

    @param parts  of time_parts()
    @returns step, max and mean in seconds, imbalance = max / mean (NaN without attention), slowest
    """
    serving = serving_ranks(parts, ranks)
    table = parts[parts["rank"].isin(serving)].pivot(
        index="step", columns="rank", values="compute_attention"
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


def layer_shares(plans: pd.DataFrame) -> pd.Series:
    """The share of the model's layers that each row of run.plans() or run.plan_summary() is for:
    weighted by it, the plans of a tick are those of a layer, the mean of all."""
    layers = plans["layers"].clip(lower=1)  # older files do not say: one plan was for all
    classes = plans.assign(layers=layers).drop_duplicates(["step", "layer_class"])
    return layers / plans["step"].map(classes.groupby("step")["layers"].sum())


def planned_imbalance(plans: pd.DataFrame, servers: int) -> pd.DataFrame:
    """What the plan promised: step, imbalance = max / mean of planned cost over `servers` ranks."""
    plans = plans.assign(cost=plans["cost"] * layer_shares(plans))
    cost = plans.groupby(["step", "server"])["cost"].sum().groupby("step")
    mean = cost.sum() / max(servers, 1)
    return (cost.max() / mean).where(mean > 0).rename("imbalance").reset_index()
