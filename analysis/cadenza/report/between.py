# SPDX-License-Identifier: Apache-2.0
"""The page's table of what ranks do between steps."""

from __future__ import annotations

from cadenza.report.blocks import Table
from cadenza.report.places import places
from cadenza.study import Study
from cadenza.summary import between_steps_said
from cadenza.time.between import CAUSE_NAMES, CAUSES
from cadenza.words import counted, seconds

_RANKS = 16  # those with the most time between steps


def between_table(study: Study, name: str) -> Table | None:
    """Seconds by rank and cause; None where too little time passes between steps to matter."""
    said = between_steps_said(study)
    if not said:
        return None
    sums = study.steady_between.groupby("rank")[["window", *CAUSES]].sum() / 1e9
    causes = [cause for cause in CAUSES if sums[cause].any()]
    shown = sums.nlargest(_RANKS, "window").sort_index()
    where = places(study)
    rows = [[str(rank), where[rank], *(seconds(row[cause]) for cause in ("window", *causes))]
            for rank, row in shown.iterrows()]
    more = f" Of {len(sums)} ranks those with the most time." if len(sums) > len(shown) else ""
    return Table(f"{name}: between {counted(len(study.steady_steps), 'step')}",
                 ["rank", "where", "all", *(CAUSE_NAMES[cause] for cause in causes)], rows,
                 numbers={0, *range(2, len(causes) + 3)}, note=said + more)
