# SPDX-License-Identifier: Apache-2.0
"""Rows of /events of one rank and step, summed by operation: what graph.loads.operation_loads()
says of a frame, for rows as they are written. A frame takes ten times as long, which a watch has
not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cadenza.causes.repair import BETWEEN
from cadenza.graph.lanes import WORK
from cadenza.graph.loads import PHASES_OF_WORK
from cadenza.graph.pauses import FEWEST, LEAST_NS, SHORT_NS
from cadenza.read.rank_file import RankFile, text
from cadenza.read.schema import MESSAGES, TENSOR_COLLECTIVES
from cadenza.watch.step import Operation, RankStep, Stop, Sums

_OUTSIDE = ("write_step", "measure_clock", "save_checkpoint", "validate")  # between two steps
_DISKS = ("data", "checkpoint")  # who waits for a disk does stand still, but for its own reason


@dataclass(frozen=True)
class Ends:
    """A rank's ends of messages and collectives in a step; times on rank 0's clock."""

    flow: np.ndarray
    name: np.ndarray  # rows of Reader.names
    sender: np.ndarray  # world rank; of collectives -1
    receiver: np.ndarray
    group: np.ndarray  # of a tensor group's collectives the group's place; else -1
    begin_ns: np.ndarray
    end_ns: np.ndarray
    bytes: np.ndarray
    blocked_ns: np.ndarray  # since when the rank waited as it ended; -1: it did not


class Reader:
    """What the numbers of one file's rows mean, looked up once.

    @param operations  all files' list, which grows
    """

    def __init__(self, file: RankFile, operations: list[Operation],
                 known: dict[Operation, int]) -> None:
        self._file, self._operations, self._known = file, operations, known
        self._device = text(file.info["device"])
        codes = {field: file.codes("/events", field)
                 for field in ("category", "phase", "lane", "flags")}
        self._sends = codes["flags"].bit("sends")
        self._categories, self._lanes = codes["category"], codes["lane"]
        self._phases = codes["phase"]
        self._work = np.isin(self._categories.names, WORK)
        self._messages = np.isin(self._categories.names, MESSAGES)
        self._collectives = np.isin(self._categories.names, ("collective",))
        self._wait = np.isin(self._categories.names, ("wait",))
        self._disks = np.isin(self._categories.names, _DISKS)
        self._reads = np.isin(self._categories.names, ("data",))
        self._copies = np.isin(self._categories.names, ("compute_other",))
        self._compute = np.isin(self._lanes.names, ("compute",))
        self._host = np.isin(self._lanes.names, ("host",))
        self._phase = [{"recompute": "backward"}.get(name, name) for name in self._phases.names]
        self._of_work = np.isin(self._phase, PHASES_OF_WORK)
        self._cells: dict[int, int] = {}  # row of operations by number of a cell
        info = file.info
        self._place = int((info["data"] * 1009 + info["pipeline"]) * 1009 + info["context"])
        self.names: list[str] = []

    def learn(self, names: list[str]) -> None:
        """What the file's `name_id` mean, which grow as it does."""
        self.names = names
        self._tensor = np.isin(names, TENSOR_COLLECTIVES)
        self._outside = np.isin(names, _OUTSIDE)

    def rank_step(self, step: np.void, rows: np.ndarray) -> RankStep:
        """@param step  a row of /steps
        @param rows  its events, ordered by begin"""
        category = self._categories.index(rows["category"])
        lane, phase = self._lanes.index(rows["lane"]), self._phases.index(rows["phase"])
        seconds = (rows["end_ns"] - rows["begin_ns"]) / 1e9
        outside = self._host[lane] & self._outside[rows["name_id"]]
        works = self._work[category] & self._compute[lane]
        reads = works & self._reads[category]
        stops = self._stops(rows, category, phase, outside, works)
        work, still = self._summed(rows, category, phase, seconds, np.flatnonzero(works))
        between = sum(stop.seconds for stop in stops if stop.phase == BETWEEN)
        return RankStep(int(step["step"]), int(step["begin_ns"]), int(step["end_ns"]), work, still,
                        float(seconds[reads].sum()), float(seconds[outside].sum()) - between, stops)

    def _summed(self, rows: np.ndarray, category: np.ndarray, phase: np.ndarray,
                seconds: np.ndarray, works: np.ndarray) -> tuple[Sums, np.ndarray]:
        """Sums by operation, and seconds without a core of the same. @param works  indices"""
        inner = np.flatnonzero(self._collectives[category] & self._tensor[rows["name_id"]])
        begin = rows["begin_ns"]
        spent = seconds[works] - _inside(begin[works], begin[inner], seconds[inner])
        counts = ~self._reads[category[works]] & self._of_work[phase[works]]
        works, spent = works[counts], spent[counts]
        category, phase = category[works].astype(np.int64), phase[works]
        copies = (rows["flops"][works] == 0) & self._copies[category]
        amount = np.where(copies, rows["bytes"][works], rows["flops"][works])
        name = rows["name_id"][works].astype(np.int64)
        cell = (name * len(self._phase) + phase) * len(self._work) + category
        found, place = np.unique(cell, return_inverse=True)
        # Recomputation is part of the backward pass: two cells may be one operation.
        what = np.array([self._operation(one) for one in found.tolist()], np.int64)[place]
        work = Sums.of(what, spent, np.maximum(amount, 0.0))
        still = np.maximum(rows["still_ns"][works], 0) / 1e9
        return work, np.bincount(np.searchsorted(work.what, what), still, len(work.what))

    def _operation(self, cell: int) -> int:
        if cell not in self._cells:
            rest, category = divmod(cell, len(self._work))
            name, phase = divmod(rest, len(self._phase))
            one = Operation(self._phase[phase], self._categories.names[category],
                            self.names[name], self._device)
            if one not in self._known:
                self._known[one] = len(self._operations)
                self._operations.append(one)
            self._cells[cell] = self._known[one]
        return self._cells[cell]

    def _stops(self, rows: np.ndarray, category: np.ndarray, phase: np.ndarray,
               outside: np.ndarray, works: np.ndarray) -> tuple[Stop, ...]:
        """Operations in which the rank stood still for long. What it computes loses a share of its
        core on a shared machine: there it is what exceeds the share that is usual."""
        still = np.maximum(rows["still_ns"], 0).astype(float)
        long = np.flatnonzero((still > LEAST_NS) & ~self._disks[category])
        if not len(long):
            return ()
        ran = np.maximum(rows["end_ns"] - rows["begin_ns"] - still, 1.0)
        known = works & (rows["end_ns"] - rows["begin_ns"] > SHORT_NS)
        usual = np.median(still[known] / ran[known]) if known.sum() >= FEWEST else 0.0
        still = np.where(works, still - ran * usual, still)
        return tuple(
            Stop(self._file.rank, BETWEEN if outside[row] else self._phase[phase[row]],
                 self.names[rows["name_id"][row]], still[row] / 1e9, not works[row])
            for row in long[still[long] > LEAST_NS].tolist())

    def ends(self, rows: np.ndarray) -> Ends:
        """Of transfers with bytes and a flow. @param rows  events of a step, ordered by begin"""
        category = self._categories.index(rows["category"])
        message = self._messages[category] & (rows["peer"] >= 0)
        moves = (message | self._collectives[category]) & (rows["flow"] > 0) & (rows["bytes"] > 0)
        at = np.flatnonzero(moves)
        part, message = rows[at], message[at]
        rank, sends = self._file.rank, (part["flags"] & self._sends) != 0
        end = self._file.to_global(part["end_ns"])
        waits = rows[self._wait[category] & self._compute[self._lanes.index(rows["lane"])]]
        return Ends(
            part["flow"].astype(np.int64), part["name_id"].astype(np.int64),
            np.where(message, np.where(sends, rank, part["peer"]), -1),
            np.where(message, np.where(sends, part["peer"], rank), -1),
            np.where(self._tensor[part["name_id"]] & ~message, self._place, -1),
            self._file.to_global(part["begin_ns"]), end, part["bytes"].astype(float),
            self._blocked(waits, part["end_ns"]))

    def _blocked(self, waits: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Since when the rank waited, of transfers that ended in a wait, on rank 0's clock."""
        if not len(waits):
            return np.full(len(end), -1)
        place = np.searchsorted(waits["begin_ns"], end, side="right") - 1
        inside = (place >= 0) & (waits["end_ns"][place] >= end)
        return np.where(inside, self._file.to_global(waits["begin_ns"])[place], -1)


def _inside(outer: np.ndarray, inner: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Seconds of what began in each operation: collectives of a tensor group.

    @param outer, inner  begins, ascending
    """
    if not len(inner) or not len(outer):
        return np.zeros(len(outer))
    around = np.searchsorted(outer, inner, side="right") - 1
    return np.bincount(around[around >= 0], seconds[around >= 0], len(outer))
