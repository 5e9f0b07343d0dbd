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
     ("lane", "u1"), ("flags", "u1"), ("tick", "<i4"), ("stage", "<i2"), ("half", "i1"),
     ("still_ns", "<i8")]
)  # fmt: skip
OLD_EVENT = np.dtype([(name, EVENT[name]) for name in EVENT.names[:-4]])  # before these fields
STEP = np.dtype(
    [("step", "<u4"), ("docs", "<u4"), ("t_begin", "<i8"), ("t_end", "<i8"), ("tokens", "<i8"),
     ("sum_len2", "<f8"), ("model_flops", "<f8"), ("executed_flops", "<f8"), ("loss", "<f8"),
     ("grad_norm", "<f8"), ("lr", "<f8"), ("n_events_end", "<u8"), ("bytes_sent", "<i8"),
     ("bytes_recv", "<i8"), ("machine_s", "<f8"), ("dense_attention_flops", "<f8")]
)  # fmt: skip
RANK = np.dtype(
    [("host", "S64"), ("rank", "<i4"), ("world", "<i4"), ("local_rank", "<i4"), ("role", "<u4"),
     ("data", "<i4"), ("pipeline", "<i4"), ("tensor", "<i4"), ("context", "<i4"),
     ("server", "<i4"), ("threads", "<i4"), ("device", "S64"), ("peak_flops", "<f8"),
     ("attention_kernel", "S64")]
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
     ("k_end", "<i8"), ("cost", "<f8"), ("half", "<i4")]
)  # fmt: skip
PLAN_SUMMARY = np.dtype(
    [("step", "<u4"), ("tick", "<i4"), ("half", "<i4"), ("phase", "<u4"), ("stage", "<i4"),
     ("server", "<i4"), ("tasks", "<i4"), ("messages_in", "<i4"), ("cost", "<f8"),
     ("bytes_in", "<i8"), ("bytes_out", "<i8"), ("attend_s", "<f8"), ("receive_s", "<f8")]
)  # fmt: skip
POSITIONS = np.dtype(
    [("step", "<u4"), ("reserved", "<u4"), ("position", "<i8"), ("targets", "<i8"),
     ("hits", "<i8"), ("loss", "<f8")]
)  # fmt: skip
ANSWERS = np.dtype(
    [("step", "<u4"), ("hit", "<u4"), ("length", "<i8"), ("fact", "<i8"), ("position", "<i8"),
     ("loss", "<f8")]
)  # fmt: skip
STATUS = np.dtype(
    [("state", "<u4"), ("signal", "<i4"), ("last_step", "<i8"), ("n_events", "<u8"),
     ("n_dropped", "<u8"), ("writer_ns", "<i8")]
)  # fmt: skip

DENSE, ATTENTION, OTHER, SEND, RECEIVE, COLLECTIVE, DISPATCH, RETURN = 1, 2, 3, 4, 5, 6, 7, 8
STEP_MARK, WAIT, OPTIMIZER, HOST, PLANNING = 0, 9, 11, 13, 14
SIMULATED, NON_BLOCKING, SENDS = 2, 4, 8
NAMES = ["nothing", "q_proj", "wait", "wait_for_stage", "wait_for_ranks", "wait_for_sends",
         "reduce_gradients", "agree_on_norm", "agree_on_loss", "tensor_all_gather", "attend",
         "pack"]  # fmt: skip


@dataclass
class Rank:
    """A rank's file to be: `events` are (step, category, begin, end, options) in local time; an
    option is a field of EVENT, or `name`, one of NAMES."""

    rank: int
    events: list[tuple] = field(default_factory=list)
    steps: list[tuple] = field(default_factory=list)  # (step, begin, end)
    role: int = 2
    place: tuple[int, int, int] | None = None  # data, pipeline, tensor; default: data = rank
    server: int | None = None
    peak_flops: float = 1e9
    kernel: str = "avx512"
    shift: int = 0  # the local clock is ahead of rank 0's by so much
    syncs: list[tuple] | None = None  # (local, offset); default: one that undoes `shift`
    plan: list[tuple] = field(default_factory=list)  # (step, server, cost)
    summary: list[tuple] | None = None  # rows of PLAN_SUMMARY; None: an older trace without them
    positions: list[tuple] | None = None  # rows of POSITIONS; None: an older trace without them
    answers: list[tuple] = field(default_factory=list)  # rows of ANSWERS
    peak: int = 1 << 20
    tail: int = 0  # uncommitted events
    state: int = 1
    signal: int = 0
    schema: str = "cadenza-trace/1"
    run_id: str = "run-1"
    producer: str = "trainer"
    old: bool = False  # events and rank without the fields that came later
    flops: dict = field(default_factory=dict)  # fields of STEP that are not 0
    machine: str = ""  # YAML, of simulated runs


