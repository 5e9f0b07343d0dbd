# SPDX-License-Identifier: Apache-2.0
"""FLOPs of core attention on packed documents, where their lengths are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cadenza.sources.kineto.flops import Packed, seen, within


def flops_of_packed(calls: Sequence[Packed], step: Sequence[int],
                    lengths: Mapping[int, Sequence[int]]) -> np.ndarray:
    """Of each call; 0: not known. In a step they are of all calls or of none, as a part of them is
    no measure of what a rank did.

    @param step     of each call
    @param lengths  of the documents of each step, in their order
    """
    known: dict[tuple[int, Packed], int] = {}
    for key in set(zip(step, calls, strict=True)):
        number, call = key
        pairs = _alike(call) or _of_slices(call, lengths.get(number, ()))
        known[key] = within(pairs * call.pair)
    whole = dict.fromkeys(step, True)
    for (number, _), flops in known.items():
        whole[number] &= flops > 0
    return np.array([known[key] if whole[key[0]] else 0
                     for key in zip(step, calls, strict=True)], np.int64)


def _alike(call: Packed) -> int:
    """Pairs, where all documents are as long as the longest; 0: they are not, or not known."""
    tokens, rest = divmod(call.tokens, call.documents)
    if rest or not (call.documents == 1 or tokens == call.longest):
        return 0
    return call.documents * seen(tokens, tokens, call.causal)


def _of_slices(call: Packed, lengths: Sequence[int]) -> int:
    """Pairs, where all slices of the step's documents that can be the call's have as many, else 0:
    a call is on those of a microbatch, which follow one another."""
    ends = np.concatenate(([0], np.cumsum(np.asarray(lengths, np.int64))))
    pairs = np.concatenate(([0], np.cumsum([seen(one, one, call.causal) for one in lengths])))
    first = np.arange(max(len(ends) - call.documents, 0))
    last = first + call.documents
    first = first[ends[last] - ends[first] == call.tokens]
    if call.longest > 0:
        first = np.array([at for at in first.tolist()
                          if max(lengths[at : at + call.documents]) == call.longest], np.int64)
    found = np.unique(pairs[first + call.documents] - pairs[first])
    return int(found[0]) if found.size == 1 else 0
