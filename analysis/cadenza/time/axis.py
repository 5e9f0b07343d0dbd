# SPDX-License-Identifier: Apache-2.0
"""All ranks' times one behind the other, so that one union of intervals serves them all."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.time import intervals
from cadenza.errors import DataError

WIDEST = 2**62  # ns, of all ranks' times one behind the other


class OneAxis:
    """`pairs` are the pieces, `begin` and `end` the windows, each shifted by its rank's place."""

    def __init__(self, pieces: pd.DataFrame, windows: pd.DataFrame) -> None:
        """@param pieces, windows  frames with rank, begin_ns, end_ns"""
        times = [frame[name] for frame in (pieces, windows) for name in ("begin_ns", "end_ns")]
        known = [column for column in times if len(column)]
        self._origin = min((int(column.min()) for column in known), default=0)
        last = max((int(column.max()) for column in known), default=0)
        self._span = last - self._origin + 1
        self._ranks = pd.Index(windows["rank"].unique())
        if self._span * (len(self._ranks) + 1) > WIDEST:
            years = self._span / (365 * 86_400 * 10**9)
            raise DataError(f"times of one step lie {years:.1f} years apart: its trace is damaged")
        self.pairs = intervals.make(
            self.shifted(pieces, pieces["begin_ns"]), self.shifted(pieces, pieces["end_ns"])
        )
        self.begin = self.shifted(windows, windows["begin_ns"])
        self.end = self.shifted(windows, windows["end_ns"])

    def shifted(self, frame: pd.DataFrame, times: np.ndarray | pd.Series) -> np.ndarray:
        """Times of the rows of `frame`, whose column `rank` says whose they are."""
        place = self._ranks.get_indexer(frame["rank"])
        place[place < 0] = len(self._ranks)
        return np.asarray(times, np.int64) + (place * self._span - self._origin)
