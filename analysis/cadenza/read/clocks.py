# SPDX-License-Identifier: Apache-2.0
"""Clocks that are wrong by more than they say, found by what ranks did together.

All ranks leave a step together: its last collective is one of all. So a rank whose steps end
earlier or later than the others', always by the same time, may have a clock that is off by it. It
is, if it shows what cannot be: a step that begins before another rank ended the last one, a message
that is received before it was sent, a collective that is over before a member came to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cadenza.read.partners import collective_members, message_ends
from cadenza.read.rank_file import RankFile
from cadenza.words import seconds

_LEAST_NS = 1000  # of times that are measured on one clock
_STEADY = 4  # times the spread over the steps, what an offset must be
_SPREAD = 0.75  # quantile of the steps
_LEFT = 0.1  # of what cannot be, what may remain
_MOST_NS = 2**60  # no clock that runs is off by 36 years
_WORTH_NS = 50_000  # less is not worth to read events for: ranks may take it to leave a step
EVENT_COLUMNS = ("rank", "step", "begin_ns", "end_ns", "category", "name", "peer", "flow", "sends")


@dataclass(frozen=True)
class WrongClock:
    """A clock that was ahead of the others' by `ahead_ns`, give or take `error_ns`: by which this
    varies over the steps, and the others' ends of steps differ."""

    rank: int
    ahead_ns: int
    error_ns: int

    @property
    def what(self) -> str:
        side = "ahead" if self.ahead_ns > 0 else "behind"
        return f"was {seconds(abs(self.ahead_ns) / 1e9)} {side}: corrected"


@dataclass(frozen=True)
class _Ends:
    """Of steps that all ranks completed, (ranks, steps), in ns on rank 0's clock."""

    begin: np.ndarray
    end: np.ndarray
    offset: np.ndarray  # (ranks,) by which its steps end later than the others'
    spread: np.ndarray  # (ranks,) of that, over the steps
    error: np.ndarray  # (ranks,) of its clock, according to its measurements
    others: np.ndarray  # (ranks,) whether it is one of those that agree


