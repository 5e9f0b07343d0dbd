# SPDX-License-Identifier: Apache-2.0
"""Of which rank a file tells, by what it says and by its name; which ranks, if it was merged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.errors import DataError
from cadenza.sources.kineto.events import Events

_RANK = re.compile(r"rank[-_ =\[(]*0*(\d{1,7})(?!\d)", re.IGNORECASE)
_WORKER = re.compile(r"(?:^|[-_.])(?:worker|proc|gpu|r)[-_]?0*(\d{1,7})(?=[-_.]|$)", re.IGNORECASE)
_PLACE = re.compile(r"(?:^|[-_.\[])(TP|PP|DP|CP)[-_]?0*(\d{1,6})(?=[-_.\] ]|$)")
_HOST = re.compile(r"^(.+)_\d+\.\d{9,}\.pt\.trace\.json(?:\.gz)?$")
_AXES = {"TP": "tensor", "PP": "pipeline", "DP": "data", "CP": "context"}
MOST_RANKS = 1 << 20


@dataclass
class Origin:
    """Where a file comes from."""

    rank: int
    world: int = 0  # 0: not known
    host: str = ""
    device: str = ""
    place: dict[str, int] = field(default_factory=dict)
    groups: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    cannot: list[str] = field(default_factory=list)

    def of(self, rank: int) -> Origin:
        """The same of another rank of the file."""
        return replace(self, rank=rank, place={}, groups=dict(self.groups))


def origin(path: Path, beside: Mapping[str, Any]) -> Origin:
    """@param beside what stands beside the events of the file

    @throws DataError: it says a rank that cannot be
    """
    told = beside.get("distributedInfo")
    told = told if isinstance(told, dict) else {}
    place = {_AXES[axis]: int(number) for axis, number in _PLACE.findall(path.name)}
    rank, cannot = _whole(told.get("rank")), []
    if rank < 0:
        rank = rank_in(path.name)
    if rank < 0:
        rank = rank_in(path.parent.name)
    if rank < 0:
        rank = 0
        cannot.append("neither the file nor its name says a rank: taken for rank 0")
    if rank >= MOST_RANKS:
        raise DataError(f"{path}: found rank {rank}; valid: less than {MOST_RANKS}")
    host = next((str(beside[key])[:200] for key in ("host_name", "hostname", "host")
                 if isinstance(beside.get(key), str)), "")
    match = _HOST.match(path.name)
    if not host and match and rank_in(match[1]) < 0:
        host = match[1]
    world = _whole(told.get("world_size"))
    return Origin(rank, world if 0 < world <= MOST_RANKS else 0, host, _device(beside), place,
                  _groups(told.get("pg_config")), cannot)


def rank_in(text: str) -> int:
    """The rank that a name says, of a file or a process; -1: none."""
    match = _RANK.search(text) or _WORKER.search(text)
    if match:
        return int(match[1])
    places = [int(number) for _, number in _PLACE.findall(text)]
    others = sorted(places)[:-1]
    return max(places) if places and not any(others) else -1


def lanes_by_rank(events: Events) -> dict[int, np.ndarray]:
    """Of a merged file: by rank, which of `events.lanes` are its own. Empty: it was not merged."""
    ranks = np.array([_rank_of_process(pid, events.labels) for pid, _ in events.lanes], np.int64)
    told = np.unique(ranks[np.unique(events.lane)])
    told = told[told >= 0]
    if told.size < 2:
        return {}
    return {rank: ranks == rank for rank in told.tolist() if rank < MOST_RANKS}


def _rank_of_process(pid: object, labels: Mapping[Any, str]) -> int:
    rank = rank_in(pid) if isinstance(pid, str) else -1
    if rank < 0 and (match := _RANK.search(labels.get(pid, ""))):
        rank = int(match[1])
    return rank


def _device(beside: Mapping[str, Any]) -> str:
    devices = beside.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    name = first.get("name") if isinstance(first, dict) else None
    return name[:200] if isinstance(name, str) else ""


def _groups(config: object) -> dict[str, tuple[str, tuple[int, ...]]]:
    groups = {}
    for group in config if isinstance(config, list) else ():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, list) and all(0 <= _whole(rank) < MOST_RANKS for rank in ranks):
            name, what = (str(group.get(key, ""))[:200] for key in ("pg_name", "pg_desc"))
            groups[name] = ("" if what == "undefined" else what, tuple(ranks))
    return groups


def _whole(value: object) -> int:
    if isinstance(value, str) and value.isdecimal() and len(value) < 8:
        value = int(value)
    return value if type(value) is int and 0 <= value < 1 << 31 else -1
