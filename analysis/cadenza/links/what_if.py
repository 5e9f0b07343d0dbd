# SPDX-License-Identifier: Apache-2.0
"""What a step would have taken, had slow links the usual rate: by replay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from cadenza.graph.graph import StepGraph
from cadenza.graph.lanes import COMPUTE
from cadenza.links.times import group_collectives
from cadenza.links.slow import Group, SlowLink, of_group
from cadenza.read.machine import Machine
from cadenza.read.partners import collective_members
from cadenza.links.wires import Ports, message_numbers, wires

_ROUNDS = 4  # what is there earlier lets ranks post earlier, who then meet others at the ports
USUAL_LINKS = "slow links at the usual rate"
_SUMS, _MEETS = "reduce_gradients_message", "reduce_gradients"


def with_usual_links(
    graph: StepGraph, machine: Machine | None, slow: Sequence[SlowLink]
) -> pd.DataFrame:
    """A row in the columns of what_if(), where there are slow links: all of them at once, as those
    that are used side by side hide one another."""
    columns = ["scenario", "rank", "seconds", "saved_seconds", "explanation"]
    if not slow:
        return pd.DataFrame(columns=columns)
    transfer = graph.transfer - earlier_transfers(graph, machine, slow)
    seconds = float(graph.replayed_seconds(transfer=transfer)[0])
    text = slow[0].explanation + (f"; and {len(slow) - 1} more" if len(slow) > 1 else "")
    return pd.DataFrame([(USUAL_LINKS, -1, seconds, graph.seconds - seconds, text)],
                        columns=columns)


def earlier_transfers(
    graph: StepGraph, machine: Machine | None, slow: Sequence[SlowLink]
) -> np.ndarray:
    """Per end of a meeting the ns by which its data would be there earlier.

    Messages take their turns at ports anew, and sums of gradients one after the other: what stood
    behind a slow transfer is earlier, too.
    """
    by_event = _save_messages(graph, machine, slow)
    shares: dict[Group, float] = {}
    for link in slow:
        for group in link.groups:
            shares[group] = min(link.share, shares.get(group, 1.0))
    for group, share in shares.items():
        _save_collectives(graph, machine, share, group, by_event)
    return by_event[graph.meetings.end_event]


def _save_messages(
    graph: StepGraph, machine: Machine | None, slow: Sequence[SlowLink]
) -> np.ndarray:
    """Per event the ns by which a message would be there earlier; 0 where it is not known which
    link is slow."""
    by_event = np.zeros(len(graph.lanes.events))
    known = [link for link in slow if link.known]
    frame = wires(graph, machine) if known else pd.DataFrame()
    if frame.empty:
        return by_event
    ends = message_numbers(graph)
    share = np.ones(len(frame))
    for link in known:
        share = np.where(_goes_over(frame, link), np.minimum(share, link.share), share)
    if not graph.lanes.events["simulated"].iloc[frame["event"].iloc[0]]:
        of_message = pd.Series(share, index=frame["message"])
        of_event = ends.set_index("event")["message"].map(of_message)
        at = pd.Series(graph.meetings.end_event).map(of_event).fillna(1.0).to_numpy()
        by_event[graph.meetings.end_event] = np.maximum(graph.transfer, 0) * (1 - at)
        return by_event
    alone = frame["alone_ns"].to_numpy()
    usual = alone * share
    if machine is not None:
        rate = machine.way(frame["sender"].to_numpy(), frame["receiver"].to_numpy())[1]
        usual = frame["bytes"].to_numpy() / rate * 1e9
    frame = frame.assign(alone=np.where(share < 1, usual, alone),
                         took=frame["there_ns"] - frame["ready_ns"])
    for number in range(_ROUNDS):
        if number > 0:
            ready = graph.ready_after(graph.transfer - by_event[graph.meetings.end_event])
            frame = frame.assign(ready_ns=ready[frame["message"]])
            frame = frame.sort_values("ready_ns", kind="stable")
        there = Ports(frame, machine).there(frame[["alone"]].to_numpy())[:, 0]
        saved = np.zeros(int(frame["message"].max()) + 1)
        saved[frame["message"]] = frame["took"] - (there - frame["ready_ns"])
        by_event[ends["event"]] = saved[ends["message"]]
    return by_event


def _goes_over(frame: pd.DataFrame, link: SlowLink) -> np.ndarray:
    """Whether each message of `frame` goes over the link."""
    own = link.pairs[0]
    return (frame["sender"].isin(own) & frame["receiver"].isin(own)).to_numpy()


def _save_collectives(
    graph: StepGraph, machine: Machine | None, link_share: float, group: Group,
    by_event: np.ndarray,
) -> None:
    """@param link_share  of the usual rate, where the group's own times do not tell"""
    frame = group_collectives(graph, machine)
    frame = frame[of_group(frame, group)]
    taken = frame["end_ns"] - frame["begin_ns"]
    share = (frame["usual"].sum() / frame.loc[frame["usual"].notna(), "seconds"].sum()) or 1.0
    share = link_share if np.isnan(share) else min(share, 1.0)
    usual = (frame["usual"] * 1e9).fillna(taken * share).clip(upper=taken)
    saved = (taken - usual).where((frame["bytes"] > 0) | (frame["name"] != _MEETS), 0.0)
    sums = frame[frame["name"] == _SUMS]
    if len(sums):
        earlier = _sums_in_turn(graph, group, sums, usual[sums.index])
        saved[sums.index] = earlier
        saved[frame["name"] == _MEETS] = earlier[-1]  # it lasts until the last sum is there
    members = collective_members(graph.lanes.events, graph.ranks)
    by_number = pd.Series(saved.to_numpy(), index=frame["collective"])
    mine = members[members["collective"].isin(by_number.index)]
    by_event[mine["event"]] = by_number.reindex(mine["collective"]).to_numpy()


