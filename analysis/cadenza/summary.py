# SPDX-License-Identifier: Apache-2.0
"""The facts of one or more runs as plain values: what `summary` prints and `--json` writes."""

from __future__ import annotations

import math

import pandas as pd

from cadenza import shares as sh
from cadenza.errors import DataError
from cadenza.run import Run


def summarize(run: Run) -> dict:
    """Facts of a run and one entry per rank. Unknown values are None."""
    steps = run.steps()
    times = sh.step_times(steps) if len(steps) else pd.DataFrame()
    if times.empty:
        raise DataError(f"{run.path}: no complete step in the trace")
    ranks, metrics, config = run.ranks(), run.metrics(), run.config
    events = run.events()
    # A trace without events knows windows, but not what happened in them.
    shares = None if events.empty else sh.time_shares(events, steps)
    attention = _section(config, "attention")
    return {
        "path": str(run.path),
        "name": str(config.get("name", run.path.name)),
        "placement": attention.get("placement"),
        "servers": attention.get("servers"),
        "ranks": len(ranks),
        "world": run.world,
        "steps": len(times),
        "truncated": run.truncated,
        "step_seconds": _number(times["seconds"].median()),
        "tokens_per_second": _median(metrics, "tokens_per_second"),
        "model_flops_utilization": _median(metrics, "model_flops_utilization"),
        "loss_first": _end(metrics, "loss", 0),
        "loss_last": _end(metrics, "loss", -1),
        "attention_imbalance": _imbalance(run.plans(), shares, ranks),
        "per_rank": _per_rank(run.memory(), shares, ranks),
        "warnings": run.warnings
        + ([] if shares is not None else [f"{run.path}: no events in the trace"]),
    }


def compare(summaries: list[dict]) -> list[dict]:
    """Each run beside the first: step time as a ratio, imbalances as they are."""
    first = summaries[0]["step_seconds"]
    return [
        {
            "label": label,
            "step_seconds": s["step_seconds"],
            "step_time_ratio": s["step_seconds"] / first if first else None,
            "attention_imbalance": s["attention_imbalance"]["median"],
        }
        for label, s in zip(labels(summaries), summaries, strict=True)
    ]


def labels(summaries: list[dict]) -> list[str]:
    """The shortest thing that tells the runs apart: placement, name, or folder."""
    for key in ("placement", "name"):
        found = [str(s[key]) for s in summaries]
        if len(set(found)) == len(found):
            return found
    return [s["path"] for s in summaries]


def _section(config: dict, key: str) -> dict:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _imbalance(plans: pd.DataFrame, shares: pd.DataFrame | None, ranks: pd.DataFrame) -> dict:
    result: dict[str, float | None] = {"median": None, "run": None, "planned": None}
    if shares is None:
        return result
    measured = sh.imbalance_over_run(sh.attention_imbalance(shares, ranks)).iloc[0]
    result.update(median=_number(measured["median"]), run=_number(measured["run"]))
    if not plans.empty:
        planned = sh.planned_imbalance(plans, len(sh.serving_ranks(shares, ranks)))
        result["planned"] = _number(planned["imbalance"].median())
    return result


def _per_rank(memory: pd.DataFrame, shares: pd.DataFrame | None, ranks: pd.DataFrame) -> list[dict]:
    totals = {} if shares is None else sh.rank_totals(shares).set_index("rank").to_dict("index")
    peaks = {}
    if not memory.empty:
        peaks = memory[memory["kind"] == "total"].groupby("rank")["peak_bytes"].max().to_dict()
    rows = []
    for rank, role in ranks[["rank", "role"]].itertuples(index=False):
        mine = totals.get(rank, {})
        row: dict = {"rank": int(rank), "role": role}
        for name in ("window", *sh.SHARES):
            row[f"{name}_seconds"] = _number(mine.get(name))
        row["busy_share"] = _number(mine.get("busy_share"))
        row["peak_memory_bytes"] = int(peaks[rank]) if rank in peaks else None
        rows.append(row)
    return rows


def _number(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _column(metrics: pd.DataFrame, name: str) -> pd.Series:
    if name not in metrics:
        return pd.Series(dtype=float)
    return pd.to_numeric(metrics[name], errors="coerce").dropna()


def _median(metrics: pd.DataFrame, name: str) -> float | None:
    return _number(_column(metrics, name).median())


def _end(metrics: pd.DataFrame, name: str, index: int) -> float | None:
    column = _column(metrics, name)
    return _number(column.iloc[index]) if len(column) else None
