# SPDX-License-Identifier: Apache-2.0
"""Exports of Nsight Systems: kernels, copies, launches, ranges of NVTX, calls of NCCL.

A rank is a device of a process. What NCCL says about its calls (which communicator, how many bytes,
with whom) is the payload of its ranges: nsys export writes it with --include-json=true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from cadenza.errors import DataError
from cadenza.sources.kernels import COMMUNICATION, class_of
from cadenza.sources.neutral import (COLUMNS, COPY, NO_LENGTHS, OTHER, STEP, SYNCHRONIZE,
                                     Lengths, RankTrace, Source, frame)
from cadenza.sources.nsight_nccl import (Calls, Communicator, Initialization, communicators,
                                          rows_of)
from cadenza.sources.nsight_ranges import Ranges, plain
from cadenza.sources.nsight_tables import Tables, claims, opened

LATEST_NS = 1 << 60  # of a time, and of what is added to it
MOST_RANKS = 256  # of a file: nsys records one host
_PROCESS = 1 << 24  # threads of a process: globalTid is that of the process and the thread's number
_ON_DEVICE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_COPIES = {1: "memcpy HtoD", 2: "memcpy DtoH", 8: "memcpy DtoD", 10: "memcpy PtoP"}
_RANK_IN_NAME = re.compile(r"(?<![a-z])rank[-_. ]?(\d{1,7})(?!\d)", re.IGNORECASE)
_RANK_MARK = re.compile(r"MPI Rank (\d{1,7})")
_NO_PAYLOADS = ("The export of Nsight Systems does not say to which communicator a call of NCCL "
                "belongs, its bytes and its peer: nsys export --include-json=true does.")
_NO_RANKS = ("The export of Nsight Systems does not say which ranks it holds: they are numbered by "
             "device, from 0. Valid: rank3.sqlite as a name, or --include-json=true.")
_GRAPHS = ("Kernels in CUDA graphs are not told: nsys profile --cuda-graph-trace=node records "
           "them.")


def read(path: Path, _: Lengths = NO_LENGTHS) -> list[RankTrace]:
    """@throws DataError for what is no export, is damaged, or has times that cannot be"""
    with opened(path) as tables:
        export = _export(path, tables)
        about = _about(tables)
    if not len(export.device):
        raise DataError(f"{path}: no table of kernels or copies; valid: an export of nsys profile "
                        "--trace=cuda,nvtx")
    owners = sorted(set(zip(export.device["pid"], export.device["deviceId"])),
                    key=lambda owner: (owner[1], owner[0]))
    if len(owners) > MOST_RANKS:
        raise DataError(f"{path}: holds {len(owners)} ranks (devices of processes); valid: at most "
                        f"{MOST_RANKS}")
    processes = {pid: _process(export, pid) for pid in {pid for pid, _ in owners}}
    numbers, cannot = _ranks(path, owners, processes)
    known = communicators({numbers[owner]: _initialized(owner, owners, processes)
                           for owner in owners})
    world = max((one.size for one in known.values()), default=0)
    return [_trace(export, about, processes[owner[0]], owner, rank, known, cannot,
                   world if rank < world else 0)
            for owner, rank in sorted(numbers.items(), key=lambda item: item[1])]


@dataclass
class _Export:
    """Tables of a file. `pid` is without the number of the virtual machine."""

    device: pd.DataFrame  # _ON_DEVICE, pid, name, bytes, is_kernel
    launches: pd.DataFrame  # start, end, pid, thread, correlationId, name
    ranges: pd.DataFrame  # start, end, pid, thread, name, jsonText
    graphs: bool


@dataclass
class _Process:
    ranges: Ranges
    calls: Calls
    launches: pd.DataFrame  # in order of correlationId
    mpi_rank: int  # -1: not known


def _export(path: Path, tables: Tables) -> _Export:
    strings = tables.read("StringIds", ("id",), ("value",))
    words = dict(zip(strings["id"].tolist(), strings["value"].tolist()))
    device = pd.concat(list(_on_device(tables, words)), ignore_index=True)
    launches = pd.DataFrame(tables.read(
        "CUPTI_ACTIVITY_KIND_RUNTIME", ("start", "end", "globalTid", "correlationId", "nameId")))
    launches["name"] = _texts(launches["nameId"], words)
    ranges = pd.DataFrame(tables.read("NVTX_EVENTS", ("start", "end", "textId", "globalTid"),
                                      ("text", "jsonText")))
    ranges["name"] = np.where(ranges["text"] == "", _texts(ranges["textId"], words),
                              ranges["text"])
    device["pid"] = device["globalPid"] // _PROCESS
    for part in (launches, ranges):
        part["pid"], part["thread"] = part["globalTid"] // _PROCESS, part["globalTid"]
    if (device["pid"] < 0).all():  # an export without processes has one
        device["pid"] = launches["pid"] = ranges["pid"] = 0
    for part in (device, launches, ranges):
        ended = part["end"] >= 0
        times = part.loc[ended, ["start", "end"]].to_numpy()
        if (np.abs(times) > LATEST_NS).any() or (times[:, 1] < times[:, 0]).any():
            raise DataError(f"{path}: has times that cannot be; valid: up to {LATEST_NS} ns, and "
                            "no end before its start")
    return _Export(device[device["end"] >= 0], launches[launches["end"] >= 0], ranges,
                   bool((device["name"] == "CUDA graph").any()))


def _on_device(tables: Tables, words: Mapping[int, str]) -> Iterator[pd.DataFrame]:
    kernels = pd.DataFrame(tables.read("CUPTI_ACTIVITY_KIND_KERNEL",
                                       (*_ON_DEVICE, "demangledName", "shortName")))
    name = kernels["demangledName"].where(kernels["demangledName"] >= 0, kernels["shortName"])
    yield kernels[list(_ON_DEVICE)].assign(name=_texts(name, words), bytes=-1, is_kernel=True)
    copies = pd.DataFrame(tables.read("CUPTI_ACTIVITY_KIND_MEMCPY",
                                      (*_ON_DEVICE, "bytes", "copyKind")))
    kinds = copies.pop("copyKind").map(_COPIES).fillna("memcpy").astype(object)
    yield copies.assign(name=kinds, is_kernel=False)
    yield pd.DataFrame(tables.read("CUPTI_ACTIVITY_KIND_MEMSET", (*_ON_DEVICE, "bytes"))).assign(
        name="memset", is_kernel=False)
    yield pd.DataFrame(tables.read("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _ON_DEVICE)).assign(
        name="CUDA graph", bytes=-1, is_kernel=True)


def _texts(numbers: pd.Series, words: Mapping[int, str]) -> np.ndarray:
    codes, different = pd.factorize(numbers.to_numpy())
    texts = np.array([*(words.get(number, "") for number in different.tolist()), ""], object)
    return texts[codes]


def _process(export: _Export, pid: int) -> _Process:
    rows = export.ranges[export.ranges["pid"] == pid].sort_values("start", kind="stable")
    marks = [_RANK_MARK.fullmatch(text) for text in rows.loc[rows["end"] < 0, "name"]]
    ranks = {int(match[1]) for match in marks if match}
    rows = rows[rows["end"] >= 0]
    nccl = rows["name"].str.startswith("nccl").to_numpy(bool)
    calls, rest = rows[nccl], rows[~nccl]
    launches = export.launches[export.launches["pid"] == pid]
    return _Process(
        Ranges(rest["start"].to_numpy(), rest["end"].to_numpy(), rest["thread"].to_numpy(),
               np.array([plain(text) for text in rest["name"]], object)),
        Calls(calls["start"].to_numpy(), calls["end"].to_numpy(), calls["thread"].to_numpy(),
              calls["name"], calls["jsonText"]),
        launches.sort_values(["correlationId", "start"], kind="stable"),
        ranks.pop() if len(ranks) == 1 else -1)


# Ranks

_Owner = tuple[int, int]  # process and device


def _initialized(
    owner: _Owner, owners: list[_Owner], processes: Mapping[int, _Process]
) -> list[Initialization]:
    """Communicators that a rank is in: of a process with several devices, those of this one."""
    pid, device = owner
    alone = [one for one, _ in owners].count(pid) == 1
    return [one for one in processes[pid].calls.initialized if alone or one.device == device]


def _ranks(
    path: Path, owners: list[_Owner], processes: Mapping[int, _Process]
) -> tuple[dict[_Owner, int], list[str]]:
    """World ranks, and what must be said about them. The largest communicator is that of all."""
    named = _RANK_IN_NAME.findall(path.name)
    if len(owners) == 1 and len(named) == 1:
        return {owners[0]: int(named[0])}, []
    told = {}
    for owner in owners:
        largest = max(_initialized(owner, owners, processes), key=lambda one: one.size,
                      default=None)
        told[owner] = largest.rank if largest else processes[owner[0]].mpi_rank
    if min(told.values()) >= 0 and len(set(told.values())) == len(owners):
        return told, []
    return {owner: number for number, owner in enumerate(owners)}, [_NO_RANKS]


@dataclass(frozen=True)
class _About:
    host: str
    devices: dict[int, str]
    utc: int  # ns that make a time one of UTC; 0: not known


def _about(tables: Tables) -> _About:
    system = tables.read("TARGET_INFO_SYSTEM_ENV", (), ("name", "value"))
    hosts = [value for name, value in zip(system["name"], system["value"]) if name == "Hostname"]
    devices = tables.read("TARGET_INFO_GPU", ("id",), ("name",))
    started = tables.read("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs", "systemClockNs"))
    utc = 0
    if len(started["utcEpochNs"]) == 1:  # older exports have times since the session began
        utc = int(started["utcEpochNs"][0]) - max(int(started["systemClockNs"][0]), 0)
    return _About(hosts[0][:200] if hosts else "",
                  {number: name[:200] for number, name in zip(devices["id"].tolist(),
                                                              devices["name"])},
                  utc if 0 < utc < LATEST_NS * 2 else 0)


# Rows

def _trace(
    export: _Export, about: _About, process: _Process, owner: _Owner, rank: int,
    known: Mapping[str, Communicator], cannot: list[str], world: int,
) -> RankTrace:
    of = export.device
    mine = of[(of["pid"] == owner[0]) & (of["deviceId"] == owner[1])]
    launch = _launch_of(mine, process.launches)
    kinds = _kinds(mine)
    communicates = kinds == COMMUNICATION
    blocks = [_computation(mine[~communicates], kinds[~communicates], launch[~communicates],
                           process),
              _communication(mine[communicates], launch[communicates], process, known),
              *_on_host(process)]
    events = _stacked(blocks)
    events["rank"] = np.int32(rank)
    for name in ("begin_ns", "end_ns"):
        events[name] += about.utc
    events["enqueued_ns"] = events["enqueued_ns"].where(events["enqueued_ns"] == 0,
                                                        events["enqueued_ns"] + about.utc)
    said = list(cannot)
    if communicates.any() and not process.calls.told:
        said.append(_NO_PAYLOADS)
    if export.graphs:
        said.append(_GRAPHS)
    names = set(about.devices.values())
    device = names.pop() if len(names) == 1 else about.devices.get(owner[1], "")
    groups = {name: ("", one.members()) for name, one in known.items() if one.members()}
    return RankTrace(rank, world, events, about.host, device, groups=groups, cannot=said)


def _launch_of(rows: pd.DataFrame, launches: pd.DataFrame) -> pd.DataFrame:
    """start and thread of each row's launch; 0 and -1 where it is not known."""
    numbers = launches["correlationId"].to_numpy()
    wanted = rows["correlationId"].to_numpy()
    at = np.minimum(np.searchsorted(numbers, wanted), max(len(numbers) - 1, 0))
    found = (numbers[at] == wanted) & (wanted >= 0) if len(numbers) else np.zeros(len(rows), bool)
    return pd.DataFrame({
        name: np.where(found, launches[name].to_numpy()[at], missing) if len(numbers) else
        np.full(len(rows), missing) for name, missing in (("start", 0), ("thread", -1))})


