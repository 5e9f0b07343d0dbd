# SPDX-License-Identifier: Apache-2.0
"""Traces of devices that train data-parallel, with a truth planted in them, in neutral columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cadenza.sources.neutral import RankTrace, frame

US, MS = 1_000, 1_000_000
LAYERS = 6
DENSE_NS, ATTENTION_NS, SUM_NS, OPTIMIZER_NS = 2 * MS, 1 * MS, 1500 * US, 3 * MS
LAUNCH_NS = 20 * US


@dataclass
class Planted:
    """What is wrong, by rank: factors of device time, or ns in a step. `steps`: in which."""

    slow: dict[int, float] = field(default_factory=dict)
    attention: dict[int, float] = field(default_factory=dict)  # longer documents
    # Whether FLOPs of attention are told; then by rank, of how much of its rate is lost, and
    # documents drawn for each rank and step, of which the short ones run at half the rate.
    told: bool = False
    attention_slow: dict[int, float] = field(default_factory=dict)
    drawn: bool = False
    turns: float = 1.0  # the same, of another rank in each step
    optimizer: dict[int, float] = field(default_factory=dict)  # a slow update alone
    backward_ns: dict[int, int] = field(default_factory=dict)  # a kernel more in the backward pass
    host_ns: dict[int, int] = field(default_factory=dict)  # the process stops in the forward pass
    data_ns: dict[int, int] = field(default_factory=dict)  # the process waits for a batch
    launch_ns: int = LAUNCH_NS  # of each kernel, on all ranks
    steps: tuple[int, ...] | None = None  # default: all

    def of(self, name: str, rank: int, step: int, default: float) -> float:
        active = self.steps is None or step in self.steps
        return getattr(self, name).get(rank, default) if active else default

    def work(self, rank: int, step: int, world: int) -> tuple[float, float]:
        """Of core attention: FLOPs and time, 1 of what is usual."""
        flops = self.of("attention", rank, step, 1.0)
        flops *= self.turns if step * 7 // 3 % world == rank else 1.0
        took = self.of("attention_slow", rank, step, 1.0)
        if self.drawn:
            flops = float(np.random.default_rng((rank, step)).choice([0.25, 0.5, 1.0, 2.0, 4.0]))
            took *= 1 + 0.25 / flops
        return flops if self.told else 0.0, flops * took


class _Rank:
    """A process that launches kernels, and a device that runs them one after the other."""

    def __init__(self, rank: int, seed: int) -> None:
        self.rank, self.host, self.device = rank, 0, 0
        self.rows: list[dict] = []
        self.random = np.random.default_rng((seed, rank))

    def kernel(self, kind: str, phase: str, name: str, took: float, launch: int,
               flops: float = 0.0) -> None:
        self.host += launch
        begin = max(self.device, self.host + 5 * US)
        self.device = begin + int(took * self.random.normal(1, 0.005))
        self.rows.append({"kind": kind, "phase": phase, "name": name, "stream": "stream 7",
                          "begin_ns": begin, "end_ns": self.device, "enqueued_ns": self.host,
                          "flops": flops * 1e12})


def ddp(world: int = 4, steps: int = 6, planted: Planted | None = None, seed: int = 1,
        offset: dict[int, int] | None = None, drift: dict[int, float] | None = None,
        lengths: dict[int, str] | None = None) -> list[RankTrace]:
    """@param offset, drift  of ranks' clocks: ns, and share
    @param lengths  of documents by rank
    """
    planted = planted or Planted()
    ranks = [_Rank(rank, seed) for rank in range(world)]
    members = ",".join(map(str, range(world)))
    wire, sequence = 0, 0
    for step in range(steps):
        begins = [one.host for one in ranks]
        for one in ranks:
            load = int(planted.of("data_ns", one.rank, step, 0)) + 200 * US
            one.rows.append({"kind": "data", "name": "DataLoader", "begin_ns": one.host,
                             "end_ns": one.host + load})
            one.host += load
            slow = planted.of("slow", one.rank, step, 1.0)
            flops, attention = planted.work(one.rank, step, world)
            for layer in range(LAYERS):
                if layer == LAYERS // 2:
                    one.host += int(planted.of("host_ns", one.rank, step, 0))
                one.kernel("dense", "forward", "gemm", slow * DENSE_NS, planted.launch_ns)
                one.kernel("attention", "forward", "flash_fwd", slow * attention * ATTENTION_NS,
                           planted.launch_ns, flops)
        for layer in range(LAYERS):
            posted = []
            for one in ranks:
                slow = planted.of("slow", one.rank, step, 1.0)
                flops, attention = planted.work(one.rank, step, world)
                one.kernel("attention", "backward", "flash_bwd",
                           2 * slow * attention * ATTENTION_NS, planted.launch_ns, 2.5 * flops)
                one.kernel("dense", "backward", "gemm", 2 * slow * DENSE_NS, planted.launch_ns)
                if layer == LAYERS // 2 and (more := planted.of("backward_ns", one.rank, step, 0)):
                    one.kernel("dense", "backward", "gemm", more, planted.launch_ns)
                posted.append(max(one.device, wire))
            wire = max(posted) + SUM_NS
            for one, begin in zip(ranks, posted, strict=True):
                one.rows.append({
                    "kind": "collective", "phase": "backward", "name": "all_reduce",
                    "stream": "stream 20", "begin_ns": begin, "end_ns": wire, "group": "0",
                    "members": members, "sequence": sequence, "bytes": 1 << 24,
                    "enqueued_ns": one.host})
            sequence += 1
        for one, begin in zip(ranks, begins, strict=True):
            one.device = max(one.device, wire)
            slow = planted.of("slow", one.rank, step, 1.0)
            slow *= planted.of("optimizer", one.rank, step, 1.0)
            one.kernel("optimizer", "optimizer", "adam", slow * OPTIMIZER_NS, planted.launch_ns)
            one.host = max(one.host, one.device - 10 * MS)  # it reads the loss of the step before
            one.rows.append({"kind": "step", "step": step, "begin_ns": begin, "end_ns": one.host,
                             "lengths": (lengths or {}).get(one.rank, "")})
    return [_trace(one, world, (offset or {}).get(one.rank, 0), (drift or {}).get(one.rank, 0.0))
            for one in ranks]


def _trace(one: _Rank, world: int, offset: int, drift: float) -> RankTrace:
    columns = {name: [row.get(name, default) for row in one.rows] for name, default in {
        "kind": "", "phase": "other", "name": "", "stream": "host", "begin_ns": 0, "end_ns": 0,
        "enqueued_ns": 0, "group": "", "members": "", "sequence": -1, "bytes": -1, "step": -1,
        "flops": 0.0, "lengths": ""}.items()}
    for name in ("begin_ns", "end_ns", "enqueued_ns"):
        times = np.array(columns[name], np.int64)
        moved = times + offset + np.rint(times * drift).astype(np.int64) + 10**12
        columns[name] = np.where(times > 0, moved, 0) if name == "enqueued_ns" else moved
    return RankTrace(rank=one.rank, world=world, host=f"node{one.rank // 2}", device="NVIDIA H100",
                     groups={"0": ("default_pg", tuple(range(world)))},
                     events=frame({"rank": one.rank, **columns}, len(one.rows)))


def pipeline(steps: int = 6, microbatches: int = 4, slow: dict[int, float] | None = None,
             seed: int = 1) -> list[RankTrace]:
    """Two stages that only send each other messages: all forward, then all backward (GPipe), whose
    products have known FLOPs."""
    random = np.random.default_rng(seed)
    rows: list[list[dict]] = [[], []]
    now, number = [0, 0], 0

    def compute(stage: int, phase: str, microbatch: int, size: int) -> None:
        took = int(size * 4 * MS * (slow or {}).get(stage, 1.0) * random.normal(1, 0.003))
        rows[stage].append({"kind": "dense", "phase": phase, "name": "gemm", "stream": "stream 7",
                            "begin_ns": now[stage], "end_ns": now[stage] + took,
                            "enqueued_ns": max(now[stage] - MS, 1), "microbatch": microbatch,
                            "flops": size * 1e9})
        now[stage] += took

    def message(sender: int, phase: str, sequence: int) -> None:
        begin = now[sender]
        end = max(begin, now[1 - sender]) + 100 * US
        for rank, kind in ((sender, "send"), (1 - sender, "receive")):
            rows[rank].append({"kind": kind, "phase": phase, "name": kind, "stream": "stream 20",
                               "begin_ns": min(now[rank], end), "end_ns": end, "group": "pp",
                               "members": "0,1", "peer": 1 - rank, "sequence": sequence,
                               "bytes": 1 << 20, "enqueued_ns": max(now[rank] - MS, 1)})
        now[1 - sender] = max(now[1 - sender], end)

    for step in range(steps):
        begin = list(now)
        for microbatch in range(microbatches):
            compute(0, "forward", microbatch, 1)
            message(0, "forward", number)
            compute(1, "forward", microbatch, 1)
            number += 1
        for microbatch in range(microbatches):
            compute(1, "backward", microbatch, 2)
            message(1, "backward", number)
            compute(0, "backward", microbatch, 2)
            number += 1
        for stage in range(2):
            rows[stage].append({"kind": "step", "step": step, "begin_ns": begin[stage],
                                "end_ns": now[stage]})
    traces = []
    for stage in range(2):
        columns = {name: [row.get(name, default) for row in rows[stage]] for name, default in {
            "kind": "", "phase": "other", "name": "", "stream": "host", "begin_ns": 0, "end_ns": 0,
            "enqueued_ns": 0, "group": "", "members": "", "sequence": -1, "bytes": -1, "step": -1,
            "peer": -1, "microbatch": -1, "flops": 0.0}.items()}
        traces.append(RankTrace(rank=stage, world=2, host="node0", device="NVIDIA H100",
                                events=frame({"rank": stage, **columns}, len(rows[stage]))))
    return traces
