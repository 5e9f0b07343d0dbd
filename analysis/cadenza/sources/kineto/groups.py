# SPDX-License-Identifier: Apache-2.0
"""Process groups of communication: their names and members, and numbers of what they do."""

from __future__ import annotations

import numpy as np

from cadenza.sources.kineto.parameters import GroupWords, Parameters
from cadenza.sources.kineto.ranks import Origin
from cadenza.sources.kineto.rows import Words


class Groups:
    """The groups of a rank: those that its file lists, and those that its events name.

    A group is a number: 0 is none that is known.
    """

    def __init__(self, origin: Origin, parameters: Parameters) -> None:
        self._origin = origin
        self._names = ["", *origin.groups]
        self._own = [number for number, name in enumerate(self._names)
                     if name and origin.rank in origin.groups[name][1]]
        self._of_words = np.array([self._number(words) for words in parameters.groups], np.int64)

    def own(self) -> list[int]:
        """Those that the file lists and the rank belongs to, in the order of their making."""
        return self._own

    def only(self) -> int:
        """The one to which all must belong that names none."""
        return self._own[0] if len(self._own) == 1 else 0

    def of(self, words: np.ndarray) -> np.ndarray:
        """By numbers of Parameters.groups."""
        return self._of_words[words]

    def world_rank(self, group: int, local: int) -> int:
        """Of a member; the same number if the members are not known."""
        members = self._origin.groups.get(self._names[group], ("", ()))[1]
        return members[local] if 0 <= local < len(members) else local

    def columns(self, group: np.ndarray) -> dict[str, Words]:
        """The columns `group` and `members`."""
        members = [",".join(map(str, self._origin.groups.get(name, ("", ()))[1]))
                   for name in self._names]
        return {"group": Words(group, self._names), "members": Words(group, members)}

    def _number(self, words: GroupWords) -> int:
        if not words.name:
            return self.only()
        if words.name not in self._origin.groups:
            self._origin.groups[words.name] = (
                "" if words.what == "undefined" else words.what, words.members())
            self._names.append(words.name)
        return self._names.index(words.name)


def turns(moment: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """Of rows with equal keys, which it is: 0, 1, ... in the order of time."""
    order = np.lexsort((moment, *keys))
    first = np.ones(order.size, bool)
    if order.size:
        first[1:] = np.logical_or.reduce([key[order][1:] != key[order][:-1] for key in keys])
    index = np.arange(order.size)
    turn = np.empty(order.size, np.int64)
    turn[order] = index - np.maximum.accumulate(np.where(first, index, 0))
    return turn
