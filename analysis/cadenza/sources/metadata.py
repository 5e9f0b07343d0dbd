# SPDX-License-Identifier: Apache-2.0
"""What a file of the neutral format says once, in its key-value metadata."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from cadenza.errors import DataError
from cadenza.files import printable
from cadenza.sources.neutral import DIMENSIONS, RankTrace
from cadenza.words import shortened

MOST_RANKS = 1 << 20
MOST_BYTES = 1 << 61
_PREFIX = "cadenza."
_LONGEST = 1 << 26  # bytes of one value: the groups of many ranks
_LONGEST_NAME = 1 << 12  # letters of a text in it


@dataclass
class Metadata:
    """The fields of a RankTrace that are not its rows; `rank` -1: the rows say it."""

    rank: int = -1
    world: int = 0
    host: str = ""
    device: str = ""
    place: dict[str, int] = field(default_factory=dict)
    groups: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    peak_memory: dict[int, int] = field(default_factory=dict)
    cannot: list[str] = field(default_factory=list)


def metadata_text(trace: RankTrace) -> dict[str, str]:
    """Values that are no text are JSON."""
    values = {"rank": trace.rank, "world": trace.world, "host": trace.host,
              "device": trace.device, "place": trace.place, "groups": trace.groups,
              "peak_memory": trace.peak_memory, "cannot": trace.cannot}
    return {_PREFIX + name: value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()}


def metadata_of(place: str, found: dict[bytes, bytes]) -> Metadata:
    """@param place  of the file, for messages
    @throws DataError for a value that is not what its name says"""
    known = {}
    for name, (valid, make) in _FIELDS.items():
        value = found.get((_PREFIX + name).encode())
        if value is None:
            continue
        try:
            known[name] = make(_text(value))
        except (ValueError, TypeError, AttributeError, RecursionError):
            shown = shortened(printable(value[:200].decode(errors="replace")), 80)
            raise DataError(f"{place}: found {_PREFIX}{name} '{shown}'; valid: {valid}") from None
    return Metadata(**known)


def _text(value: bytes) -> str:
    if len(value) > _LONGEST:
        raise ValueError
    return value.decode()


def _integer(value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        raise ValueError
    value.encode()  # a surrogate is no letter
    return value


def _json(make: Callable) -> Callable[[str], object]:
    return lambda text: make(json.loads(text))


def _list(value: object) -> list:
    if not isinstance(value, list):
        raise ValueError
    return value


def _ranks(value: list) -> tuple[int, ...]:
    if not value or len(set(_list(value))) != len(value):
        raise ValueError
    return tuple(_integer(rank, 0, MOST_RANKS - 1) for rank in value)


def _group(value: list) -> tuple[str, tuple[int, ...]]:
    what, ranks = value
    return _name(what), _ranks(ranks)


def _place(value: dict) -> dict[str, int]:
    if not set(value) <= set(DIMENSIONS):
        raise ValueError
    return {axis: _integer(at, 0, MOST_RANKS - 1) for axis, at in value.items()}


# name: (what is valid, how its text is read)
_FIELDS: dict[str, tuple[str, Callable[[str], object]]] = {
    "rank": (f"0 to {MOST_RANKS - 1}", _json(lambda rank: _integer(rank, 0, MOST_RANKS - 1))),
    "world": (f"0 to {MOST_RANKS}, the number of ranks",
              _json(lambda world: _integer(world, 0, MOST_RANKS))),
    "host": ("a short text", _name),
    "device": ("a short text", _name),
    "place": ('JSON as {"data": 1, "pipeline": 0}, of ' + ", ".join(DIMENSIONS), _json(_place)),
    "groups": ('JSON as {"name": ["purpose", [0, 1]]}, with world ranks',
               _json(lambda groups: {_name(name): _group(group)
                                     for name, group in groups.items()})),
    "peak_memory": ('JSON as {"3": 123456}, bytes by step',
                    _json(lambda peaks: {_integer(int(step), 0, MOST_BYTES):
                                         _integer(peak, 0, MOST_BYTES)
                                         for step, peak in peaks.items()})),
    "cannot": ("a JSON list of sentences",
               _json(lambda said: [printable(_name(one)) for one in _list(said)])),
}
