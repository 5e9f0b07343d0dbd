# SPDX-License-Identifier: Apache-2.0
"""A kind of trouble that ranks may have, tested in every step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cadenza.watch.cusum import Cusum
from cadenza.watch.usual import Levels


class Signal:
    """Series of ranks, or one of all; a rank has the trouble while one of its series is raised.

    @param cause  of causes.repair
    @param phases  in which it is; (): what it is measured by says it
    @param values  of a step's levels what is tested, (series, ranks)
    @param shape  of that
    @param most  Cusum's
    """

    def __init__(self, cause: str, phases: tuple[str, ...], values: Callable[[Levels], np.ndarray],
                 shape: tuple[int, int], false_alarm: float, most: float | np.ndarray) -> None:
        self.cause, self.phases, self.values = cause, phases, values
        self.of_all = shape[1] == 1
        self._test = Cusum(shape, false_alarm, most)
        self.active = np.zeros(shape[1], bool)

    def tune(self, noise: np.ndarray | float, rise: np.ndarray | float) -> None:
        """@param noise, rise  of each series; noise NaN: it was never seen, and is not tested"""
        noise = np.atleast_1d(noise)
        noise = np.where(np.isnan(noise), np.inf, noise)[:, None]
        self._test.tune(noise, np.atleast_1d(rise)[:, None])

    @property
    def told_after_three(self) -> np.ndarray:
        """Cusum.told_after_three of each series."""
        return self._test.told_after_three[:, 0]

    def add(self, step: int, levels: Levels) -> list[int]:
        """@returns the ranks, by index, that have it now and had it not"""
        self._test.add(step, self.values(levels))
        before, self.active = self.active, self._test.raised.any(axis=0)
        return [int(rank) for rank in np.flatnonzero(self.active & ~before)]

    def since(self, rank: int) -> int:
        """The step in which what it has began."""
        of_rank = self._test.since[:, rank]
        return int(of_rank[self._test.raised[:, rank]].min())