def _kinds(rows: pd.DataFrame) -> np.ndarray:
    codes, names = pd.factorize(rows["name"])
    of_name = np.array([*(class_of(name) or OTHER for name in names), OTHER], object)
    return np.where(rows["is_kernel"], of_name[codes], COPY)


def _computation(
    rows: pd.DataFrame, kinds: np.ndarray, launch: pd.DataFrame, process: _Process
) -> pd.DataFrame:
    asked = launch["start"].to_numpy()
    return frame(_timed(rows, launch) | {
        "kind": pd.Categorical(kinds), "name": pd.Categorical(rows["name"]),
        "phase": process.ranges.phase_at(np.where(asked > 0, asked, rows["start"])),
        "bytes": rows["bytes"].to_numpy()}, len(rows))


def _timed(rows: pd.DataFrame, launch: pd.DataFrame) -> dict[str, object]:
    return {"begin_ns": rows["start"].to_numpy(), "end_ns": rows["end"].to_numpy(),
            "stream": pd.Categorical([f"stream {one}" for one in rows["streamId"]]),
            "enqueued_ns": launch["start"].to_numpy()}


def _communication(
    rows: pd.DataFrame, launch: pd.DataFrame, process: _Process, known: Mapping[str, Communicator]
) -> pd.DataFrame:
    calls = process.calls.launched(launch["thread"].to_numpy(), launch["start"].to_numpy(),
                                   rows["name"])
    made = [rows_of(name, of, known) for name, of in zip(rows["name"], calls)]
    again = np.repeat(np.arange(len(rows)), [len(of) for of in made])  # a kernel of many messages
    rows, launch = rows.iloc[again], launch.iloc[again]
    columns = {name: [one.get(name, COLUMNS[name][1]) for of in made for one in of]
               for name in ("kind", "name", "group", "members", "peer", "bytes", "dtype")}
    asked = launch["start"].to_numpy()
    return frame(_timed(rows, launch) | columns | {
        "phase": process.ranges.phase_at(np.where(asked > 0, asked, rows["start"]))}, len(rows))


