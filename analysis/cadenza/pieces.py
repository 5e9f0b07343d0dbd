# SPDX-License-Identifier: Apache-2.0
"""Events cut into pieces that are one thing each: what shares count and pictures draw."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza import intervals
from cadenza.schema import CATEGORIES, COMMUNICATION
from cadenza.transfers import transfer_begin

_COMMUNICATION = [CATEGORIES.index(name) for name in COMMUNICATION]
_WAIT = CATEGORIES.index("wait")


def lane_pieces(events: pd.DataFrame) -> pd.DataFrame:
    """Pieces of time by what was being done: rank, begin_ns, end_ns, category.

    - Of nested events of a lane the innermost counts; the mark of the whole step is left out.
    - A blocking communication is a wait until its partner is there, then a transfer.
    - A non-blocking one, from post to completion, only holds the time in which data could move:
      what of it blocked the rank is in an explicit wait event.
    """
    events = events[(events["category"] != "step").to_numpy()]
    start = transfer_begin(events)
    begin = events["begin_ns"].to_numpy(np.int64)
    end = events["end_ns"].to_numpy(np.int64)
    ranks = events["rank"].to_numpy(np.int64)
    category = pd.Categorical(events["category"], categories=CATEGORIES).codes.astype(np.int64)
    posted = events["non_blocking"].to_numpy(bool)

    columns = [np.stack([ranks, start, end, category])[:, posted]]
    blocking = np.flatnonzero(~posted)
    lanes = events.iloc[blocking].groupby(["rank", "lane"], sort=False).indices
    for (rank, _), members in lanes.items():
        rows = blocking[members]
        cut, owner = intervals.innermost(begin[rows], end[rows])
        columns += _waits_and_transfers(rank, cut, start[rows[owner]], category[rows[owner]])
    table = np.concatenate(columns, axis=1)
    table = table[:, table[2] > table[1]]
    return pd.DataFrame(
        {
            "rank": table[0],
            "begin_ns": table[1],
            "end_ns": table[2],
            "category": pd.Categorical.from_codes(table[3], categories=pd.Index(CATEGORIES)),
        }
    )


def _waits_and_transfers(
    rank: int, cut: np.ndarray, start: np.ndarray, category: np.ndarray
) -> list[np.ndarray]:
    """Columns (rank, begin, end, category): the waits before transfers, then all the rest."""
    begin, end = cut[:, 0], cut[:, 1]
    middle = np.where(np.isin(category, _COMMUNICATION), np.clip(start, begin, end), begin)
    whose = np.full(len(cut), rank)
    return [
        np.stack([whose, begin, middle, np.full(len(cut), _WAIT)]),
        np.stack([whose, middle, end, category]),
    ]
