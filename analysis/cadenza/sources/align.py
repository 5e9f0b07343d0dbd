# SPDX-License-Identifier: Apache-2.0
"""Clocks of ranks, aligned by what the ranks did together.

All ranks leave a collective at the same moment, so the times at which they saw it end tell how far
their clocks are apart, and how these drift. Where ranks only sent each other messages, none can
have arrived before it was sent: in both directions together that bounds the offset (as NTP does).
What is not told, a drift above all, is counted among what a clock may be off by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from cadenza.sources.neutral import COLLECTIVE, SEND, began
from cadenza.time.intervals import several

# Of a broadcast, reduction to one, gather or scatter the root may leave before the others.
_TOGETHER = "all|barrier|reduce_scatter|reducescatter"
_FEWEST = 6  # meetings from which a drift is told: slopes of all pairs have one sign by chance in
# 2 of 6! cases
_MANY = 20  # meetings of which not all pairs are looked at
_PARTS = 12  # of messages, of each of which the earliest count
_SPAN_NS = 500_000_000  # over less a drift is nothing to correct
_SURE = 4.0  # standard errors within which a drift is
_FASTEST = 3e-4  # drift: a clock that is further off is no clock
_SWEEPS = 6
_MOST = 4000  # collectives of a rank that are looked at
_MEMBERS = 32  # of a collective, with which a rank is compared


@dataclass(frozen=True)
class Clock:
    """What is added to a rank's times: offset + drift x (time - origin)."""

    offset_ns: int = 0
    drift: float = 0.0
    origin_ns: int = 0  # in the middle of what tells
    residual_ns: float = 0.0  # by which ends of collectives differ after that, messages may
    unsure: float = 0.0  # by which the drift may be another
    meetings: int = 0  # that tell
    error_ns: float = 0.0  # by which times may be off, at most: over()
    known: bool = True  # False: nothing that the rank did with others tells

    def aligned(self, times: np.ndarray) -> np.ndarray:
        """ns on the first rank's clock."""
        moved = np.rint(self.drift * (times - self.origin_ns)).astype(np.int64)
        return times + self.offset_ns + moved

    @property
    def drift_known(self) -> bool:
        return self.unsure < _FASTEST

    def over(self, span: tuple[int, int]) -> Clock:
        """The same, with what times of the span (on the rank's own clock) may be off by."""
        far = max(abs(time - self.origin_ns) for time in span)
        return replace(self, error_ns=self.residual_ns + self.unsure * far)

    def beside(self, other: Clock) -> Clock:
        """This one, which was found beside the clock of a rank that has the clock `other`."""
        there = self.origin_ns + self.offset_ns - other.origin_ns
        moved = self.offset_ns + other.offset_ns + round(other.drift * there)
        both = replace(self, offset_ns=moved, drift=self.drift + other.drift,
                       known=self.known and other.known)
        return both.no_surer_than(other, there)

    def no_surer_than(self, other: Clock, far: int) -> Clock:
        """@param far  ns between what tells of this one and of the other"""
        return replace(self, unsure=min(self.unsure + other.unsure, _FASTEST),
                       residual_ns=self.residual_ns + other.residual_ns + other.unsure * abs(far))


def clocks(rows: pd.DataFrame, meeting: np.ndarray) -> dict[int, Clock]:
    """@param rows     meetings.COLUMNS of all ranks
    @param meeting  meetings.matched()
    @returns by rank; the first rank's clock is that of all
    """
    ranks = sorted(int(rank) for rank in rows["rank"].unique())
    collective = (rows["kind"] == COLLECTIVE).to_numpy()
    name = rows["name"].astype(str).str.lower().str.contains(_TOGETHER)
    chosen = collective & (meeting >= 0) & name.to_numpy()
    ends = pd.DataFrame({"rank": rows["rank"].to_numpy()[chosen], "meeting": meeting[chosen],
                         "end": rows["end_ns"].to_numpy(np.int64)[chosen],
                         "took": (rows["end_ns"] - rows["begin_ns"]).to_numpy()[chosen]})
    sent = ~collective & (meeting >= 0)
    messages = _messages(rows[sent], meeting[sent])
    of_rank = {int(rank): mine.drop_duplicates("meeting") for rank, mine in ends.groupby("rank")}
    found: dict[int, Clock] = {}
    for start in ranks:
        if start not in found:  # the first rank, or one that nothing connects with those before it
            found[start] = Clock(known=not found)
            _spread(ends, of_rank, messages, found)
    return _refined(ends, of_rank, found, ranks[0] if ranks else -1)


