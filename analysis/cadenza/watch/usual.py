# SPDX-License-Identifier: Apache-2.0
"""What is usual in a run, learnt from its first steps, and how far from it a step is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cadenza.causes.repair import BETWEEN, INPUT, PAUSED
from cadenza.graph.loads import PHASES_OF_WORK
from cadenza.watch.table import PARTS, Row, common

_MAD = 1.4826  # of a normal distribution: standard deviation / median absolute deviation
_OUTER, _NORMAL = 0.95, 1.96  # quantile of what is off, and how many standard deviations that is
_SURE = 4.0  # standard deviations
_LEAST_NOISE = 0.002  # of times
_LEAST_SHARE = 0.005  # of a step: the same of waits and gaps, which are short
_LEAST_CORE = 0.01
# What costs time by itself, whatever is usual: cause and phases, and of a row the ranks' seconds.
WAITS = {
    (INPUT, ("forward",)): lambda row: row.reads,
    (PAUSED, PHASES_OF_WORK): lambda row: row.stood,
    (PAUSED, (BETWEEN,)): lambda row: row.gap,
}


@dataclass(frozen=True)
class Levels:
    """How far a step is from the usual one: (series, ranks), or (series, 1) of all ranks."""

    slow: np.ndarray  # of PARTS and of all together: logarithm, beyond what all ranks have
    all_slow: np.ndarray  # the same, what all ranks have
    core: np.ndarray  # share of the computing time without a core
    reads: np.ndarray  # share of a step
    late: np.ndarray  # the same
    gap: np.ndarray  # the same, of all ranks


class Usual:
    """Medians, and standard deviations that few outliers do not move, of the steps that were
    learnt: by the median absolute deviation and by the 95 % quantile."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.seconds = float(np.median([row.seconds for row in rows]))
        level = np.stack([row.level for row in rows])  # (steps, parts, ranks)
        each = np.stack([common(one) for one in level])
        self._common = _median(each, axis=0)
        # The offset of the lower ranks: one that is slow from the begin is far from it.
        usual = _median(level - each[:, :, None], axis=0)
        self._offset = common(usual) if level.shape[2] > 2 else np.nan_to_num(usual.min(axis=1))
        off = level - each[:, :, None] - self._offset[:, None]
        inner = off - _median(off, axis=0)[None]  # a rank that is slow all along is no noise
        noise = np.array([_noise(inner[:, part], _LEAST_NOISE) for part in range(len(PARTS))])
        self._weight = np.where(np.isnan(noise), 0.0, 1 / noise**2)
        together = np.stack([self._together(one) for one in off])
        self.slow_noise = np.append(noise, _noise(together - _median(together, axis=0)[None],
                                                  _LEAST_NOISE))
        of_all = np.stack([self._of_all(one) for one in each])
        self.all_noise = np.array([_noise(of_all[:, part], _LEAST_NOISE)
                                   for part in range(len(PARTS) + 1)])
        fair = np.stack([row.fair for row in rows])
        took = np.array([row.seconds for row in rows])
        # Of a step, what a part takes on the rank that has most of it.
        share = _median(fair.max(axis=2) / took[:, None], axis=0)
        self.share = np.append(share, _median(fair.sum(axis=1).max(axis=1) / took, axis=0))
        busy = np.array([row.busy.max() for row in rows])
        self._ratio = float(np.median(took / np.maximum(busy, 1e-12)))
        core = np.stack([_without_core(row) for row in rows])
        self._core, self.core_noise = float(np.median(core)), _noise(core, _LEAST_CORE)
        stood = np.stack([row.still + row.stopped for row in rows])
        # On a shared machine ranks stand still in every step: what is longer is a stop of its own.
        self.longest_stop = float(np.median(stood)) + _SURE * _noise(stood, 0.0)
        reads = np.stack([row.reads for row in rows])
        # Of two ranks the lesser: one that waits for its data from the begin is far from it, and
        # that is no noise.
        self._reads = float(np.quantile(reads, 0.5, method="lower"))
        self.reads_noise = _noise((reads - np.median(reads, axis=0)) / self.seconds, _LEAST_SHARE)
        self.waits = waits_of_all(rows)
        self._late, self.late_noise = self._of_step([row.late for row in rows])
        self._gap, self.gap_noise = self._of_step([_least(row.gap) for row in rows])

    def _of_step(self, seconds: list) -> tuple[float, float]:
        values = np.stack(seconds)
        values = values[~np.isnan(values)]
        usual = float(np.median(values)) if len(values) else 0.0
        return usual, _noise(values / self.seconds, _LEAST_SHARE)

    def _together(self, off: np.ndarray) -> np.ndarray:
        """Of all parts that each rank has, that with less noise counting more. (ranks,)"""
        weight = np.where(np.isnan(off), 0.0, self._weight[:, None])
        sums = weight.sum(axis=0)
        return np.where(sums > 0, np.nansum(weight * np.nan_to_num(off), axis=0)
                        / np.where(sums > 0, sums, 1.0), np.nan)

    def _of_all(self, each: np.ndarray) -> np.ndarray:
        off = each - self._common
        return np.append(off, self._together(off[:, None]))

    def levels(self, row: Row) -> Levels:
        level = row.level
        each = common(level)
        off = level - each[:, None] - self._offset[:, None]
        of_all = self._of_all(each) if level.shape[1] > 2 else np.full(len(PARTS) + 1, np.nan)
        return Levels(
            np.concatenate([off, self._together(off)[None]]), of_all[:, None],
            (_without_core(row) - self._core)[None], (row.reads - self._reads)[None] / self.seconds,
            (row.late - self._late)[None] / self.seconds,
            np.array([[_least(row.gap) - self._gap]]) / self.seconds)

    def unexplained(self, row: Row) -> float:
        """Seconds that a step takes longer than its ranks' work lets it."""
        return row.seconds - self._ratio * float(row.busy.max())

    def expected(self, row: Row, of_all: bool) -> np.ndarray:
        """(PARTS, ranks) seconds that ranks take at the pace of the others in the step, or at that
        of the steps that were learnt."""
        each = self._common if of_all else common(row.level)
        return row.fair * np.exp(np.nan_to_num(each) + self._offset)[:, None]


def waits_of_all(rows: Sequence[Row]) -> np.ndarray:
    """By cause of WAITS, the seconds of a usual one of these steps that no rank is without."""
    least = np.array([[of(row).min() for row in rows] for of in WAITS.values()])
    return np.nan_to_num(_median(least, axis=1))


def _without_core(row: Row) -> np.ndarray:
    whole = row.run.sum(axis=0) + row.still
    return np.where(whole > 0, row.still / np.where(whole > 0, whole, 1.0), 0.0)


def _least(gap: np.ndarray) -> float:
    """Of the ranks, which begin a step together: what one lacks, another has."""
    return float(np.min(gap))


def _median(values: np.ndarray, axis: int) -> np.ndarray:
    """Of those that are not NaN; NaN where all are."""
    known = ~np.isnan(values)
    found = np.nanmedian(np.where(known.any(axis=axis, keepdims=True), values, 0.0), axis=axis)
    return np.where(known.any(axis=axis), found, np.nan)


def _noise(values: np.ndarray, least: float) -> float:
    """Standard deviation around the median, of the middle or of the tails, if that is more; NaN of
    no values."""
    values = values[~np.isnan(values)]
    if not len(values):
        return np.nan
    off = np.abs(values - np.median(values))
    return max(_MAD * float(np.median(off)), float(np.quantile(off, _OUTER)) / _NORMAL, least)
