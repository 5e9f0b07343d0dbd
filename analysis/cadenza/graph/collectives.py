# SPDX-License-Identifier: Apache-2.0
"""Collectives of a step: which ranks meet in which."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.graph.lanes import GAP, MEETING, Lanes
from cadenza.graph.meetings import Meetings, join, node_at, waiting_node
from cadenza.read.columns import one_of
from cadenza.read.partners import collective_members
from cadenza.read.schema import GATHER_OF_LAYER

_BARRIER_GAP_NS = 1_000_000  # between a wait for the ranks and the collective that it is for


def collectives(lanes: Lanes, ranks: pd.DataFrame) -> Meetings:
    """@param ranks  Run.ranks()"""
    members = _members(lanes, ranks)
    on_lane = (members["node"] >= 0).to_numpy()
    beside, members = _numbered(members[~on_lane]), _numbered(members[on_lane])
    entering = _entering(lanes, members["node"].to_numpy())
    waiting = members[entering >= 0].assign(node=entering[entering >= 0])
    # Ranks that do not wait for the others enter the collective itself.
    arriving = members.assign(node=np.where(entering >= 0, entering, members["node"]))
    return join(
        [
            _meeting(lanes, arriving, waiting),
            _meeting(lanes, members, members),
            _beside_computation(lanes, beside),
        ]
    )


def _members(lanes: Lanes, ranks: pd.DataFrame) -> pd.DataFrame:
    """Of collectives in which several ranks meet: event, rank (its number in `lanes`), node (-1:
    beside computation), collective."""
    frame = collective_members(lanes.events, ranks)
    number = frame["collective"].to_numpy(np.int64)
    frame = frame[np.bincount(number)[number] > 1]
    node = np.full(len(lanes.events) + 1, -1)  # one more for nodes without an event
    node[lanes.event] = np.arange(len(lanes.event))
    rank = lanes.events["rank"].to_numpy(np.int64)[frame["event"]]
    return frame.assign(node=node[frame["event"]], rank=np.searchsorted(lanes.ranks, rank))


def _numbered(members: pd.DataFrame) -> pd.DataFrame:
    """With `group`, their collectives' numbers from 0."""
    return members.assign(group=pd.factorize(members["collective"])[0])


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


def _beside_computation(lanes: Lanes, members: pd.DataFrame) -> Meetings:
    """Sums that run while ranks compute: posted at some time, waited for at the end. Parameters
    of layers are waited for one by one."""
    rank, event = members["rank"].to_numpy(np.int64), members["event"].to_numpy(np.int64)
    begin, end = (
        lanes.events[name].to_numpy(np.int64)[event] - lanes.origin
        for name in ("begin_ns", "end_ns")
    )
    group = members["group"].to_numpy(np.int64)
    both = pd.DataFrame({"begin": begin, "end": end}).groupby(group)
    gathers = one_of(lanes.events["name"], GATHER_OF_LAYER)[event]
    on_wire = (both.transform("min") == both.transform("max")).all(axis=1).to_numpy(bool)
    on_wire = on_wire & ~gathers
    node = waiting_node(lanes, rank, begin, end)
    node = np.where(on_wire, _collective_after(lanes, rank, end), node)
    waits = node >= 0
    posted = node_at(lanes, rank, begin)
    # One that began while the rank waited at the end was posted before: sums take turns.
    after = np.minimum(posted + 1, len(lanes.rank) - 1)
    queued = on_wire & (lanes.rank[after] == rank) & (lanes.kind[after] == MEETING)
    begin = np.where(queued, lanes.end[posted], begin)
    sums = np.flatnonzero(~gathers)
    layer = np.full(len(rank), -1)
    layer[sums] = _layer_before(lanes, rank[sums], begin[sums])
    early = on_wire & (layer >= 0)
    posted = np.where(early, layer, posted)
    begin = np.where(early, np.minimum(begin, lanes.end[layer]), begin)
    time = np.minimum(end, lanes.end[node])
    return Meetings(
        count=int(group.max()) + 1 if len(group) else 0,
        post_meeting=group,
        post_node=posted,
        post_time=begin,
        end_meeting=group[waits],
        end_node=node[waits],
        end_time=time[waits],
        end_event=event[waits],
        bytes=lanes.events["bytes"].to_numpy(np.int64)[event[waits]],
        late=~(on_wire | gathers)[waits],
        receives=np.ones(int(waits.sum()), bool),
    )


def _layer_before(lanes: Lanes, rank: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """The node after which a rank posted each sum, or -1 where that is not known: its nth sum is
    that of the nth layer that it had passed back through, of every microbatch or, usually, of the
    last one. When the sum took the wire tells only when the last rank had come to it.

    @param rank, begin  of the sums
    """
    found = np.full(len(rank), -1)
    layer = lanes.column("layer", -1)
    nodes = np.flatnonzero(lanes.where("phase", "backward") & (layer >= 0))
    frame = pd.DataFrame({"node": nodes, "rank": lanes.rank[nodes], "layer": layer[nodes],
                          "microbatch": lanes.column("microbatch", -1)[nodes]})
    last, each = (
        frame.groupby(["rank", *place])["node"].max().groupby("rank").agg(sorted)
        for place in (["layer"], ["microbatch", "layer"])
    )
    for one in np.unique(rank):
        mine = np.flatnonzero(rank == one)
        mine = mine[np.argsort(begin[mine], kind="stable")]
        for layers in (last.get(one, []), each.get(one, [])):
            if len(layers) == len(mine) - 1:  # the last sum is of what is not in a layer
                found[mine[:-1]] = layers
    return np.where((found >= 0) & (lanes.end[found] <= begin), found, -1)


def _collective_after(lanes: Lanes, rank: np.ndarray, time: np.ndarray) -> np.ndarray:
    """The first collective of the sums of gradients that is not over at `time`, or -1."""
    nodes = np.flatnonzero(lanes.where("name", "reduce_gradients"))
    if not len(nodes):
        return np.full(len(rank), -1)
    key = lanes.key(lanes.rank[nodes], lanes.end[nodes])
    found = np.minimum(np.searchsorted(key, lanes.key(rank, time)), len(nodes) - 1)
    return np.where(lanes.rank[nodes[found]] == rank, nodes[found], -1)
