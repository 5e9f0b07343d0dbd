# SPDX-License-Identifier: Apache-2.0
"""Steps of a program of others, whose ranks write files of the neutral format piece by piece, as
the hook for PyTorch does. A piece is complete when it has its name, and is read once."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

import numpy as np
import pandas as pd

from cadenza.errors import DataError
from cadenza.files import printable
from cadenza.graph.loads import PHASES_OF_WORK
from cadenza.graph.pauses import LEAST_NS
from cadenza.log import LOG
from cadenza.sources import neutral, neutral_files
from cadenza.sources.lanes import CATEGORIES
from cadenza.watch.step import Link, Operation, RankStep, Step, Stop, Sums, of_all

_CATEGORIES = {kind: CATEGORIES[kind] for kind in neutral.COMPUTATION}
_PHASES = {"recompute": "backward"}
_AT_ONCE = 256  # files that are read at once
_BEHIND = 16  # steps by which a rank that writes no more is behind the others
_ENDED = 600.0  # seconds: what was last written earlier than that is of a run that has ended


class _Rank:
    """One rank's steps that no other part of the watch has taken yet."""

    def __init__(self, trace: neutral.RankTrace) -> None:
        self.host, self.device, self.place = trace.host, trace.device, trace.place
        self.waiting: deque[tuple[RankStep, dict[tuple, tuple]]] = deque()
        self.last = -1


