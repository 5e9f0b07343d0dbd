# SPDX-License-Identifier: Apache-2.0
"""The facts of a run as plain values: what `summary` prints, the report shows, `--json` writes."""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

import pandas as pd

from cadenza import facts
from cadenza.checks import Finding
from cadenza.errors import DataError
from cadenza.time.between import CAUSES
from cadenza.time.imbalance import imbalance_over_run, planned_imbalance, serving_ranks
from cadenza.time.parts import PARTS
from cadenza.words import byte_count, counted

if TYPE_CHECKING:
    from cadenza.read.run import Run
    from cadenza.study import Study

_FRAMES = ("parts", "attention_passes", "outside", "findings")  # that need events
_WORTH = 0.01  # of wall time: less between steps is not worth a sentence


def summarize(study: Study) -> dict:
    """Facts of a run and one entry per rank. Unknown values are None."""
    run = study.run
    if study.step_times.empty:
        raise DataError(f"{run.path}: no complete step in the trace")
    study.prepare(_FRAMES)
    metrics = study.metrics
    steady = study.steady(metrics) if len(metrics) else metrics
    missing = [] if study.has_events else [f"{run.path}: no events in the trace"]
    return {
        **identity(run),
        "imported": imported(run),
        "ranks": len(study.ranks),
        "world": run.world,
        "steps": len(study.step_times),
        "truncated": run.truncated,
        "step_seconds": finite(study.median_seconds),
        "mean_step_seconds": finite(study.seconds),
        "steady_steps": len(study.steady_steps),
        "tokens_per_second": _median(steady, "tokens_per_second"),
        "goodput": finite(study.goodput),
        "start_up": _start_up(run),
        "between_steps": between_steps(study),
        "model_flops_utilization": _median(steady, "model_flops_utilization"),
        **_losses(study),
        "attention_imbalance": _imbalance(study),
        "attention_sparsity": _sparsity(study),
        "attention_kernels": _kernels(study),
        "memory": memory_need(study),
        "per_rank": _per_rank(study),
        "findings": [asdict(finding) for finding in study.findings],
        "worst_finding": worst_finding(study.findings),
        "warnings": run.warnings + missing + _beyond_memory(study) + _clocks(study),
    }


def identity(run: Run) -> dict:
    """What a run is, without a look at its steps."""
    attention = run.config.get("attention", {})
    return {
        "path": str(run.path),
        "name": run.name,
        "placement": attention.get("placement"),
        "servers": attention.get("servers"),
        **{key: run.info.get(key) for key in ("producer", "run_id", "code_version",
                                              "code_revision", "build", "seed", "created_utc")},
    }


def imported(run: Run) -> dict | None:
    """Of an imported run: which sources its files are of (`from`), what a `step` is, sentences
    about what they cannot tell (`cannot_tell`), whether all waits are recorded (`whole`), and by
    how much its clocks were off at most before they were aligned (`offset_seconds`, `drift_ppm`).
    None for a run of Cadenza's own."""
    found = run.config.get("imported")
    if run.info["producer"] != "importer" or not isinstance(found, dict):
        return None
    clocks = found.get("clocks")
    clocks = [one for one in clocks.values() if isinstance(one, dict)] \
        if isinstance(clocks, dict) else []

    def most(key: str) -> float:
        return max((abs(finite(one.get(key)) or 0.0) for one in clocks), default=0.0)

    return {**{key: [str(one) for one in found.get(key) or ()] for key in ("from", "cannot_tell")},
            "step": str(found.get("step", "")), "whole": found.get("whole") is not False,
            "offset_seconds": most("offset_ns") / 1e9, "drift_ppm": most("drift_ppm")}


def labels(runs: list[dict]) -> list[str]:
    """The shortest thing that tells runs apart, by identity(): placement, name, producer or
    folder, from where folders differ."""
    for key in ("placement", "name", "producer"):
        found = [str(run[key]) for run in runs]
        told = all(run[key] is not None for run in runs)
        if told and len(set(found)) == len(found):
            return found
    paths = [run["path"] for run in runs]
    folders = [os.path.abspath(path) for path in paths]
    common = os.path.commonpath(folders)
    return paths if common in folders else [os.path.relpath(one, common) for one in folders]


def _imbalance(study: Study) -> dict:
    names = ("median", "run", "by_layer", "planned")
    result: dict[str, float | None] = dict.fromkeys(names)
    if not study.has_events:
        return result
    measured = imbalance_over_run(study.steady(study.imbalance)).iloc[0]
    result.update(median=finite(measured["median"]), run=finite(measured["run"]),
                  by_layer=finite(study.run_imbalance["worker"].max()))
    plans = study.run.plans()
    if not plans.empty:
        plans = study.steady(plans)
        planned = planned_imbalance(plans, len(serving_ranks(study.ranks)))
        result["planned"] = finite(planned["imbalance"].median())
    return result


def _sparsity(study: Study) -> dict:
    """Share of the FLOPs of dense attention that was left out, in the steady steps, and both FLOPs
    of a step."""
    found = study.steady(study.sparsity) if study.has_events else pd.DataFrame()
    if found.empty:
        return {"left_out": None, "flops": None, "dense_flops": None}
    flops, dense = found["flops"].mean(), found["dense_flops"].mean()
    return {"left_out": finite(1 - flops / dense), "flops": finite(flops),
            "dense_flops": finite(dense)}


