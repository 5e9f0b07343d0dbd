# SPDX-License-Identifier: Apache-2.0
"""Rows of the neutral columns, gathered part by part."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from cadenza.sources import neutral
from cadenza.sources.kineto.texts import Codes


class Words(NamedTuple):
    """A text of each row: the numbers of texts of a list."""

    numbers: np.ndarray
    texts: list[str]


class Rows:
    """`add` takes columns of equal length, or one value for all rows of a part."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._parts: list[dict[str, object]] = []

    def add(self, count: int, **columns: object) -> None:
        """@param columns as neutral.COLUMNS; texts as a str or Words"""
        if count:
            self._counts.append(count)
            self._parts.append(columns)

    def frame(self, rank: int) -> pd.DataFrame:
        names = {name for part in self._parts for name in part}
        columns = {name: self._column(name) for name in neutral.COLUMNS if name in names}
        return neutral.frame({**columns, "rank": rank}, sum(self._counts))

    def _column(self, name: str) -> object:
        kind, default = neutral.COLUMNS[name]
        values = [part.get(name, default) for part in self._parts]
        if kind == "category":
            return _categorical(values, self._counts)
        return np.concatenate([np.broadcast_to(np.asarray(value, kind), count)
                               for value, count in zip(values, self._counts, strict=True)])


def _categorical(values: list[object], counts: list[int]) -> pd.Categorical:
    codes, parts = Codes(most=1 << 24, letters=1 << 32), []
    for value, count in zip(values, counts, strict=True):
        if isinstance(value, Words):
            used, place = np.unique(value.numbers, return_inverse=True)
            parts.append(np.array([codes[value.texts[number]] for number in used.tolist()],
                                  np.int32)[place])
        else:
            parts.append(np.full(count, codes[value], np.int32))
    return pd.Categorical.from_codes(np.concatenate(parts), codes.things())
