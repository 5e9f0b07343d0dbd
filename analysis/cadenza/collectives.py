# SPDX-License-Identifier: Apache-2.0
"""Collectives of a step: which ranks meet in which."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.lanes import GAP, MEETING, Lanes, inside_computation
from cadenza.meetings import Meetings, join, node_at, waiting_node

_OF_REPLICAS = ("reduce_gradients", "reduce_gradients_message", "gather_parameters")
_BARRIER_GAP_NS = 1_000_000  # between a wait for the ranks and the collective that it is for


def collectives(lanes: Lanes, ranks: pd.DataFrame) -> Meetings:
    """@param ranks  Run.ranks(): who holds the same part of the model"""
    nodes = np.flatnonzero(lanes.where("category", "collective"))
    members = _members(lanes, ranks, lanes.event[nodes], lanes.rank[nodes])
    members = members.assign(node=nodes, event=lanes.event[nodes])
    members = members[members["shared"].to_numpy(bool)]
    entering = _entering(lanes, members["node"].to_numpy())
    waiting = members[entering >= 0].assign(node=entering[entering >= 0])
    # Ranks that do not wait for the others enter the collective itself.
    arriving = members.assign(node=np.where(entering >= 0, entering, members["node"]))
    return join(
        [
            _meeting(lanes, arriving, waiting),
            _meeting(lanes, members, members),
            _beside_computation(lanes, ranks),
        ]
    )


def _members(
    lanes: Lanes, ranks: pd.DataFrame, rows: np.ndarray, rank: np.ndarray
) -> pd.DataFrame:
    """Events `rows`, numbered by collective: group, rank, name, shared (more than one member)."""
    events = lanes.events.iloc[rows]
    place = ranks.set_index("rank").reindex(lanes.ranks)
    inner = inside_computation(events).to_numpy(bool)
    coordinates = {
        name: place[name].to_numpy(np.int64)[rank]
        for name in ("data", "pipeline", "tensor", "context")
    }
    # A flow may be shared by groups that never meet; parts of a model are summed by replicas.
    summed = events["name"].isin(_OF_REPLICAS).to_numpy(bool)
    frame = pd.DataFrame(
        {
            "flow": events["flow"].to_numpy(np.int64),
            "name": events["name"].astype(object).to_numpy(),
            "data": np.where(inner, coordinates["data"], -1),
            "context": np.where(inner, coordinates["context"], -1),
            "pipeline": np.where(inner | summed, coordinates["pipeline"], -1),
            "tensor": np.where(summed, coordinates["tensor"], -1),
            "rank": rank,
        }
    )
    keys = [name for name in frame.columns if name != "rank"]
    frame["turn"] = frame.groupby([*keys, "rank"], sort=False).cumcount()
    group = frame.groupby([*keys, "turn"], sort=False)
    frame["group"] = group.ngroup()
    frame["shared"] = group["rank"].transform("size") > 1
    return frame


def _entering(lanes: Lanes, nodes: np.ndarray) -> np.ndarray:
    """The wait for the other ranks right before each collective, or -1."""
    before = nodes - 1
    pause = (lanes.kind[before] == GAP) & (
        lanes.end[before] - lanes.begin[before] < _BARRIER_GAP_NS
    )
    before = np.where(pause, before - 1, before)
    waits = (before >= 0) & (lanes.rank[before] == lanes.rank[nodes])
    waits &= lanes.where("category", "wait")[before]
    return np.where(waits, before, -1)


def _meeting(lanes: Lanes, arriving: pd.DataFrame, leaving: pd.DataFrame) -> Meetings:
    """Posted where the nodes of `arriving` begin, over where those of `leaving` end."""
    enter, leave = arriving["node"].to_numpy(np.int64), leaving["node"].to_numpy(np.int64)
    return Meetings(
        count=int(arriving["group"].max()) + 1 if len(arriving) else 0,
        post_meeting=arriving["group"].to_numpy(np.int64),
        post_node=enter - 1,
        post_time=lanes.begin[enter],
        end_meeting=leaving["group"].to_numpy(np.int64),
        end_node=leave,
        end_time=lanes.end[leave],
        end_event=leaving["event"].to_numpy(np.int64),
        bytes=np.zeros(len(leave), np.int64),
        late=np.zeros(len(leave), bool),
        receives=np.ones(len(leave), bool),
    )


def _beside_computation(lanes: Lanes, ranks: pd.DataFrame) -> Meetings:
    """Sums that run while ranks compute: posted at some time, waited for at the end."""
    events = lanes.events
    on_lane = np.zeros(len(events), bool)
    on_lane[lanes.event[lanes.event >= 0]] = True
    rows = np.flatnonzero((events["category"] == "collective").to_numpy() & ~on_lane)
    rank = np.searchsorted(lanes.ranks, events["rank"].to_numpy()[rows])
    begin = events["begin_ns"].to_numpy()[rows] - lanes.origin
    end = events["end_ns"].to_numpy()[rows] - lanes.origin
    frame = _members(lanes, ranks, rows, rank).assign(begin=begin, end=end)
    frame["bytes"] = events["bytes"].to_numpy()[rows]
    both = frame.groupby("group")[["begin", "end"]]
    on_wire = (both.transform("min") == both.transform("max")).all(axis=1).to_numpy(bool)
    node = waiting_node(lanes, rank, begin, end)
    node = np.where(on_wire, _collective_after(lanes, rank, end), node)
    keep = frame["shared"].to_numpy(bool)
    waits = keep & (node >= 0)
    posted = node_at(lanes, rank, begin)
    # One that began while the rank waited at the end was posted before: sums take turns.
    after = np.minimum(posted + 1, len(lanes.rank) - 1)
    queued = on_wire & (lanes.rank[after] == rank) & (lanes.kind[after] == MEETING)
    begin = np.where(queued, lanes.end[posted], begin)
    time = np.minimum(end, lanes.end[node])
    return Meetings(
        count=int(frame["group"].max()) + 1 if len(frame) else 0,
        post_meeting=frame["group"].to_numpy(np.int64)[keep],
        post_node=posted[keep],
        post_time=begin[keep],
        end_meeting=frame["group"].to_numpy(np.int64)[waits],
        end_node=node[waits],
        end_time=time[waits],
        end_event=rows[waits],
        bytes=frame["bytes"].to_numpy(np.int64)[waits],
        late=~on_wire[waits],
        receives=np.ones(int(waits.sum()), bool),
    )


def _collective_after(lanes: Lanes, rank: np.ndarray, time: np.ndarray) -> np.ndarray:
    """The first collective of the sums of gradients that is not over at `time`, or -1."""
    nodes = np.flatnonzero(lanes.where("name", "reduce_gradients"))
    if not len(nodes):
        return np.full(len(rank), -1)
    key = lanes.key(lanes.rank[nodes], lanes.end[nodes])
    found = np.minimum(np.searchsorted(key, lanes.key(rank, time)), len(nodes) - 1)
    return np.where(lanes.rank[nodes[found]] == rank, nodes[found], -1)
