# SPDX-License-Identifier: Apache-2.0
"""How evenly core attention is spread over the ranks that serve it, measured and planned.

Of a layer in one pass, F[r, t] is the work of rank r in stage t. MTraining (arXiv 2510.18830)
measures its balance between workers and between steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from cadenza.read.columns import one_of, rows_of

PASS = ["step", "tick", "pipeline", "layer", "phase"]  # what ranks wait for one another in
LEVELS = ("worker", "step_level", "lockstep")
_MEASURES = {"seconds": "", "flops": "_flops"}  # suffixes of columns
_INDEX = "estimate"  # events that make the index of sparse attention
DENSE = 1e-6  # sparsity: less is left over from rounding


def worker_imbalance(work: np.ndarray) -> np.ndarray:
    """The largest over the mean of the ranks' sums.

    @param work  F, [..., ranks, stages]
    """
    sums = work.sum(axis=-1)
    return _ratio(sums.max(axis=-1), sums.mean(axis=-1))


def step_imbalance(work: np.ndarray) -> np.ndarray:
    """The largest over the mean of a rank's stages, of the rank where that is largest: how much
    less its short stages can hide of the transfers. Stages in which no rank works do not count.

    @param work  F, [..., ranks, stages]
    """
    stages = (work.max(axis=-2) > 0).sum(axis=-1)
    ratio = _ratio(work.max(axis=-1) * stages[..., None], work.sum(axis=-1))
    return np.where(np.isnan(ratio).all(axis=-1), np.nan, np.nan_to_num(ratio).max(axis=-1))


def lockstep_imbalance(work: np.ndarray) -> np.ndarray:
    """What the ranks would take if they waited for one another after every stage, over the mean of
    what they work.

    @param work  F, [..., ranks, stages]
    """
    return _ratio(work.max(axis=-2).sum(axis=-1), work.mean(axis=-2).sum(axis=-1))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """NaN where nothing is below."""
    return np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below > 0)


def serving_ranks(ranks: pd.DataFrame) -> list[int]:
    """Ranks that compute core attention: members of the pool; where none is marked, all ranks."""
    marked = ranks[(ranks["server"] >= 0) | (ranks["role"] != "trainer")]["rank"]
    return sorted(int(rank) for rank in (ranks["rank"] if marked.empty else marked))


def pipelines_of(ranks: pd.DataFrame, config: dict) -> pd.Series:
    """By serving rank: the pipeline stage whose layers it computes, or 0 where servers compute the
    layers of all stages at once (schedule phase_aligned) or there is one stage."""
    shared = config.get("parallel", {}).get("schedule") == "phase_aligned"
    stage = ranks.set_index("rank")["pipeline"].reindex(serving_ranks(ranks))
    return stage * 0 if shared else stage.clip(lower=0)


def stage_work(events: pd.DataFrame, pipelines: pd.Series) -> pd.DataFrame:
    """The cells of F that are not empty: PASS, rank, stage, seconds, flops.

    The index of sparse attention is made before the first stage and counts as a part of it, where
    servers make it: what trainers beside dedicated servers do for it is left out. In ping-pong the
    stages of the second half follow those of the first.

    @param pipelines  pipelines_of()
    """
    serves = events["rank"].isin(pipelines.index).to_numpy()
    chosen = np.flatnonzero(one_of(events["category"], "compute_attention") & serves)
    columns = ["rank", "step", "tick", "layer", "phase", "half", "stage", "name", "begin_ns",
               "end_ns", "flops"]
    rows = rows_of(events, chosen, columns)
    stage = np.where(one_of(rows["name"], _INDEX), 0, rows["stage"].clip(lower=0))
    rows["stage"] = stage + rows["half"].clip(lower=0) * (stage.max(initial=0) + 1)
    rows["seconds"] = (rows["end_ns"] - rows["begin_ns"]) / 1e9
    rows["pipeline"] = pipelines.reindex(rows["rank"]).to_numpy(np.int64)
    keys = [*PASS, "rank", "stage"]
    return rows.groupby(keys, as_index=False, observed=True)[list(_MEASURES)].sum()


def pass_imbalance(work: pd.DataFrame, pipelines: pd.Series) -> pd.DataFrame:
    """The balance of every layer and pass.

    @param work       stage_work()
    @param pipelines  pipelines_of()
    @returns PASS, ranks, stages, mean_seconds (of the ranks), LEVELS by seconds, mean_flops, LEVELS
             by FLOPs (with `_flops`)
    """
    found = [_of_ranks(mine, pipelines.index[pipelines == number])
             for number, mine in work.groupby("pipeline")]
    columns = [f"{name}{suffix}" for suffix in _MEASURES.values() for name in LEVELS]
    empty = pd.DataFrame(columns=[*PASS, "ranks", "stages", "mean_seconds", "mean_flops", *columns])
    return pd.concat(found, ignore_index=True) if found else empty


def _of_ranks(work: pd.DataFrame, ranks: pd.Index) -> pd.DataFrame:
    groups = work.groupby(PASS, observed=True)
    number = groups.ngroup().to_numpy()
    frame = groups.size().index.to_frame(index=False)
    shape = (len(frame), len(ranks), int(work["stage"].max()) + 1)
    frame["ranks"] = len(ranks)
    for measure, suffix in _MEASURES.items():
        cells = np.zeros(shape)
        cells[number, ranks.get_indexer(work["rank"]), work["stage"]] = work[measure]
        if measure == "seconds":
            frame["stages"] = (cells.max(axis=1) > 0).sum(axis=1)
        frame[f"mean_{measure}"] = cells.sum(axis=2).mean(axis=1)
        frame[f"worker{suffix}"] = worker_imbalance(cells)
        frame[f"step_level{suffix}"] = step_imbalance(cells)
        frame[f"lockstep{suffix}"] = lockstep_imbalance(cells)
    return frame


def over_passes(passes: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Passes together: of worker and lockstep, the sum of the slowest over the sum of the means; of
    the step level, the mean.

    @param passes  pass_imbalance()
    @param by      columns of PASS
    @returns by, passes, stages (at most), mean_seconds, mean_flops (sums), LEVELS of both measures
    """
    sums = passes[[*by, "stages"]].assign(passes=1)
    kinds = {"passes": "sum", "stages": "max"}
    for measure, suffix in _MEASURES.items():
        sums[f"mean_{measure}"] = passes[f"mean_{measure}"]
        for name in ("worker", "lockstep"):
            sums[name + suffix] = passes[name + suffix] * passes[f"mean_{measure}"]
        sums[f"step_level{suffix}"] = passes[f"step_level{suffix}"]
        kinds |= {f"mean_{measure}": "sum", f"worker{suffix}": "sum",
                  f"step_level{suffix}": "mean", f"lockstep{suffix}": "sum"}
    found = sums.groupby(list(by), as_index=False, observed=True).agg(kinds)
    for measure, suffix in _MEASURES.items():
        for name in ("worker", "lockstep"):
            mean = found[f"mean_{measure}"]
            found[name + suffix] = (found[name + suffix] / mean).where(mean > 0)
    return found


