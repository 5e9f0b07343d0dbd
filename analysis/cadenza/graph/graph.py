# SPDX-License-Identifier: Apache-2.0
"""Who waited for whom in one step: its dependency graph over all ranks, and its replay.

Each rank's operations follow one another. A wait ends when the messages that it waits for are
there; a message leaves when both ends have posted it, and what it then takes is its own. A
collective begins when its last rank has come. Times between operations for which nothing is
recorded stay as they are. So a replay with the recorded durations gives the recorded times, and a
replay with others says what would have been.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from cadenza.graph.collectives import collectives
from cadenza.errors import DataError
from cadenza.graph.lanes import MEETING, Lanes, make_lanes
from cadenza.graph.levels import Arrivals, Places, levels, split_places
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
    own: np.ndarray  # per node: how long it takes without waiting; of a rank's first node how much
    # later than the first rank it begins
    rest: np.ndarray  # per node: what it takes after what it waited for is there
    transfer: np.ndarray  # per end of a meeting: from when all have posted to the data's arrival
    pause: np.ndarray  # per node: ns of `own`, of waits of `rest`, for which the rank stood still
    pause_event: np.ndarray  # per node: row of the event that says so; -1: none
    held: np.ndarray  # per end of a meeting: ns of `transfer` for which another rank stood still

    @property
    def seconds(self) -> float:
        """Of the step as recorded: from its begin on the first rank to its end on the last."""
        return float(self.lanes.end.max()) / 1e9

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
        given = (own, rest, transfer)
        ends = self._walk(*given)[self._places[0].place]
        return ends if any(a is not None and a.ndim == 2 for a in given) else ends[:, 0]

    def replayed_seconds(
        self,
        own: np.ndarray | None = None,
        rest: np.ndarray | None = None,
        transfer: np.ndarray | None = None,
    ) -> np.ndarray:
        """Of the step, as replay() has it: (cases,)."""
        return self._walk(own, rest, transfer).max(axis=0) / 1e9

    def ready_after(
        self, own: np.ndarray | None, rest: np.ndarray | None, transfer: np.ndarray
    ) -> np.ndarray:
        """When each meeting is ready, ns since the step began, with other durations: (meetings,
        cases). @param own, rest, transfer  as of replay(), (…, cases)"""
        ends = self._walk(own, rest, transfer)[self._places[0].place]
        ready = np.full((self.meetings.count, ends.shape[1]), -np.inf)
        posted = ends[self.meetings.post_node] + self._offsets[:, None]
        np.maximum.at(ready, self.meetings.post_meeting, posted)
        return ready

    def _walk(
        self, own: np.ndarray | None, rest: np.ndarray | None, transfer: np.ndarray | None
    ) -> np.ndarray:
        """replay() with the nodes in the order of their places, (nodes, cases)."""
        nodes, meetings = self._places
        given = [self.own if own is None else own, self.rest if rest is None else rest,
                 self.transfer if transfer is None else transfer]
        own, rest, transfer = (a if a.ndim == 2 else a[:, None] for a in given)
        cases = max(own.shape[1], rest.shape[1], transfer.shape[1])
        before, own, rest = self._before, own[nodes.vertex], rest[nodes.vertex]
        offset = self._offsets[self._posts.order][:, None]
        delay = transfer[self._ends.order]
        time = np.zeros((len(before) + 1, cases))  # the last row is what is before the first nodes
        ready = np.zeros((self.meetings.count, cases))
        for number, (low, high) in enumerate(itertools.pairwise(nodes.bounds.tolist())):
            meeting, posted = self._posts.of_level(number, time, offset)
            ready[meeting] = posted
            ends = time.take(before[low:high], axis=0) + own[low:high]
            waiting, there = self._ends.of_level(number, ready, delay)
            waiting = waiting - low
            ends[waiting] = np.maximum(ends[waiting], there)
            np.add(ends, rest[low:high], out=time[low:high])
        return time[:-1]

    def latest_ends(self) -> np.ndarray:
        """When every node may end at the latest for the step to take no longer, ns."""
        nodes, posts, ends = self._places[0], self._posts, self._ends
        own, rest = self.own[nodes.vertex], self.rest[nodes.vertex]
        offset, transfer = self._offsets[posts.order], self.transfer[ends.order]
        time = np.full(len(own) + 1, float(self.lanes.end.max()))
        ready = np.full(self.meetings.count, float(self.lanes.end.max()))
        for number in reversed(range(len(nodes.bounds) - 1)):
            some = slice(ends.bounds[number], ends.bounds[number + 1])
            there = time[ends.vertex[some]] - rest[ends.vertex[some]] - transfer[some]
            np.minimum.at(ready, ends.source[some], there)
            some = slice(posts.bounds[number], posts.bounds[number + 1])
            np.minimum.at(time, posts.source[some], ready[posts.vertex[some]] - offset[some])
            some = slice(nodes.bounds[number], nodes.bounds[number + 1])
            before = self._before[some]
            time[before] = np.minimum(time[before], time[some] - rest[some] - own[some])
        return time[nodes.place]

    @cached_property
    def _places(self) -> tuple[Places, Places]:
        """Of nodes and of meetings."""
        found, whole = levels(*_edges(self.lanes, self.meetings))
        if not whole:
            raise DataError(f"step {self.step}: its events wait for one another in a circle")
        return split_places(found, len(self.own))

    @cached_property
    def _before(self) -> np.ndarray:
        """Per place of a node the place of the one before it; of its rank's first the number of
        places."""
        place = self._places[0].place
        before = np.append(-1, place[:-1])
        before[self.lanes.starts] = len(place)
        return before[self._places[0].vertex]

    @cached_property
    def _offsets(self) -> np.ndarray:
        return (self.meetings.post_time - self.lanes.end[self.meetings.post_node]).astype(float)

    @cached_property
    def _posts(self) -> Arrivals:
        nodes, meetings = self._places
        vertex = meetings.place[self.meetings.post_meeting]
        return Arrivals(vertex, nodes.place[self.meetings.post_node], meetings.bounds)

    @cached_property
    def _ends(self) -> Arrivals:
        nodes, meetings = self._places
        vertex = nodes.place[self.meetings.end_node]
        return Arrivals(vertex, meetings.place[self.meetings.end_meeting], nodes.bounds)


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
    own[lanes.starts], rest[lanes.starts] = lanes.end[lanes.starts], 0
    return StepGraph(step, lanes, found, places, ready, own, rest, transfer, pause, pause_event,
                     others)


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
    stalled = np.zeros(found.count, bool)  # who waits for a rank that stands still learns no rate
    stalled[found.end_meeting[stood > 0]] = True
    usual = (found.bytes > 0) & ~stalled[found.end_meeting]
    known = decides & (posted >= begin) & usual
    some = known if known.any() else found.late & usual
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
