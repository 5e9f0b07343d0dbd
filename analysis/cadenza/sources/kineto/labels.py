# SPDX-License-Identifier: Apache-2.0
"""Numbers of layers and microbatches, where ranges of the program are named after them."""

from __future__ import annotations

import re

import numpy as np

from cadenza.sources.kineto.events import RANGE, Events
from cadenza.sources.kineto.spans import enclosing, outermost

# Column: pattern, in lower case, whose group is the number.
PATTERNS = {
    "layer": re.compile(r"(?:layers?|blocks?)[-_ .=#:\[]{0,2}(\d{1,6})(?!\d)"),
    "microbatch": re.compile(r"(?:micro[-_ ]?batch|\bmb)[-_ .=#:\[]{0,2}(\d{1,6})(?!\d)"),
}


class Labels:
    """Of moments of threads, what the ranges around them are named after."""

    def __init__(self, events: Events) -> None:
        self._of = {column: _ranges(events, pattern) for column, pattern in PATTERNS.items()}

    def at(self, lane: np.ndarray, moment: np.ndarray) -> dict[str, np.ndarray]:
        """The columns `layer` and `microbatch`; -1: no range is named after one."""
        columns = {}
        for column, (ranges, number) in self._of.items():
            place = enclosing(ranges, lane, moment)
            columns[column] = np.where(place >= 0, number[place], -1) if number.size \
                else np.full(lane.size, -1)
        return columns


def _ranges(events: Events, pattern: re.Pattern[str],
            ) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    found = [pattern.search(name[:200].lower()) for name in events.names]
    numbers = np.array([int(match[1]) if match else -1 for match in found], np.int64)
    places = np.flatnonzero((events.kind == RANGE) & (numbers[events.name] >= 0))
    places = places[outermost(events.lane[places], events.begin[places], events.end[places])]
    return ((events.lane[places], events.begin[places], events.end[places]),
            numbers[events.name[places]])