class NeutralFeed:
    """A feed (step.Feed). How such a run ends is written nowhere: it has ended if its files are
    old."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.operations: list[Operation] = []
        self.links: list[Link] = []
        self.ranks = pd.DataFrame()
        self.written = 0.0
        self.together = 1
        self.behind = False
        self._known: dict[Operation | Link, int] = {}
        self._read: set[str] = set()  # names of files
        self._of: dict[int, _Rank] = {}
        self._world = 0
        self._silent: list[tuple[int, int]] = []

    @property
    def begun(self) -> bool:
        return len(self.ranks) > 0

    @property
    def processors(self) -> int:
        return max(len(self._of), 1)

    @property
    def ending(self) -> str | None:
        old = time.time() - self.written > _ENDED
        return "" if self.begun and old and not self.behind else None

    @property
    def left(self) -> bool:
        return False

    def silent(self) -> list[tuple[int, int]]:
        found, self._silent = self._silent, []
        return found

    def poll(self) -> list[Step]:
        new = [path for path in (self.path.iterdir() if self.path.is_dir() else ())
               if path.name not in self._read and neutral_files.is_named_so(path)]
        # rank-00000.00000020.arrow: steps of all ranks before later ones.
        new.sort(key=lambda path: (path.name.partition(".")[2], path.name))
        self.behind = len(new) > _AT_ONCE
        for path in new[:_AT_ONCE]:
            self._read.add(path.name)
            self._add(path)
        if not self.begun and not self._begin():
            return []
        self._find_silent()
        return self._complete()

    def _add(self, path: Path) -> None:
        """What a new file tells."""
        try:
            traces = neutral_files.read(path)
            self.written = max(self.written, path.stat().st_mtime)
        except (DataError, OSError) as error:
            LOG.warning("%s; continuing without it", error)
            return
        for trace in traces:
            if self.begun and trace.rank not in self._of:
                continue  # it was left behind
            one = self._of.setdefault(trace.rank, _Rank(trace))
            self._world = max(self._world, trace.world)
            self._split(trace, one)

    def _split(self, trace: neutral.RankTrace, one: _Rank) -> None:
        """A file's rows by step: each is of the step in which it begins."""
        events = trace.events.sort_values("begin_ns", kind="stable", ignore_index=True)
        kind = events["kind"].astype(object).to_numpy()
        steps = events[kind == neutral.STEP]
        rows = events[kind != neutral.STEP]
        begin = rows["begin_ns"].to_numpy()
        count = 0
        for step in steps.itertuples():
            mine = rows.iloc[np.searchsorted(begin, step.begin_ns) :
                             np.searchsorted(begin, step.end_ns)]
            number = int(step.step) if step.step >= 0 else one.last + 1
            one.waiting.append(self._step(trace, number, step, mine))
            one.last, count = number, count + 1
        self.together = max(self.together, count)

    def _step(
        self, trace: neutral.RankTrace, number: int, step: tuple, rows: pd.DataFrame
    ) -> tuple[RankStep, dict[tuple, tuple]]:
        """@returns the step, and its collectives: _moves()"""
        kind, name = (rows[column].astype(object).to_numpy() for column in ("kind", "name"))
        phase = np.array([_PHASES.get(one, one) for one in rows["phase"].astype(object)], object)
        took = (rows["end_ns"] - rows["begin_ns"]).to_numpy() / 1e9
        still = rows["still_ns"].clip(lower=0).to_numpy() / 1e9
        works = np.isin(kind, list(_CATEGORIES)) & np.isin(phase, PHASES_OF_WORK)
        what = np.array([self._row(self.operations, Operation(
            phase[row], _CATEGORIES[kind[row]], printable(name[row]), trace.device))
            for row in np.flatnonzero(works)], np.int64)
        amount = np.where(kind == neutral.COPY, rows["bytes"].clip(lower=0), rows["flops"])
        work = Sums.of(what, took[works], amount[works].astype(float))
        lost = np.bincount(np.searchsorted(work.what, what), still[works], len(work.what))
        stood = np.where(kind == neutral.PAUSE, took, np.where(works, still, 0.0))
        stops = tuple(Stop(trace.rank, phase[row], printable(name[row]), float(stood[row]), False)
                      for row in np.flatnonzero(stood * 1e9 > LEAST_NS))
        reads = float(took[kind == neutral.DATA].sum())
        return RankStep(number, int(step.begin_ns), int(step.end_ns), work, lost, reads, 0.0,
                        stops), _moves(rows[kind == neutral.COLLECTIVE])

    def _row(self, rows: list, one: Operation | Link) -> int:
        """The number of an operation or a link, new ones at the end."""
        if one not in self._known:
            self._known[one] = len(rows)
            rows.append(one)
        return self._known[one]

    def _begin(self) -> bool:
        """Once every rank has written something, or one is far ahead of those that have not."""
        most = max((one.last for one in self._of.values()), default=-1)
        if not self._of or (len(self._of) < self._world and most < _BEHIND):
            return False
        if len(self._of) < self._world:
            LOG.warning("%s: files of %d of %d ranks; continuing without the others", self.path,
                        len(self._of), self._world)
        self._of = dict(sorted(self._of.items()))
        self.ranks = pd.DataFrame([
            {"rank": rank, "host": one.host, "device": one.device, "role": "trainer",
             "local_rank": 0, **{name: int(one.place.get(name, 0)) for name in neutral.DIMENSIONS}}
            for rank, one in self._of.items()])
        self.ranks["local_rank"] = self.ranks.groupby("host").cumcount()
        return True

    def _find_silent(self) -> None:
        most = max(one.last for one in self._of.values())
        for rank, one in list(self._of.items()):
            if most - one.last >= max(_BEHIND, 2 * self.together):
                self._silent.append((rank, one.last))
                del self._of[rank]

    def _complete(self) -> list[Step]:
        return [Step(number, np.array(list(self._of)), tuple(step for step, _ in taken),
                     self._transfers([moves for _, moves in taken]))
                for number, taken in of_all([one.waiting for one in self._of.values()])]

    def _transfers(self, each: list[dict[tuple, tuple]]) -> Sums:
        """Who comes last to a collective waits for nobody: it takes as long as on the rank where it
        is shortest, whatever the clocks show."""
        rows: list[tuple[int, float, float]] = []
        host = dict(zip(self.ranks["rank"], self.ranks["host"], strict=True))
        for key in {key: None for moves in each for key in moves}:
            mine = [moves[key] for moves in each if key in moves]
            members = tuple(sorted(int(one) for one in mine[0][2].split(",") if one))
            if len(mine) > 1 and len(members) > 1:
                one_node = len({host.get(rank) for rank in members}) == 1
                link = Link(printable(key[1]), members, False, one_node)
                rows.append((self._row(self.links, link), min(one[0] for one in mine),
                             max(one[1] for one in mine)))
        what, seconds, amount = (np.array(part) for part in zip(*rows, strict=True)) if rows else (
            np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
        return Sums.of(what.astype(np.int64), seconds, amount)


def _moves(collectives: pd.DataFrame) -> dict[tuple, tuple[float, float, str]]:
    """Seconds, bytes and members of a rank's collectives, by group, name and turn."""
    moved = collectives[collectives["bytes"] > 0]
    seconds = (moved["end_ns"] - moved["begin_ns"]) / 1e9
    keys = zip(moved["group"], moved["name"], moved["sequence"], strict=True)
    return dict(zip(keys, zip(seconds, moved["bytes"], moved["members"], strict=True),
                    strict=True))


class FirstFeed:
    """The first of several feeds in which a run begins, in a place where it is not known yet what
    will be written."""

    def __init__(self, *feeds: object) -> None:
        self._feeds = feeds

    def poll(self) -> list[Step]:
        for feed in self._feeds:
            steps = feed.poll()
            if feed.begun:
                self._feeds = (feed,)
                return steps
        return []

    def __getattr__(self, name: str) -> object:
        return getattr(self._feeds[0], name)
