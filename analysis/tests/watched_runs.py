# SPDX-License-Identifier: Apache-2.0
"""Run folders that grow step by step, with documents of unequal lengths and what is planted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np
from trace_files import (
    ATTENTION, COLLECTIVE, DENSE, DISPATCH, NON_BLOCKING, OPTIMIZER, SENDS, WAIT,
    Rank, write_run,
)

MS = 1_000_000  # ns
PERIOD = 2000 * MS  # from step to step
JITTER = 0.01
APART = 10**13  # ns, clocks of the ranks
DATA = 9  # category


@dataclass
class Growing:
    """@param speed  (rank, step) -> how fast it computes, of the others' speed
    @param still  (rank, step) -> share of its computing time without a core
    @param stop  (rank, step) -> ms for which it stands still once
    @param late  (rank, step) -> ms by which it begins after the others
    @param reads  (rank, step) -> ms of loading its documents
    @param link  step -> ms of the message from rank 0 to rank 1
    @param pause  step -> ms between it and the step before
    """

    folder: Path
    ranks: int = 4
    device: bytes = b"card"
    in_wait: bool = False  # whether stops are in waits
    speed: Callable = lambda rank, step: 1.0
    still: Callable = lambda rank, step: 0.0
    stop: Callable = lambda rank, step: 0
    late: Callable = lambda rank, step: 0
    reads: Callable = lambda rank, step: 1
    link: Callable = lambda step: 4
    pause: Callable = lambda step: 1
    options: dict = field(default_factory=dict)  # of trace_files.Rank

    def write(self, steps: int, state: int = 0, ranks: list[int] | None = None) -> Path:
        """The run as it is once so many steps are complete: `state` is that of its writers."""
        made = [Rank(rank, *self._rank(rank, steps), state=state, shift=rank * APART,
                     **self.options)
                for rank in ranks or range(self.ranks)]
        shutil.rmtree(self.folder, ignore_errors=True)
        write_run(self.folder, made, world=self.ranks)
        self._on_device()
        return self.folder

    def _on_device(self) -> None:
        for path in (self.folder / "trace").glob("rank-*.h5"):
            with h5py.File(path, "r+") as file:
                rows = file["meta/rank"][:]
                rows["device"] = self.device
                file["meta/rank"][:] = rows

    def _rank(self, rank: int, steps: int) -> tuple[list, list]:
        events, windows, at = [], [], 10 * PERIOD
        for step in range(steps):
            at += int(self.pause(step) * MS)
            took = [self._work(other, step) for other in range(self.ranks)]
            end = max(late + sum(ns for *_, ns in of) for late, of in took)
            late, mine = took[rank]
            now = at + late
            for category, flops, options, ns in mine:
                events.append((step, category, now, now + ns, {"flops": flops, **options}))
                now += ns
            arrived, moved = at + end, int(self.link(step) * MS)
            waits = {"name": "wait"}
            if self.in_wait and self.stop(rank, step):
                waits["still_ns"] = int(self.stop(rank, step) * MS)
            events.append((step, WAIT, now, arrived + moved, waits))
            if rank < 2:
                peer = {"peer": 1 - rank, "bytes": 1000, "flow": 5, "name": "attend",
                        "flags": NON_BLOCKING | (0 if rank else SENDS)}
                events.append((step, DISPATCH, arrived, arrived + moved, peer))
            leaves = arrived + moved + 10 * MS
            events.append((step, COLLECTIVE, arrived + moved, leaves,
                           {"flow": 9, "bytes": 1000, "lane": 0, "name": "reduce_gradients"}))
            windows.append((step, at + late, leaves))
            at = leaves
        return events, windows

    def _work(self, rank: int, step: int) -> tuple[int, list]:
        """ns by which a rank begins late, and its operations: category, flops, options, ns."""
        random = np.random.default_rng([rank, step])
        found = []
        reads = int(self.reads(rank, step) * MS)
        found.append((DATA, 0, {"name": "nothing", "still_ns": 0}, reads))
        lengths = np.minimum(random.pareto(1.1) + 1, 40)
        for phase, scale in ((0, 1), (1, 2)):
            for category, name, fixed, flops in (
                    (DENSE, "q_proj", 0, 4e10), (DENSE, "q_proj", 0, 4e10),
                    (ATTENTION, "attend", 20, 2e9 * lengths)):
                usual = scale * (fixed * MS + flops * 1e-3)
                usual *= np.exp(JITTER * random.standard_normal()) / self.speed(rank, step)
                still = usual * self.still(rank, step) / (1 - self.still(rank, step))
                found.append((category, scale * flops, {"name": name, "phase": phase,
                                                        "still_ns": int(still)},
                              int(usual + still)))
        if not self.in_wait and self.stop(rank, step):
            lost = int(self.stop(rank, step) * MS)
            category, flops, options, ns = found[1]
            found[1] = (category, flops, {**options, "still_ns": options["still_ns"] + lost},
                        ns + lost)
        took = int(5 * MS / self.speed(rank, step))
        found.append((OPTIMIZER, 1e6, {"name": "pack", "phase": 3, "still_ns": 0}, took))
        return int(self.late(rank, step) * MS), found
