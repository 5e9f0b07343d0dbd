# SPDX-License-Identifier: Apache-2.0
"""When a series has risen: a one-sided cumulative sum (Page, Biometrika 41, 1954).

S ← max(0, S + min(x − δ/2, most)), and an alarm at S > H. Half of the rise δ that is to be found is
allowed for, which finds a rise of δ soonest. H follows from how often an alarm may be false: by
Siegmund's approximation (Sequential Analysis, 1985, section 2.6) a sum of normal numbers of
deviation σ, of which κ = δ / 2σ is allowed for, is above h σ once in

    (exp(2 κ b) − 2 κ b − 1) / 2 κ²  steps,  b = h + 1.166.

What is not normal is the reason for `most`: one step that is far out is never an alarm alone.
"""

from __future__ import annotations

import numpy as np

_OVERSHOOT = 1.166
_TWO_STEPS = 0.75  # of δ, what H is at least: a rise of δ is told after two steps or more
AT_ONCE, IN_TWO, IN_THREE = np.inf, 0.6, 0.4  # of H, what one step adds at most: steps of an alarm
_FULL = 2.0  # times H, where the sum stays: so that it soon tells that a rise is over


class Cusum:
    """Series of one kind side by side, in an array of any shape.

    @param false_alarm  the probability of one, in a step of one series
    @param most  AT_ONCE, IN_TWO or IN_THREE, of each series: steps that an alarm takes at least
    """

    def __init__(
        self, shape: tuple[int, ...], false_alarm: float, most: float | np.ndarray
    ) -> None:
        self.sum = np.zeros(shape)
        self.since = np.full(shape, -1)  # the first step of the rise, where there is one
        self.raised = np.zeros(shape, bool)
        self._rate, self._most = false_alarm, most
        self.allowance = self.limit = np.inf

    def tune(self, noise: np.ndarray, rise: np.ndarray) -> None:
        """@param noise  standard deviation of a step; infinite: the series is not tested
        @param rise  that is to be found; both broadcast to the series
        """
        tested = np.isfinite(noise)
        noise = np.where(tested, noise, 1.0)
        kappa = rise / (2 * noise)
        # exp(y) − y − 1 = 2 κ² / rate, by y ← log(1 + y + 2 κ² / rate).
        grown = 2 * kappa**2 / self._rate
        y = np.log1p(grown)
        for _ in range(4):
            y = np.log1p(y + grown)
        h = y / (2 * kappa) - _OVERSHOOT
        self.allowance = rise / 2
        self.limit = np.where(tested, np.maximum(h * noise, _TWO_STEPS * rise), np.inf)

    @property
    def told_after_three(self) -> np.ndarray:
        """The rise that is told after three steps, half of the time."""
        return self.allowance + self.limit / 3

    def add(self, step: int, value: np.ndarray) -> np.ndarray:
        """One step's values; NaN: none. @returns which series began to be raised"""
        more = np.minimum(value - self.allowance, self._most * self.limit)
        more = np.where(np.isnan(more), 0.0, more)
        before = self.sum
        self.sum = np.clip(before + more, 0.0, _FULL * self.limit)
        self.since = np.where((before == 0) & (self.sum > 0), step, self.since)
        new = (self.sum > self.limit) & ~self.raised
        self.raised = (self.raised | new) & (self.sum > 0)
        return new
