# SPDX-License-Identifier: Apache-2.0
"""Events cut into pieces that are one thing each: what parts count and pictures draw."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from cadenza.time import intervals
from cadenza.read.columns import numbers_of, one_of
from cadenza.read.partners import collective_members
from cadenza.read.schema import (
    COMMUNICATION,
    HOST_GAP,
    TENSOR_COLLECTIVES,
    WAIT_FOR_ATTENTION,
    WAIT_FOR_COPY,
    WAIT_FOR_LAYER,
    WAIT_FOR_RANKS,
    WAIT_FOR_SENDS,
    WAIT_FOR_STAGE,
    WAITS_FOR_GROUPS,
)
from cadenza.time.transfers import collective_arrivals, ready_times, transfer_begin

PARTS = (
    "compute_attention",
    "compute_dense",
    "compute_other",
    "optimizer",
    "no_core",
    "communication",
    "attention_wait",
    "pipeline_bubble",
    "tensor_parallel_wait",
    "data_parallel_wait",
    "host_gap",
    "other",
)
BUSY = PARTS[:4]
_CODE = {name: code for code, name in enumerate(PARTS)}
# What a wait for the members of a group is; those of context groups share attention.
_OF_DIMENSION = {"data": "data_parallel_wait", "tensor": "tensor_parallel_wait",
                 "pipeline": "pipeline_bubble", "context": "attention_wait"}


def lane_pieces(events: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """Pieces of time by what was being done.

    - Of nested events of a lane the innermost counts; collectives of a tensor group are nested in
      the dense operations that they interrupt.
    - A blocking communication, and a wait for one, is a wait until the partners are there and a
      transfer after that.
    - A computation is without a core first, for as long as it stood still, and computes after that:
      a trace has the length of that time, not its place.
    - A non-blocking message, from post to completion, only holds the time in which data could move:
      what of it blocked the rank is in an explicit wait event.

    @returns rank, begin_ns, end_ns, category, part (of PARTS), in_flight (of a non-blocking
             message: the rank was not held up by it)
    """
    categories = events["category"].cat.categories.union(["wait"], sort=False)
    category = events["category"].cat.set_categories(categories).array.codes
    members = collective_members(events, ranks)
    start = transfer_begin(events, members)
    split = _Splits(events, ranks, members, start)

    inside = one_of(events["name"], *TENSOR_COLLECTIVES)
    messages = events["non_blocking"].to_numpy(bool) & ~inside
    posted = np.flatnonzero(messages)
    blocking = np.flatnonzero(~messages)
    begin, end = (events[name].to_numpy(np.int64) for name in ("begin_ns", "end_ns"))
    cut, owner = intervals.innermost_of_lanes(
        begin[blocking], end[blocking], _lane_number(events, inside)[blocking]
    )
    wait = np.int8(categories.get_loc("wait"))
    found = [_Pieces(posted, start[posted], end[posted], category[posted], split.last[posted])]
    found += _thirds(blocking[owner], cut, category, wait, split)
    found = _without_core(found, events["still_ns"].to_numpy(np.int64), wait)
    found = [pieces.lasting() for pieces in found]
    in_flight = np.zeros(sum(len(pieces.row) for pieces in found), bool)
    in_flight[: len(found[0].row)] = True
    row, begin, end, category, part = map(np.concatenate, zip(*found, strict=True))
    return pd.DataFrame(
        {
            "rank": events["rank"].to_numpy(np.int64)[row],
            "begin_ns": begin,
            "end_ns": end,
            "category": pd.Categorical.from_codes(category, categories=categories),
            "part": pd.Categorical.from_codes(part, categories=pd.Index(PARTS)),
            "in_flight": in_flight,
        },
        copy=False,
    )


class _Pieces(NamedTuple):
    """Some pieces, column by column."""

    row: np.ndarray  # of the events
    begin: np.ndarray
    end: np.ndarray
    category: np.ndarray  # its code
    part: np.ndarray  # its code

    def lasting(self) -> _Pieces:
        """Without those that take no time."""
        kept = self.end > self.begin
        return _Pieces(*(column[kept] for column in self))


def _without_core(found: list[_Pieces], still: np.ndarray, wait: np.int8) -> list[_Pieces]:
    """Computing pieces, the last of `found`, without what their rank had no core for, and that.

    @param still  ns by event: its pieces are filled with it from the first on
    @param wait   code of category `wait`
    """
    *others, own = found
    computes = np.isin(own.part, [_CODE[part] for part in BUSY])
    stands = np.flatnonzero(computes & (still[own.row] > 0))
    row, begin = own.row[stands], own.begin[stands]
    took = pd.Series(own.end[stands] - begin)
    left = still[row] - (took.groupby(row).cumsum() - took)
    until = begin + np.clip(left, 0, took).to_numpy(np.int64)
    own.begin[stands] = until
    lost = _Pieces(row, begin, until, np.full(len(row), wait),
                   np.full(len(row), _CODE["no_core"], np.int8))
    return [*others, own, lost]


def _lane_number(events: pd.DataFrame, inside: np.ndarray) -> np.ndarray:
    """One number for each lane of each rank; `inside` have that of computing, though they were
    recorded in another."""
    computes = inside | one_of(events["lane"], "compute")
    lane = np.where(computes, 255, events["lane"].array.codes)
    return events["rank"].to_numpy(np.int64) * 256 + lane


class _Splits:
    """Each event in up to three parts: until `one`, from there until `two`, and the rest."""

    def __init__(
        self, events: pd.DataFrame, ranks: pd.DataFrame, members: pd.DataFrame, start: np.ndarray
    ) -> None:
        self.one = events["begin_ns"].to_numpy(np.int64, copy=True)
        self.two = self.one.copy()
        waits = one_of(events["name"], WAIT_FOR_ATTENTION, WAIT_FOR_STAGE, WAIT_FOR_LAYER,
                       *WAITS_FOR_GROUPS.values())
        self.first = _awaited_parts(events, ranks)
        self.last = np.where(waits, self.first, _own_parts(events))
        messages = np.flatnonzero(one_of(events["category"], *COMMUNICATION))
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


def _awaited_parts(events: pd.DataFrame, ranks: pd.DataFrame) -> np.ndarray:
    """The part of the time before what is waited for is there."""
    name, category = events["name"], events["category"]
    attention = one_of(name, WAIT_FOR_ATTENTION)
    attention |= one_of(category, "attention_dispatch", "attention_return")
    part = np.where(attention, np.int8(_CODE["attention_wait"]), np.int8(_CODE["other"]))
    part[one_of(name, *TENSOR_COLLECTIVES)] = _CODE["tensor_parallel_wait"]
    part[one_of(name, WAIT_FOR_LAYER)] = _CODE["data_parallel_wait"]
    for dimension, wait in WAITS_FOR_GROUPS.items():
        part[one_of(name, wait)] = _CODE[_OF_DIMENSION[dimension]]
    bubble = one_of(name, WAIT_FOR_STAGE) | one_of(category, "p2p_send", "p2p_receive")
    part[bubble | (attention & _without_microbatch(events, ranks))] = _CODE["pipeline_bubble"]
    return part


def _own_parts(events: pd.DataFrame) -> np.ndarray:
    """The part of an event that is not split, and of the last piece of one that is."""
    categories = {"optimizer": "optimizer", **dict.fromkeys(COMMUNICATION, "communication")}
    categories |= {part: part for part in PARTS if part.startswith("compute_")}
    names = {
        WAIT_FOR_RANKS: "data_parallel_wait",
        WAIT_FOR_SENDS: "communication",
        WAIT_FOR_COPY: "communication",
        HOST_GAP: "host_gap",
        **dict.fromkeys(TENSOR_COLLECTIVES, "communication"),
    }
    of_category, of_name = (
        numbers_of(events[column], {value: _CODE[part] for value, part in found.items()}, default)
        for column, found, default in (("category", categories, _CODE["other"]),
                                       ("name", names, -1))
    )
    return np.where(of_name >= 0, of_name, of_category)


def _without_microbatch(events: pd.DataFrame, ranks: pd.DataFrame) -> np.ndarray:
    """Whether a rank of a pipeline has no microbatch of its own: it waits because the pipeline is
    filling or draining, even if it helps with the attention of other stages meanwhile."""
    if ranks["pipeline"].nunique() < 2:
        return np.zeros(len(events), bool)
    trainers = ranks.loc[ranks["role"] != "attention_server", "rank"]
    return ((events["microbatch"] < 0) & events["rank"].isin(trainers)).to_numpy()


def _thirds(
    rows: np.ndarray, cut: np.ndarray, category: np.ndarray, wait: np.int8, split: _Splits
) -> list[_Pieces]:
    """The three parts of each piece, of `rows` of the events, many of which take no time.

    @param category  code of each event's
    @param wait      that of category `wait`
    """
    begin, end = cut[:, 0], cut[:, 1]
    one, two = (np.clip(edge[rows], begin, end) for edge in (split.one, split.two))
    waits = np.full(len(rows), wait)
    late = np.full(len(rows), _CODE["data_parallel_wait"], np.int8)
    return [
        _Pieces(rows, begin, one, waits, split.first[rows]),
        _Pieces(rows, one, two, waits, late),
        _Pieces(rows, two, end, category[rows], split.last[rows]),
    ]
