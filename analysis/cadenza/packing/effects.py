# SPDX-License-Identifier: Apache-2.0
"""What a packing does: documents that it cuts, pairs that it leaves out, ranks that get more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from cadenza.errors import DataError
from cadenza.log import LOG
from cadenza.packing.plans import PACKINGS, Batch, Experiment, batch, documents
from cadenza.processes import processors


@dataclass(frozen=True)
class Effects:
    """Of the first steps. What happens to documents is that of a corpus in its own order, even if
    the experiment shuffles it; all else is that of the experiment's steps."""

    packing: str
    tokens: float  # of a step, mean
    fullest: float  # fullest / mean microbatch in tokens, mean of the steps
    pairs: float  # of a query and a key before it, per token, over those of uncut documents
    cut_documents: float | None  # share; None: documents were delayed, so their parts are not known
    cut_tokens: float | None  # share of the tokens whose document is cut
    imbalance: list[float]  # of each step: largest / mean cost of attention of a rank
    longest_delay: int  # steps


@dataclass(frozen=True)
class Survey:
    lengths: list[int]  # of documents before anything is cut
    effects: list[Effects]
    refused: dict[str, str] = field(default_factory=dict)  # packings, and why they are not possible


def survey(experiment: Experiment, steps: int) -> Survey:
    """All packings. @throws DataError where none is possible"""
    lengths = documents(experiment, steps)
    found: list[Effects] = []
    refused: dict[str, str] = {}
    for packing in PACKINGS:
        LOG.info("%s: planning %d steps with packing %s", experiment.path, steps, packing)
        try:
            own = _batches(experiment, packing, steps, in_order=False)
            ordered = own
            if experiment.shuffled:
                ordered = _batches(experiment, packing, steps, in_order=True)
        except DataError as error:
            refused[packing] = str(error)
            continue
        found.append(_effects(packing, own, ordered, lengths, experiment))
    if not found:
        raise DataError(next(iter(refused.values())))
    return Survey(lengths, found, refused)


def _batches(experiment: Experiment, packing: str, steps: int, in_order: bool) -> list[Batch]:
    """Each is a process of its own. The first one is waited for: what refuses it refuses all."""
    make = partial(batch, experiment, packing, in_order=in_order)
    with ThreadPoolExecutor(processors()) as pool:
        return [make(0), *pool.map(make, range(1, steps))]


def _effects(
    packing: str, own: Sequence[Batch], ordered: Sequence[Batch], lengths: Sequence[int],
    experiment: Experiment,
) -> Effects:
    """@param own      batches of the experiment
    @param ordered  those with the corpus in its order
    @param lengths  documents() of as many steps"""
    pieces = [piece.length for one in ordered for piece in one.pieces]
    if packing == "best_fit":  # cuts nothing itself
        cut = [length for length in lengths if length > experiment.longest]
    else:
        cut = _cut(lengths, ordered, experiment)
    return Effects(
        packing, sum(piece.length for one in own for piece in one.pieces) / len(own),
        float(np.mean([_fullest(one, experiment) for one in own])),
        pairs(pieces) / sum(pieces) * sum(lengths) / pairs(lengths),
        None if cut is None else len(cut) / len(lengths),
        None if cut is None else sum(cut) / sum(lengths),
        [max(one.costs) / float(np.mean(one.costs)) for one in own],
        max((delay for one in own for delay in one.delays), default=0),
    )


def pairs(lengths: Sequence[int]) -> float:
    """A token sees itself and all before it in its document."""
    return sum(length * (length + 1) / 2 for length in lengths)


def _fullest(one: Batch, experiment: Experiment) -> float:
    held: Counter[tuple[int, int]] = Counter()
    for piece in one.pieces:
        held[piece.microbatch] += piece.length
    count = experiment.tokens // experiment.microbatch  # some may be empty
    return max(held.values()) * count / held.total()


def _cut(
    lengths: Sequence[int], batches: Sequence[Batch], experiment: Experiment
) -> list[int] | None:
    """Lengths of the documents that are cut. The pieces of a batch say only how long they are, so
    this looks whether they are those of a stream of documents that is cut at every microbatch, or
    at every step; None where they are neither."""
    found = [Counter(piece.length for piece in one.pieces) for one in batches]
    for every in (experiment.microbatch, experiment.tokens):
        parts = list(_parts(lengths, every, experiment.longest))
        if _by_step(parts, experiment.tokens, len(batches)) == found:
            return [sum(one) for one in parts if len(one) > 1]
    return None


def _parts(lengths: Sequence[int], every: int, longest: int) -> Iterator[list[int]]:
    """The pieces of each document of a stream: of at most `longest` tokens, and cut at multiples of
    `every`."""
    at = 0
    for length in lengths:
        parts, left, whole = [], length, longest
        while left:
            part = min(left, whole, every - at % every)
            parts.append(part)
            at, left, whole = at + part, left - part, whole - part or longest
        yield parts


def _by_step(parts: Sequence[list[int]], tokens: int, steps: int) -> list[Counter[int]]:
    found: list[Counter[int]] = [Counter() for _ in range(steps)]
    at = 0
    for one in parts:
        for part in one:
            found[at // tokens][part] += 1
            at += part
    return found
