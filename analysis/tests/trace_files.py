# SPDX-License-Identifier: Apache-2.0
"""Writes trace files of schema cadenza-trace/1 with h5py, from events given by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np

EVENT = np.dtype(
    [("t_begin_ns", "<i8"), ("t_end_ns", "<i8"), ("bytes", "<i8"), ("flops", "<f8"),
     ("t_enq_ns", "<i8"), ("step", "<u4"), ("peer", "<i4"), ("flow", "<u4"), ("name_id", "<u2"),
     ("mb", "<i2"), ("layer", "<i2"), ("doc", "<i2"), ("cat", "u1"), ("phase", "u1"),
     ("lane", "u1"), ("flags", "u1")]
)  # fmt: skip
STEP = np.dtype(
    [("step", "<u4"), ("docs", "<u4"), ("t_begin", "<i8"), ("t_end", "<i8"), ("tokens", "<i8"),
     ("sum_len2", "<f8"), ("model_flops", "<f8"), ("executed_flops", "<f8"), ("loss", "<f8"),
     ("grad_norm", "<f8"), ("lr", "<f8"), ("n_events_end", "<u8"), ("bytes_sent", "<i8"),
     ("bytes_recv", "<i8")]
)  # fmt: skip
RANK = np.dtype(
    [("host", "S64"), ("rank", "<i4"), ("world", "<i4"), ("local_rank", "<i4"), ("role", "<u4"),
     ("data", "<i4"), ("pipeline", "<i4"), ("tensor", "<i4"), ("context", "<i4"),
     ("server", "<i4"), ("threads", "<i4"), ("device", "S64"), ("peak_flops", "<f8")]
)  # fmt: skip
SYNC = np.dtype(
    [("t_local_ns", "<i8"), ("offset_ns", "<i8"), ("rtt_min_ns", "<i8"), ("n_ping", "<u4"),
     ("phase", "<u4")]
)  # fmt: skip
SAMPLE = np.dtype(
    [("t_ns", "<i8"), ("step", "<u4"), ("reserved", "<u4"), ("bytes", "<i8", 7),
     ("host_rss", "<i8")]
)  # fmt: skip
HIGHWATER = np.dtype(
    [("step", "<u4"), ("reserved", "<u4"), ("peak", "<i8", 7), ("peak_total", "<i8")]
)
PLAN = np.dtype(
    [("step", "<u4"), ("tick", "<i4"), ("doc", "<i4"), ("home", "<i4"), ("server", "<i4"),
     ("stage", "<i4"), ("q_begin", "<i8"), ("q_end", "<i8"), ("k_begin", "<i8"),
     ("k_end", "<i8"), ("cost", "<f8")]
)  # fmt: skip
STATUS = np.dtype(
    [("state", "<u4"), ("signal", "<i4"), ("last_step", "<u4"), ("n_events", "<u8"),
     ("n_dropped", "<u8"), ("writer_ns", "<i8")]
)  # fmt: skip

DENSE, ATTENTION, OTHER, SEND, RECEIVE, COLLECTIVE, DISPATCH, RETURN = 1, 2, 3, 4, 5, 6, 7, 8
STEP_MARK, WAIT, OPTIMIZER, HOST, PLANNING = 0, 9, 11, 13, 14
NON_BLOCKING = 4


@dataclass
class Rank:
    """A rank's file to be: `events` are (step, category, begin, end, options) in local time."""

    rank: int
    events: list[tuple] = field(default_factory=list)
    steps: list[tuple] = field(default_factory=list)  # (step, begin, end)
    role: int = 2
    server: int | None = None
    shift: int = 0  # the local clock is ahead of rank 0's by so much
    syncs: list[tuple] | None = None  # (local, offset); default: one that undoes `shift`
    plan: list[tuple] = field(default_factory=list)  # (step, server, cost)
    peak: int = 1 << 20
    tail: int = 0  # uncommitted events
    state: int = 1
    schema: str = "cadenza-trace/1"
    run_id: str = "run-1"


