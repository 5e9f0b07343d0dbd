# SPDX-License-Identifier: Apache-2.0
"""Steps of a run folder whose rank files grow: of each file, only what is new is read.

A file is opened anew for each look, as a reader that keeps it open beside its writer can be held up
by a writer that is killed (read/superblock.py); that takes the same however long the run is.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import deque
from pathlib import Path

import numpy as np
import pandas as pd

from cadenza.errors import DamagedError, DataError
from cadenza.log import LOG
from cadenza.read.rank_file import RankFile, text
from cadenza.read.rank_tables import Tables
from cadenza.read.run import rank_files
from cadenza.watch.step import Link, Operation, RankStep, Step, of_all
from cadenza.watch.sums import Ends, Reader
from cadenza.watch.transfers import Links

_SETTLED = 0.05  # seconds since a change, after which the time of the file tells of the next one
_ATTEMPTS = 5  # looks at a file that cannot be read, of a writer that lives
_AT_ONCE = 64  # steps of a file that are read at once
_BEHIND = 16  # steps by which a rank that writes no more is behind the others
_BEFORE = 32  # steps of a run that goes on, from which the watch begins
_ENDED = ("clean", "signalled")
_PLACES = ("rank", "local_rank", "data", "pipeline", "tensor", "context", "threads")


class _Growing:
    """One rank's file, and its steps that no other part of the watch has taken yet."""

    def __init__(self, path: Path, feed: TraceFeed) -> None:
        self.path, self._seen = path, None
        self.file = RankFile(path)
        if path.stem != f"rank-{self.file.rank:05}":
            raise DamagedError(f"{path}: is a copy of the file of rank {self.file.rank}")
        self.reader = Reader(self.file, feed.operations, feed.known)
        steps = self.file.steps
        self._steps = 0 if feed.left else max(0, len(steps) - _BEFORE)
        self._events = int(steps["n_events_end"][self._steps - 1]) if self._steps else 0
        self.file.steps = steps[:0]  # from here on the last one alone
        self.all_read = False
        self.waiting: deque[tuple[RankStep, Ends]] = deque()
        self.last = -1  # number of the last step
        self.failures = 0  # looks in a row that could not read it
        self.changed = 0.0  # when the file was, in seconds since 1970
        self._settled = False  # whether it had not just changed when it was read

    def look(self) -> None:
        """Reads what is new, if the file has changed."""
        found = os.stat(self.path)
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen == self._seen and self.all_read and self._settled:
            return
        self._settled = time.time() - found.st_mtime > _SETTLED
        steps, rows = self.file.read(self._news)
        self._seen, self.changed = seen, found.st_mtime
        ends = np.cumsum(np.diff(steps["n_events_end"].astype(np.int64), prepend=self._events))
        for step, begin, end in zip(steps, np.append(0, ends[:-1]), ends, strict=False):
            mine = rows[begin:end]
            if (mine["begin_ns"][1:] < mine["begin_ns"][:-1]).any():
                mine = mine.take(np.argsort(mine["begin_ns"], kind="stable"))
            one = self.reader.rank_step(step, mine)
            self.waiting.append((one, self.reader.ends(mine)))
            self.last = one.number
        self.file.steps = steps[-1:] if len(steps) else self.file.steps
        self._steps += len(steps)
        self._events += len(rows)

    def _news(self, tables: Tables) -> tuple[np.ndarray, np.ndarray]:
        """New rows of /steps, and their events."""
        if text(tables.attribute("run_id")) != self.file.run_id:
            raise DataError(f"{self.path}: another run has begun in its place")
        table = tables.find("/steps")
        end = min(table.rows, self._steps + _AT_ONCE)
        steps = table.read(self._steps, end)
        last = int(steps["n_events_end"][-1]) if len(steps) else self._events
        events = tables.find("/events")
        rows = events.read(self._events, last)
        counts = np.diff(steps["n_events_end"].astype(np.int64), prepend=self._events)
        if (counts < 0).any() or len(rows) != counts.sum() \
                or (rows["step"] != np.repeat(steps["step"], counts)).any():
            raise ValueError("/events: there are some of another step than that they belong to")
        names = tables.find("/meta/strings")
        if names.rows != len(self.reader.names):
            self.reader.learn([text(name) for name in names.read(0, names.rows)])
        if len(rows) and rows["name_id"].max() >= names.rows:
            raise ValueError(f"/events: name_id {rows['name_id'].max()} is not known")
        clock = tables.find("/clock/sync")
        if clock.rows != len(self.file.clock):
            self.file.clock = clock.read(0, clock.rows)
        status = tables.find("/meta/status")
        self.file.state = status.codes["state"].name(int(status.read(0, 1)["state"][0]))
        self.all_read = end == table.rows
        return steps, rows


