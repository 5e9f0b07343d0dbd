# SPDX-License-Identifier: Apache-2.0
"""What the simulator would have chosen on the published grids: runs of one source, model, cluster
and batch that differ only in their layout."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks.published import judge
from benchmarks.published.rows import Row
from benchmarks.published.runs import Simulated

_FEWEST = 4  # layouts with a published rate that make a grid


@dataclass(frozen=True)
class Grid:
    steps: tuple[Simulated, ...]  # all layouts, with those that did not fit

    @property
    def measured(self) -> list[Row]:
        return [one.row for one in self.steps if one.row.pub_tps]

    @property
    def best(self) -> Row:
        """Of the published rates."""
        return max(self.measured, key=lambda row: row.pub_tps)

    @property
    def order(self) -> list[Row]:
        """Those that fit in the simulation, the fastest there first; of equals the one whose
        published rate is least."""
        fitting = [one for one in self.steps if one.fits]
        return [one.row for one in sorted(fitting, key=lambda one: (-one.tps, one.row.pub_tps))]

    @property
    def chosen(self) -> Row | None:
        return next(iter(self.order), None)

    @property
    def share(self) -> float:
        """Published rate of the chosen layout over that of the best; 0 where the chosen one did not
        fit, or nothing does."""
        return self.chosen.pub_tps / self.best.pub_tps if self.chosen else 0.0

    @property
    def share_that_ran(self) -> float:
        """The same of the first in the order that ran."""
        return next((row.pub_tps for row in self.order if row.pub_tps), 0.0) / self.best.pub_tps


def find(steps: Iterable[Simulated]) -> Iterator[Grid]:
    choices = defaultdict(list)
    for one in steps:
        if not one.left_out:
            choices[judge.choice(one.row)].append(one)
    for same in choices.values():
        grid = Grid(tuple(same))
        if len(grid.measured) >= _FEWEST:
            yield grid