def event_rows(rank: Rank) -> np.ndarray:
    rows = np.zeros(len(rank.events) + rank.tail, EVENT)
    for name in ("peer", "mb", "layer", "doc", "tick", "stage", "half", "still_ns"):
        rows[name] = -1
    for row, (step, category, begin, end, *options) in zip(rows, rank.events, strict=False):
        communication = SEND <= category <= RETURN
        row["step"], row["cat"] = step, category
        row["t_begin_ns"], row["t_end_ns"] = begin + rank.shift, end + rank.shift
        row["lane"] = 2 if communication else 0
        for key, value in (options[0] if options else {}).items():
            if key == "name":
                key, value = "name_id", NAMES.index(value)
            row[key] = value
        if category == SEND:
            row["flags"] |= SENDS
    rows[len(rank.events):]["cat"] = 200  # must never be looked at
    return rows[list(OLD_EVENT.names)].astype(OLD_EVENT) if rank.old else rows


def step_rows(rank: Rank) -> np.ndarray:
    rows = np.zeros(len(rank.steps), STEP)
    for row, (step, begin, end) in zip(rows, rank.steps, strict=True):
        row["step"], row["t_begin"], row["t_end"] = step, begin + rank.shift, end + rank.shift
        row["n_events_end"] = sum(1 for e in rank.events if e[0] <= step)
        for key, value in rank.flops.items():
            row[key] = value
    return rows


def _without_later(rank: np.ndarray) -> np.ndarray:
    names = [name for name in rank.dtype.names if name != "attention_kernel"]
    return rank[names].astype([(name, rank.dtype[name]) for name in names])


def fill(file: h5py.File, rank: Rank, world: int) -> None:
    attributes = {"schema": rank.schema, "run_id": rank.run_id, "producer": rank.producer,
                  "code_version": "0.1", "code_revision": "v0.1-3-gabc",
                  "build": "GNU 12.2 Release", "created_utc": "2026-01-01T00:00:00Z"}  # fmt: skip
    for name, value in attributes.items():
        file.attrs[name] = np.bytes_(value)
    file.attrs["seed"] = np.uint64(7)
    server = rank.rank if rank.server is None else rank.server
    data, pipeline, tensor = rank.place or (rank.rank, 0, 0)
    info = (b"node", rank.rank, world, rank.rank, rank.role, data, pipeline, tensor, 0, server, 1,
            b"host", rank.peak_flops, rank.kernel.encode())  # fmt: skip
    syncs = [(0, -rank.shift)] if rank.syncs is None else rank.syncs
    kinds = [rank.peak - 6 * (rank.peak // 7)] + [rank.peak // 7] * 6
    high = [(s, 0, kinds, rank.peak) for s, *_ in rank.steps]
    sample = [(b + rank.shift, s, 0, [1] * 7, 9) for s, b, _ in rank.steps]
    plan = [(step, 0, 0, 0, server, 0, 0, 1, 0, 1, cost, -1) for step, server, cost in rank.plan]
    last = rank.steps[-1][0] if rank.steps else -1
    tables = {
        "meta/rank": _without_later(np.array([info], RANK)) if rank.old else np.array([info], RANK),
        "meta/strings": np.array([name.encode() for name in NAMES], "S96"),
        "meta/config_yaml": np.frombuffer(b"name: from-trace\n", np.uint8),
        "meta/status": np.array([(rank.state, rank.signal, last, 0, 0, 0)], STATUS),
        "clock/sync": np.array([(t, o, 1000, 100, 0) for t, o in syncs], SYNC),
        "events": event_rows(rank),
        "memory/samples": np.array(sample, SAMPLE),
        "memory/highwater": np.array(high, HIGHWATER),
        "steps": step_rows(rank),
        "plan": np.array(plan, PLAN),
    }
    if rank.machine:
        tables["meta/machine_yaml"] = np.frombuffer(rank.machine.encode(), np.uint8)
    if rank.summary is not None:
        tables["plan_summary"] = np.array(rank.summary, PLAN_SUMMARY)
    if rank.positions is not None:
        tables["positions"] = np.array(rank.positions, POSITIONS)
        tables["answers"] = np.array(rank.answers, ANSWERS)
    for name, rows in tables.items():
        file.create_dataset(name, data=rows, maxshape=(None,), chunks=(max(len(rows), 16),))


def write_run(
    folder: Path,
    ranks: list[Rank],
    world: int | None = None,
    config: dict | None = None,
    **attention,
) -> Path:
    """A run folder as `cadenza train` leaves it; `config` has more sections of experiment.yaml."""
    (folder / "trace").mkdir(parents=True)
    for rank in ranks:
        with h5py.File(folder / "trace" / f"rank-{rank.rank:05d}.h5", "w") as file:
            fill(file, rank, world or len(ranks))
    settings = {"placement": "cad", "servers": "in_place", **attention}
    (folder / "experiment.yaml").write_text(
        json.dumps({"name": folder.name, "attention": settings, **(config or {})})  # it is YAML
    )
    with (folder / "metrics.jsonl").open("w") as file:
        for step, *_ in ranks[0].steps:
            values = {"step": step, "loss": 5.0 - step, "tokens": 100, "seconds": 1e-6,
                      "tokens_per_second": 1000.0 + step, "model_flops_utilization": 0.25,
                      "attention_imbalance": 1.0, "bytes_moved": 8,
                      "peak_memory_bytes": 77}  # fmt: skip
            file.write(json.dumps(values) + "\n")
    return folder
