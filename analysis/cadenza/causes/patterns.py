# SPDX-License-Identifier: Apache-2.0
"""In which steps something is wrong: in all, from some step on, in some of them, more and more.

A series is explained by the model that leaves least, with a price for each of its parameters
(Schwarz, 1978); what it leaves is explained once more, as one thing may hide another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STEADY, RISING, ONCE, PERIODIC, INTERMITTENT, IN_TURN = (
    "steady", "rising", "once", "periodic", "intermittent", "in turn")
NOTICED = 0.015  # of the usual time: less is not looked for
_SURE = 5.0  # standard deviations
_ALIKE = 0.25  # of the worst step: others that reach it may be of the same pattern
_MOST = 3  # patterns of a series
_GROWS = 0.5  # of its mean level: a ramp rises by more over its steps


@dataclass(frozen=True)
class Pattern:
    """`level` is what it adds in each step of the series, 0 outside `active`."""

    trend: str
    active: np.ndarray  # (steps,) of bool
    level: np.ndarray


def patterns(level: np.ndarray, noise: float, least: float = NOTICED) -> list[Pattern]:
    """@param level  per step how much more than usual, 0: as usual
    @param noise  standard deviation of a step
    @param least  mean of the steps of a pattern that is worth a word
    """
    found: list[Pattern] = []
    left = np.asarray(level, float)
    while len(found) < _MOST and (one := _pattern(left, noise, least)) is not None:
        found.append(one)
        left = left - one.level
    return found


def _pattern(level: np.ndarray, noise: float, least: float) -> Pattern | None:
    """The one that explains most, where it is more than noise."""
    # A level that is far above the noise varies by more than the noise.
    spread = max(noise, least / 3)

    def cost(one: tuple) -> float:
        _, fit, price = one
        return ((level - fit) ** 2).sum() / spread**2 + price * np.log(len(level) + 1.0)

    fits = _constant(level, noise, least)
    ramp = _ramp(level, noise)
    if ramp is not None:
        fits.append((ramp > 0, ramp, 2.0))
    best = min(fits, key=cost)
    active, fit, _ = best
    rises = fit is ramp
    if rises:  # or is raised once
        raised = min((_raised(level, k) for k in range(2, len(level) - 1)), key=cost)
        if cost(raised) < cost(best):
            rises, active = False, raised[0]
            fit = np.where(active, raised[1] - raised[1][0], 0.0)
    mean = fit[active].mean() if active.any() else 0.0
    sure = mean * np.sqrt(active.sum()) > _SURE * noise
    if mean < least or not sure or cost(best) >= (level**2).sum() / spread**2:
        return None
    return Pattern(RISING if rises else trend_of(active), active, fit)


def _constant(
    level: np.ndarray, noise: float, least: float
) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """Models of one level in some steps: which, what it is in each step, and their price. The steps
    are all, those from one on, or those that stand out, or stand out as the worst one does."""
    steps = np.arange(len(level))
    hot = level > max(least, _SURE * noise)
    some = [(steps >= first, 1.0 + (first > 0)) for first in steps]
    if hot.any():
        alike = hot if hot.all() else hot & (level > _ALIKE * level.max())
        some += [(which, 1.0 + (np.diff(which, prepend=False) & which).sum())
                 for which in (hot, alike)]
    return [(active, np.where(active, level[active].mean(), 0.0), price) for active, price in some]


def _raised(level: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray, float]:
    """More from a step on than the level before it, which is explained once this is."""
    active = np.arange(len(level)) >= first
    low, high = max(level[:first].mean(), 0.0), level[first:].mean()
    return active, np.where(active, max(high, low), low), 3.0


def _ramp(level: np.ndarray, noise: float) -> np.ndarray | None:
    """The line that fits best, where it rises."""
    steps = len(level)
    if steps < 4:
        return None
    slope, begin = np.polyfit(np.arange(steps), level, 1)
    line = np.clip(begin + slope * np.arange(steps), 0, None)
    error = noise / np.sqrt(steps * (steps**2 - 1) / 12)
    rises = slope > _SURE * error and slope * (steps - 1) > _GROWS * line.mean()
    return np.where(line > max(slope / 2, noise), line, 0.0) if rises else None


def trend_of(active: np.ndarray) -> str:
    where = np.flatnonzero(active)
    if active.all() or (len(where) > 1 and where[-1] == len(active) - 1
                        and len(where) == len(active) - where[0]):
        return STEADY
    if len(where) == 1:
        return ONCE
    apart = np.unique(np.diff(where))
    return PERIODIC if len(where) > 2 and len(apart) == 1 and apart[0] > 1 else INTERMITTENT
