# SPDX-License-Identifier: Apache-2.0
"""How far a folder of shards has come, from what, in its `state.json`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from cadenza.errors import DataError
from cadenza.files import read_text, written
from cadenza.prepare.statistics import Statistics

NAME = "state.json"
_OTHERWISE = "valid: the same as before, or another --output"


@dataclass
class Source:
    """A file of documents, as it was when it was read."""

    path: str
    size: int  # bytes
    modified_ns: int


@dataclass
class State:
    """Of complete shards; one that is not complete is not in it."""

    arguments: dict[str, str]  # what decides the tokens, by name
    sources: list[Source]
    source: int = 0  # which of `sources` goes on
    block: int = 0  # of it: how many are in shards
    shards: list[int] = field(default_factory=list)  # bytes of each
    statistics: Statistics = field(default_factory=Statistics)
    complete: bool = False

    def write(self, folder: Path) -> None:
        content = {**vars(self), "sources": [vars(one) for one in self.sources],
                   "statistics": vars(self.statistics)}
        with written(folder / NAME) as file:
            file.write(json.dumps(content).encode())

    def continued(self, folder: Path) -> State:
        """The state of the folder, where it has one that belongs to the same arguments. Files that
        nothing was read of yet may be others.

        @throws DataError that names the first difference
        """
        path = folder / NAME
        if not path.exists():
            return self
        found = _read(path)
        for name, now in self.arguments.items():
            before = found.arguments.get(name)
            if before != now:
                raise DataError(f"{path}: {name} was {before}, now {now}; {_OTHERWISE}")
        self._check_sources(path, found)
        for number, size in enumerate(found.shards):
            shard = shard_path(folder, number)
            if not shard.is_file() or shard.stat().st_size != size:
                raise DataError(f"{shard}: is not as it was written, with {size} bytes; valid: "
                                "another --output, or this one without its files")
        found.sources = self.sources
        return found

    def _check_sources(self, path: Path, found: State) -> None:
        begun = len(found.sources) if found.complete else found.source + bool(found.block)
        if len(self.sources) < begun or (found.complete and len(self.sources) > begun):
            raise DataError(f"{path}: there were {len(found.sources)} inputs, now there are "
                            f"{len(self.sources)}; {_OTHERWISE}")
        for before, now in zip(found.sources[:begun], self.sources, strict=False):
            for name in ("path", "size", "modified_ns"):
                one, other = getattr(before, name), getattr(now, name)
                if one != other:
                    raise DataError(f"{now.path}: {name} was {one} when it was read, now {other}; "
                                    f"{_OTHERWISE}")


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"{number:05}.bin"


def _read(path: Path) -> State:
    """@throws DataError for what write() did not write"""
    try:
        found = json.loads(read_text(path))
        statistics = found["statistics"]
        statistics["counts"] = Counter({int(length): int(count)
                                        for length, count in statistics["counts"].items()})
        found["statistics"] = Statistics(**statistics)
        found["sources"] = [Source(**one) for one in found["sources"]]
        state = State(**found)
        numbers = [state.source, state.block, *state.shards]
        if not all(type(one) is int and one >= 0 for one in numbers):
            raise ValueError("numbers below 0")
        return state
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: not a state of cadenza-prepare, or damaged; valid: another "
                        "--output, or this one without its files") from error
