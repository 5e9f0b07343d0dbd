# SPDX-License-Identifier: Apache-2.0
"""A rank file of an imported run, in schema cadenza-trace/1 (docs/trace.md)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pandas as pd

from cadenza.read.schema import CODES, SCHEMA, TABLES
from cadenza.time.intervals import several
from cadenza.version import VERSION

PRODUCER = "importer"
_NAMES = {  # of numbers, by table and field
    ("/events", "category"): ("compute_dense", "compute_attention", "compute_other", "p2p_send",
                              "p2p_receive", "collective", "attention_dispatch",
                              "attention_return", "wait", "data", "optimizer", "checkpoint",
                              "host", "plan", "trace_overhead"),
    ("/events", "phase"): ("forward", "backward", "recompute", "optimizer", "other"),
    ("/events", "lane"): ("compute", "communication", "host"),
    ("/plan_summary", "phase"): ("forward", "backward"),
    ("/clock/sync", "phase"): ("start", "periodic", "end"),
    ("/meta/rank", "role"): ("trainer", "attention_server", "both"),
    ("/meta/status", "state"): ("open", "clean", "signalled", "error"),
}
_NON_BLOCKING, _SENDS = 4, 8
_FLAGS = {"device_timed": 1, "simulated": 2, "non_blocking": _NON_BLOCKING, "sends": _SENDS}
_KINDS = ("parameters", "gradients", "optimizer", "activations", "communication", "attention",
          "other")
_CHUNK = 4096  # rows
_MOST_NAMES = 65_535  # of a rank: the last stands for all others
_LONGEST = 96  # bytes of a name


@dataclass(frozen=True)
class RankFacts:
    """What a rank file says besides its events."""

    run_id: str
    created_utc: str
    config: str  # YAML
    rank: int
    world: int
    local_rank: int
    host: str
    device: str
    place: Mapping[str, int]  # data, pipeline, tensor, context
    error_ns: float | None  # of its clock, where it is known


def write_rank(
    path: Path, facts: RankFacts, events: pd.DataFrame, steps: Sequence[int], edges: np.ndarray,
    lengths: Mapping[int, Sequence[int]], peaks: Mapping[int, int],
) -> None:
    """@param events   lanes.COLUMNS, sorted by begin; those that cross an edge are cut there
    @param edges    begin of each step and end of the last, ns
    @param lengths  by step: tokens of each document of all ranks, where known
    @param peaks    by step: bytes, where known
    """
    events, step = _cut(events, edges)
    # In memory first: on a full disk HDF5 can neither write its file nor close it.
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        for name, value in {
            "schema": SCHEMA, "producer": PRODUCER, "run_id": facts.run_id,
            "code_version": VERSION, "code_revision": "", "build": "", "seed": np.uint64(0),
            "rank": np.int32(facts.rank), "world": np.int32(facts.world), "time_unit": "ns",
            "bytes_unit": "B", "flops_convention": "mul+add=2", "created_utc": facts.created_utc,
        }.items():
            file.attrs[name] = value
        names, codes = _strings(events["name"])
        tables = {
            "/meta/config_yaml": np.frombuffer(facts.config.encode(), "u1"),
            "/meta/rank": _rank(facts),
            "/meta/strings": names,
            "/meta/status": _filled("/meta/status", 1, state=1, last_step=steps[-1],
                                    n_events=len(events), writer_ns=0),
            "/clock/sync": _filled("/clock/sync", int(facts.error_ns is not None),
                                   time_ns=edges[0], offset_ns=0,
                                   rtt_min_ns=int(2 * (facts.error_ns or 0))),
            "/events": _events(events, codes, np.asarray(steps)[step]),
            "/memory/highwater": _highwater(peaks, steps),
            "/steps": _steps(steps, edges, step, lengths),
        }
        for name in TABLES:
            _write(file, name, tables.get(name, np.empty(0, TABLES[name])))
    with path.open("xb") as out:
        out.write(memory.getbuffer())


def _cut(events: pd.DataFrame, edges: np.ndarray) -> tuple[pd.DataFrame, np.ndarray]:
    """What lies between the first and the last edge, cut at each, and the number of its step. A
    communication is not cut: it belongs where it ends."""
    begin, end = (events[name].to_numpy(np.int64) for name in ("begin_ns", "end_ns"))
    first = np.searchsorted(edges, begin, side="right") - 1
    last = np.searchsorted(edges, end, side="left") - 1
    beside = events["non_blocking"].to_numpy(bool)
    first = np.where(beside, last, np.maximum(first, 0))
    last = np.minimum(last, len(edges) - 2)
    count = np.maximum(np.where((first < 0) | (end <= edges[0]), 0, last - first + 1), 0)
    which, part = several(count)
    step = part + first[which]
    found = events.iloc[which].assign(begin_ns=np.maximum(begin[which], edges[step]),
                                      end_ns=np.minimum(end[which], edges[step + 1]))
    order = np.lexsort((found["begin_ns"].to_numpy(), step))
    return found.iloc[order].reset_index(drop=True), step[order]


def _filled(table: str, rows: int, **columns: object) -> np.ndarray:
    """Rows whose other fields are -1, or 0 where they have no sign."""
    dtype = TABLES[table]
    made = np.zeros(rows, dtype)
    for name in dtype.names:
        kind = dtype[name].base.kind
        made[name] = columns.get(name, -1 if kind == "i" else b"" if kind == "S" else 0)
    return made


def _rank(facts: RankFacts) -> np.ndarray:
    return _filled(
        "/meta/rank", 1, host=facts.host.encode()[:64], device=facts.device.encode()[:64],
        rank=facts.rank, world=facts.world, local_rank=facts.local_rank, role=0, threads=1,
        **facts.place)


def _strings(names: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    codes, known = pd.factorize(names.astype(object))
    if len(known) > _MOST_NAMES:
        codes, known = np.minimum(codes, _MOST_NAMES), [*known[:_MOST_NAMES], "(others)"]
    texts = [_short(str(name)) for name in known]
    return np.array(texts, "S96").reshape(-1), codes.astype(np.uint16)


def _short(name: str) -> bytes:
    """At most 96 bytes, none of which is a part of a letter."""
    return name.encode("utf-8", "replace")[:_LONGEST].decode("utf-8", "ignore").encode()


def _events(events: pd.DataFrame, names: np.ndarray, step: np.ndarray) -> np.ndarray:
    def codes(field: str) -> np.ndarray:
        known = _NAMES["/events", field]
        return pd.Categorical(events[field].astype(object), categories=known).codes.astype("u1")

    flags = (events["non_blocking"].to_numpy(bool) * _NON_BLOCKING
             + events["sends"].to_numpy(bool) * _SENDS)
    plain = {name: events[name].to_numpy() for name in (
        "begin_ns", "end_ns", "bytes", "flops", "enqueued_ns", "still_ns", "peer", "flow",
        "microbatch", "layer")}
    return _filled("/events", len(events), **plain, step=step, name_id=names,
                   category=codes("category"), phase=codes("phase"), lane=codes("lane"),
                   flags=flags)


def _highwater(peaks: Mapping[int, int], steps: Sequence[int]) -> np.ndarray:
    known = [step for step in steps if step in peaks]
    made = np.zeros(len(known), np.dtype([
        (name, kind, (len(_KINDS),) if name == "peak_bytes" else ())
        for name, kind in (("step", "<u4"), ("peak_bytes", "<i8"), ("peak_total_bytes", "<i8"))]))
    made["step"] = known
    made["peak_total_bytes"] = [peaks[step] for step in known]
    made["peak_bytes"][:, -1] = made["peak_total_bytes"]  # of which kind is not told
    return made


def _steps(
    steps: Sequence[int], edges: np.ndarray, of_event: np.ndarray,
    lengths: Mapping[int, Sequence[int]],
) -> np.ndarray:
    each = [np.asarray(lengths.get(step, ()), float) for step in steps]
    counts = np.bincount(of_event, minlength=len(steps))
    return _filled(
        "/steps", len(steps), step=steps, begin_ns=edges[:-1], end_ns=edges[1:],
        documents=[len(one) for one in each],
        tokens=[int(one.sum()) if len(one) else -1 for one in each],
        sum_length2=[float((one**2).sum()) for one in each], n_events_end=np.cumsum(counts),
        loss=np.nan, gradient_norm=np.nan, learning_rate=np.nan)


def _write(file: h5py.File, name: str, rows: np.ndarray) -> None:
    dtype = _typed(name, rows.dtype)
    large = len(rows) > _CHUNK
    form = {"chunks": (_CHUNK,), "compression": 1, "shuffle": True} if large else {}
    made = file.create_dataset(name, shape=rows.shape, dtype=dtype, **form)
    if len(rows):
        made.write_direct(rows.astype(dtype, copy=False))
    if name.startswith("/memory/"):
        made.attrs["kinds"] = np.array(_KINDS, "S")


def _typed(name: str, dtype: np.dtype) -> np.dtype:
    """With names for the numbers that have some, and as many columns as there are kinds."""
    if dtype.names is None:
        return dtype
    fields = []
    for field in dtype.names:
        kind = dtype[field]
        if field in CODES.get(name, ()):
            known = _FLAGS if field == "flags" else {
                text: number for number, text in enumerate(_NAMES[name, field])}
            kind = h5py.enum_dtype(known, kind)
        elif kind.subdtype:
            kind = np.dtype((kind.base, (len(_KINDS),)))
        fields.append((field, kind))
    return np.dtype(fields)
