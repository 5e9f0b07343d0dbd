# SPDX-License-Identifier: Apache-2.0
"""What the watch keeps of the last steps: seconds by rank and part of a step, and nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cadenza.causes.repair import BETWEEN
from cadenza.causes.slowness import log_ratio
from cadenza.graph.loads import PHASES_OF_WORK
from cadenza.watch.pace import Pace
from cadenza.watch.step import Operation, RankStep, Step, Stop

# A part is what is compared with what it usually takes: attention and the rest of each pass.
PARTS = tuple((phase, attention) for phase in PHASES_OF_WORK for attention in (False, True))
_SMALL = 0.02  # of what a rank computes: parts that take less say little
_LOWER = 0.25  # quantile of the ranks that is common to all: most may be slow


@dataclass(frozen=True)
class Row:
    """One step, in the order of its ranks."""

    number: int
    ranks: np.ndarray
    seconds: float  # of the step
    run: np.ndarray  # (PARTS, ranks) seconds with a core
    fair: np.ndarray  # what that usually takes
    still: np.ndarray  # (ranks,) seconds without a core, but for stops
    stopped: np.ndarray  # (ranks,) seconds of stops in what it computes
    reads: np.ndarray
    late: np.ndarray  # seconds by which it began later than the first
    gap: np.ndarray  # seconds before the step in which nothing is known; NaN: no step before it
    stops: tuple[Stop, ...]

    @property
    def level(self) -> np.ndarray:
        """log(run / fair) of the parts that count; NaN: it has no such part."""
        share = self.fair / np.maximum(self.fair.sum(axis=0), 1e-30)
        found = log_ratio(self.run, self.fair)
        return np.where((share >= _SMALL) & (self.run > 0), found, np.nan)

    @property
    def stood(self) -> np.ndarray:
        """(ranks,) seconds of stops in what it computes or beside it, not in waits."""
        return np.array([sum(stop.seconds for stop in self.stops if stop.rank == rank
                             and not stop.waits and stop.phase != BETWEEN) for rank in self.ranks])

    @property
    def busy(self) -> np.ndarray:
        return self.run.sum(axis=0) + self.still + self.stopped + self.reads


def row_of(step: Step, pace: Pace, operations: Sequence[Operation],
           before: dict[int, RankStep]) -> Row:
    """@param before  each rank's last step"""
    place = np.array([PARTS.index((one.phase, one.category == "compute_attention"))
                      for one in operations], np.int64)
    shape = (len(PARTS), len(step.ranks))
    run, fair = np.zeros(shape), np.zeros(shape)
    for rank, one in enumerate(step.each):
        usual = pace.fair(one.work)
        known = ~np.isnan(usual)
        part = place[one.work.what[known]]
        took = np.maximum(one.work.seconds - one.still, 0.0)[known]
        run[:, rank] = np.bincount(part, took, len(PARTS))
        fair[:, rank] = np.bincount(part, usual[known], len(PARTS))
    took = np.array([one.end_ns - one.begin_ns for one in step.each]) / 1e9
    stops = tuple(stop for one in step.each for stop in one.stops)
    stopped = np.array([sum(stop.seconds for stop in one.stops if not stop.waits)
                        for one in step.each])
    still = np.array([one.still.sum() for one in step.each])
    return Row(step.number, step.ranks, step.seconds, run, fair,
               np.maximum(still - stopped, 0.0), np.minimum(stopped, still),
               np.array([one.reads for one in step.each]), took.max() - took,
               np.array([_gap(before.get(int(rank)), one)
                         for rank, one in zip(step.ranks, step.each, strict=True)]), stops)


def _gap(before: RankStep | None, one: RankStep) -> float:
    if before is None or before.number != one.number - 1:
        return np.nan
    return max((one.begin_ns - before.end_ns) / 1e9 - one.outside, 0.0)


def common(level: np.ndarray) -> np.ndarray:
    """Of each part what all ranks have: a low quantile, that of three or more; of fewer nothing is
    told apart from their own. @param level  (parts, ranks)"""
    count = (~np.isnan(level)).sum(axis=1)
    ordered = np.sort(level, axis=1)  # NaN last
    place = _LOWER * np.maximum(count - 1, 0)
    low = np.floor(place).astype(int)
    high = np.minimum(low + 1, np.maximum(count - 1, 0))
    rows = np.arange(len(level))
    found = ordered[rows, low] + (place - low) * (ordered[rows, high] - ordered[rows, low])
    return np.where(count > 2, found, 0.0)