def event_rows(rank: Rank) -> np.ndarray:
    rows = np.zeros(len(rank.events) + rank.tail, EVENT)
    rows["peer"], rows["mb"], rows["layer"], rows["doc"] = -1, -1, -1, -1
    for row, (step, category, begin, end, *options) in zip(rows, rank.events, strict=False):
        communication = SEND <= category <= RETURN
        row["step"], row["cat"] = step, category
        row["t_begin_ns"], row["t_end_ns"] = begin + rank.shift, end + rank.shift
        row["lane"] = 2 if communication else 0
        for key, value in (options[0] if options else {}).items():
            row[key] = value
    rows[len(rank.events):]["cat"] = 200  # must never be looked at
    return rows


def step_rows(rank: Rank) -> np.ndarray:
    rows = np.zeros(len(rank.steps), STEP)
    for row, (step, begin, end) in zip(rows, rank.steps, strict=True):
        row["step"], row["t_begin"], row["t_end"] = step, begin + rank.shift, end + rank.shift
        row["n_events_end"] = sum(1 for e in rank.events if e[0] <= step)
    return rows


def fill(file: h5py.File, rank: Rank, world: int) -> None:
    file.attrs["schema"] = np.bytes_(rank.schema)
    file.attrs["run_id"] = np.bytes_(rank.run_id)
    server = rank.rank if rank.server is None else rank.server
    info = (b"node", rank.rank, world, rank.rank, rank.role, rank.rank, 0, 0, 0, server, 1,
            b"host", 1e9)  # fmt: skip
    syncs = [(0, -rank.shift)] if rank.syncs is None else rank.syncs
    high = [(s, 0, [rank.peak // 7] * 7, rank.peak) for s, *_ in rank.steps]
    sample = [(b + rank.shift, s, 0, [1] * 7, 9) for s, b, _ in rank.steps]
    plan = [(step, 0, 0, 0, server, 0, 0, 1, 0, 1, cost) for step, server, cost in rank.plan]
    tables = {
        "meta/rank": np.array([info], RANK),
        "meta/strings": np.array([b"nothing", b"q_proj"], "S96"),
        "meta/config_yaml": np.frombuffer(b"name: from-trace\n", np.uint8),
        "meta/status": np.array([(rank.state, 0, 0, 0, 0, 0)], STATUS),
        "clock/sync": np.array([(t, o, 1000, 100, 0) for t, o in syncs], SYNC),
        "events": event_rows(rank),
        "memory/samples": np.array(sample, SAMPLE),
        "memory/highwater": np.array(high, HIGHWATER),
        "steps": step_rows(rank),
        "plan": np.array(plan, PLAN),
    }
    for name, rows in tables.items():
        file.create_dataset(name, data=rows, maxshape=(None,), chunks=(max(len(rows), 16),))


def write_run(folder: Path, ranks: list[Rank], world: int | None = None, **attention) -> Path:
    """A run folder as `cadenza train` leaves it."""
    (folder / "trace").mkdir(parents=True)
    for rank in ranks:
        with h5py.File(folder / "trace" / f"rank-{rank.rank:05d}.h5", "w") as file:
            fill(file, rank, world or len(ranks))
    settings = {"placement": "cad", "servers": "in_place", **attention}
    (folder / "experiment.yaml").write_text(
        json.dumps({"name": folder.name, "attention": settings})  # JSON is YAML
    )
    with (folder / "metrics.jsonl").open("w") as file:
        for step, *_ in ranks[0].steps:
            values = {"step": step, "loss": 5.0 - step, "tokens": 100, "seconds": 1e-6,
                      "tokens_per_second": 1000.0 + step, "model_flops_utilization": 0.25,
                      "attention_imbalance": 1.0, "bytes_moved": 8,
                      "peak_memory_bytes": 77}  # fmt: skip
            file.write(json.dumps(values) + "\n")
    return folder
