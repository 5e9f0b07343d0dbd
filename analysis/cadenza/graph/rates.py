# SPDX-License-Identifier: Apache-2.0
"""What operations and transfers cost: so much for each, and so much for each FLOP (or byte).

FLOPs alone do not tell it: short documents take longer for each FLOP than long ones do, and of
lengths with a heavy tail a step has now these, now those. Both rates are the line with the least
sum of relative deviations, which a minority that is slow does not move (iteratively reweighted
least squares, Schlossmacher, 1973).
"""

from __future__ import annotations

import numpy as np

_ROUNDS = 12
_LEAST = 0.003  # of a row's time: smaller deviations count alike
_VARIES = 0.03  # standard deviation of log(amount / count), from which both rates can be told
_FEWEST = 6  # rows


def rates_of(seconds: np.ndarray, count: np.ndarray, amount: np.ndarray) -> tuple[float, float]:
    """Seconds for each, and for each of the amount; neither is below 0.

    @param seconds, count, amount  sums of operations that are alike
    """
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
