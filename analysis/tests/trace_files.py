# SPDX-License-Identifier: Apache-2.0
"""Writes trace files of schema cadenza-trace/1 with h5py, from events given by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np

# Frozen: what a reader of version 1 has to read, whatever the program writes.
KINDS = ("parameters", "gradients", "optimizer", "activations", "communication", "attention",
         "other")
CATEGORIES = ("compute_dense", "compute_attention", "compute_other", "p2p_send", "p2p_receive",
              "collective", "attention_dispatch", "attention_return", "wait", "data", "optimizer",
              "checkpoint", "host", "plan", "trace_overhead")
PHASES = ("forward", "backward", "recompute", "optimizer", "other")


def _named(names, base):
    numbers = names if isinstance(names, dict) else {name: i for i, name in enumerate(names)}
    return h5py.enum_dtype(numbers, base)


EVENT = np.dtype(
    [("begin_ns", "<i8"), ("end_ns", "<i8"), ("bytes", "<i8"), ("flops", "<f8"),
     ("enqueued_ns", "<i8"), ("still_ns", "<i8"), ("step", "<u4"), ("peer", "<i4"),
     ("flow", "<u4"), ("microbatch", "<i4"), ("layer", "<i4"), ("tick", "<i4"), ("stage", "<i4"),
     ("half", "<i4"), ("name_id", "<u2"), ("category", _named(CATEGORIES, "u1")),
     ("phase", _named(PHASES, "u1")),
     ("lane", _named(("compute", "communication", "host"), "u1")),
     ("flags", _named({"device_timed": 1, "simulated": 2, "non_blocking": 4, "sends": 8}, "u1"))]
)
STEP = np.dtype(
    [("step", "<u4"), ("documents", "<u4"), ("begin_ns", "<i8"), ("end_ns", "<i8"),
     ("tokens", "<i8"), ("sum_length2", "<f8"), ("model_flops", "<f8"), ("executed_flops", "<f8"),
     ("loss", "<f8"), ("gradient_norm", "<f8"), ("learning_rate", "<f8"), ("n_events_end", "<u8"),
     ("bytes_sent", "<i8"), ("bytes_received", "<i8"), ("machine_seconds", "<f8"),
     ("dense_attention_flops", "<f8")]
)
RANK = np.dtype(
    [("host", "S64"), ("rank", "<i4"), ("world", "<i4"), ("local_rank", "<i4"),
     ("role", _named(("trainer", "attention_server", "both"), "<u4")),
     ("data", "<i4"), ("pipeline", "<i4"), ("tensor", "<i4"), ("context", "<i4"),
     ("server", "<i4"), ("threads", "<i4"), ("device", "S64"), ("peak_flops", "<f8"),
     ("attention_kernel", "S64"), ("started_ns", "<i8")]
)
SYNC = np.dtype(
    [("time_ns", "<i8"), ("offset_ns", "<i8"), ("rtt_min_ns", "<i8"), ("pings", "<u4"),
     ("phase", _named(("start", "periodic", "end"), "<u4"))]
)
SAMPLE = np.dtype(
    [("time_ns", "<i8"), ("step", "<u4"), ("bytes", "<i8", 7), ("host_rss_bytes", "<i8")]
)
HIGHWATER = np.dtype([("step", "<u4"), ("peak_bytes", "<i8", 7), ("peak_total_bytes", "<i8")])
PLAN = np.dtype(
    [("step", "<u4"), ("tick", "<i4"), ("document", "<i4"), ("home", "<i4"), ("server", "<i4"),
     ("stage", "<i4"), ("q_begin", "<i8"), ("q_end", "<i8"), ("k_begin", "<i8"),
     ("k_end", "<i8"), ("cost", "<f8"), ("half", "<i4"), ("layer_class", "<i4"),
     ("layers", "<i4")]
)
PLAN_SUMMARY = np.dtype(
    [("step", "<u4"), ("tick", "<i4"), ("half", "<i4"), ("phase", _named(PHASES, "<u4")),
     ("stage", "<i4"), ("server", "<i4"), ("tasks", "<i4"), ("messages_in", "<i4"),
     ("cost", "<f8"), ("bytes_in", "<i8"), ("bytes_out", "<i8"), ("attend_seconds", "<f8"),
     ("receive_seconds", "<f8"), ("layer_class", "<i4"), ("layers", "<i4")]
)
POSITIONS = np.dtype(
    [("step", "<u4"), ("position", "<i8"), ("targets", "<i8"), ("hits", "<i8"), ("loss", "<f8")]
)
ANSWERS = np.dtype(
    [("step", "<u4"), ("hit", "<u4"), ("length", "<i8"), ("fact", "<i8"), ("position", "<i8"),
     ("loss", "<f8"), ("document", "<i4"), ("question", "<i4")]
)
RECALL = np.dtype(
    [("step", "<u4"), ("layer", "<i4"), ("distance", "<i8"), ("kept", "<f8"),
     ("attention", "<f8"), ("keys", "<i8"), ("unseen", "<i8")]
)
STATUS = np.dtype(
    [("state", _named(("open", "clean", "signalled", "error"), "<u4")), ("signal", "<i4"),
     ("last_step", "<i8"), ("n_events", "<u8"), ("n_dropped", "<u8"), ("writer_ns", "<i8")]
)

DENSE, ATTENTION, OTHER, SEND, RECEIVE, COLLECTIVE, DISPATCH, RETURN, WAIT = range(9)
OPTIMIZER, HOST, PLANNING = 10, 12, 13
COMPUTE_LANE, COMMUNICATION_LANE, HOST_LANE = range(3)
SIMULATED, NON_BLOCKING, SENDS = 2, 4, 8
NAMES = ["nothing", "q_proj", "wait", "wait_for_stage", "wait_for_ranks", "wait_for_sends",
         "reduce_gradients", "agree_on_norm", "agree_on_loss", "tensor_all_gather", "attend",
         "pack", "tensor_all_reduce", "wait_layer", "gather_layer_message"]


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
    started: int | None = None  # when its process began; None: simulated
    shift: int = 0  # the local clock is ahead of rank 0's by so much
    syncs: list[tuple] | None = None  # (local, offset); default: one that undoes `shift`
    plan: list[tuple] = field(default_factory=list)  # (step, server, cost)
    summary: list[tuple] = field(default_factory=list)  # rows of PLAN_SUMMARY up to its layers
    positions: list[tuple] = field(default_factory=list)  # rows of POSITIONS
    answers: list[tuple] = field(default_factory=list)  # rows of ANSWERS
    recall: list[tuple] = field(default_factory=list)  # rows of RECALL
    peak: int = 1 << 20
    tail: int = 0  # uncommitted events
    state: int = 1
    signal: int = 0
    schema: str = "cadenza-trace/1"
    run_id: str = "run-1"
    producer: str = "trainer"
    flops: dict = field(default_factory=dict)  # fields of STEP that are not 0
    machine: str = ""  # YAML, of simulated runs
    host: str = "node"


def event_rows(rank: Rank) -> np.ndarray:
    rows = np.zeros(len(rank.events) + rank.tail, EVENT)
    for name in ("peer", "microbatch", "layer", "tick", "stage", "half", "still_ns"):
        rows[name] = -1
    for row, (step, category, begin, end, *options) in zip(rows, rank.events, strict=False):
        communication = SEND <= category <= RETURN
        row["step"], row["category"] = step, category
        row["begin_ns"], row["end_ns"] = begin + rank.shift, end + rank.shift
        row["lane"] = COMMUNICATION_LANE if communication else COMPUTE_LANE
        for key, value in (options[0] if options else {}).items():
            if key == "name":
                key, value = "name_id", NAMES.index(value)
            row[key] = value
        if category == SEND:
            row["flags"] |= SENDS
    rows[len(rank.events):]["category"] = 200  # must never be looked at
    return rows


def step_rows(rank: Rank) -> np.ndarray:
    rows = np.zeros(len(rank.steps), STEP)
    for row, (step, begin, end) in zip(rows, rank.steps, strict=True):
        row["step"], row["begin_ns"], row["end_ns"] = step, begin + rank.shift, end + rank.shift
        row["n_events_end"] = sum(1 for e in rank.events if e[0] <= step)
        for key, value in rank.flops.items():
            row[key] = value
    return rows


def fill(file: h5py.File, rank: Rank, world: int) -> None:
    attributes = {"schema": rank.schema, "run_id": rank.run_id, "producer": rank.producer,
                  "code_version": "0.1", "code_revision": "v0.1-3-gabc",
                  "build": "GNU 12.2 Release", "created_utc": "2026-01-01T00:00:00Z"}
    for name, value in attributes.items():
        file.attrs[name] = np.bytes_(value)
    file.attrs["seed"] = np.uint64(7)
    server = rank.rank if rank.server is None else rank.server
    data, pipeline, tensor = rank.place or (rank.rank, 0, 0)
    info = (rank.host.encode(), rank.rank, world, rank.rank, rank.role, data, pipeline, tensor, 0,
            server, 1, b"host", rank.peak_flops, rank.kernel.encode(),
            -1 if rank.started is None else rank.started + rank.shift)
    syncs = [(0, -rank.shift)] if rank.syncs is None else rank.syncs
    kinds = [rank.peak - 6 * (rank.peak // 7)] + [rank.peak // 7] * 6
    high = [(s, kinds, rank.peak) for s, *_ in rank.steps]
    sample = [(b + rank.shift, s, [1] * 7, 9) for s, b, _ in rank.steps]
    plan = [(step, 0, 0, 0, server, 0, 0, 1, 0, 1, cost, -1, 0, 1)
            for step, server, cost in rank.plan]
    last = rank.steps[-1][0] if rank.steps else -1
    tables = {
        "meta/rank": np.array([info], RANK),
        "meta/strings": np.array([name.encode() for name in NAMES], "S96"),
        "meta/config_yaml": np.frombuffer(b"name: from-trace\n", np.uint8),
        "meta/status": np.array([(rank.state, rank.signal, last, 0, 0, 0)], STATUS),
        "clock/sync": np.array([(t, o, 1000, 100, 0) for t, o in syncs], SYNC),
        "meta/machine_yaml": np.frombuffer(rank.machine.encode(), np.uint8),
        "plan": np.array(plan, PLAN),
        "plan_summary": np.array([(*row, 0, 1) for row in rank.summary], PLAN_SUMMARY),
        "positions": np.array(rank.positions, POSITIONS),
        "answers": np.array(rank.answers, ANSWERS),
        "recall": np.array(rank.recall, RECALL),
        "memory/samples": np.array(sample, SAMPLE),
        "memory/highwater": np.array(high, HIGHWATER),
        "events": event_rows(rank),
        "steps": step_rows(rank),
    }
    for name, rows in tables.items():
        made = file.create_dataset(name, data=rows, maxshape=(None,), chunks=(max(len(rows), 16),))
        if name.startswith("memory/"):
            made.attrs["kinds"] = np.array(KINDS, "S13")


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
        with h5py.File(folder / "trace" / f"rank-{rank.rank:05d}.h5", "w", libver="latest") as file:
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
                      "peak_memory_bytes": 77}
            file.write(json.dumps(values) + "\n")
    return folder
