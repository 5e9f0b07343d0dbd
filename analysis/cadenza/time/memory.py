# SPDX-License-Identifier: Apache-2.0
"""Memory of ranks against each other, and over the steps."""

from __future__ import annotations

import numpy as np
import pandas as pd

_FEWEST_STEPS = 10  # a slope over fewer says nothing about a leak
_WARM_UP = 2  # steps in which buffers still grow


def divergence(memory: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """How differently ranks of the same role use memory, at each step's high-water mark.

    @param memory  Run.memory()
    @returns step, role, kind (or `total`), max_bytes, mean_bytes, divergence = max / mean,
             max_over_median, rank (the one that has the most); kinds that nobody uses are left out
    """
    columns = ["step", "role", "kind", "max_bytes", "mean_bytes", "divergence",
               "max_over_median", "rank"]
    if memory.empty:
        return pd.DataFrame(columns=columns)
    frame = memory.assign(role=memory["rank"].map(ranks.set_index("rank")["role"]))
    frame = frame.reset_index(drop=True)
    group = frame.groupby(["step", "role", "kind"], observed=True)["peak_bytes"]
    found = pd.DataFrame(
        {"max_bytes": group.max(), "mean_bytes": group.mean(), "median": group.median()}
    )
    found["rank"] = frame.loc[group.idxmax(), "rank"].to_numpy()
    found = found[found["max_bytes"] > 0].reset_index()
    found["divergence"] = found["max_bytes"] / found["mean_bytes"]
    found["max_over_median"] = (found["max_bytes"] / found["median"]).where(found["median"] > 0)
    return found[columns]


def growth(memory: pd.DataFrame) -> pd.DataFrame:
    """The trend of each rank's high-water marks over the steps, after two of warm-up.

    @param memory  Run.memory()
    @returns rank, kind (or `total`), steps (used), bytes_per_step (slope of the least-squares
             line), r_squared, leak: whether it rises over 10 steps or more with R^2 > 0.9
    """
    columns = ["rank", "kind", "steps", "bytes_per_step", "r_squared", "leak"]
    if memory.empty:
        return pd.DataFrame(columns=columns)
    table = memory.pivot(index="step", columns=["rank", "kind"], values="peak_bytes").sort_index()
    table = table.iloc[_WARM_UP:] if len(table) > _WARM_UP + 1 else table
    steps = table.index.to_numpy(float)
    x = steps - steps.mean()
    y = table.to_numpy(float) - table.mean().to_numpy()
    y[np.isnan(y)] = 0.0
    slope = x @ y / max(x @ x, 1e-300)
    total = (y * y).sum(axis=0)
    explained = slope**2 * (x @ x)
    r_squared = np.divide(explained, total, out=np.zeros_like(total), where=total > 0)
    frame = table.columns.to_frame(index=False)
    frame["steps"] = len(table)
    frame["bytes_per_step"] = slope
    frame["r_squared"] = r_squared
    frame["leak"] = (slope > 0) & (r_squared > 0.9) & (len(table) >= _FEWEST_STEPS)
    return frame[columns]
