# SPDX-License-Identifier: Apache-2.0
"""How evenly attention is shared, and what sparse attention left out, as blocks of the page."""

from __future__ import annotations

from cadenza.report.blocks import Figure, Table
from cadenza.report.figures_balance import imbalance_by_layer, sparsity, work_by_stage
from cadenza.study import Study
from cadenza.time.imbalance import DENSE, LEVELS
from cadenza.words import count, counted, number, seconds, share


def balance_blocks(runs: list[tuple[Study, str]]) -> list[Figure | Table]:
    """Of runs with several stages or sparse attention: others have one number, in the overview."""
    blocks: list[Figure | Table] = []
    for study, name in runs:
        found = study.layer_imbalance
        sparse = study.sparsity["sparsity"].max() > DENSE  # False without any
        if found.empty or (found["stages"].max() < 2 and not sparse):
            continue
        blocks += [_levels(study, name), _stages(study, name), _layers(study, name)]
        if sparse:
            blocks += [_left_out(study, name), _by_step(study, name)]
    return blocks


def _levels(study: Study, name: str) -> Table:
    whole = study.layer_imbalance[study.layer_imbalance["layer"] < 0]
    steps = len(study.steady_steps)
    rows = [[str(row["phase"]), str(row["stages"]), seconds(row["mean_seconds"] / steps),
             *(number(row[f"{level}{suffix}"], ".3f") for suffix in ("", "_flops")
               for level in LEVELS)] for row in whole.to_dict("records")]
    columns = ["pass", "stages", "mean rank", "worker", "step level", "lockstep", "worker, FLOPs",
               "step level, FLOPs", "lockstep, FLOPs"]
    return Table(f"{name}: balance of core attention", columns, rows,
                 numbers=set(range(1, len(columns))), wide=True,
                 note="Over layers and steps: sums of the slowest over sums of the mean; of the "
                      "step level, the mean. Mean rank: seconds of a step.")


def _stages(study: Study, name: str) -> Figure:
    title = f"{name}: seconds by rank and stage, step {study.typical_step}"
    return Figure(title, work_by_stage(study)[0])


def _layers(study: Study, name: str) -> Figure:
    return Figure(f"{name}: imbalance by layer", {"": imbalance_by_layer(study)[0]})


def _left_out(study: Study, name: str) -> Table:
    found = study.layer_sparsity
    rows = [["all" if row.layer < 0 else str(row.layer), count(row.flops), count(row.dense_flops),
             share(row.sparsity)] for row in found.itertuples()]
    if found["pipeline"].nunique() > 2:  # -1: all
        for row, stage in zip(rows[1:], found["pipeline"][1:], strict=True):
            row[0] = f"stage {stage}: {row[0]}"
    over = f"sums over {counted(len(study.steady_steps), 'step')}"
    return Table(f"{name}: FLOPs of attention, {over}",
                 ["layer", "computed", "dense", "sparsity"], rows, numbers={1, 2, 3})


def _by_step(study: Study, name: str) -> Figure:
    return Figure(f"{name}: achieved sparsity", sparsity(study)[0])
