# SPDX-License-Identifier: Apache-2.0
"""Times of equal steps of two runs: their ratio, its interval, and what that says."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

LEAST = 8  # pairs of steps: with fewer one outlier decides
_SHARE = 0.95  # of the intervals
_ROUNDING = 1e-9  # of runs without noise: steps are whole nanoseconds


def paired_ratio(first: np.ndarray, other: np.ndarray) -> dict:
    """How many times as long a typical step takes in `other`: steps in pairs of equal documents.

    The ratio is the exponential of the mean of log(other / first), its interval Student's t
    interval of that mean. Noise is a share of a step, and steps have documents of very different
    lengths: seconds differ by the step, logs of ratios do not. Of equal runs of 8, 19 or 50 steps,
    4 to 6 % are taken for different (test_paired.py has the noise); a ratio of means does so in
    12 % where lengths vary by a factor of e. Outliers widen the interval, so a few large ones make
    it careful (3 %). What differs between the runs as a whole, no interval over steps can know.

    @param first, other  seconds of the same steps; pairs without two positive ones do not count
    @returns first and other (means), ratio, speed_up (1 / ratio), steps, low and high (95 %; None
             for fewer than LEAST pairs), verdict (verdict_of(), or unknown without an interval) and
             reason (why it is unknown, else None)
    """
    a, b = np.asarray(first, float), np.asarray(other, float)
    counts = (a > 0) & (b > 0) & np.isfinite(a + b)
    a, b = a[counts], b[counts]
    nothing = dict.fromkeys(("first", "other", "ratio", "speed_up"), math.nan)
    result = {**nothing, "steps": len(a), "low": None, "high": None, "verdict": "unknown",
              "reason": f"{LEAST} equal steps are needed, there are {len(a)}"}
    if not len(a):
        return result
    logs = np.log(b) - np.log(a)
    mean = logs.mean()
    result |= {"first": float(a.mean()), "other": float(b.mean()), "ratio": float(np.exp(mean)),
               "speed_up": float(np.exp(-mean))}
    if len(a) < LEAST:
        return result
    half = t_quantile(len(a) - 1) * logs.std(ddof=1) / math.sqrt(len(a))
    low, high = float(np.exp(mean - half)), float(np.exp(mean + half))
    return {**result, "low": low, "high": high, "verdict": verdict_of(low, high), "reason": None}


def verdict_of(low: float, high: float) -> str:
    """What an interval of a ratio of times says: faster, slower or not different."""
    if high < 1 - _ROUNDING:
        return "faster"
    return "slower" if low > 1 + _ROUNDING else "not different"


@cache
def t_quantile(freedom: int) -> float:
    """Half of a 95 % interval in standard errors: Student's t that is exceeded with 2.5 %.

    With tan θ = t / √freedom the share within ± t is a finite sum of powers of cos θ (Abramowitz
    and Stegun, 26.7.3 and 26.7.4), which is inverted by bisection.

    @param freedom  degrees, from 2
    """
    odd = freedom % 2
    k = np.arange(1, freedom // 2)
    weights = np.cumprod([1.0, *((2 * k - 1 + odd) / (2 * k + odd))])
    powers = 2 * np.arange(len(weights)) + odd
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        share = math.sin(angle) * (weights * math.cos(angle) ** powers).sum()
        if odd:
            share = 2 / math.pi * (angle + share)
        low, high = (angle, high) if share < _SHARE else (low, angle)
    return math.sqrt(freedom) * math.tan(low)
