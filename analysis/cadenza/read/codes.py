# SPDX-License-Identifier: Apache-2.0
"""What the numbers of a trace stand for: a file says it by the HDF5 enumerations of its fields."""

from __future__ import annotations

import h5py
import numpy as np

from cadenza.files import printable
from cadenza.read.schema import CODES


class Codes:
    """Names of the numbers of one field."""

    def __init__(self, numbers: dict[str, int]) -> None:
        ordered = sorted(numbers.items(), key=lambda item: item[1])
        self.names = tuple(printable(name) for name, _ in ordered)
        self._numbers = np.array([number for _, number in ordered], np.int64)
        self._counted = bool((self._numbers == np.arange(len(ordered))).all())

    def index(self, values: np.ndarray) -> np.ndarray:
        """Which of `names` each value is; a value that has none is a ValueError."""
        if self._counted:
            found, unknown = values, values[:0]
            if len(values) and values.max() >= len(self.names):
                unknown = values
        else:
            last = max(len(self.names) - 1, 0)
            found = np.searchsorted(self._numbers, values).clip(max=last)
            unknown = values[self._numbers[found] != values]
        if len(unknown):
            raise ValueError(f"{unknown.max()} is not known; valid are {self._valid()}")
        return found

    def named(self, values: np.ndarray) -> np.ndarray:
        """The name of each value."""
        return np.array(self.names, object)[self.index(values)]

    def name(self, value: int) -> str:
        return str(self.named(np.array([value]))[0])

    def bit(self, name: str) -> int:
        """Of a set of bits; 0 where it has none of this name: no value has it set."""
        return int(self._numbers[self.names.index(name)]) if name in self.names else 0

    def _valid(self) -> str:
        if self._counted:
            return f"0 to {len(self.names) - 1}"
        return ", ".join(map(str, self._numbers.tolist()))


def codes_of(table: str, found: np.dtype) -> dict[str, Codes]:
    """By field of a table that a file has."""
    return {field: Codes(_numbers(table, field, found[field])) for field in CODES.get(table, ())}


def _numbers(table: str, field: str, found: np.dtype) -> dict[str, int]:
    numbers = h5py.check_enum_dtype(found)
    if numbers is None:
        raise ValueError(f"{table}: {field} has no names for its numbers")
    return numbers
