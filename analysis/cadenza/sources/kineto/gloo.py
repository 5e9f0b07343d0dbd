# SPDX-License-Identifier: Apache-2.0
"""Collectives and messages of gloo, which moves data on threads of its own."""

from __future__ import annotations

import re

import numpy as np

from cadenza.sources import neutral
from cadenza.sources.kineto.events import OPERATION, RANGE, Events
from cadenza.sources.kineto.groups import Groups, turns
from cadenza.sources.kineto.nccl import COLLECTIVE, RECEIVE, SEND
from cadenza.sources.kineto.phases import Phases
from cadenza.sources.kineto.rows import Rows, Words
from cadenza.sources.kineto.spans import enclosing
from cadenza.sources.kineto.texts import Codes
from cadenza.words import counted

THREADS = 2  # of a group, on which it runs its collectives
_GLOO, _C10D = "gloo:", "c10d::"
_MESSAGES = {"gloo:send": SEND, "gloo:recv": RECEIVE}
_FORMS = re.compile(r"base|coalesced|tensor|into|[^a-z]")


def add_gloo(rows: Rows, events: Events, phases: Phases, groups: Groups) -> list[str]:
    """@returns what cannot be told"""
    gloo = np.array([name.startswith(_GLOO) for name in events.names], bool)
    works = np.flatnonzero((events.kind == RANGE) & gloo[events.name] & (events.said >= 0))
    works = works[np.argsort(events.begin[works], kind="stable")]
    going_on = np.isin(works, events.parameters.row[events.parameters.unfinished == 1])
    cannot = [f"{counted(int(going_on.sum()), 'communication')} left out: still going on when the "
              "record ended"] if going_on.any() else []
    works = works[~going_on]
    kind = np.array([_MESSAGES.get(name, COLLECTIVE) for name in events.names])[events.name[works]]
    messages = kind != COLLECTIVE
    if messages.any():
        _add_messages(rows, events, phases, groups, works[messages], kind[messages])
        if not groups.only():
            cannot.append("messages of gloo do not say their group: taken for that of all ranks")
    return cannot + _add_collectives(rows, events, phases, groups, works[kind == COLLECTIVE])


def _add_collectives(rows: Rows, events: Events, phases: Phases, groups: Groups, works: np.ndarray,
                     ) -> list[str]:
    if not works.size:
        return []
    post = _posts(events, works)
    posted = np.where(post >= 0, events.begin[post], events.begin[works])
    group, cannot = _groups(events, works, groups)
    unknown = len(groups.own()) > 1 or np.unique(events.lane[works]).size > THREADS
    sequence = np.where((group == 0) & unknown | (post < 0) & (post >= 0).any(), -1, 0)
    counted = np.flatnonzero(sequence == 0)
    sequence[counted] = turns(posted[counted], group[counted])
    phase = phases.at(np.where(post >= 0, events.lane[post], -1), posted)
    _add(rows, events, works, np.where(post >= 0, post, works), kind=neutral.COLLECTIVE,
         phase=Words(phase, list(neutral.PHASES)), stream=_streams(events, works),
         enqueued_ns=np.where(post >= 0, posted, 0), sequence=sequence, **groups.columns(group))
    return cannot


def _add_messages(rows: Rows, events: Events, phases: Phases, groups: Groups, works: np.ndarray,
                  kind: np.ndarray) -> None:
    """A message is on its way from its call until the process has waited for it."""
    calls = _calls(events)
    call = enclosing((events.lane[calls], events.begin[calls], events.end[calls]),
                     events.lane[works], events.begin[works])
    call = np.where(call >= 0, calls[call] if calls.size else works, works)
    group = np.full(works.size, groups.only())
    members = events.parameters.peer[events.said[call]]  # ranks of the group
    peer = np.array([groups.world_rank(number, member) for number, member in
                     zip(group.tolist(), members.tolist(), strict=True)], np.int64)
    texts = Codes()
    stream = [texts[f"gloo {'send' if sends else 'receive'} {rank if rank >= 0 else ''}".strip()]
              for sends, rank in zip((kind == SEND).tolist(), peer.tolist(), strict=True)]
    stream = np.array(stream, np.int64)
    _add(rows, events, works, call, begin=_one_by_one(events, works, stream),
         kind=Words(kind, list(neutral.KINDS)), peer=peer, stream=Words(stream, texts.things()),
         phase=Words(phases.at(events.lane[works], events.begin[works]), list(neutral.PHASES)),
         enqueued_ns=events.begin[call], sequence=turns(events.begin[works], kind, peer),
         **groups.columns(group))