def wrong_clocks(
    files: Sequence[RankFile], ranks: Callable[[], pd.DataFrame],
    events: Callable[[int], pd.DataFrame]
) -> list[WrongClock]:
    """@param files   of all ranks, with times as they were measured
    @param ranks   Run.ranks()
    @param events  EVENT_COLUMNS of all ranks in a step; only asked for where a clock may be wrong
    """
    steps = _common_steps(files)
    if len(files) < 2 or not len(steps):
        return []
    ends = _ends(files, steps)
    least = ends.error + ends.error[ends.others].max() + _LEAST_NS
    apart = np.abs(ends.offset) > least + _STEADY * ends.spread
    suspects = np.flatnonzero(apart & ~ends.others & (np.abs(ends.offset) < _MOST_NS))
    proven = [rank for rank in suspects if _begins_too_early(ends, rank, least[rank])]
    left = [rank for rank in suspects
            if rank not in proven and abs(ends.offset[rank]) > _WORTH_NS]
    if not proven and not left:
        return []
    early = _early(events(int(steps[len(steps) // 2])), ranks(),
                   [file.rank for file in files], [*proven, *left], ends.others)
    proven += [rank for rank in left if _come_too_early(ends, rank, least[rank], early[rank])]
    unlike = np.abs(ends.offset[ends.others]).max()
    return [WrongClock(files[rank].rank, _possible(int(ends.offset[rank]), early[rank]),
                       int(np.ceil(ends.spread[rank] + unlike)))
            for rank in sorted(proven)]


def _common_steps(files: Sequence[RankFile]) -> np.ndarray:
    """Numbers of the steps that all completed."""
    found = files[0].steps["step"]
    for file in files[1:]:
        if not np.array_equal(found, file.steps["step"]):
            found = np.intersect1d(found, file.steps["step"])
    return found


def _ends(files: Sequence[RankFile], steps: np.ndarray) -> _Ends:
    rows = [file.steps[np.isin(file.steps["step"], steps)] for file in files]
    begin, end = (np.stack([file.to_global(row[name])
                            for file, row in zip(files, rows, strict=True)])
                  for name in ("begin_ns", "end_ns"))
    error = np.array([file.clock["rtt_min_ns"].max(initial=0) / 2 for file in files])
    offset = np.median(end - end[0], axis=1)
    spread = _spread(end - end[0], offset)
    others = _most(offset, error.max() + _LEAST_NS + _STEADY * np.median(spread))
    against = end - np.rint(np.median(end[others] - end[0], axis=0)).astype(np.int64) - end[0]
    offset = np.median(against, axis=1)
    return _Ends(begin, end, np.rint(offset).astype(np.int64), _spread(against, offset), error,
                 others)


def _spread(values: np.ndarray, middle: np.ndarray) -> np.ndarray:
    return np.quantile(np.abs(values - middle[:, None]), _SPREAD, axis=1)


def _most(offset: np.ndarray, within: float) -> np.ndarray:
    """Which ranks agree: the most that lie around one of them; of equally many rank 0's."""
    ordered = np.sort(offset)
    last = np.searchsorted(ordered, offset + within, side="right")
    count = last - np.searchsorted(ordered, offset - within)
    return np.abs(offset - offset[np.argmax(count)]) <= within


def _begins_too_early(ends: _Ends, rank: int, least: float) -> bool:
    """Whether the rank or the others begin steps that the other side has not ended, and do not
    if its clock is corrected. Between two steps all ranks hear of one another."""
    others = ends.others
    first, last = ends.begin[others].min(axis=0)[1:], ends.end[others].max(axis=0)[:-1]
    begin, end = ends.begin[rank, 1:], ends.end[rank, :-1]
    early = np.maximum(last - begin, end - first)
    ahead, sure = ends.offset[rank], least + ends.spread[rank]
    corrected = np.maximum(last - begin + ahead, end - ahead - first)
    return _explains(early > least, corrected > sure)


def _explains(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether a correction does away with what cannot be."""
    return bool(before.any() and after.sum() <= _LEFT * before.sum())


def _early(
    events: pd.DataFrame, ranks: pd.DataFrame, numbers: Sequence[int], suspects: Sequence[int],
    others: np.ndarray,
) -> dict[int, np.ndarray]:
    """By suspect, a place in `numbers`, of all ranks: by how many ns each of its messages and
    collectives with `others` is over before it begins, (n, 2): if its clock is behind the others',
    or ahead."""
    messages = _messages(events)
    together = collective_members(events, ranks)
    names = ["rank", "begin_ns", "end_ns"]
    together[names] = events[names].to_numpy()[together["event"]]
    known = {number for number, agrees in zip(numbers, others, strict=True) if agrees}
    return {rank: np.concatenate([_of_messages(messages, numbers[rank], known),
                                  _of_collectives(together, numbers[rank], known)])
            for rank in suspects}


def _come_too_early(ends: _Ends, rank: int, least: float, early: np.ndarray) -> bool:
    """Whether messages or collectives with the others show that its clock is off."""
    ahead, sure = ends.offset[rank], least + ends.spread[rank]
    before = early.max(axis=1, initial=-np.inf) > least
    after = (early + [ahead, -ahead]).max(axis=1, initial=-np.inf) > sure
    return _explains(before, after)


def _possible(ahead: int, early: np.ndarray) -> int:
    """What is next to `ahead` of that by which no message comes before it is sent. Ranks may leave
    a step one after another, always in the same order; what they send each other knows nothing of
    that."""
    behind, over = early.max(axis=0, initial=-np.inf)
    if over > -behind or over <= ahead <= -behind:
        return ahead
    return int(np.clip(ahead, over, -behind))


def _messages(events: pd.DataFrame) -> pd.DataFrame:
    """Of messages with both ends: sender, receiver, begin_ns (of the sending), end_ns (of the
    receiving)."""
    ends = message_ends(events)
    rows = events[["rank", "begin_ns", "end_ns"]].iloc[ends["event"]].set_index(ends["message"])
    sends = ends["sends"].to_numpy(bool)
    sent = rows[sends].rename(columns={"rank": "sender"})[["sender", "begin_ns"]]
    received = rows[~sends].rename(columns={"rank": "receiver"})[["receiver", "end_ns"]]
    return sent.join(received, how="inner")


def _of_messages(messages: pd.DataFrame, rank: int, others: set[int]) -> np.ndarray:
    """By how many ns each comes before it is sent: those that the rank receives, and those that
    it sends."""
    early = (messages["begin_ns"] - messages["end_ns"]).to_numpy(float)
    sender, receiver = messages["sender"], messages["receiver"]
    receives = ((receiver == rank) & sender.isin(others)).to_numpy()
    sends = ((sender == rank) & receiver.isin(others)).to_numpy()
    both = np.stack([np.where(receives, early, -np.inf), np.where(sends, early, -np.inf)], axis=1)
    return both[receives | sends]


def _of_collectives(together: pd.DataFrame, rank: int, others: set[int]) -> np.ndarray:
    """By how many ns each is over, on the rank before the last of the others begins it, and on one
    of them before the rank begins it."""
    mine = together[(together["rank"] == rank).to_numpy()].set_index("collective")
    rest = together[together["rank"].isin(others).to_numpy()].groupby("collective").agg(
        last_ns=("begin_ns", "max"), over_ns=("end_ns", "min"))
    both = mine.join(rest, how="inner")
    return np.stack([both["last_ns"] - both["end_ns"], both["begin_ns"] - both["over_ns"]],
                    axis=1).astype(float)
