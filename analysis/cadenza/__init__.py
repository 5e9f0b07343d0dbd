# SPDX-License-Identifier: Apache-2.0
"""Cadenza's traces as pandas frames, tables and pictures.

>>> import cadenza
>>> run = cadenza.open("runs/quickstart")
>>> shares = cadenza.time_shares(run.events(), run.steps())
>>> cadenza.attention_imbalance(shares, run.ranks())
"""

from cadenza.errors import CadenzaError, DataError, UsageError
from cadenza.run import Run
from cadenza.run import open_run as open  # noqa: A004 - cadenza.open(run) is the way in
from cadenza.shares import (
    attention_imbalance,
    imbalance_over_run,
    planned_imbalance,
    rank_totals,
    step_times,
    time_shares,
)

__all__ = [
    "CadenzaError",
    "DataError",
    "Run",
    "UsageError",
    "attention_imbalance",
    "imbalance_over_run",
    "open",
    "planned_imbalance",
    "rank_totals",
    "step_times",
    "time_shares",
]
