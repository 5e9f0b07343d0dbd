# SPDX-License-Identifier: Apache-2.0
"""How long operations and transfers usually take: so much for each, and so much for each FLOP (or
byte).

FLOPs alone do not tell it: short documents take longer for each FLOP than long ones do, and of
lengths with a heavy tail a step has now these, now those. Both rates are the line with the least
sum of relative deviations, which a minority that is slow does not move (iteratively reweighted
least squares, Schlossmacher, 1973).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cadenza.watch.step import Sums

_ROUNDS = 12
_LEAST = 0.003  # of a row's time: smaller deviations count alike
_VARIES = 0.03  # standard deviation of log(amount / count), from which both rates can be told
_FEWEST = 6  # rows


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
            rates[:, kind[rows[0]]] = _rates(seconds[rows], count[rows], amount[rows])
        self._of_each, self._of_amount = rates[:, alike]

    def fair(self, sums: Sums) -> np.ndarray:
        """Seconds that each row usually takes; NaN where that was not learnt."""
        known = sums.what < len(self._of_each)
        what = np.where(known, sums.what, 0)
        if not len(self._of_each):
            return np.full(len(what), np.nan)
        found = self._of_each[what] * sums.count + self._of_amount[what] * sums.amount
        return np.where(known & (found > 0), found, np.nan)


def _rates(seconds: np.ndarray, count: np.ndarray, amount: np.ndarray) -> tuple[float, float]:
    """Seconds for each, and for each of the amount; neither is below 0."""
    counted = amount > 0
    if not counted.all():
        return float(np.median(seconds / count)), 0.0
    each = amount / count
    if len(each) >= _FEWEST and np.log(each).std() > _VARIES:
        scale = each.mean()
        parts = np.stack([count, amount / scale], axis=1) / seconds[:, None]
        rates = _least_absolute(parts)
        if (rates >= 0).all():
            return float(rates[0]), float(rates[1] / scale)
        if rates[1] < 0:
            return float(np.median(seconds / count)), 0.0
    return 0.0, float(np.median(seconds / amount))


def _least_absolute(parts: np.ndarray) -> np.ndarray:
    """Rates for which the rows' sums deviate least from 1."""
    weight = np.ones(len(parts))
    for _ in range(_ROUNDS):
        weighted = parts * weight[:, None]
        matrix = weighted.T @ parts
        if np.linalg.cond(matrix) > 1e12:
            return np.array([-1.0, 1.0])
        rates = np.linalg.solve(matrix, weighted.sum(axis=0))
        weight = 1 / np.maximum(np.abs(parts @ rates - 1), _LEAST)
    return rates
