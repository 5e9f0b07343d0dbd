# SPDX-License-Identifier: Apache-2.0
"""Clocks of ranks, aligned by what the ranks did together.

All ranks leave a collective at the same moment, so the times at which they saw it end tell how far
their clocks are apart, and how these drift. Where ranks only sent each other messages, none can
have arrived before it was sent: in both directions together that bounds the offset (as NTP does).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from cadenza.sources.neutral import COLLECTIVE, SEND, began

# Of a broadcast, reduction to one, gather or scatter the root may leave before the others.
_TOGETHER = "all|barrier|reduce_scatter|reducescatter"
_FEWEST = 20  # collectives from which a drift is told
_SPAN_NS = 500_000_000  # over which they must lie
_SURE = 4.0  # standard errors that a drift must be
_FASTEST = 3e-4  # drift: a clock that is further off is no clock
_SWEEPS = 6
_MAD = 1.4826  # of a normal distribution: standard deviation / median absolute deviation
_MOST = 4000  # collectives of a rank that are looked at


@dataclass(frozen=True)
class Clock:
    """What is added to a rank's times: offset + drift x (time - origin)."""

    offset_ns: int = 0
    drift: float = 0.0
    origin_ns: int = 0
    residual_ns: float = 0.0  # by which ends of collectives differ after that: median
    known: bool = True  # False: nothing that the rank did with others tells

    def aligned(self, times: np.ndarray) -> np.ndarray:
        """ns on the first rank's clock."""
        moved = np.rint(self.drift * (times - self.origin_ns)).astype(np.int64)
        return times + self.offset_ns + moved


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
                         "end": rows["end_ns"].to_numpy(np.int64)[chosen]})
    messages = _delays(rows[~collective & (meeting >= 0)], meeting[~collective & (meeting >= 0)])
    found: dict[int, Clock] = {}
    for start in ranks:
        if start not in found:  # the first rank, or one that nothing connects with those before it
            found[start] = Clock(known=not found)
            _spread(ends, messages, found)
    return _refined(ends, found, ranks[0] if ranks else -1)


def _spread(ends: pd.DataFrame, messages: pd.DataFrame, found: dict[int, Clock]) -> None:
    """Adds the clocks of ranks that met one whose clock is known, and of those that met these."""
    while True:
        of_known = ends["rank"].isin(list(found))
        met = ends.loc[of_known, "meeting"].unique()
        new = ends.loc[~of_known & ends["meeting"].isin(met), "rank"].value_counts()
        if len(new):
            rank = int(new.index[0])
            found[rank] = _fitted(ends, found, rank)
            continue
        mine = messages[messages["one"].isin(list(found)) & ~messages["other"].isin(list(found))]
        if mine.empty:
            return
        row = mine.iloc[0]
        base = found[int(row["one"])].offset_ns
        found[int(row["other"])] = Clock(offset_ns=base + int(row["offset"]),
                                         residual_ns=float(row["error"]))


def _refined(ends: pd.DataFrame, found: dict[int, Clock], first: int) -> dict[int, Clock]:
    """Each rank's clock once more, now beside all that it met."""
    met = set(ends["rank"].unique()) - {first}
    for _ in range(_SWEEPS if len(found) > 2 else 0):
        for rank in sorted(met & set(found)):
            if found[rank].known:
                found[rank] = _fitted(ends, found, rank)
    return found


def _fitted(ends: pd.DataFrame, found: dict[int, Clock], rank: int) -> Clock:
    """The clock of a rank beside the median of the others whose clocks are known."""
    mine = ends[ends["rank"] == rank].drop_duplicates("meeting")
    mine = mine.iloc[np.unique(np.linspace(0, len(mine) - 1, min(len(mine), _MOST)).astype(int))]
    rest = ends[ends["meeting"].isin(mine["meeting"]) & (ends["rank"] != rank)
                & ends["rank"].isin([one for one, clock in found.items() if clock.known])]
    origin = int(mine["end"].min())
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
    level, drift, residual = _line((time - origin).astype(float), off)
    return Clock(whole + int(round(level)), drift, origin, residual)


def _line(at: np.ndarray, off: np.ndarray) -> tuple[float, float, float]:
    """A robust line (Theil's of pairs half the points apart): level, slope, median distance."""
    count, span = len(at), float(np.ptp(at))
    drift = 0.0
    if count >= _FEWEST and span >= _SPAN_NS:
        order = np.argsort(at, kind="stable")
        half = count // 2
        low, high = order[:half], order[count - half :]
        drift = float(np.median((off[high] - off[low]) / np.maximum(at[high] - at[low], 1.0)))
        rest = off - drift * at
        sigma = _MAD * float(np.median(np.abs(rest - np.median(rest))))
        # Of the slope of a line through points that are spread evenly.
        if not _SURE * np.sqrt(12.0 / count) * sigma / span <= abs(drift) <= _FASTEST:
            drift = 0.0
    rest = off - drift * at
    level = float(np.median(rest))
    return level, drift, float(np.median(np.abs(rest - level)))


def _delays(rows: pd.DataFrame, meeting: np.ndarray) -> pd.DataFrame:
    """Of pairs of ranks that sent each other messages in both directions: one, other (ranks),
    offset (to be added to the other's times), error, in ns."""
    sends = (rows["kind"] == SEND).to_numpy()
    # A process sends when it asks for it, a device when its kernel begins: that is launched long
    # before.
    process = rows["stream"].astype(object).str.match("host|gloo|mpi").to_numpy(bool)
    begin = rows["begin_ns"].to_numpy(np.int64)
    sent = np.where(process, np.minimum(begin, began(rows)), begin)
    part = pd.DataFrame({"rank": rows["rank"].to_numpy(), "meeting": meeting,
                         "time": np.where(sends, sent, rows["end_ns"])})
    both = part[sends].merge(part[~sends], on="meeting", suffixes=("_sent", "_received"))
    both["delay"] = both["time_received"] - both["time_sent"]  # less the receiver's offset
    least = both.groupby(["rank_sent", "rank_received"])["delay"].min()
    found = []
    for (one, other), there in least.items():
        if (other, one) in least.index:
            there, back = int(there), int(least[(other, one)])
            # Where no message is early as it is, messages tell nothing against the clocks.
            agree = there >= 0 and back >= 0
            found.append((one, other, 0 if agree else (back - there) // 2, abs(back + there) / 2))
    return pd.DataFrame(found, columns=["one", "other", "offset", "error"])
