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
    def chosen(self) -> Row | None:
        """The fastest in the simulation of those that fit there; of equals the one whose published
        rate is least. None where nothing fits."""
        fitting = [one for one in self.steps if one.fits]
        return min(fitting, key=lambda one: (-one.tps, one.row.pub_tps)).row if fitting else None

    @property
    def share(self) -> float:
        """Published rate of the chosen layout over that of the best; 0 where the chosen one did not
        fit, or nothing does."""
        return self.chosen.pub_tps / self.best.pub_tps if self.chosen else 0.0


def find(steps: Iterable[Simulated]) -> Iterator[Grid]:
    choices = defaultdict(list)
    for one in steps:
        if not one.left_out:
            choices[judge.choice(one.row)].append(one)
    for same in choices.values():
        grid = Grid(tuple(same))
        if len(grid.measured) >= _FEWEST:
            yield grid
