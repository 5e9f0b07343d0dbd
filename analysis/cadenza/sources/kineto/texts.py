# SPDX-License-Identifier: Apache-2.0
"""Numbers that stand for texts and other things that occur again and again."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class Codes(dict[Hashable, int]):
    """`codes[thing]` is its number: 0 for `other`, then 1, 2, ... in the order of first use.

    Of more than `most` things, or `letters` letters of them, those that come later are taken for
    `other`. All must be of its type, or a TypeError is raised.
    """

    def __init__(self, other: Hashable = "", most: int = 1 << 20, letters: int = 1 << 26) -> None:
        super().__init__({other: 0})
        self._things: list[Any] = [other]
        self._most, self._letters, self._kind = most, letters, type(other)

    def __missing__(self, thing: Hashable) -> int:
        if not isinstance(thing, self._kind):
            raise TypeError(f"found {type(thing)}; valid: {self._kind}")
        if len(self) >= self._most or self._letters < 0:
            return 0
        self._letters -= len(thing) if isinstance(thing, str) else 1
        number = self[thing] = len(self)
        self._things.append(thing)
        return number

    def thing(self, number: int) -> Any:
        return self._things[number]

    @property
    def full(self) -> bool:
        """Whether some things may have been taken for others."""
        return len(self) >= self._most or self._letters < 0

    def things(self) -> list[Any]:
        return self._things
