# SPDX-License-Identifier: Apache-2.0
"""When ranks waited, and what for: the spans whose lengths time_parts() adds up."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.read.columns import one_of
from cadenza.time import intervals
from cadenza.time.axis import WIDEST, OneAxis
from cadenza.time.pieces import PARTS

WAITS = ("no_core", "attention_wait", "pipeline_bubble", "tensor_parallel_wait",
         "data_parallel_wait", "host_gap")


def wait_spans(pieces: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Spans within a rank's step in which it waits and no part counts before that.

    @param pieces  lane_pieces() of one step
    @param steps   the rows of that step, of the ranks that are wanted
    @returns rank, part (of WAITS), begin_ns, end_ns: of a rank, no two overlap
    """
    pieces = pieces[~pieces["in_flight"].to_numpy()]
    axis = OneAxis(pieces, steps)
    before = np.concatenate([[-WIDEST], axis.end])
    covered = intervals.union(intervals.make(before, np.append(axis.begin, WIDEST)))
    found = []
    for part in PARTS[: PARTS.index(WAITS[-1]) + 1]:
        mine = intervals.union(axis.pairs[one_of(pieces["part"], part)])
        if part in WAITS:
            found.append(intervals.outside(mine, covered)[0])
        covered = intervals.union(covered, mine)
    spans = np.concatenate(found)
    row = np.searchsorted(axis.begin, spans[:, 0], side="right") - 1
    spans = spans + (steps["begin_ns"].to_numpy(np.int64) - axis.begin)[row][:, None]
    return pd.DataFrame({
        "rank": steps["rank"].to_numpy(np.int64)[row],
        "part": np.repeat(np.array(WAITS, object), [len(pairs) for pairs in found]),
        "begin_ns": spans[:, 0],
        "end_ns": spans[:, 1],
    })
