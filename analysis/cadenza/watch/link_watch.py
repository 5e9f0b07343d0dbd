# SPDX-License-Identifier: Apache-2.0
"""Links whose transfers take longer for their bytes than they did, where steps get longer by it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cadenza.causes.repair import LINK
from cadenza.causes.slowness import log_ratio
from cadenza.links.slow import least_share
from cadenza.watch.alarm import Alarm
from cadenza.watch.cusum import IN_TWO, Cusum
from cadenza.watch.pace import Pace
from cadenza.watch.step import Feed, Link, Step

_OUTER, _NORMAL = 0.95, 1.96  # quantile of what is off, and how many standard deviations that is
_LEAST_NOISE = 0.02
_KEPT = 64  # steps
_AS_SLOW = 1.25  # times the least share: what waits behind the slowest link is less slow
_RISE = -np.log(least_share(exact=False))  # of the logarithm: as slow as links.slow names


class _Moved(NamedTuple):
    """What links did in a step."""

    step: int
    links: np.ndarray
    share: np.ndarray  # of its usual rate, what each reached
    costs: np.ndarray  # share of the step


class LinkWatch:
    """@param false_alarm  the probability of one, in a step, of all links together
    @param worth  share of a step: what costs less is no alarm"""

    def __init__(self, feed: Feed, false_alarm: float, worth: float) -> None:
        self._feed, self._rate, self._worth = feed, false_alarm, worth
        self._pace = Pace()
        self._usual = self._noise = np.zeros(0)  # by link: of log(seconds / fair)
        self._alike = np.zeros(0, np.int64)  # by link: number of its kind
        self._test = Cusum((0,), false_alarm, IN_TWO)
        self._kept: deque[_Moved] = deque(maxlen=_KEPT)

    def learn(self, steps: Sequence[Step]) -> None:
        """What is usual: the pace of all alike, and how each link is beside it."""
        links = self._feed.links
        if not links:
            return
        kinds: dict[tuple, int] = {}
        alike = np.array([kinds.setdefault(_kind(link), len(kinds)) for link in links], np.int64)
        self._pace.learn([step.transfers for step in steps], alike)
        level = np.full((len(steps), len(links)), np.nan)
        for row, step in zip(level, steps, strict=True):
            row[step.transfers.what] = log_ratio(step.transfers.seconds,
                                                 self._pace.fair(step.transfers))
        seen = ~np.isnan(level)
        self._usual = np.array([np.median(level[seen[:, i], i]) if seen[:, i].any() else 0.0
                                for i in range(len(links))])
        self._alike = alike
        off = np.abs(level - self._usual)
        # Times of transfers that take turns at a port are far from normal: their tail counts.
        of_kind = [off[:, alike == kind][seen[:, alike == kind]] for kind in range(len(kinds))]
        outer = np.array([np.quantile(one, _OUTER) if len(one) else np.inf for one in of_kind])
        noise = np.maximum(outer[alike] / _NORMAL, _LEAST_NOISE)
        self._noise = np.where(seen.sum(axis=0) >= len(steps) / 2, noise, np.inf)
        self._grow()

    def _grow(self) -> None:
        """Series of links that are new; those that were not there to be learnt are not tested."""
        before, count = self._test, len(self._feed.links)
        more = count - len(self._usual)
        if more > 0:
            self._usual = np.append(self._usual, np.zeros(more))
            self._alike = np.append(self._alike, np.full(more, -1))
            self._noise = np.append(self._noise, np.full(more, np.inf))
        self._test = Cusum((count,), self._rate / count, IN_TWO)
        kept = len(before.sum)
        self._test.sum[:kept], self._test.since[:kept] = before.sum, before.since
        self._test.raised[:kept] = before.raised
        self._test.tune(self._noise, np.full(count, _RISE))

    def add(self, step: Step, unexplained: float) -> list[Alarm]:
        """@param unexplained  seconds that the step takes longer than its ranks' work lets it"""
        if not len(self._usual):
            return []
        if len(self._feed.links) > len(self._usual):
            self._grow()
        moved = step.transfers
        level = log_ratio(moved.seconds, self._pace.fair(moved)) - self._usual[moved.what]
        values = np.full(len(self._usual), np.nan)
        level = np.nan_to_num(level)
        # Where all of a kind take longer, the network is full, and no link is slow.
        kind = self._alike[moved.what]
        for one in np.unique(kind).tolist():
            if (kind == one).sum() > 2:
                level[kind == one] -= max(float(np.median(level[kind == one])), 0.0)
        values[moved.what] = level
        before = self._test.raised.copy()
        self._test.add(step.number, values)
        share = np.exp(-level)
        lost = np.minimum(moved.seconds * (1 - share), unexplained)
        self._kept.append(_Moved(step.number, moved.what, share, lost / step.seconds))
        return self._alarms(np.flatnonzero(self._test.raised & ~before))

    def current(self) -> list[Alarm]:
        """Links that are slow as of the last step."""
        return self._alarms(np.flatnonzero(self._test.raised))

    def _alarms(self, links: np.ndarray) -> list[Alarm]:
        """One of all links that are slow together, where that costs something."""
        if not len(links):
            return []
        since = int(self._test.since[links].min())
        rows = [(one, np.isin(one.links, links)) for one in self._kept if one.step >= since]
        costs = [one.costs[mine].max(initial=0.0) for one, mine in rows]
        if not costs or np.mean(costs) < self._worth:
            self._test.raised[links] = False  # it is looked at again as it goes on
            return []
        found = self._blamed(links, [one for one, _ in rows])
        members = tuple(sorted({rank for link, _ in found for rank in link.members}))
        return [Alarm(LINK, members, (), since, self._kept[-1].step, float(np.mean(costs)),
                      links=found)]

    def _blamed(self, links: np.ndarray, rows: Sequence[_Moved]) -> tuple[tuple[Link, float], ...]:
        """The links, and the mean share of its usual rate that each reaches. A collective is as
        slow as the slowest link of its group: that is named where messages show it."""
        of, share = (np.concatenate([getattr(one, name) for one in rows])
                     for name in ("links", "share"))
        reached = {int(link): float(share[of == link].mean()) for link in np.unique(of)}
        every = self._feed.links
        of_groups = {rank for link in links for rank in every[link].members
                     if not every[link].message}
        pairs = {link: much for link, much in reached.items()
                 if every[link].message and (link in links or set(every[link].members) <= of_groups)
                 and much < least_share(exact=False)}
        least = min(pairs.values(), default=0.0)
        named: dict[tuple[int, ...], tuple[Link, float]] = {}
        for link in [one for one, much in pairs.items() if much <= _AS_SLOW * least] or links:
            if link in reached:
                named.setdefault(every[link].members, (every[link], reached[int(link)]))
        return tuple(named.values())


def _kind(link: Link) -> tuple:
    return link.name, link.message, link.one_node, len(link.members)
