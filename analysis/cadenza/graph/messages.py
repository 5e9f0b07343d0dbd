# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks: attention's inputs and results, and streams of a pipeline.

A run writes when a rank posted a message and when it saw that it was complete. A simulation writes
the same for streams, but for attention the time on the wire, equal on both ends to the nanosecond.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.graph.lanes import GAP, MEETING, Lanes
from cadenza.graph.meetings import Meetings, node_at, waiting_node
from cadenza.read.columns import one_of, rows_of
from cadenza.read.partners import alike

_PLACE = ["rank", "phase", "microbatch", "layer", "tick", "stage", "half"]


def messages(lanes: Lanes) -> Meetings:
    """Those whose both ends are recorded."""
    ends = _ends(lanes)
    wire = ends["on_wire"].to_numpy(bool)
    posts = pd.concat([_run_posts(lanes, ends[~wire]), _wire_posts(lanes, ends[wire])])
    waits = pd.concat([_run_waits(lanes, ends[~wire]), _wire_waits(lanes, ends[wire])])
    waits = waits[waits["node"] >= 0]
    return Meetings(
        count=int(ends["message"].max()) + 1 if len(ends) else 0,
        post_meeting=posts["message"].to_numpy(np.int64),
        post_node=posts["node"].to_numpy(np.int64),
        post_time=posts["time"].to_numpy(np.int64),
        end_meeting=waits["message"].to_numpy(np.int64),
        end_node=waits["node"].to_numpy(np.int64),
        end_time=waits["time"].to_numpy(np.int64),
        end_event=waits["event"].to_numpy(np.int64),
        bytes=waits["bytes"].to_numpy(np.int64),
        late=~waits["on_wire"].to_numpy(bool),
        receives=~waits["sends"].to_numpy(bool),
    )


def _ends(lanes: Lanes) -> pd.DataFrame:
    """Both ends of every message in the numbers of `lanes`, and whether both tell the time on the
    wire."""
    ends = lanes.message_ends.reset_index(drop=True)
    columns = [*_PLACE, "begin_ns", "end_ns", "category", "bytes"]
    recorded = rows_of(lanes.events, ends["event"].to_numpy(), columns)
    ends = pd.concat([ends, recorded], axis=1)
    ends["rank"] = np.searchsorted(lanes.ranks, ends["rank"])
    for column in ("begin_ns", "end_ns"):
        ends[column] -= lanes.origin
    ends["on_wire"] = _same_on_both(ends) & (ends["end_ns"] > ends["begin_ns"])
    return ends


def _same_on_both(ends: pd.DataFrame) -> np.ndarray:
    """Whether both ends of the message have the same times."""
    message = ends["message"].to_numpy(np.int64)
    pairs = np.argsort(message, kind="stable").reshape(-1, 2)
    same = np.empty(len(ends), bool)
    same[pairs] = np.logical_and.reduce([
        np.ptp(ends[name].to_numpy()[pairs], axis=1, keepdims=True) == 0
        for name in ("begin_ns", "end_ns")
    ])
    return same


def _run_posts(lanes: Lanes, ends: pd.DataFrame) -> pd.DataFrame:
    rank, time = ends["rank"].to_numpy(), ends["begin_ns"].to_numpy()
    return pd.DataFrame(
        {"message": ends["message"], "node": node_at(lanes, rank, time), "time": time}
    )


def _run_waits(lanes: Lanes, ends: pd.DataFrame) -> pd.DataFrame:
    node = waiting_node(
        lanes, ends["rank"].to_numpy(), ends["begin_ns"].to_numpy(), ends["end_ns"].to_numpy()
    )
    time = np.minimum(ends["end_ns"].to_numpy(), lanes.end[node])
    return ends.assign(node=node, time=time)


def _place_codes(lanes: Lanes, ends: pd.DataFrame, nodes: np.ndarray):
    """Numbers that are equal where a message and a node belong to one exchange of one rank."""
    of_nodes = rows_of(lanes.events, lanes.event[nodes], _PLACE).assign(rank=lanes.rank[nodes])
    keys = [alike(*(part[name] for name in _PLACE)) for part in (of_nodes, ends)]
    codes = pd.factorize(np.concatenate(keys))[0]
    return codes[: len(nodes)], codes[len(nodes) :]


