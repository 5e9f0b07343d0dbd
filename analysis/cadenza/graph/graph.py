# SPDX-License-Identifier: Apache-2.0
"""Who waited for whom in one step: its dependency graph over all ranks, and its replay.

Each rank's operations follow one another. A wait ends when the messages that it waits for are
there; a message leaves when both ends have posted it, and what it then takes is its own. A
collective begins when its last rank has come. Times between operations for which nothing is
recorded stay as they are. So a replay with the recorded durations gives the recorded times, and a
replay with others says what would have been.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from cadenza.graph.collectives import collectives
from cadenza.errors import DataError
from cadenza.graph.lanes import MEETING, Lanes, make_lanes
from cadenza.graph.levels import Arrivals, levels
from cadenza.graph.meetings import ENDS, POSTS, Meetings, join
from cadenza.graph.messages import messages
from cadenza.graph.pauses import held, standstills

_FOUND_NS = 50_000  # a wait that takes no longer found its messages there
_CLOCK_ERROR_NS = 1_000_000  # no two clocks are further apart


@dataclass(frozen=True)
class StepGraph:
    """One step. Times are ns since it began on the first rank."""

    step: int
    lanes: Lanes
    meetings: Meetings  # that are as the recorded times allow
    ranks: pd.DataFrame  # Run.ranks() of those in `lanes`, in their order, and machine_seconds
    ready: np.ndarray  # per meeting: when its last rank posted
    own: np.ndarray  # per node: how long it takes without waiting
    rest: np.ndarray  # per node: what it takes after what it waited for is there
    transfer: np.ndarray  # per end of a meeting: from when all have posted to the data's arrival
    pause: np.ndarray  # per node: ns of `own`, of waits of `rest`, for which the rank stood still
    pause_event: np.ndarray  # per node: row of the event that says so; -1: none
    held: np.ndarray  # per end of a meeting: ns of `transfer` for which another rank stood still

    @property
    def seconds(self) -> float:
        """Of the step as recorded: from its begin on the first rank to its end on the last."""
        return float(self.lanes.end.max()) / 1e9

    @cached_property
    def _order(self) -> list[np.ndarray]:
        found, whole = levels(*_edges(self.lanes, self.meetings))
        if not whole:
            raise DataError(f"step {self.step}: its events wait for one another in a circle")
        return found

    def replay(
        self,
        own: np.ndarray | None = None,
        rest: np.ndarray | None = None,
        transfer: np.ndarray | None = None,
    ) -> np.ndarray:
        """When every node ends, with other durations in place of the recorded ones.

        @param own, rest, transfer  ns, as the fields of these names; one more axis for many cases
        @returns ns since the step began, (nodes,) or (nodes, cases)
        """
        given = [self.own if own is None else own, self.rest if rest is None else rest,
                 self.transfer if transfer is None else transfer]  # fmt: skip
        cases = max((a.shape[1] for a in given if a.ndim == 2), default=0)
        own, rest, transfer = (
            np.broadcast_to(a if a.ndim == 2 else a[:, None], (len(a), max(cases, 1)))
            for a in given
        )
        ends = self._walk(own, rest, transfer)[: len(self.own)]
        return ends if cases else ends[:, 0]

    def _walk(self, own: np.ndarray, rest: np.ndarray, transfer: np.ndarray) -> np.ndarray:
        nodes = len(self.own)
        posts, ends = self._posts, self._ends
        offset = self._offsets[posts.order][:, None]
        delay = transfer[ends.order]
        start = self._starts
        time = np.zeros((nodes + self.meetings.count, own.shape[1]))
        time[:nodes][start] = self.lanes.end[start][:, None]
        for number, members in enumerate(self._order):
            meeting, ready = posts.of_level(number, time, offset)
            time[meeting] = ready
            node = members[: np.searchsorted(members, nodes)]
            node = node[~start[node]]
            time[node] = time[node - 1] + own[node]
            waiting, there = ends.of_level(number, time, delay)
            time[waiting] = np.maximum(time[waiting], there)
            time[node] += rest[node]
        return time

    def latest_ends(self) -> np.ndarray:
        """When every node may end at the latest for the step to take no longer, ns."""
        nodes = len(self.own)
        posts, ends = self._posts, self._ends
        time = np.full(nodes + self.meetings.count, float(self.lanes.end.max()))
        for number in reversed(range(len(self._order))):
            low, high = ends.bounds[number], ends.bounds[number + 1]
            waits = ends.vertex[low:high]
            there = time[waits] - self.rest[waits] - self.transfer[ends.order[low:high]]
            np.minimum.at(time, ends.source[low:high], there)
            low, high = posts.bounds[number], posts.bounds[number + 1]
            ready = time[posts.vertex[low:high]] - self._offsets[posts.order[low:high]]
            np.minimum.at(time, posts.source[low:high], ready)
            members = self._order[number]
            node = members[: np.searchsorted(members, nodes)]
            node = node[~self._starts[node]]
            begin = time[node] - self.rest[node] - self.own[node]
            time[node - 1] = np.minimum(time[node - 1], begin)
        return time[:nodes]

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.append(True, self.lanes.rank[1:] != self.lanes.rank[:-1])

    @cached_property
    def _offsets(self) -> np.ndarray:
        return (self.meetings.post_time - self.lanes.end[self.meetings.post_node]).astype(float)

    @cached_property
    def _posts(self) -> Arrivals:
        vertex = self.meetings.post_meeting + len(self.own)
        return Arrivals(vertex, self.meetings.post_node, self._order)

    @cached_property
    def _ends(self) -> Arrivals:
        source = self.meetings.end_meeting + len(self.own)
        return Arrivals(self.meetings.end_node, source, self._order)


def build(events: pd.DataFrame, steps: pd.DataFrame, ranks: pd.DataFrame, step: int) -> StepGraph:
    """The graph of one step.

    @param events  Run.events(), of all ranks; other steps than `step` are not looked at
    @param steps   Run.steps()
    @param ranks   Run.ranks()
    @throws DataError where no rank has the step, or nothing of it is recorded
    """
    columns = ["rank", "begin_ns", "end_ns", "machine_seconds"]
    windows = steps.loc[steps["step"] == step].reindex(columns=columns, fill_value=0.0)
    windows = windows.sort_values("rank")
    part = events[(events["step"] == step) & events["rank"].isin(windows["rank"])]
    if part.empty:
        raise DataError(f"step {step} has no events (trace.events: true records them)")
    lanes = make_lanes(part.reset_index(drop=True), windows)
    found = join([messages(lanes), collectives(lanes, ranks)])
    ready = np.zeros(found.count, np.int64)
    np.maximum.at(ready, found.post_meeting, found.post_time)
    found = _possible(lanes, found, ready)
    own = (lanes.end - lanes.begin).astype(float)
    own[lanes.kind == MEETING] = 0
    own[found.end_node] = 0  # a gap in which the rank waited
    pause, pause_event = standstills(lanes)
    arrival, least = _arrivals(lanes, found, ready, pause)
    there = lanes.begin + own
    np.maximum.at(there, found.end_node, arrival)
    places = ranks.set_index("rank").reindex(lanes.ranks).rename_axis("rank").reset_index()
    places["machine_seconds"] = windows["machine_seconds"].to_numpy()
    transfer = arrival - ready[found.end_meeting]
    rest = lanes.end - there
    others = held(lanes, pause, found, ready, arrival - least)
    pause = np.minimum(pause, np.where(own > 0, own, rest))
    return StepGraph(step, lanes, found, places, ready, own, rest, transfer, pause, pause_event,
                     others)  # fmt: skip


def _possible(lanes: Lanes, found: Meetings, ready: np.ndarray) -> Meetings:
    """Without waits that were over before the others came.

    A small message leaves before its receiver has come: nobody waited. But where a receiver or a
    member of a collective ends well before another posts, they do not belong together.
    """
    early = ready[found.end_meeting] - lanes.end[found.end_node]
    wrong = np.zeros(found.count, bool)
    wrong[found.end_meeting[found.receives & (early > _CLOCK_ERROR_NS)]] = True
    keep = (found.receives | (early <= 0)) & ~wrong[found.end_meeting]
    return Meetings(
        found.count,
        **{name: getattr(found, name) for name in POSTS},
        **{name: getattr(found, name)[keep] for name in ENDS},
    )


def _arrivals(
    lanes: Lanes, found: Meetings, ready: np.ndarray, pause: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """When the data of each end of a meeting was there, and when it could be at the earliest, ns.

    A run only knows when it saw a message. That is when it arrived, if the rank was blocked and
    the message was the last one posted; otherwise it may have been there long before: then it is
    given the time per byte of those for which it is known. So is what came while the rank stood
    still.

    @param pause  per node: ns for which its rank stood still
    """
    begin, end = lanes.begin[found.end_node], lanes.end[found.end_node]
    posted = ready[found.end_meeting]
    taken = np.maximum(found.end_time - posted, 0)
    blocked = found.late & (end - begin > _FOUND_NS)
    last = np.zeros(len(lanes.end), np.int64)
    np.maximum.at(last, found.end_node, posted)
    decides = blocked & (posted == last[found.end_node])
    waits = lanes.where("category", "wait")[found.end_node]
    stood = pause[found.end_node]
    known = decides & (posted >= begin) & (found.bytes > 0) & (stood == 0)
    some = known if known.any() else found.late & (found.bytes > 0) & (stood == 0)
    summary = np.median if known.any() else np.min
    rate = summary(taken[some] / found.bytes[some]) if some.any() else 0.0
    guess = np.minimum(taken, rate * found.bytes)
    exact = found.end_time - posted  # may be negative by the error of the clocks
    arrival = posted + np.where(found.late & ~(decides & waits), guess, exact)
    least = np.minimum(posted + guess, arrival)
    return np.where(stood > 0, np.clip(end - stood, least, arrival), arrival), least


def _edges(lanes: Lanes, found: Meetings) -> tuple[int, np.ndarray, np.ndarray]:
    """Vertices are nodes, then meetings."""
    nodes = len(lanes.rank)
    following = np.flatnonzero(lanes.rank[1:] == lanes.rank[:-1])
    source = [following, found.post_node, found.end_meeting + nodes]
    target = [following + 1, found.post_meeting + nodes, found.end_node]
    return nodes + found.count, np.concatenate(source), np.concatenate(target)
