# SPDX-License-Identifier: Apache-2.0
"""Collectives and messages on a device: kernels of NCCL, RCCL and the like.

What a kernel moves is said by itself, or by the call that launched it. A kernel that was launched
for several messages is a row of each.
"""

from __future__ import annotations

import re

import numpy as np

from cadenza.sources import neutral
from cadenza.sources.kernels import COMMUNICATION
from cadenza.sources.kineto.device import Launches, classes, launches, phases_of, stream_words
from cadenza.sources.kineto.events import KERNEL, OPERATION, Events
from cadenza.sources.kineto.groups import Groups, turns
from cadenza.sources.kineto.phases import Phases
from cadenza.sources.kineto.rows import Rows, Words
from cadenza.sources.kineto.spans import by_lane, enclosing
from cadenza.sources.kineto.texts import Codes

COLLECTIVE, SEND, RECEIVE = (neutral.KINDS.index(kind) for kind in neutral.COMMUNICATION)
_KERNEL = re.compile(r"(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|AllToAll|SendRecv)",
                     re.IGNORECASE)
_KINDS = {"send": SEND, "recv": RECEIVE, "recvanysource": RECEIVE}


def add_device_communication(rows: Rows, events: Events, phases: Phases, groups: Groups,
                             ) -> list[str]:
    """@returns what cannot be told"""
    moving = np.array([kind == COMMUNICATION for kind in classes(events)], bool)
    kernels = np.flatnonzero((events.kind == KERNEL) & moving[events.name])
    if not kernels.size:
        return []
    launched = launches(events, kernels)
    said, called = _said(events, kernels, launched)
    place, said, called = _with_batches(events, kernels, launched, said, called)
    kernels, launched = kernels[place], Launches(*(column[place] for column in launched))
    names = _names(events, kernels, said)
    kind = np.array([_KINDS.get(text.lower(), COLLECTIVE) for text in names.texts])[names.numbers]
    told = events.parameters
    known = said >= 0
    group = np.where(known, groups.of(told.group[said]), groups.only()) if told.row.size \
        else np.full(kernels.size, groups.only())
    peer, payload, dtype, sequence = _numbers(events, said, called)
    sequence = _sequences(sequence, kind, group, peer, names, launched, events.begin[kernels])
    rows.add(kernels.size, begin_ns=events.begin[kernels], end_ns=events.end[kernels],
             kind=Words(kind, list(neutral.KINDS)), name=names,
             phase=Words(phases_of(launched, phases), list(neutral.PHASES)),
             stream=stream_words(events, kernels), enqueued_ns=launched.begin, peer=peer,
             bytes=payload, dtype=dtype, sequence=sequence, **groups.columns(group))
    return list(_untold(known, told.sequence[said] if told.row.size else said))


def _said(events: Events, kernels: np.ndarray, launched: Launches) -> tuple[np.ndarray, np.ndarray]:
    """Of each kernel, the place of its parameters, and of those of the call that launched it; -1:
    none."""
    calls = _calls(events)
    call = enclosing((events.lane[calls], events.begin[calls], events.end[calls]), launched.lane,
                     launched.begin)
    called = np.where(call >= 0, events.said[calls[call]] if calls.size else -1, -1)
    own = events.said[kernels]
    return np.where(own >= 0, own, called), called


def _calls(events: Events) -> np.ndarray:
    named = np.array([name == "record_param_comms" for name in events.names], bool)
    return events.parameters.row[(events.kind[events.parameters.row] == OPERATION)
                                 & named[events.name[events.parameters.row]]]