class TraceFeed:
    """A feed (step.Feed) of `cadenza train`, `evaluate` and `simulate`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.operations: list[Operation] = []
        self.known: dict[Operation, int] = {}
        self.processors = self.together = 1
        self.ranks = pd.DataFrame()
        self._files: dict[int, _Growing] = {}
        self._links: Links | None = None
        self._simulated = False
        self._silent: list[tuple[int, int]] = []

    @property
    def links(self) -> list[Link]:
        return self._links.links if self._links else []

    @property
    def begun(self) -> bool:
        return bool(self._files)

    @property
    def behind(self) -> bool:
        return any(not one.all_read for one in self._files.values())

    @property
    def ending(self) -> str | None:
        """Known once all files say how the run ended, or one that an error ended it."""
        files = [one.file for one in self._files.values()]
        if not files or self.behind:
            return None
        wrong = [file for file in files if file.ended and file.state == "error"]
        if not wrong and not all(file.ended and file.state in _ENDED for file in files):
            return None
        for file in files:
            file.truncated = file.state != "clean"
        return next((file.ending for file in (*wrong, *files) if file.truncated), "")

    @property
    def written(self) -> float:
        return max((one.changed for one in self._files.values()), default=0.0)

    @property
    def left(self) -> bool:
        """A run holds a lock on a file of its folder as long as its process lives."""
        try:
            lock = os.open(self.path / ".lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
        except OSError:
            return False
        finally:
            os.close(lock)

    def silent(self) -> list[tuple[int, int]]:
        found, self._silent = self._silent, []
        return found

    def poll(self) -> list[Step]:
        if not self._files and not self._begin():
            return []
        for rank in list(self._files):
            one = self._files[rank]
            if len(one.waiting) < _AT_ONCE:
                try:
                    one.look()
                    one.failures = 0
                except FileNotFoundError as error:
                    self._drop(rank, error)
                except (DamagedError, OSError) as error:
                    one.failures += 1  # its writer may be at it just now
                    if one.file.ended or one.failures >= _ATTEMPTS:
                        self._drop(rank, error)
        self._find_silent()
        return self._complete()

    def _begin(self) -> bool:
        """Opens the rank files, once all are there."""
        made: dict[int, _Growing] = {}
        damaged: list[DamagedError] = []
        for path in rank_files(self.path):
            try:
                one = _Growing(path, self)
                made[one.file.rank] = one
            except DamagedError as error:
                damaged.append(error)
        if not made:
            if damaged and self.left:
                raise damaged[0]
            return False
        first = next(iter(made.values())).file
        if any(one.file.run_id != first.run_id for one in made.values()):
            raise DataError(f"{self.path}: holds rank files of several runs")
        absent = first.world - len(made)
        wrote = any(one.file.committed for one in made.values())
        if absent and not wrote and not self.left:  # ranks begin one after the other
            return False
        if absent:
            why = f" ({damaged[0]})" if damaged else ""
            LOG.warning("%s: %d of %d rank files are missing or damaged%s; continuing with the "
                        "others", self.path, absent, first.world, why)
        self._files = dict(sorted(made.items()))
        rows = [{**{name: int(one.file.info[name]) for name in _PLACES},
                 "host": text(one.file.info["host"]), "device": text(one.file.info["device"]),
                 "role": one.file.role} for one in self._files.values()]
        self.ranks = pd.DataFrame(rows)
        self.processors = int(self.ranks["threads"].clip(lower=1).sum())
        self._simulated = text(first.attributes()["producer"]) == "simulator"
        self._links = Links(dict(zip(self.ranks["rank"], self.ranks["host"], strict=True)))
        return True

    def _drop(self, rank: int, error: Exception) -> None:
        """A file that is gone or damaged: its rank is known no more."""
        LOG.warning("%s; continuing without it", error)
        del self._files[rank]
        if not self._files:
            raise DataError(f"{self.path}: no rank file is left")

    def _find_silent(self) -> None:
        """A rank that is far behind all others will not come: they go on without its steps."""
        most = max(one.last for one in self._files.values())
        for rank, one in list(self._files.items()):
            others = min((o.last for r, o in self._files.items() if r != rank), default=-1)
            if one.all_read and others - one.last >= _BEHIND and most > one.last:
                self._silent.append((rank, one.last))
                del self._files[rank]

    def _complete(self) -> list[Step]:
        found = []
        files = list(self._files.values())
        for number, taken in of_all([one.waiting for one in files]):
            ranks = [one.file.rank for one in files]
            transfers = self._links.transfers(
                ranks, [ends for _, ends in taken], [one.reader.names for one in files],
                self._simulated)
            found.append(Step(number, np.array(ranks), tuple(one for one, _ in taken), transfers))
        return found
