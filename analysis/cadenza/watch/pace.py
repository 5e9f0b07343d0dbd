# SPDX-License-Identifier: Apache-2.0
"""How long operations and transfers usually take (graph/rates.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cadenza.graph.rates import rates_of
from cadenza.watch.step import Sums


class Pace:
    """By row of a feed's operations or links: seconds for each, and for each of its amount."""

    def __init__(self) -> None:
        self._of_each = np.zeros(0)
        self._of_amount = np.zeros(0)

    def learn(self, all_: Sequence[Sums], alike: np.ndarray) -> None:
        """@param all_  of many steps (and ranks)
        @param alike  by row of the feed's list a number: those that are alike have one pace
        """
        parts = [np.concatenate([getattr(one, name) for one in all_])
                 for name in ("what", "seconds", "count", "amount")]
        kind, (_, seconds, count, amount) = alike[parts[0]], parts
        known = seconds > 0
        order = np.flatnonzero(known)[np.argsort(kind[known], kind="stable")]
        begins = np.flatnonzero(np.diff(kind[order], prepend=-1))
        rates = np.full((2, int(alike.max(initial=-1)) + 1), np.nan)
        for rows in np.split(order, begins[1:]) if len(order) else []:
            rates[:, kind[rows[0]]] = rates_of(seconds[rows], count[rows], amount[rows])
        self._of_each, self._of_amount = rates[:, alike]

    def fair(self, sums: Sums) -> np.ndarray:
        """Seconds that each row usually takes; NaN where that was not learnt."""
        known = sums.what < len(self._of_each)
        what = np.where(known, sums.what, 0)
        if not len(self._of_each):
            return np.full(len(what), np.nan)
        found = self._of_each[what] * sums.count + self._of_amount[what] * sums.amount
        return np.where(known & (found > 0), found, np.nan)
