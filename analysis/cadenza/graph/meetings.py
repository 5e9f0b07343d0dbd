# SPDX-License-Identifier: Apache-2.0
"""Where ranks meet in a step: messages and collectives, who has to come and who waits for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cadenza.graph.lanes import MEETING, Lanes

POSTS = ("post_meeting", "post_node", "post_time")
ENDS = ("end_meeting", "end_node", "end_time", "end_event", "bytes", "late", "receives")


@dataclass(frozen=True)
class Meetings:
    """Numbered from 0. A meeting is ready when the last of its ranks has posted; its data is there
    some time later; nodes that wait for it end no earlier.
    """

    count: int
    post_meeting: np.ndarray
    post_node: np.ndarray  # the last node of the rank that was over when it posted
    post_time: np.ndarray  # ns since the step began
    end_meeting: np.ndarray
    end_node: np.ndarray  # that waits
    end_time: np.ndarray  # when the data was there; if `late`, some time before
    end_event: np.ndarray  # row of the step's events: the message or collective
    bytes: np.ndarray  # of end_meeting
    late: np.ndarray  # bool
    receives: np.ndarray  # bool: it cannot end before all have posted, whatever the clocks say


def join(parts: list[Meetings]) -> Meetings:
    """One numbering for all."""
    offsets = np.cumsum([0, *(part.count for part in parts)])
    numbered = {"post_meeting", "end_meeting"}

    def gather(name: str) -> np.ndarray:
        shift = offsets if name in numbered else np.zeros(len(offsets), np.int64)
        return np.concatenate(
            [getattr(part, name) + by if by else getattr(part, name)
             for part, by in zip(parts, shift, strict=False)]
        )

    return Meetings(int(offsets[-1]), **{name: gather(name) for name in (*POSTS, *ENDS)})


def node_at(lanes: Lanes, rank: np.ndarray, time: np.ndarray) -> np.ndarray:
    """The last node that is over at `time`, before any that meets others at that very moment."""
    last = lanes.last_before(rank, time)
    empty = lanes.end == lanes.begin
    first = np.searchsorted(lanes.key(lanes.rank, lanes.end), lanes.key(rank, time))
    first = np.minimum(first, last)
    first = np.where(empty[first], first, first + 1)
    at_once = np.flatnonzero(empty & (lanes.kind == MEETING))
    following = np.append(at_once, len(empty))[np.searchsorted(at_once, first)]
    return np.minimum(last, following - 1)


def waiting_node(
    lanes: Lanes, rank: np.ndarray, begin: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """The node in which a rank waited for what it posted at `begin` and saw complete at `end`.

    The writer looks at the clock right after the wait, or, for several messages, during it.
    @returns -1 where it did not wait
    """
    last = lanes.last_before(rank, end)
    first = np.searchsorted(lanes.key(lanes.rank, lanes.end), lanes.key(rank, end))
    meets = np.flatnonzero(lanes.kind == MEETING)
    # Of several that end at that very moment the first, the others take no time.
    found = np.append(meets, len(lanes.rank))[np.searchsorted(meets, np.minimum(first, last))]
    after = np.minimum(last + 1, len(lanes.rank) - 1)
    inside = (lanes.rank[after] == rank) & (lanes.kind[after] == MEETING)
    inside &= lanes.begin[after] < end
    node = np.where(found <= last, found, np.where(inside, after, -1))
    return np.where((node >= 0) & (begin < lanes.end[node]), node, -1)
