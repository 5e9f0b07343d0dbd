# SPDX-License-Identifier: Apache-2.0
"""Events cut into pieces that are one thing each: what parts count and pictures draw."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.time import intervals
from cadenza.read.partners import collective_members
from cadenza.read.schema import (
    COMMUNICATION,
    TENSOR_COLLECTIVES,
    WAIT_FOR_ATTENTION,
    WAIT_FOR_RANKS,
    WAIT_FOR_SENDS,
    WAIT_FOR_STAGE,
)
from cadenza.time.transfers import collective_arrivals, ready_times, transfer_begin

PARTS = (
    "compute_attention",
    "compute_dense",
    "compute_other",
    "optimizer",
    "communication",
    "attention_wait",
    "pipeline_bubble",
    "tensor_parallel_wait",
    "data_parallel_wait",
    "other",
)
# `inside` is a collective in the middle of a dense operation, which does not compute meanwhile;
# nor does it while it waits there for the others of its tensor group.
_NAMES = ("inside", *PARTS)
# Which part a moment is of where several lanes are busy: the first of these.
PRECEDENCE = ("inside", "tensor_parallel_wait",
              *(part for part in PARTS[:-1] if part != "tensor_parallel_wait"))  # fmt: skip
_CODE = {name: code for code, name in enumerate(_NAMES)}


def lane_pieces(events: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """Pieces of time by what was being done.

    - Of nested events of a lane the innermost counts; the mark of the whole step is left out.
    - A blocking communication, and a wait for one, is a wait until the partners are there and a
      transfer after that.
    - A non-blocking message, from post to completion, only holds the time in which data could move:
      what of it blocked the rank is in an explicit wait event.

    @returns rank, begin_ns, end_ns, category, part (of PARTS, or `inside`), in_flight (of a
             non-blocking message: the rank was not held up by it)
    """
    events = events[(events["category"] != "step").to_numpy()]
    begin = events["begin_ns"].to_numpy(np.int64)
    end = events["end_ns"].to_numpy(np.int64)
    whose = events["rank"].to_numpy(np.int64)
    categories = events["category"].cat.categories.union(["wait"], sort=False)
    category = events["category"].cat.set_categories(categories).cat.codes.to_numpy(np.int64)
    members = collective_members(events, ranks)
    start = transfer_begin(events, members)
    split = _Splits(events, ranks, members, start)

    inside = events["name"].isin(TENSOR_COLLECTIVES).to_numpy()
    posted = events["non_blocking"].to_numpy(bool) & ~inside
    flight = np.stack([whose, start, end, category, split.last, np.ones(len(end), np.int64)])
    blocking = np.flatnonzero(~posted)
    cut, owner = intervals.innermost_of_lanes(
        begin[blocking], end[blocking], _lane_number(events)[blocking]
    )
    rows = blocking[owner]
    wait = categories.get_loc("wait")
    thirds = _thirds(whose[rows], cut, category[rows], wait, split.of(rows))
    columns = [flight[:, posted], *thirds]
    table = np.concatenate(columns, axis=1)
    table = table[:, table[2] > table[1]]
    return pd.DataFrame(
        {
            "rank": table[0],
            "begin_ns": table[1],
            "end_ns": table[2],
            "category": pd.Categorical.from_codes(table[3], categories=categories),
            "part": pd.Categorical.from_codes(table[4], categories=pd.Index(_NAMES)),
            "in_flight": table[5].astype(bool),
        }
    )


def _lane_number(events: pd.DataFrame) -> np.ndarray:
    return events["rank"].to_numpy(np.int64) * 256 + events["lane"].cat.codes.to_numpy(np.int64)


class _Splits:
    """Each event in up to three parts: until `one`, from there until `two`, and the rest."""

    def __init__(
        self, events: pd.DataFrame, ranks: pd.DataFrame, members: pd.DataFrame, start: np.ndarray
    ) -> None:
        self.one = events["begin_ns"].to_numpy(np.int64, copy=True)
        self.two = self.one.copy()
        waits = events["name"].isin([WAIT_FOR_ATTENTION, WAIT_FOR_STAGE]).to_numpy()
        self.first = _awaited_parts(events, ranks)
        self.last = np.where(waits, self.first, _own_parts(events))
        messages = np.flatnonzero(events["category"].isin(COMMUNICATION))
        self.one[messages] = self.two[messages] = start[messages]
        ready = ready_times(events, start)
        rows = ready.index.to_numpy(np.int64)
        self.one[rows] = self.two[rows] = np.maximum(self.one[rows], ready.to_numpy())
        self.last[rows] = _CODE["communication"]
        self._meet(collective_arrivals(events, ranks, members))
        begin, end = (events[name].to_numpy(np.int64) for name in ("begin_ns", "end_ns"))
        self.one = np.clip(self.one, begin, end)
        self.two = np.clip(self.two, self.one, end)

    def _meet(self, arrivals: pd.DataFrame) -> None:
        for column in ("row", "wait_row"):
            known = arrivals[arrivals[column] >= 0]
            rows = known[column].to_numpy(np.int64)
            self.first[rows] = _CODE["pipeline_bubble"]
            self.one[rows] = known["pipeline_ns"].to_numpy()
            self.two[rows] = known["last_ns"].to_numpy()
            self.last[rows] = _CODE["communication"]

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        return self.one[rows], self.two[rows], self.first[rows], self.last[rows]


def _awaited_parts(events: pd.DataFrame, ranks: pd.DataFrame) -> np.ndarray:
    """The part of the time before what is waited for is there."""
    name, category = events["name"], events["category"]
    attention = name == WAIT_FOR_ATTENTION
    attention |= category.isin(["attention_dispatch", "attention_return"])
    tensor = name.isin(TENSOR_COLLECTIVES)
    stage = (name == WAIT_FOR_STAGE) | category.isin(["p2p_send", "p2p_receive"])
    bubble = stage.to_numpy() | (attention.to_numpy() & _without_microbatch(events, ranks))
    other = np.where(attention, _CODE["attention_wait"], _CODE["other"])
    other = np.where(tensor, _CODE["tensor_parallel_wait"], other)
    return np.where(bubble, _CODE["pipeline_bubble"], other)


def _own_parts(events: pd.DataFrame) -> np.ndarray:
    """The part of an event that is not split, and of the last piece of one that is."""
    categories = {"optimizer": "optimizer", **dict.fromkeys(COMMUNICATION, "communication")}
    categories |= {part: part for part in PARTS if part.startswith("compute_")}
    names = {
        WAIT_FOR_RANKS: "data_parallel_wait",
        WAIT_FOR_SENDS: "communication",
        **dict.fromkeys(TENSOR_COLLECTIVES, "inside"),
    }
    part = np.full(len(events), _CODE["other"])
    for column, found in (("category", categories), ("name", names)):
        for value, own in found.items():
            part[(events[column] == value).to_numpy()] = _CODE[own]
    return part


def _without_microbatch(events: pd.DataFrame, ranks: pd.DataFrame) -> np.ndarray:
    """Whether a rank of a pipeline has no microbatch of its own: it waits because the pipeline is
    filling or draining, even if it helps with the attention of other stages meanwhile."""
    if ranks["pipeline"].nunique() < 2:
        return np.zeros(len(events), bool)
    trainers = ranks.loc[ranks["role"] != "attention_server", "rank"]
    return ((events["microbatch"] < 0) & events["rank"].isin(trainers)).to_numpy()


def _thirds(
    whose: np.ndarray, cut: np.ndarray, category: np.ndarray, waits: int,
    split: tuple[np.ndarray, ...],
) -> list[np.ndarray]:  # fmt: skip
    """Columns (rank, begin, end, category, part, in flight) of the three parts of each piece.

    @param waits  the code of category `wait`
    """
    begin, end = cut[:, 0], cut[:, 1]
    one, two = (np.clip(edge, begin, end) for edge in split[:2])
    wait, zero = np.full(len(cut), waits), np.zeros(len(cut), np.int64)
    second = np.full(len(cut), _CODE["data_parallel_wait"])
    return [
        np.stack([whose, begin, one, wait, split[2], zero]),
        np.stack([whose, one, two, wait, second, zero]),
        np.stack([whose, two, end, category, split[3], zero]),
    ]