def _add(rows: Rows, events: Events, works: np.ndarray, telling: np.ndarray,
         begin: np.ndarray | None = None, **columns: object) -> None:
    """@param telling the events that say how much is moved"""
    told, said = events.parameters, events.said
    at = np.where(told.bytes[said[telling]] >= 0, said[telling], said[works])
    names = [name.removeprefix(_GLOO) for name in events.names]
    rows.add(works.size, begin_ns=events.begin[works] if begin is None else begin,
             end_ns=events.end[works], name=Words(events.name[works], names),
             bytes=told.bytes[at], dtype=Words(told.dtype[at], told.texts), **columns)


def _posts(events: Events, works: np.ndarray) -> np.ndarray:
    """Of each collective, the call that asked for it; -1: it was before the record.

    A group runs its collectives in the order of the calls.
    """
    kinds = Codes()
    kind = np.array([kinds[_FORMS.sub("", name.partition(":")[2])]
                     if name.startswith((_GLOO, _C10D)) else 0 for name in events.names])
    calls = _calls(events)
    calls = calls[np.argsort(events.begin[calls], kind="stable")]
    post = np.full(works.size, -1, np.int64)
    for number in np.unique(kind[events.name[works]]).tolist():
        asked = calls[kind[events.name[calls]] == number]
        next_call = 0
        for at in np.flatnonzero(kind[events.name[works]] == number).tolist():
            if next_call < asked.size and events.begin[asked[next_call]] <= events.begin[works[at]]:
                post[at] = asked[next_call]
                next_call += 1
    return post


def _calls(events: Events) -> np.ndarray:
    named = np.array([name.startswith(_C10D) for name in events.names], bool)
    return np.flatnonzero((events.kind == OPERATION) & named[events.name] & (events.said >= 0))


def _groups(events: Events, works: np.ndarray, groups: Groups) -> tuple[np.ndarray, list[str]]:
    """Of each collective its group, which only its thread tells: groups make their threads in the
    order in which they are made themselves."""
    own = groups.own()
    if len(own) < 2:
        told = [] if own else ["collectives of gloo do not say their group"]
        return np.full(works.size, groups.only()), told
    threads = np.unique(events.lane[works])
    numbers = [events.lanes[lane][1] for lane in threads.tolist()]
    if threads.size <= THREADS * (len(own) - 1) or not all(type(n) is int for n in numbers):
        return np.zeros(works.size, np.int64), ["collectives of gloo do not say their group"]
    threads = threads[np.argsort(numbers)]
    gaps = np.diff(np.sort(np.array(numbers, np.float64)))
    cuts = np.sort(np.argsort(-gaps, kind="stable")[: len(own) - 1]) + 1
    group = np.zeros(len(events.lanes), np.int64)
    for number, lanes in zip(own, np.split(threads, cuts), strict=True):
        group[lanes] = number
    return group[events.lane[works]], ["groups of gloo are told from the order of its threads"]


def _streams(events: Events, works: np.ndarray) -> Words:
    threads, number = np.unique(events.lane[works], return_inverse=True)
    return Words(number, [f"gloo {at}" for at in range(threads.size)])


def _one_by_one(events: Events, works: np.ndarray, stream: np.ndarray) -> np.ndarray:
    """Begins, of which none is before the end of the message before it on its stream."""
    begin = events.begin[works].copy()
    free: dict[int, int] = {}
    for at, number in enumerate(stream.tolist()):
        end = int(events.end[works[at]])
        begin[at] = min(max(int(begin[at]), free.get(number, -(1 << 62))), end)
        free[number] = max(end, free.get(number, end))
    return begin