def _wire_posts(lanes: Lanes, ends: pd.DataFrame) -> pd.DataFrame:
    """The wire is taken when both ends have posted: the sender when its rows are packed, the
    receiver before it packs what it sends in the same exchange.

    Where that was earlier on both ends, or is not known, one posted when the wire was taken: the
    receiver, whose posting alone leaves no event.
    """
    ready = ends["begin_ns"].to_numpy()
    inputs = one_of(ends["category"], "attention_dispatch")
    sends = ends["sends"].to_numpy(bool)
    packs = np.flatnonzero(lanes.where("name", "pack"))
    packed = _find(lanes, ends, packs, lanes.end, ready, inputs)
    packing = _find(lanes, ends, packs, lanes.begin, ready, inputs)
    time = np.where(sends, lanes.end[packed], lanes.begin[packing])
    found = np.where(sends, packed, packing) >= 0
    exact = pd.Series(found & (np.abs(time - ready) <= 1), index=ends.index)
    decided = exact.groupby(ends["message"]).transform("any").to_numpy()
    known = found & (sends | decided)
    node = np.where(sends, packed, packing - 1)
    posts = pd.DataFrame(
        {
            "message": ends["message"],
            "node": np.where(known, node, node_at(lanes, ends["rank"].to_numpy(), ready)),
            "time": np.where(known, np.minimum(time, ready), ready),
        }
    )
    return posts[known | ~decided]


def _find(
    lanes: Lanes, ends: pd.DataFrame, nodes: np.ndarray, times: np.ndarray, until: np.ndarray,
    first: np.ndarray,
) -> np.ndarray:
    """Of `nodes` of the message's exchange whose `times` are not after `until` the first or the
    last one, or -1."""
    if not len(nodes):
        return np.full(len(ends), -1)
    codes, wanted = _place_codes(lanes, ends, nodes)
    size = lanes.span + 2
    order = np.argsort(codes * size + times[nodes], kind="stable")
    key = (codes * size + times[nodes])[order]
    begin = np.searchsorted(key, wanted * size)
    last = np.searchsorted(key, wanted * size + until + 1, side="right") - 1
    found = np.where(first, begin, last)
    return np.where(last >= begin, nodes[order[np.clip(found, 0, len(nodes) - 1)]], -1)


def _wire_waits(lanes: Lanes, ends: pd.DataFrame) -> pd.DataFrame:
    """Of inputs the first wait of the exchange that is over no earlier than the message was there;
    of results the last one: they may be there before the exchange's inputs are. A wait is for what
    a rank receives, and sends beside it."""
    there = ends["end_ns"].to_numpy()
    waits = np.flatnonzero(lanes.where("name", "wait"))
    node = np.full(len(ends), -1)
    if len(waits):
        codes, wanted = _place_codes(lanes, ends, waits)
        size = lanes.span + 2
        order = np.argsort(codes * size + lanes.end[waits], kind="stable")
        key = (codes * size + lanes.end[waits])[order]
        inputs = one_of(ends["category"], "attention_dispatch")
        last = np.searchsorted(key, (wanted + 1) * size) - 1
        found = np.where(inputs, np.searchsorted(key, wanted * size + there), last)
        found = np.clip(found, 0, len(waits) - 1)
        of_kind, sends = 2 * wanted + inputs, ends["sends"].to_numpy(bool)
        its = (key[found] // size == wanted) & (key[found] % size >= there)
        its &= ~sends | np.isin(of_kind, of_kind[~sends])
        node = np.where(its, waits[order[found]], -1)
    # What a rank only sent it waits for later, when it needs the memory: no event says so.
    rank = ends["rank"].to_numpy()
    later = np.searchsorted(lanes.key(lanes.rank, lanes.end), lanes.key(rank, there))
    later = np.minimum(later, len(lanes.rank) - 1)
    drains = (lanes.rank[later] == rank) & np.isin(lanes.kind[later], (GAP, MEETING))
    drains &= np.abs(lanes.end[later] - there) <= 1
    node = np.where((node < 0) & drains, later, node)
    return ends.assign(node=node, time=there)
