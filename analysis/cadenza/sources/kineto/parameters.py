# SPDX-License-Identifier: Apache-2.0
"""What events say about the communication that they started: the group, how much, with whom."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cadenza.sources.kineto.texts import Codes

# Bytes of an element, by its type in lower case without namespace.
SIZES = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2,
    "long": 8, "long int": 8, "int64": 8, "int": 4, "int32": 4, "short": 2, "int16": 2, "char": 1,
    "signed char": 1, "unsigned char": 1, "byte": 1, "int8": 1, "uint8": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "complexfloat": 8, "complexdouble": 16,
}
MOST = 2_000_000  # events of a file


class GroupWords(NamedTuple):
    """How an event names its process group."""

    name: str = ""
    what: str = ""
    ranks: str = ""
    size: int = -1
    first: int = -1
    stride: int = -1

    def members(self) -> tuple[int, ...]:
        """World ranks; none if they are not told, or only in part."""
        told = re.findall(r"\d+", self.ranks)
        if "..." not in self.ranks and 0 < len(told) <= 1 << 20:
            return tuple(int(rank) for rank in told)
        if self.first >= 0 and self.stride > 0 and 0 < self.size <= 1 << 20:
            return tuple(range(self.first, self.first + self.size * self.stride, self.stride))
        return ()


@dataclass
class Parameters:
    """Arrays of equal length, in the order of the file."""

    row: np.ndarray  # of the event
    collective: np.ndarray  # number of its name in `texts`
    dtype: np.ndarray  # likewise
    group: np.ndarray  # number in `groups`
    bytes: np.ndarray  # payload; -1: not known
    sequence: np.ndarray  # -1: not known
    peer: np.ndarray  # world rank, or of gloo a rank of the group; -1: none, or not known
    unfinished: np.ndarray  # 1 if it went on when the record ended, else 0
    texts: list[str]
    groups: list[GroupWords]

    def of(self, own: np.ndarray, row: np.ndarray) -> Parameters:
        """Those of the events that `own` holds for, whose numbers become `row`."""
        mine = own[self.row]
        columns = {name: getattr(self, name)[mine] for name in (
            "collective", "dtype", "group", "bytes", "sequence", "peer", "unfinished")}
        return replace(self, row=row[self.row[mine]], **columns)


class ParameterRecorder:
    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._texts, self._groups = Codes(), Codes(GroupWords(), most=1 << 16)

    def add(self, row: int, name: str, args: dict[str, Any]) -> None:
        """Of the event `name` with number `row`."""
        if len(self._rows) >= MOST:
            return
        collective = _text(args.get("Collective name"))
        if collective:
            group = GroupWords(
                _text(args.get("Process Group Name")) or _text(args.get("Process Group ID")),
                _text(args.get("Process Group Description")),
                _text(args.get("Process Group Ranks")), whole(args.get("Group size")),
                whole(args.get("Global rank start")), whole(args.get("Global rank stride")))
            dtype = _text(args.get("dtype"))
            elements = max(whole(args.get("In msg nelems")), whole(args.get("Out msg nelems")))
            peer = max(whole(args.get("Src Rank")), whole(args.get("Dst Rank")))
            sequence = whole(args.get("Seq"))
        elif name.startswith(("record_param_comms", "c10d::", "gloo:")):
            group, sequence = GroupWords(), -1
            dtype, elements = _shapes(args)
            peer = _peer(name, args)
        else:
            return
        size = SIZES.get(dtype.rpartition("::")[2].lower(), 0)
        payload = elements * size if size and 0 <= elements < 1 << 50 else -1
        self._rows.append((row, self._texts[collective], self._texts[dtype], self._groups[group],
                           payload, sequence, peer, args.get("finished") is False))

    def finish(self) -> Parameters:
        columns = np.array(self._rows, np.int64).reshape(-1, 8).T
        return Parameters(*columns, self._texts.things(), self._groups.things())


def _text(value: object) -> str:
    return str(value)[:4096] if isinstance(value, str | int) else ""


def whole(value: object) -> int:
    """-1 for anything but a number that is no less than 0 and fits."""
    if isinstance(value, str):
        value = int(value) if value.isdecimal() and len(value) < 19 else -1
    return value if isinstance(value, int) and 0 <= value < 1 << 60 else -1


def _shapes(args: dict[str, Any]) -> tuple[str, int]:
    """Type and number of elements of an operation's first input: a tensor, or a list of them."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not (isinstance(dims, list) and dims and isinstance(types, list) and types):
        return "", -1
    tensors = dims[0] if isinstance(dims[0], list) and dims[0] and isinstance(dims[0][0], list) \
        else [dims[0]]
    if not all(isinstance(tensor, list) and all(isinstance(dim, int) for dim in tensor)
               for tensor in tensors):
        return "", -1
    return _text(types[0]), sum(math.prod(tensor) for tensor in tensors)  # a scalar has no dim


def input_bytes(args: dict[str, Any]) -> int:
    """Of all tensors that an operation takes; -1: not told."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not (isinstance(dims, list) and isinstance(types, list) and len(dims) == len(types)):
        return -1
    found = 0
    for shape, kind in zip(dims, types, strict=True):
        size = SIZES.get(_text(kind).rpartition("::")[2].lower(), 0)
        if size and isinstance(shape, list) and all(type(dim) is int and 0 <= dim < 1 << 40
                                                    for dim in shape):
            found += math.prod(shape) * size
    return found if 0 < found < 1 << 56 else -1


def _peer(name: str, args: dict[str, Any]) -> int:
    """Of c10d::send(tensors, group, rank, tag) and c10d::recv_ likewise."""
    inputs = args.get("Concrete Inputs")
    if not name.startswith(("c10d::send", "c10d::recv_")) or "any" in name:
        return -1
    return whole(inputs[2]) if isinstance(inputs, list) and len(inputs) > 2 else -1
