# SPDX-License-Identifier: Apache-2.0
"""Calls of NCCL, by the NVTX ranges that NCCL makes itself: which kernel carries out which."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from cadenza.sources.neutral import COLLECTIVE, RECEIVE, SEND

# Names of the payload's fields, as NCCL gives them to NVTX.
_COMMUNICATOR, _SIZE, _PEER = "NCCL communicator ID", "Message size [bytes]", "Peer rank"
_RANKS, _RANK, _DEVICE = "No. of ranks", "Rank", "CUDA device"
_LONGEST = 1 << 14  # letters of a payload
_MOST_RANKS = 1 << 20
_KERNEL = re.compile(r"nccl[a-z]*_([a-z]+)(?:_(?:sum|prod|min|max|minmax|avg|premulsum|sumpostdiv"
                     r"|copy|none))?(?:_((?:[fiu]|bf)\d+(?:e\dm\d)?))?(?:_|\(|$)", re.IGNORECASE)
_OF_PARTS = ("allgather", "reducescatter")  # their size is that of one rank's part
_MESSAGES = {"send": SEND, "recv": RECEIVE}


@dataclass(frozen=True)
class Call:
    name: str  # "allreduce", "send"
    communicator: str = ""
    size: int = -1  # as NCCL counts it
    peer: int = -1  # rank in the communicator


@dataclass
class Communicator:
    """What initializations in this file say."""

    size: int = 0
    world: dict[int, int] = field(default_factory=dict)  # world ranks by the ranks in it

    def members(self) -> tuple[int, ...]:
        """World ranks; none if some are not in this file."""
        return tuple(self.world[at] for at in range(self.size)) \
            if 0 < self.size == len(self.world) else ()


@dataclass(frozen=True)
class Initialization:
    communicator: str
    size: int
    rank: int
    device: int


def kernel_says(name: str) -> tuple[str, str]:
    """Operation and element type of a kernel, "" where it does not say them."""
    found = _KERNEL.match(name)
    return (found[1].lower(), found[2] or "") if found else ("", "")


class Calls:
    """The calls of one process."""

    def __init__(
        self, begin: np.ndarray, end: np.ndarray, thread: np.ndarray, names: Iterable[str],
        payloads: Iterable[str],
    ) -> None:
        """@param names  of NVTX ranges, in order of their begin: "ncclAllReduce", ..."""
        self.initialized: list[Initialization] = []
        self.told = False  # whether a payload says which communicator a call belongs to
        self._windows: dict[int, list[tuple[int, int, list[Call]]]] = {}
        group: dict[int, tuple[int, list[Call]]] = {}  # by thread: depth of groups, calls in them
        for at, last, where, name, text in zip(begin.tolist(), end.tolist(), thread.tolist(), names,
                                               payloads):
            word = name.removeprefix("nccl").lower()
            said = _payload(text)
            depth, calls = group.get(where, (0, []))
            if word == "groupstart":
                group[where] = depth + 1, calls
            elif word == "groupend":
                group[where] = max(depth - 1, 0), calls if depth > 1 else []
                if depth <= 1:
                    self._window(where, at, last, calls)
            elif word.startswith(("comminit", "commsplit")):
                self._initialize(said)
            elif not word.startswith(("comm", "get", "mem", "redop")):
                call = Call(word, _communicator(said), _whole(said.get(_SIZE)),
                            _whole(said.get(_PEER)))
                self.told |= bool(call.communicator)
                if depth:
                    calls.append(call)
                else:
                    self._window(where, at, last, [call])

    def _window(self, thread: int, begin: int, end: int, calls: list[Call]) -> None:
        """In which `calls` are launched."""
        self._windows.setdefault(thread, []).append((begin, end, calls))

    def _initialize(self, said: Mapping[str, object]) -> None:
        size, rank = _whole(said.get(_RANKS)), _whole(said.get(_RANK))
        if _communicator(said) and 0 <= rank < size <= _MOST_RANKS:
            self.initialized.append(Initialization(_communicator(said), size, rank,
                                                   _whole(said.get(_DEVICE))))

    def launched(self, thread: np.ndarray, time: np.ndarray, names: Iterable[str]
                 ) -> list[list[Call]]:
        """What each kernel carries out: the calls during whose range it was launched.

        @param names  of the kernels: of several calls those are meant that its name says
        """
        starts = {where: np.array([begin for begin, _, _ in windows])
                  for where, windows in self._windows.items()}
        found = []
        for where, when, name in zip(thread.tolist(), time.tolist(), names):
            windows = self._windows.get(where, [])
            at = int(np.searchsorted(starts[where], when, side="right")) - 1 if windows else -1
            begin, end, calls = windows[at] if at >= 0 else (0, -1, [])
            word = kernel_says(name)[0]
            mine = [call for call in calls if call.name == word or call.name in _MESSAGES]
            found.append((mine or calls) if begin <= when <= end else [])
        return found


def rows_of(name: str, calls: list[Call], known: Mapping[str, Communicator]) -> list[dict]:
    """Columns of the rows that a kernel is: a collective, or messages."""
    word, dtype = kernel_says(name)
    sent = [call for call in calls if call.name in _MESSAGES]
    sends = sum(call.name == "send" for call in sent)
    exchange = sends > 1 and 2 * sends == len(sent)  # every rank with every one
    if sent and not exchange:
        return [{"kind": _MESSAGES[call.name], "name": call.name, "dtype": dtype,
                 "peer": known.get(call.communicator, Communicator()).world.get(call.peer, -1),
                 **_group(call, known), "bytes": call.size} for call in sent]
    if exchange:
        sizes = [call.size for call in sent if call.name == "send"]
        return [{"kind": COLLECTIVE, "name": "alltoall", "dtype": dtype, **_group(sent[0], known),
                 "bytes": sum(sizes) if min(sizes) >= 0 else -1}]
    if not calls:
        # Whether it sends, its name does not say; it is not done before others have.
        return [{"kind": RECEIVE if word == "sendrecv" else COLLECTIVE, "name": word or name,
                 "dtype": dtype, "group": "", "members": "", "bytes": -1}]
    sizes = [_payload_bytes(call, known) for call in calls]
    return [{"kind": COLLECTIVE, "name": calls[0].name, "dtype": dtype, **_group(calls[0], known),
             "bytes": sum(sizes) if min(sizes) >= 0 else -1}]


def communicators(of_rank: Mapping[int, list[Initialization]]) -> dict[str, Communicator]:
    """@param of_rank  by world rank, all that this file says"""
    found: dict[str, Communicator] = {}
    world = max((one.size for all_of in of_rank.values() for one in all_of), default=0)
    for rank, all_of in of_rank.items():
        for one in all_of:
            of = found.setdefault(one.communicator, Communicator())
            of.size = max(of.size, one.size)
            of.world[one.rank] = rank
    for one in found.values():
        if one.size == world:
            one.world = {rank: rank for rank in range(world)}
    return found


def _group(call: Call, known: Mapping[str, Communicator]) -> dict[str, str]:
    members = known.get(call.communicator, Communicator()).members()
    return {"group": call.communicator, "members": ",".join(map(str, members))}


def _payload_bytes(call: Call, known: Mapping[str, Communicator]) -> int:
    """The larger of what goes in and what comes out."""
    if call.size < 0 or call.name not in _OF_PARTS:
        return call.size
    size = known.get(call.communicator, Communicator()).size
    return call.size * size if size else -1


def _payload(text: str) -> dict[str, object]:
    """{} for what is no JSON of names and values."""
    if not text or len(text) > _LONGEST:
        return {}
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _communicator(said: Mapping[str, object]) -> str:
    """Its digits: some exports put commas between them."""
    text = str(said.get(_COMMUNICATOR, ""))[:64].replace(",", "")
    return text if re.fullmatch(r"[0-9a-fA-Fx]+", text) else ""


def _whole(value: object) -> int:
    """-1 for what is no such number."""
    if isinstance(value, str):
        digits = value.replace(",", "")
        value = int(digits) if digits.isdecimal() and digits.isascii() and len(digits) < 19 else -1
    return value if type(value) is int and 0 <= value < 1 << 60 else -1