def memory_need(study: Study) -> dict[str, int | None]:
    """Highest bytes of a rank, on which rank, and how many ranks need more than the machine of a
    simulated run has."""
    peaks = study.peak_memory
    if peaks.empty:
        return {"largest_bytes": None, "rank": None, "limit_bytes": None, "ranks_beyond": 0}
    limit = study.run.machine.memory if study.run.machine is not None else 0
    beyond = int((peaks > limit).sum()) if limit else 0
    return {"largest_bytes": int(peaks.max()), "rank": int(peaks.idxmax()),
            "limit_bytes": limit or None, "ranks_beyond": beyond}


def out_of_memory(study: Study) -> str:
    """A sentence where the run would not fit into its machine's memory, else an empty one."""
    need = memory_need(study)
    if not need["ranks_beyond"]:
        return ""
    ranks = f"{need['ranks_beyond']} of {counted(len(study.ranks), 'rank')}"
    return (f"The run does not fit in memory: {ranks} need more than the "
            f"{byte_count(need['limit_bytes'])} that each has; rank {need['rank']} needs "
            f"{byte_count(need['largest_bytes'])}.")


def _start_up(run: Run) -> dict:
    """Seconds from when the first process began to the first step, and by how much later than it
    the last one did; None in simulated runs."""
    found = run.start_up().set_index("rank")["seconds"].dropna()
    if found.empty:
        return {"seconds": None, "last_rank": None, "last_began_after": None}
    return {"seconds": float(found.max()), "last_rank": int(found.idxmin()),
            "last_began_after": float(found.max() - found.min())}


def between_steps(study: Study) -> dict:
    """Of the time from the first steady step's begin to the last one's end, mean over ranks: the
    share between steps, and seconds by cause."""
    means = study.steady_between[["window", *CAUSES]].sum() / len(study.ranks) / 1e9
    wall = study.wall_seconds
    return {"wall_seconds": finite(wall), "seconds": float(means["window"]),
            "share": finite(means["window"] / wall) if wall > 0 else None,
            "causes": {cause: float(means[cause]) for cause in CAUSES}}


def between_steps_said(study: Study) -> str:
    """A sentence where ranks spend so much time between steps that it matters, else none."""
    found = between_steps(study)
    if (found["share"] or 0.0) < _WORTH:
        return ""
    return f"{facts.between_said(found, ' lies between steps')}."


def worst_finding(found: list[Finding]) -> str:
    """The finding that is there most often; nothing for a sound trace."""
    return str(max(found, key=lambda one: one.count)) if found else ""


def _clocks(study: Study) -> list[str]:
    return [f"{study.run.path}: clock of rank {one.rank} {one.what}"
            for one in study.run.wrong_clocks]


def _beyond_memory(study: Study) -> list[str]:
    said = out_of_memory(study)
    return [f"{study.run.path}: {said[:1].lower()}{said[1:-1]}"] if said else []


def _kernels(study: Study) -> dict[str, int]:
    """Ranks by what computed their attention, most first; empty where the trace does not say."""
    said = study.ranks["attention_kernel"]
    return {str(name): int(count) for name, count in said[said != ""].value_counts().items()}


def _per_rank(study: Study) -> list[dict]:
    # A trace without events knows windows, but not what happened in them.
    totals = study.totals.set_index("rank").to_dict("index") if study.has_events else {}
    peaks = study.peak_memory.to_dict()
    between = study.steady_between.groupby("rank")[["window", *CAUSES]].sum() / 1e9
    rows = []
    for rank, role in study.ranks[["rank", "role"]].itertuples(index=False):
        mine = totals.get(rank, {})
        row: dict = {"rank": int(rank), "role": role}
        for name in ("window", *PARTS):
            row[f"{name}_seconds"] = finite(mine.get(name))
        row["between_seconds"] = finite(between["window"].get(rank, 0.0))
        for name in CAUSES:
            row[f"between_{name}_seconds"] = finite(between[name].get(rank, 0.0))
        row["busy_share"] = finite(mine.get("busy_share"))
        row["peak_memory_bytes"] = int(peaks[rank]) if rank in peaks else None
        rows.append(row)
    return rows


def finite(value: object) -> float | None:
    """The number, or None for what is none, NaN or infinite: JSON has no word for these."""
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
    return finite(_column(metrics, name).median())


def _losses(study: Study) -> dict[str, float | None]:
    """Of the first and the last step, and validation; of an evaluation, whose steps have one model,
    of all."""
    if study.run.info["producer"] == "evaluator":
        sums = study.run.positions()[["loss", "targets"]].sum()
        return dict.fromkeys(("loss_first", "loss_last"),
                             finite(sums["loss"] / max(sums["targets"], 1)))
    return {f"{name}_{place}": _end(study.metrics, name, index)
            for name in ("loss", "validation_loss")
            for place, index in (("first", 0), ("last", -1))}


def _end(metrics: pd.DataFrame, name: str, index: int) -> float | None:
    column = _column(metrics, name)
    return finite(column.iloc[index]) if len(column) else None
