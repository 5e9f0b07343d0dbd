# SPDX-License-Identifier: Apache-2.0
"""What a step would have taken, had slow links the usual rate: by replay."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

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
_SETTLED = 1e-4  # of the step: what a further round would change
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
    earlier = Earlier(graph, machine).of_cases([slow], graph.own[:, None], graph.rest[:, None])
    seconds = float(graph.replayed_seconds(transfer=graph.transfer[:, None] - earlier)[0])
    text = slow[0].explanation + (f"; and {len(slow) - 1} more" if len(slow) > 1 else "")
    return pd.DataFrame([(USUAL_LINKS, -1, seconds, graph.seconds - seconds, text)],
                        columns=columns)


class Earlier:
    """By how much data would be there earlier, were slow links as fast as usual and computations
    shorter.

    Messages of a simulation take their turns at ports anew, and sums of gradients one after the
    other: what stood behind a slow transfer, or met others as it was late, is earlier, too.
    """

    def __init__(self, graph: StepGraph, machine: Machine | None) -> None:
        self._graph, self._machine = graph, machine
        self._groups: dict[tuple[Group, float], tuple[np.ndarray, np.ndarray]] = {}

    @cached_property
    def _wires(self) -> pd.DataFrame:
        frame = wires(self._graph, self._machine)
        return frame.assign(took=frame["there_ns"] - frame["ready_ns"]) if len(frame) else frame

    @cached_property
    def _simulated(self) -> bool:
        events, frame = self._graph.lanes.events["simulated"], self._wires
        return len(frame) > 0 and bool(events.iloc[frame["event"].iloc[0]])

    def of_cases(
        self, slow: Sequence[Sequence[SlowLink]], own: np.ndarray, rest: np.ndarray
    ) -> np.ndarray:
        """@param slow       by case, the links that are repaired
        @param own, rest  as of StepGraph.replay(), (nodes, cases)
        @returns ns per end of a meeting, (ends, cases)
        """
        by_event = np.stack([self._of_collectives(links) for links in slow], axis=1)
        ends = self._graph.meetings.end_event
        if len(self._wires) and not self._simulated:
            usual = [self._at_usual_rates(links) for links in slow]
            return by_event[ends] + np.stack(usual, axis=1)
        repaired = [number for number, links in enumerate(slow)
                    if links or (own[:, number] != self._graph.own).any()
                    or (rest[:, number] != self._graph.rest).any()]
        if len(self._wires) and repaired:
            by_event[:, repaired] = self._in_turn([slow[number] for number in repaired],
                                                  own[:, repaired], rest[:, repaired],
                                                  by_event[:, repaired])
        return by_event[ends]

    def _in_turn(
        self, slow: Sequence[Sequence[SlowLink]], own: np.ndarray, rest: np.ndarray,
        by_event: np.ndarray,
    ) -> np.ndarray:
        """With what messages are earlier by once they have taken their turns at ports anew."""
        graph, frame, numbers = self._graph, self._wires, message_numbers(self._graph)
        event, of_event = numbers["event"].to_numpy(), numbers["message"].to_numpy()
        alone = [np.where(share < 1, self._alone(share), frame["alone_ns"])
                 for share in map(self._shares, slow)]
        took, message = frame["took"].to_numpy(), frame["message"].to_numpy()
        ports, found = Ports(frame, self._machine), by_event.copy()
        for _ in range(_ROUNDS):
            transfer = graph.transfer[:, None] - found[graph.meetings.end_event]
            ready = graph.ready_after(own, rest, transfer)[message]
            saved = np.zeros((int(message.max()) + 1, len(slow)))
            for case, mine in enumerate(alone):
                there = ports.there(mine, ready[:, case])
                saved[message, case] = took - (there - ready[:, case])
            before, found[event] = found[event], by_event[event] + saved[of_event]
            if np.abs(found[event] - before).max() < _SETTLED * graph.seconds * 1e9:
                break
        return found

    def _alone(self, share: np.ndarray) -> np.ndarray:
        """ns that each message usually takes at its ports. @param share  _shares()"""
        frame = self._wires
        if self._machine is None:
            return frame["alone_ns"].to_numpy() * share
        rate = self._machine.way(frame["sender"].to_numpy(), frame["receiver"].to_numpy())[1]
        return frame["bytes"].to_numpy() / rate * 1e9

    def _shares(self, slow: Sequence[SlowLink]) -> np.ndarray:
        """Of the usual rate, by message; 1 where it is not known which link is slow."""
        share = np.ones(len(self._wires))
        for link in slow:
            if link.known:
                over = _goes_over(self._wires, link)
                share = np.where(over, np.minimum(share, link.share), share)
        return share

    def _at_usual_rates(self, slow: Sequence[SlowLink]) -> np.ndarray:
        """Of a real run, per end."""
        graph = self._graph
        of_message = pd.Series(self._shares(slow), index=self._wires["message"])
        of_event = message_numbers(graph).set_index("event")["message"].map(of_message)
        at = pd.Series(graph.meetings.end_event).map(of_event).fillna(1.0).to_numpy()
        return np.maximum(graph.transfer, 0) * (1 - at)

    def _of_collectives(self, slow: Sequence[SlowLink]) -> np.ndarray:
        """Per event."""
        by_event = np.zeros(len(self._graph.lanes.events))
        shares: dict[Group, float] = {}
        for link in slow:
            for group in link.groups:
                shares[group] = min(link.share, shares.get(group, 1.0))
        for group, share in shares.items():
            if (group, share) not in self._groups:
                self._groups[group, share] = _collectives(self._graph, self._machine, share, group)
            event, saved = self._groups[group, share]
            by_event[event] = saved
        return by_event


def _goes_over(frame: pd.DataFrame, link: SlowLink) -> np.ndarray:
    """Whether each message of `frame` goes over the link."""
    own = link.pairs[0]
    return (frame["sender"].isin(own) & frame["receiver"].isin(own)).to_numpy()


def _collectives(
    graph: StepGraph, machine: Machine | None, link_share: float, group: Group
) -> tuple[np.ndarray, np.ndarray]:
    """The events of a group's collectives, and by how many ns their data would be there earlier.

    @param link_share  of the usual rate, where the group's own times do not tell
    """
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
    return mine["event"].to_numpy(), by_number.reindex(mine["collective"]).to_numpy()


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
