# SPDX-License-Identifier: Apache-2.0
"""Frames of a step from a few words: what every rank does, one thing after the other."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.graph.graph import StepGraph, build

MS = 1_000_000  # ns
_DEFAULTS = {
    "step": 0, "category": "compute_dense", "phase": "forward", "name": "work", "lane": "compute",
    "peer": -1, "flow": 0, "microbatch": -1, "layer": -1, "bytes": 0, "flops": 0.0,
    "non_blocking": False, "tick": -1, "half": -1, "stage": -1, "sends": False,
    "simulated": False, "still_ns": -1,
}


def events_frame(rows: list[dict]) -> pd.DataFrame:
    """Like Run.events(): each row has rank, begin, end (ms) and what differs from the defaults."""
    filled = [{**_DEFAULTS, **row} for row in rows]
    frame = pd.DataFrame(filled)
    frame["begin_ns"] = np.round(frame.pop("begin") * MS).astype(np.int64)
    frame["end_ns"] = np.round(frame.pop("end") * MS).astype(np.int64)
    frame = frame.sort_values(["rank", "begin_ns"], kind="stable", ignore_index=True)
    for column in ("category", "phase", "lane", "name"):
        frame[column] = frame[column].astype("category")
    return frame


def ranks_frame(count: int, **columns) -> pd.DataFrame:
    frame = pd.DataFrame({"rank": range(count)})
    defaults = {"role": "both", "data": frame["rank"], "pipeline": 0, "tensor": 0, "context": 0,
                "server": frame["rank"], "device": "host", "local_rank": frame["rank"]}
    return frame.assign(**{**defaults, **columns})


def steps_frame(events: pd.DataFrame) -> pd.DataFrame:
    """Every rank's step is from the first event of all to the last of all."""
    frame = events.groupby(["rank", "step"], as_index=False).size()
    of_step = events.groupby("step")
    return frame.assign(
        begin_ns=frame["step"].map(of_step["begin_ns"].min()),
        end_ns=frame["step"].map(of_step["end_ns"].max()),
    )


def graph_of(rows: list[dict], **ranks) -> StepGraph:
    events = events_frame(rows)
    found = ranks_frame(int(events["rank"].max()) + 1, **ranks)
    return build(events, steps_frame(events), found, int(events["step"].iloc[0]))


class Cluster:
    """Runs programs of ranks as the graph says that they run; times in ms.

    A program is a list of ("work", name, duration, fields), ("rest", duration), ("send", to,
    fields), ("post", from), ("receive", from, fields) and ("meet", name, duration), which all ranks
    do. Fields may be left out. A message takes `travel` from when both ends have posted it: the
    receiver where it says so, or else where it waits.
    """

    def __init__(self, programs: list[list[tuple]], travel: float) -> None:
        self.programs, self.travel = programs, travel
        self.rows: list[dict] = []
        self.now = [0.0] * len(programs)
        self._sent: dict[tuple[int, int], list[float]] = {}
        self._posted: dict[tuple[int, int], list[float]] = {}
        self._flows: dict[tuple[int, int, str], int] = {}
        at = [0] * len(programs)
        while any(at[r] < len(p) for r, p in enumerate(programs)):
            moved = [r for r in range(len(programs)) if self._move(r, at)]
            assert moved, "a program that cannot end"

    def _move(self, rank: int, at: list[int]) -> bool:
        if at[rank] == len(self.programs[rank]):
            return False
        kind, *rest = self.programs[rank][at[rank]]
        if kind == "meet":
            return self._meet(at, *rest)
        if kind == "receive" and not self._sent.get((rest[0], rank)):
            return False
        getattr(self, "_" + kind)(rank, *rest)
        at[rank] += 1
        return True

    def _work(self, rank: int, name: str, duration: float, fields: dict | None = None) -> None:
        self._add(rank, self.now[rank], self.now[rank] + duration, name=name, **(fields or {}))
        self.now[rank] += duration

    def _rest(self, rank: int, duration: float) -> None:
        self.now[rank] += duration  # that nothing is recorded of

    def _send(self, rank: int, to: int, fields: dict | None = None) -> None:
        self._sent.setdefault((rank, to), []).append(self.now[rank])
        self._add(rank, self.now[rank], self.now[rank], name="send", category="p2p_send",
                  lane="communication", peer=to, bytes=1000, non_blocking=True, sends=True,
                  flow=self._flow(rank, to, "sent"), **(fields or {}))

    def _post(self, rank: int, source: int) -> None:
        self._posted.setdefault((source, rank), []).append(self.now[rank])

    def _receive(self, rank: int, source: int, fields: dict | None = None) -> None:
        begin = self.now[rank]
        posted = (self._posted.get((source, rank)) or [begin]).pop(0)
        there = max(posted, self._sent[source, rank].pop(0)) + self.travel
        end = max(begin, there)
        self._add(rank, begin, end, name="wait_for_stage", category="wait")
        self._add(rank, posted, end, name="receive", category="p2p_receive",
                  lane="communication", peer=source, bytes=1000, non_blocking=True,
                  flow=self._flow(source, rank, "received"), **(fields or {}))
        self.now[rank] = end

    def _flow(self, sender: int, receiver: int, end: str) -> int:
        """The number of this message among those from the sender to the receiver, from 1."""
        key = (sender, receiver, end)
        self._flows[key] = self._flows.get(key, 0) + 1
        return self._flows[key]

    def _meet(self, at: list[int], name: str, duration: float) -> bool:
        if any(i == len(p) or p[i][0] != "meet" for p, i in zip(self.programs, at, strict=True)):
            return False
        opens = max(self.now)
        for rank, begin in enumerate(self.now):
            self._add(rank, begin, opens, name="wait_for_ranks", category="wait")
            self._add(rank, opens, opens + duration, name=name, category="collective", flow=7)
            self.now[rank] = opens + duration
            at[rank] += 1
        return True

    def _add(self, rank: int, begin: float, end: float, **fields) -> None:
        self.rows.append({"rank": rank, "begin": begin, "end": end, **fields})


def pipeline(forward: list[float], backward: list[float], microbatches: int) -> list[list[tuple]]:
    """Programs of 1F1B: stage s takes forward[s] and backward[s] for a microbatch, in ms."""
    stages = len(forward)
    programs = []
    for stage in range(stages):
        ahead = min(stages - stage - 1, microbatches)
        order = [("f", i) for i in range(ahead)]
        for i in range(microbatches - ahead):
            order += [("f", ahead + i), ("b", i)]
        order += [("b", i) for i in range(microbatches - ahead, microbatches)]
        programs.append([])
        for kind, number in order:
            before, after = (stage - 1, stage + 1) if kind == "f" else (stage + 1, stage - 1)
            spent, phase = (forward, "forward") if kind == "f" else (backward, "backward")
            place = {"phase": phase, "microbatch": number}
            if 0 <= before < stages:
                programs[-1].append(("receive", before, place))
            programs[-1].append(("work", "layer", spent[stage], place))
            if 0 <= after < stages:
                programs[-1].append(("send", after, place))
    return programs
