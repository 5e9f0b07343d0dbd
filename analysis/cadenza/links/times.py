# SPDX-License-Identifier: Apache-2.0
"""What each pair of ranks, and each group that meets in collectives, moved in a step, how long that
took, and how long it usually takes.

Usual is what the machine gives, where the run's trace says it (simulated runs). Else it is what is
usual for messages of the same kind (category, inside a node or between nodes, size), over all pairs
of ranks: the median of three pairs or more; of two, the faster.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.graph.graph import StepGraph
from cadenza.graph.loads import usual
from cadenza.read.machine import Machine
from cadenza.read.columns import one_of
from cadenza.read.partners import alike, collective_members
from cadenza.read.schema import GATHER_OF_LAYER, TENSOR_COLLECTIVES
from cadenza.links.wires import wires

PAIR = ["step", "sender", "receiver"]
GROUP = ["step", "tensor", "members"]


def pair_times(graph: StepGraph, machine: Machine | None) -> pd.DataFrame:
    """@returns step, sender, receiver (world ranks), bytes, messages, timed_bytes (of messages of
    which it is known when they arrived), seconds (of these, alone), usual_seconds (of these; NaN
    where nothing is usual), one_node
    """
    frame = wires(graph, machine)
    frame["one_node"] = _same_node(graph, frame["sender"], frame["receiver"])
    frame["timed"] &= frame["bytes"] > 0
    frame["usual"] = _usual_seconds(frame, machine)
    known = frame["timed"] & frame["usual"].notna()
    frame = frame.assign(
        timed_bytes=frame["bytes"].where(frame["timed"], 0),
        seconds=frame["seconds"].where(frame["timed"], 0.0),
        judged=frame["seconds"].where(known), slower=frame["seconds"] / frame["usual"],
    )
    group = frame.groupby(["sender", "receiver"], sort=True)
    found = group.agg(
        bytes=("bytes", "sum"), messages=("bytes", "size"), timed_bytes=("timed_bytes", "sum"),
        seconds=("seconds", "sum"), usual_seconds=("usual", "sum"), judged=("judged", "sum"),
        slower=("slower", "median"), one_node=("one_node", "first"),
    ).reset_index()
    # Of a real run some messages take long for other reasons: the median of them counts.
    slower = found["judged"] / found["usual_seconds"] if machine else found["slower"]
    found["usual_seconds"] = (found["seconds"] / slower).where(found["judged"] > 0)
    found.insert(0, "step", graph.step)
    return found.drop(columns=["judged", "slower"])


def _same_node(graph: StepGraph, sender: pd.Series, receiver: pd.Series) -> np.ndarray:
    host = graph.ranks.set_index("rank")["host"]
    return host.reindex(sender).to_numpy() == host.reindex(receiver).to_numpy()


def _usual_seconds(frame: pd.DataFrame, machine: Machine | None) -> pd.Series:
    """Per message; NaN where it is not known."""
    if machine is not None:
        latency, rate = machine.way(frame["sender"].to_numpy(), frame["receiver"].to_numpy())
        return latency + frame["bytes"] / rate
    size = np.floor(2 * np.log2(frame["bytes"].clip(lower=1)))
    pace = (frame["seconds"] / frame["bytes"]).where(frame["timed"])
    low, high = (side(frame["sender"], frame["receiver"]) for side in (np.minimum, np.maximum))
    keys = frame.assign(size=size, pace=pace, low=low, high=high)
    kind = ["category", "one_node", "size"]
    each = keys.groupby([*kind, "low", "high"])["pace"].median().reset_index()
    each["usual"] = usual(each["pace"], [each[key] for key in kind])
    found = keys.merge(each, on=[*kind, "low", "high"], how="left")["usual"]
    return found.set_axis(frame.index) * frame["bytes"]


def group_times(graph: StepGraph, machine: Machine | None) -> pd.DataFrame:
    """@returns step, tensor (whether it is a tensor group), members (tuple of world ranks, in
    ascending order), bytes, collectives, seconds (from when the last had come), usual_seconds (NaN
    where nothing is usual)
    """
    frame = group_collectives(graph, machine)
    frame = frame[frame["bytes"] > 0]
    found = frame.groupby(["tensor", "members"], sort=True).agg(
        bytes=("bytes", "sum"), collectives=("bytes", "size"), seconds=("seconds", "sum"),
        usual_seconds=("usual", lambda column: column.sum(skipna=False)),
    ).reset_index()
    found.insert(0, "step", graph.step)
    return found


def group_collectives(graph: StepGraph, machine: Machine | None) -> pd.DataFrame:
    """Collectives of two ranks or more, in the order of their begin, without gathers of layers,
    whose times include their turns behind others.

    @returns collective, name, tensor, members, bytes, begin_ns (since the step began; when the last
             of its ranks had come), end_ns, seconds, usual (seconds; NaN: not known)
    """
    events = graph.lanes.events
    ends = collective_members(events, graph.ranks)
    ends = ends[~one_of(events["name"], GATHER_OF_LAYER)[ends["event"]]]
    row = ends["event"].to_numpy(np.int64)
    for name in ("begin_ns", "end_ns", "bytes", "rank"):
        ends[name] = events[name].to_numpy(np.int64)[row]
    ends["name"] = events["name"].iloc[row].astype(object).to_numpy()
    ends = ends.sort_values(["collective", "rank"], kind="stable")
    group = ends.groupby("collective")
    frame = group.agg(
        name=("name", "first"), bytes=("bytes", "max"), size=("rank", "size"),
        begin_ns=("begin_ns", "max"), end_ns=("end_ns", "min"),
    ).reset_index()
    frame["members"] = _members(ends, frame["size"].to_numpy())
    frame = frame[frame["size"] > 1].copy()
    frame[["begin_ns", "end_ns"]] -= graph.lanes.origin
    frame["seconds"] = (frame["end_ns"] - frame["begin_ns"]).clip(lower=0) / 1e9
    frame["tensor"] = frame["name"].isin(TENSOR_COLLECTIVES)
    frame["usual"] = usual_of_groups(frame, machine)
    return frame.drop(columns="size").sort_values("begin_ns", kind="stable", ignore_index=True)


def _members(ends: pd.DataFrame, size: np.ndarray) -> np.ndarray:
    """Of each collective, in the order of their numbers, a tuple of its ranks; equal groups are one
    object."""
    rank, first = ends["rank"].to_numpy(np.int64), np.cumsum(size) - size
    found = np.empty(len(size), object)
    for count in np.unique(size).tolist():
        some = np.flatnonzero(size == count)
        members = rank[first[some][:, None] + np.arange(count)]
        _, example, group = np.unique(alike(*members.T), return_index=True, return_inverse=True)
        groups = np.empty(len(example), object)
        for number, row in enumerate(members[example].tolist()):
            groups[number] = tuple(row)
        found[some] = groups[group]
    return found


def usual_of_groups(frame: pd.DataFrame, machine: Machine | None) -> pd.Series:
    if machine is None:
        return _usual_of_others(frame)
    found = _usual_of_machine(frame, machine)
    if machine.hides:  # what was waited of a tensor group's is the part that products do not hide
        found = found.mask(frame["tensor"], _usual_of_others(frame))
    return found


def _usual_of_others(frame: pd.DataFrame) -> pd.Series:
    counted = frame["bytes"] > 0
    pace = (frame["seconds"] / frame["bytes"]).where(counted)
    size = frame["members"].map(len)
    keys = frame.assign(pace=pace, size=size, amount=frame["bytes"])
    kind = ["name", "size", "amount"]
    each = keys.groupby([*kind, "members"])["pace"].median().reset_index()
    each["usual"] = usual(each["pace"], [each[key] for key in kind])
    found = keys.merge(each, on=[*kind, "members"], how="left")["usual"]
    return found.set_axis(frame.index) * frame["bytes"]


def _usual_of_machine(frame: pd.DataFrame, machine: Machine) -> pd.Series:
    known: dict[tuple, float] = {}
    for key in zip(frame["name"], frame["bytes"], frame["members"], strict=True):
        if key not in known:
            known[key] = machine.collective_seconds(*key) if key[1] > 0 else np.nan
    keys = zip(frame["name"], frame["bytes"], frame["members"], strict=True)
    return pd.Series([known[key] for key in keys], index=frame.index, dtype=float)
