# SPDX-License-Identifier: Apache-2.0
"""How long the transfers of a step took, by link: from when the last of their ends had come to when
they were there."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.links.wires import Ports
from cadenza.watch.step import Link, Sums
from cadenza.watch.sums import Ends

_LEAST_NS = 1000  # what seems to take less was there before it could be waited for


class Links:
    """The links of a run, as its steps show them.

    @param hosts  by world rank
    """

    def __init__(self, hosts: dict[int, str]) -> None:
        self.links: list[Link] = []
        self._hosts = hosts
        self._known: dict[Link, int] = {}
        self._groups: dict[tuple, int] = {}  # by name, and hash of the members: row of links
        self._of_rank = np.random.default_rng(0).integers(1 << 62, size=max(hosts, default=0) + 1)

    def transfers(self, ranks: list[int], ends: list[Ends], names: list[list[str]],
                  simulated: bool) -> Sums:
        """Of a step of all ranks. @param names  what each rank's `name` means"""
        number: dict[str, int] = {}
        codes = [np.array([number.setdefault(text, len(number)) for text in mine], np.int64)
                 for mine in names]
        name = [code[one.name] for code, one in zip(codes, ends, strict=True)]
        rank = np.repeat(ranks, [len(one.flow) for one in ends])
        columns = {field: np.concatenate([getattr(one, field) for one in ends])
                   for field in Ends.__dataclass_fields__ if field != "name"}
        columns |= {"name": np.concatenate(name), "rank": rank}
        texts = list(number)
        message = columns["sender"] >= 0
        parts = [self._messages({k: v[message] for k, v in columns.items()}, texts, simulated),
                 self._collectives({k: v[~message] for k, v in columns.items()}, texts)]
        what, seconds, amount = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Sums.of(what.astype(np.int64), seconds, amount)

    def _messages(self, ends: dict, names: list[str], simulated: bool) -> tuple:
        """Of messages whose both ends are there. In a real run it is known when a message arrived
        only where its receiver was blocked before it could move; in a simulated one it took turns
        at ports."""
        receives = ends["rank"] == ends["receiver"]
        keys = (ends["flow"], ends["sender"], ends["receiver"])
        order = np.lexsort((ends["begin_ns"], receives, *keys))
        turn = _turns([key[order] for key in keys] + [receives[order]])
        order = order[np.lexsort((receives[order], turn, *(key[order] for key in keys)))]
        turn = _turns([key[order] for key in keys] + [receives[order]])
        same = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
        first = np.flatnonzero(same & (turn[1:] == turn[:-1])
                               & ~receives[order][:-1] & receives[order][1:])
        sent, there = order[first], order[first + 1]
        ready = np.maximum(ends["begin_ns"][sent], ends["begin_ns"][there])
        if simulated:
            took = _alone(ends["sender"][there], ends["receiver"][there], ready,
                          ends["end_ns"][there])
            timed = took > 0
        else:
            took, blocked = ends["end_ns"][there] - ready, ends["blocked_ns"][there]
            timed = (took > _LEAST_NS) & (blocked >= 0) & (blocked <= ready)
        there, took = there[timed], took[timed]
        low = np.minimum(ends["sender"][there], ends["receiver"][there])
        high = np.maximum(ends["sender"][there], ends["receiver"][there])
        cell, place = np.unique(np.stack([ends["name"][there], low, high], 1), axis=0,
                                return_inverse=True)
        rows = np.array([self._row(names[name], (a, b), True) for name, a, b in cell.tolist()],
                        np.int64)
        return rows[place.ravel()], took / 1e9, ends["bytes"][there]

    def _collectives(self, ends: dict, names: list[str]) -> tuple:
        """From when the last of its members had come to when the first left."""
        keys = (ends["flow"], ends["group"], ends["name"])
        order = np.lexsort((ends["begin_ns"], ends["rank"], *keys))
        turn = _turns([key[order] for key in keys] + [ends["rank"][order]])
        order = order[np.lexsort((ends["rank"][order], turn, *(key[order] for key in keys)))]
        if not len(order):
            return np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
        rank = ends["rank"][order]
        changes = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
        begins = np.flatnonzero(np.append(True, changes | (rank[1:] <= rank[:-1])))
        size = np.diff(np.append(begins, len(order)))
        took = (np.minimum.reduceat(ends["end_ns"][order], begins)
                - np.maximum.reduceat(ends["begin_ns"][order], begins))
        amount = np.maximum.reduceat(ends["bytes"][order], begins)
        code = np.add.reduceat(self._of_rank[rank], begins)
        name = ends["name"][order][begins]
        timed = np.flatnonzero((size > 1) & (took > _LEAST_NS))
        rows = np.zeros(len(timed), np.int64)
        for at, one in enumerate(timed.tolist()):
            key = (names[name[one]], int(code[one]))
            if key not in self._groups:
                members = rank[begins[one] : begins[one] + size[one]].tolist()
                self._groups[key] = self._row(key[0], tuple(members), False)
            rows[at] = self._groups[key]
        return rows, took[timed] / 1e9, amount[timed]

    def _row(self, name: str, members: tuple[int, ...], message: bool) -> int:
        hosts = {self._hosts.get(rank) for rank in members}
        one = Link(name, members, message, len(hosts) == 1)
        if one not in self._known:
            self._known[one] = len(self.links)
            self.links.append(one)
        return self._known[one]


def _alone(sender: np.ndarray, receiver: np.ndarray, ready: np.ndarray,
           there: np.ndarray) -> np.ndarray:
    """ns without turns at the ports of both ranks."""
    order = np.lexsort((there, ready))
    frame = pd.DataFrame({"sender": sender[order], "receiver": receiver[order],
                          "ready_ns": ready[order]})
    found = np.empty(len(order))
    found[order] = Ports(frame, None).alone(there[order].astype(float)) if len(order) else 0.0
    return found


def _turns(keys: list[np.ndarray]) -> np.ndarray:
    """Of sorted rows, the how many-th each is among those with its keys."""
    count = np.arange(len(keys[0]))
    new = np.append(True, np.any([key[1:] != key[:-1] for key in keys], axis=0))
    return count - np.maximum.accumulate(np.where(new[: len(count)], count, 0))
