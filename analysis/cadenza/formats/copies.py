# SPDX-License-Identifier: Apache-2.0
"""Ranks of a tensor group that did the same at the same time, as they do in most simulations.

An export draws them once. A line of JSON takes 3.5 bytes even if all but its thread was written
before, so eight ranks that are drawn alike take three times as much space as one, and eight times
as long to open.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from cadenza.read.partners import alike

_GROUP = ["host", "role", "data", "pipeline", "context"]  # of a tensor group
_OWN = ("rank", "peer", "flow")  # what also copies of events have of their own


def originals(ranks: pd.DataFrame, frames: Iterable[pd.DataFrame]) -> pd.Series:
    """By rank the lowest of `ranks` that did the same.

    @param ranks   rows of Run.ranks()
    @param frames  what ranks did, ordered by rank, as Run.events() has it
    """
    did = pd.Series(np.uint64(0), index=ranks["rank"].to_numpy())
    for frame in frames:
        rank = frame["rank"].to_numpy()
        first = np.flatnonzero(np.diff(rank, prepend=-1))
        rows = alike(*(frame[name] for name in frame if name not in _OWN))
        sums = pd.Series(np.add.reduceat(rows, first), index=rank[first])
        did += sums.reindex(did.index, fill_value=np.uint64(0))
    groups = ranks.assign(did=did.to_numpy()).groupby([*_GROUP, "did"])
    return pd.Series(groups["rank"].transform("min").to_numpy(), index=did.index)