def attention_sparsity(
    passes: pd.DataFrame, steps: pd.DataFrame, by: Sequence[str]
) -> pd.DataFrame:
    """Which share of the FLOPs of dense attention was left out, after rounding to blocks.

    @param passes  pass_imbalance()
    @param steps   Run.steps()
    @param by      `step`, or `step` and what of a layer: `pipeline`, `layer`
    @returns by, flops (computed, all ranks and passes), dense_flops, sparsity; without rows where
             there is no attention
    """
    flops = (passes["mean_flops"] * passes["ranks"]).rename("flops")
    found = passes[list(by)].assign(flops=flops).groupby(list(by), as_index=False).sum()
    dense = steps.groupby("step")["dense_attention_flops"].max()
    layers = found.groupby("step")["flops"].transform("size")  # all take the same
    found["dense_flops"] = found["step"].map(dense) / layers
    # Where nothing was left out, layers may have masks of their own (attention.layers).
    all_layers = found.groupby("step")["flops"].transform("sum")
    whole = np.isclose(all_layers, found["step"].map(dense), rtol=1e-9)
    found["dense_flops"] = found["dense_flops"].mask(whole, found["flops"])
    found = found[found["dense_flops"] > 0].reset_index(drop=True)
    return found.assign(sparsity=1 - found["flops"] / found["dense_flops"])


def attention_imbalance(parts: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """Busy attention time over the serving ranks, for steps that all of them completed.

    @param parts  of time_parts()
    @returns step, max and mean in seconds, imbalance = max / mean (NaN without attention), slowest
    """
    serving = serving_ranks(ranks)
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
    classes = plans.drop_duplicates(["step", "layer_class"])
    return plans["layers"] / plans["step"].map(classes.groupby("step")["layers"].sum())


def planned_imbalance(plans: pd.DataFrame, servers: int) -> pd.DataFrame:
    """What the plan promised: step, imbalance = max / mean of planned cost over `servers` ranks."""
    plans = plans.assign(cost=plans["cost"] * layer_shares(plans))
    cost = plans.groupby(["step", "server"])["cost"].sum().groupby("step")
    mean = cost.sum() / max(servers, 1)
    return (cost.max() / mean).where(mean > 0).rename("imbalance").reset_index()