def _on_host(process: _Process) -> Iterator[pd.DataFrame]:
    """Steps, loading of data, checkpoints, and waits of the thread that launches most."""
    number, begin, end = process.ranges.steps()
    yield frame({"kind": STEP, "step": number, "begin_ns": begin, "end_ns": end}, len(number))
    for kind, (begin, end) in process.ranges.on_host().items():
        yield frame({"kind": kind, "begin_ns": begin, "end_ns": end}, len(begin))
    launches = process.launches
    if launches.empty:
        return
    main = launches["thread"].mode()[0]
    waits = launches[(launches["thread"] == main)
                     & launches["name"].str.contains("Synchronize", regex=False)]
    yield frame({"kind": SYNCHRONIZE, "begin_ns": waits["start"].to_numpy(),
                 "end_ns": waits["end"].to_numpy(), "name": pd.Categorical(waits["name"])},
                len(waits))


def _stacked(blocks: list[pd.DataFrame]) -> pd.DataFrame:
    columns = {}
    for name, (kind, _) in COLUMNS.items():
        parts = [block[name] for block in blocks]
        columns[name] = _joined(parts) if kind == "category" else np.concatenate(parts)
    return pd.DataFrame(columns, copy=False)


def _joined(parts: list[pd.Series]) -> pd.Categorical:
    """Of categoricals whose categories differ."""
    number: dict[str, int] = {}
    codes = [np.array([number.setdefault(text, len(number)) for text in part.cat.categories] or [0],
                      np.int32)[part.cat.codes] for part in parts]
    return pd.Categorical.from_codes(np.concatenate(codes), list(number))


NSIGHT = Source("nsight", "SQLite files, or folders of parquet files, of nsys export", claims, read)
