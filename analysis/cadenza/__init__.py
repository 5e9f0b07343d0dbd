# SPDX-License-Identifier: Apache-2.0
"""Cadenza's traces as pandas frames, and what follows from them.

>>> import cadenza
>>> run = cadenza.open("runs/quickstart")
>>> run.events(steps=[3]).groupby("name")["flops"].sum()
>>> study = cadenza.Study(run)
>>> study.parts, study.verdicts, study.what_if(), study.critical_path()
"""

from cadenza.time.bubbles import pipeline_bubbles
from cadenza.checks import check
from cadenza.comparison import compare, step_time_ratio, waterfall
from cadenza.graph.critical_path import critical_path
from cadenza.time.efficiency import efficiencies, utilization
from cadenza.errors import CadenzaError, DamagedError, DataError, UsageError
from cadenza.formats.export import export
from cadenza.graph.graph import build as step_graph
from cadenza.time.imbalance import (
    attention_imbalance, attention_sparsity, imbalance_over_run, lockstep_imbalance, over_passes,
    pass_imbalance, planned_imbalance, stage_work, step_imbalance, worker_imbalance,
)
from cadenza.time.memory import divergence, growth
from cadenza.time.parts import PARTS, rank_totals, step_times, time_parts
from cadenza.time.roofline import attention_tasks
from cadenza.positions import by_depth, by_distance, by_position
from cadenza.read.run import Run
from cadenza.opening import open_run as open  # noqa: A004 - cadenza.open(run) is the way in
from cadenza.causes.stragglers import stragglers
from cadenza.study import Study
from cadenza.summary import summarize
from cadenza.causes.what_if import what_if

__all__ = [
    "PARTS",
    "CadenzaError",
    "DamagedError",
    "DataError",
    "Run",
    "Study",
    "UsageError",
    "attention_imbalance",
    "attention_sparsity",
    "attention_tasks",
    "by_depth",
    "by_distance",
    "by_position",
    "check",
    "compare",
    "critical_path",
    "divergence",
    "efficiencies",
    "export",
    "growth",
    "imbalance_over_run",
    "lockstep_imbalance",
    "open",
    "over_passes",
    "pass_imbalance",
    "pipeline_bubbles",
    "planned_imbalance",
    "rank_totals",
    "stage_work",
    "step_graph",
    "step_imbalance",
    "step_time_ratio",
    "step_times",
    "stragglers",
    "summarize",
    "time_parts",
    "utilization",
    "waterfall",
    "what_if",
    "worker_imbalance",
]
