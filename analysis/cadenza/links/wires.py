# SPDX-License-Identifier: Apache-2.0
"""Messages of a step, and how long each moved its data alone: without waiting for its other end,
and in a simulation without its turn at the ports where it leaves and arrives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from cadenza.graph.graph import StepGraph
from cadenza.read.machine import Machine
from cadenza.read.columns import one_of, rows_of
from cadenza.read.partners import alike
from cadenza.read.schema import PACK

_FOUND_NS = 50_000  # a wait that takes no longer found its message there


def wires(graph: StepGraph, machine: Machine | None) -> pd.DataFrame:
    """Messages whose both ends are recorded, in the order in which they could move.

    A real run knows when a message arrived only where its receiver was blocked and waited for
    nothing else; a simulation knows it of all.

    @param machine  Run.machine
    @returns message (number of both_ends()), sender, receiver (world ranks), category, bytes,
             ready_ns, there_ns (since the step began; the last end posted it, it was there),
             timed (whether there_ns is when it arrived), seconds (alone; NaN if not timed), in a
             simulation alone_ns (seconds without the latency: at its ports)
    """
    frame = _messages(graph)
    if frame.empty:
        return frame.assign(timed=False, seconds=0.0)
    if not graph.lanes.events["simulated"].iloc[frame["event"].iloc[0]]:
        frame["timed"] = frame["message"].isin(_seen_to_arrive(graph))
        alone = (frame["there_ns"] - frame["ready_ns"]) / 1e9
        return frame.assign(seconds=alone.where(frame["timed"] & (alone > 0)))
    ports = Ports(frame, machine)
    alone = ports.alone(frame["there_ns"].to_numpy(float))
    return frame.assign(timed=True, alone_ns=alone, seconds=(alone + ports.latency) / 1e9)


def message_numbers(graph: StepGraph) -> pd.DataFrame:
    """event (row of the step's events), sends, message."""
    return graph.lanes.message_ends


def _messages(graph: StepGraph) -> pd.DataFrame:
    ends, events = message_numbers(graph).copy(), graph.lanes.events
    row = ends["event"].to_numpy(np.int64)
    for name in ("begin_ns", "end_ns"):
        ends[name] = events[name].to_numpy(np.int64)[row] - graph.lanes.origin
    ready = ends.groupby("message")["begin_ns"].max()
    there = ends[~ends["sends"]].set_index("message").reindex(ready.index)
    sent = ends[ends["sends"]].set_index("message")["event"].reindex(ready.index)
    row = there["event"].to_numpy(np.int64)
    frame = pd.DataFrame(
        {
            "message": ready.index.to_numpy(),
            "event": row,
            "sent": sent.to_numpy(np.int64),
            "sender": events["peer"].to_numpy(np.int64)[row],
            "receiver": events["rank"].to_numpy(np.int64)[row],
            "category": events["category"].iloc[row].astype(object).to_numpy(),
            "bytes": events["bytes"].to_numpy(np.int64)[row],
            "ready_ns": ready.to_numpy(),
            "there_ns": np.maximum(there["end_ns"], ready).to_numpy(np.int64),
        }
    )
    return frame.iloc[_in_turn(graph, frame)].reset_index(drop=True)


def _in_turn(graph: StepGraph, frame: pd.DataFrame) -> np.ndarray:
    """The order of messages at ports: by when they were ready, then as the rank that was last to
    post lists them. The sender was the last where it had just packed."""
    events = graph.lanes.events
    packs = np.flatnonzero(one_of(events["name"], PACK))
    packs = rows_of(events, packs, ["rank", "end_ns"])
    packed = alike(packs["rank"], packs["end_ns"] - graph.lanes.origin)
    last = np.isin(alike(frame["sender"], frame["ready_ns"]), packed)
    poster = np.where(last, frame["sender"], frame["receiver"])
    listed = np.where(last, frame["sent"], frame["event"])
    return np.lexsort((listed, poster, frame["ready_ns"]))


def _seen_to_arrive(graph: StepGraph) -> np.ndarray:
    """Messages for which their receiver was blocked before they could move, and which came last."""
    lanes, found = graph.lanes, graph.meetings
    posted = graph.ready[found.end_meeting]
    begin, end = lanes.begin[found.end_node], lanes.end[found.end_node]
    last = np.zeros(len(lanes.end), np.int64)
    np.maximum.at(last, found.end_node, posted)
    timed = found.late & found.receives & (end - begin > _FOUND_NS)
    timed &= (posted >= begin) & (posted == last[found.end_node])
    ends = message_numbers(graph)
    return ends.loc[ends["event"].isin(found.end_event[timed]), "message"].to_numpy()


class Ports:
    """The simulator's network: a message takes its turn at the port where it leaves and at the port
    where it arrives, a rank's own inside a node, its adapter between nodes."""

    def __init__(self, frame: pd.DataFrame, machine: Machine | None) -> None:
        """@param frame  messages in the order in which they could move"""
        sender, receiver = (frame[name].to_numpy(np.int64) for name in ("sender", "receiver"))
        self._ready = frame["ready_ns"].to_numpy(float)
        self.latency = np.zeros(len(frame))  # ns; without a machine part of the time alone
        self._out, self._in = sender, receiver
        if machine is None:
            return
        self.latency = machine.way(sender, receiver)[0] * 1e9
        far = machine.node_of(sender) != machine.node_of(receiver)
        inside = int(max(sender.max(), receiver.max())) + 1
        self._out = np.where(far, inside + machine.adapter_of(sender), sender)
        self._in = np.where(far, inside + machine.adapter_of(receiver), receiver)

    def alone(self, there: np.ndarray) -> np.ndarray:
        """ns that each message, which was there at `there` (ns), took at its ports: (messages,)"""
        return self._walk(there, self._ready,
                          lambda over, begins: (max(over - begins, 0.0), over))[0]

    def there(self, alone: np.ndarray, ready: np.ndarray | None = None) -> np.ndarray:
        """When each message is there, ns, if it takes `alone` (ns) at its ports: (messages,)

        @param ready  ns, where they could move at other times: so in another order
        """
        ready = self._ready if ready is None else ready
        return self._walk(alone, ready, lambda taken, begins: (taken, begins + taken))[1]

    def _walk(
        self, given: np.ndarray, ready: np.ndarray, taken: Callable
    ) -> tuple[np.ndarray, np.ndarray]:
        """@param taken  (what is given of a message, when it begins to arrive) -> how long it
                      takes, when it is there
        @returns the same of all messages
        """
        order = np.argsort(ready, kind="stable")
        out: dict[int, float] = {}  # since when each port is free
        into: dict[int, float] = {}
        found = np.empty((len(ready), 2))
        rows = zip(order.tolist(), *(part[order].tolist() for part in (
            given, ready, self._out, self._in, self.latency)), strict=True)
        for number, value, at, leave, arrive, latency in rows:
            leaves = max(at, out.get(leave, 0.0))
            begins = max(leaves + latency, into.get(arrive, 0.0))
            took, over = taken(value, begins)
            out[leave], into[arrive] = leaves + took, over
            found[number] = took, over
        return found[:, 0], found[:, 1]