def _spread(
    ends: pd.DataFrame, of_rank: Mapping[int, pd.DataFrame],
    messages: Mapping[tuple[int, int], pd.DataFrame], found: dict[int, Clock],
) -> None:
    """Adds the clocks of ranks that met one whose clock is known, and of those that met these."""
    while True:
        reached = ends["rank"].isin(list(found)).to_numpy()
        met = ends["meeting"].isin(ends.loc[reached, "meeting"].unique()).to_numpy()
        new = ends.loc[met & ~reached, "rank"].unique().tolist()
        if new:
            members = _Members(ends, found)
            found |= {rank: _fitted(of_rank[rank], members, found, rank) for rank in new}
            continue
        pair = next((pair for pair in messages if (pair[0] in found) != (pair[1] in found)), None)
        if pair is None:
            return
        one, other = pair if pair[0] in found else pair[::-1]
        found[other] = _of_messages(messages[pair], other).beside(found[one])


def _refined(
    ends: pd.DataFrame, of_rank: Mapping[int, pd.DataFrame], found: dict[int, Clock], first: int
) -> dict[int, Clock]:
    """Each rank's clock once more, now beside all that it met."""
    members = _Members(ends, found)
    for _ in range(_SWEEPS if len(found) > 2 else 0):
        for rank, mine in of_rank.items():
            if rank != first and found[rank].known:
                found[rank] = _fitted(mine, members, found, rank)
    return found


