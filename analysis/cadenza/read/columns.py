# SPDX-License-Identifier: Apache-2.0
"""Columns of many events at once, without looking at or copying more than is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd


def one_of(names: pd.Series, *values: str) -> np.ndarray:
    """Whether each of a column of names (categories) is one of `values`: a look at each category,
    not at each row."""
    known = np.append(names.cat.categories.isin(values), False)  # code -1: no name
    return known[names.array.codes]


def numbers_of(names: pd.Series, numbers: Mapping[str, int], default: int) -> np.ndarray:
    """The number of each of a column of names (categories); small numbers, to save memory."""
    known = [numbers.get(name, default) for name in names.cat.categories]
    return np.array([*known, default], np.int8)[names.array.codes]


def rows_of(events: pd.DataFrame, rows: np.ndarray, columns: Sequence[str]) -> pd.DataFrame:
    """events[columns].iloc[rows], numbered from 0; that would copy whole columns first."""
    taken = {name: events[name].array.take(rows) for name in columns}
    return pd.DataFrame(taken, columns=list(columns), copy=False)