def _sums_in_turn(
    graph: StepGraph, group: Group, sums: pd.DataFrame, usual: pd.Series
) -> np.ndarray:
    """By how many ns each sum is over earlier. One that began as the one before it ended may have
    been posted long before: when the last rank had its layer's gradients."""
    begin, end = (sums[name].to_numpy(float) for name in ("begin_ns", "end_ns"))
    posted = begin.copy()
    layers = _layers_done(graph, group)
    if len(layers) == len(sums) - 1:
        queued = np.append(False, begin[1:] <= end[:-1] + 1)[:-1]
        posted[:-1] = np.where(queued, np.minimum(layers, begin[:-1]), begin[:-1])
        posted[-1] = min(begin[-1], _arrival(graph, group))
    over = 0.0
    earlier = np.zeros(len(sums))
    for i, taken in enumerate(usual.to_numpy(float)):
        over = max(posted[i], over) + taken
        earlier[i] = max(end[i] - over, 0.0)
    return earlier


def _layers_done(graph: StepGraph, group: Group) -> np.ndarray:
    """When all ranks of the group had passed back through their first, second, ... layer."""
    events = graph.lanes.events
    mine = events["rank"].isin(group[1]) & (events["phase"] == "backward")
    mine &= (events["layer"] >= 0) & events["category"].isin(COMPUTE)
    last = events[mine.to_numpy()].groupby(["rank", "layer"])["end_ns"].max() - graph.lanes.origin
    number = last.sort_values().groupby("rank").cumcount()
    return last.groupby(number).max().sort_index().to_numpy(float)


def _arrival(graph: StepGraph, group: Group) -> float:
    """When the last rank of the group came to the sums' end."""
    events = graph.lanes.events
    meets = events["rank"].isin(group[1]) & (events["name"] == _MEETS)
    meets &= events["category"] == "collective"
    found = events.loc[meets.to_numpy(), "begin_ns"]
    return float(found.max() - graph.lanes.origin) if len(found) else np.inf