class _Members:
    """Ends of meetings on ranks whose clocks are known: of many ranks, on some of them."""

    def __init__(self, ends: pd.DataFrame, found: Mapping[int, Clock]) -> None:
        known = ends[ends["rank"].isin([rank for rank, clock in found.items() if clock.known])]
        known = known.sort_values("meeting", kind="stable")
        of_meeting = known.groupby("meeting")["rank"]
        turn, size = of_meeting.cumcount().to_numpy(), of_meeting.transform("size").to_numpy()
        self._rows = known[turn * _MEMBERS // size != (turn - 1) * _MEMBERS // size]
        self._meeting = self._rows["meeting"].to_numpy()

    def others(self, meetings: np.ndarray, rank: int) -> pd.DataFrame:
        first = np.searchsorted(self._meeting, meetings, side="left")
        which, part = several(np.searchsorted(self._meeting, meetings, side="right") - first)
        found = self._rows.iloc[first[which] + part]
        return found[found["rank"] != rank]


def _fitted(
    mine: pd.DataFrame, members: _Members, found: Mapping[int, Clock], rank: int
) -> Clock:
    """The clock of a rank beside the median of the others whose clocks are known."""
    mine = mine.iloc[np.unique(np.linspace(0, len(mine) - 1, min(len(mine), _MOST)).astype(int))]
    rest = members.others(mine["meeting"].to_numpy(), rank)
    origin = int(mine["end"].median())
    if rest.empty:
        return found.get(rank, Clock(known=False))
    end, owner = rest["end"].to_numpy(np.int64), rest["rank"].to_numpy()
    there = np.empty(len(rest), np.int64)
    for one in np.unique(owner):
        there[owner == one] = found[int(one)].aligned(end[owner == one])
    base = int(there.min())
    theirs = pd.Series(there - base).groupby(rest["meeting"].to_numpy()).median()
    mine = mine[mine["meeting"].isin(theirs.index)]
    time = mine["end"].to_numpy(np.int64)
    # Differences of large numbers: whole ones first.
    whole = base - origin
    off = theirs.reindex(mine["meeting"]).to_numpy() - (time - origin)
    level, drift, residual, unsure = _line((time - origin).astype(float), off)
    if len(mine) < _FEWEST:  # too few to show how ends scatter: by less than the shortest took
        took = pd.concat([mine, rest]).groupby("meeting")["took"].min()
        residual = max(residual, float(took.median()))
    nearest = min((found[int(one)] for one in np.unique(owner)),
                  key=lambda clock: (clock.unsure, clock.residual_ns))
    own = Clock(whole + int(round(level)), drift, origin, residual, unsure, len(mine))
    return own.no_surer_than(
        nearest, own.origin_ns + own.offset_ns - nearest.origin_ns - nearest.offset_ns)


def _line(at: np.ndarray, off: np.ndarray) -> tuple[float, float, float, float]:
    """A robust line: level where `at` is 0, slope, by how much points are off, and the slope."""
    count, span = len(at), float(np.ptp(at))
    drift, unsure = 0.0, _FASTEST
    if count >= _FEWEST and span > 0.0:
        least, middle, most = _slopes(at, off)
        if span >= _SPAN_NS and least * most > 0 and abs(middle) <= _FASTEST:
            drift = middle
        unsure = min(max(most - drift, drift - least), _FASTEST)
    rest = off - drift * at
    level = float(np.median(rest))
    # Of few points the median tells too little.
    residual = (np.median if count >= _FEWEST else np.max)(np.abs(rest - level))
    return level, drift, float(residual), unsure


def _slopes(at: np.ndarray, off: np.ndarray) -> tuple[float, float, float]:
    """The median of slopes of pairs of points, and the least and the most that the slope can be.

    Of few points they are those of all pairs, as sure as Kendall's tau; of many those of pairs half
    the points apart, each as likely too high as too low. Neither asks how the points scatter.
    """
    order = np.argsort(at, kind="stable")
    at, off, count = at[order], off[order], len(at)
    if count < _MANY:
        one, other = np.triu_indices(count, 1)
        spread = np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    else:
        half = count // 2
        one, other, spread = np.arange(half), np.arange(count - half, count), np.sqrt(half)
    slopes = np.sort((off[other] - off[one]) / np.maximum(at[other] - at[one], 1.0))
    out = max(int((len(slopes) - _SURE * spread) / 2), 0)
    return float(slopes[out]), float(np.median(slopes)), float(slopes[-1 - out])


def _messages(rows: pd.DataFrame, meeting: np.ndarray) -> dict[tuple[int, int], pd.DataFrame]:
    """By pair of ranks that sent each other messages in both directions, those with most first:
    sender, sent and received, each on its rank's own clock."""
    sends = (rows["kind"] == SEND).to_numpy()
    # A process sends when it asks for it, a device when its kernel begins: that is launched long
    # before.
    process = rows["stream"].astype(object).str.match("host|gloo|mpi").to_numpy(bool)
    begin = rows["begin_ns"].to_numpy(np.int64)
    sent = np.where(process, np.minimum(begin, began(rows)), begin)
    part = pd.DataFrame({"rank": rows["rank"].to_numpy(np.int64), "meeting": meeting,
                         "time": np.where(sends, sent, rows["end_ns"])})
    both = part[sends].merge(part[~sends], on="meeting", suffixes=("_sent", "_received"))
    ranks = both[["rank_sent", "rank_received"]].to_numpy()
    both = pd.DataFrame({"sender": both["rank_sent"], "sent": both["time_sent"],
                         "received": both["time_received"]})
    pairs = {pair: of for pair, of in both.groupby([ranks.min(axis=1), ranks.max(axis=1)])
             if of["sender"].nunique() == 2}
    return dict(sorted(pairs.items(), key=lambda item: -len(item[1])))


def _of_messages(messages: pd.DataFrame, rank: int) -> Clock:
    """The clock of one of the two, beside the other's."""
    mine = (messages["sender"] == rank).to_numpy()
    sent, received = messages["sent"].to_numpy(), messages["received"].to_numpy()
    time = np.where(mine, sent, received)
    # One message says that the offset is at most this, one of the other direction at least.
    limit = np.where(mine, received - sent, sent - received)
    origin, whole = int(np.median(time)), int(limit[0])
    at, limit = (time - origin).astype(float), (limit - whole).astype(float)
    _, drift, _, unsure = _line(*_between(at, limit, mine))
    limit -= drift * at
    low, high = limit[~mine].max(), limit[mine].min()
    offset = whole + int(round((low + high) / 2))
    if drift == 0.0 and low + whole <= 0 <= high + whole:
        offset = 0  # no message is early as it is: they tell nothing against the clocks
    error = max(abs(high + whole - offset), abs(offset - low - whole))
    return Clock(offset, drift, origin, error, unsure, len(messages))


def _between(
    at: np.ndarray, limit: np.ndarray, upper: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Times, and what lies in the middle between the limits of the messages around each."""
    order = np.argsort(at, kind="stable")
    parts = [part for part in np.array_split(order, _PARTS) if 0 < upper[part].sum() < len(part)]
    middle = [(limit[part[upper[part]]].min() + limit[part[~upper[part]]].max()) / 2
              for part in parts]
    return np.array([at[part].mean() for part in parts] or [0.0]), np.array(middle or [0.0])