def _with_batches(events: Events, kernels: np.ndarray, launched: Launches, said: np.ndarray,
                  called: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places of kernels, each as often as it has messages, with what is said of each.

    A batch of messages is one kernel, launched when all have been called: those of its thread since
    the launch before.
    """
    batch = np.flatnonzero((called < 0) & (launched.lane >= 0) & _moves_messages(events, kernels))
    told, calls = events.parameters, _calls(events)
    texts = np.array([text.lower() in _KINDS for text in told.texts], bool)
    calls = calls[texts[told.collective[events.said[calls]]]]
    if not batch.size or not calls.size:
        return np.arange(kernels.size), said, called
    places, found = [], []
    calls_of = dict(by_lane(events.lane[calls]))
    for lane, mine in by_lane(launched.lane):
        of_lane = calls[calls_of.get(lane, np.zeros(0, np.int64))]
        of_lane = of_lane[np.argsort(events.begin[of_lane], kind="stable")]
        mine = mine[np.argsort(launched.begin[mine], kind="stable")]
        upto = np.searchsorted(events.begin[of_lane], launched.begin[mine])
        since = np.concatenate(([0], upto[:-1])) if upto.size else upto
        for at in np.flatnonzero(np.isin(mine, batch)).tolist():
            messages = events.said[of_lane[since[at] : upto[at]]]
            places.append(np.full(messages.size, mine[at]))
            found.append(messages)
    place, message = np.concatenate(places), np.concatenate(found)
    others = np.setdiff1d(np.arange(kernels.size), place)
    return (np.concatenate((others, place)), np.concatenate((said[others], message)),
            np.concatenate((called[others], message)))


def _moves_messages(events: Events, kernels: np.ndarray) -> np.ndarray:
    messages = np.array(["sendrecv" in name.lower() for name in events.names], bool)
    return messages[events.name[kernels]]


def _names(events: Events, kernels: np.ndarray, said: np.ndarray) -> Words:
    """What the communication is called, or else what its kernel's name says."""
    texts = Codes()
    by_kernel = np.array([texts[_kernel_name(name)] for name in events.names], np.int64)
    numbers = by_kernel[events.name[kernels]]
    told = events.parameters
    if told.row.size:
        by_text = np.array([texts[text] for text in told.texts], np.int64)[told.collective[said]]
        numbers = np.where((said >= 0) & (by_text > 0), by_text, numbers)
    return Words(numbers, texts.things())


def _kernel_name(name: str) -> str:
    match = _KERNEL.search(name[:200])
    return match[1].lower() if match else name


def _numbers(events: Events, said: np.ndarray, called: np.ndarray,
             ) -> tuple[np.ndarray, np.ndarray, Words, np.ndarray]:
    """Peers, bytes, types and sequence numbers."""
    told = events.parameters
    if not told.row.size:
        none = np.full(said.size, -1, np.int64)
        return none, none, Words(np.zeros(said.size, np.int64), [""]), none
    known = said >= 0
    sequence = np.where(known, told.sequence[said], -1)
    sequence = np.where((sequence < 0) & (called >= 0), told.sequence[called], sequence)
    return (np.where(known, told.peer[said], -1), np.where(known, told.bytes[said], -1),
            Words(np.where(known, told.dtype[said], 0), told.texts), sequence)


def _sequences(sequence: np.ndarray, kind: np.ndarray, group: np.ndarray, peer: np.ndarray,
               names: Words, launched: Launches, begin: np.ndarray) -> np.ndarray:
    """Messages are counted for each pair of ranks and direction; collectives for each group, unless
    they have numbers. What was launched before the record began is not counted, nor what is no
    known collective."""
    messages = kind != COLLECTIVE
    numbered = np.zeros(group.max(initial=0) + 1, bool)
    numbered[group[~messages & (sequence >= 0)]] = True
    unknown = np.array([text == "sendrecv" for text in names.texts], bool)[names.numbers]
    counted = (launched.lane >= 0) | ~(launched.lane >= 0).any()
    counted &= messages | ~(numbered[group] | unknown)
    moment = np.where(launched.lane >= 0, launched.begin, begin)
    places = np.flatnonzero(counted)
    sequence = np.where(messages, -1, sequence)
    sequence[places] = turns(moment[places], kind[places], np.where(messages, peer, -1)[places],
                             group[places])
    return sequence


def _untold(known: np.ndarray, sequence: np.ndarray) -> list[str]:
    if not known.any():
        return ["collectives do not say their group, size or number: they are counted in turn"]
    if (sequence[known] < 0).all():
        return ["collectives have no numbers: they are counted in turn, from the first on record"]
    return []
