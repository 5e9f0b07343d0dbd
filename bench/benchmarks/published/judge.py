# SPDX-License-Identifier: Apache-2.0
"""How far simulated steps are from the published ones: rate, order of layouts, memory."""

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator

from benchmarks.published.experiments import experiment
from benchmarks.published.rows import Row
from benchmarks.published.runs import Simulated

_APART = 1.03  # ratio of two published rates from which on their order is judged


def error(done: Simulated) -> float | None:
    """Of the rate; positive where the simulation is faster. None where none was published."""
    if done.left_out or not done.row.pub_tps:
        return None
    return done.tps / done.row.pub_tps - 1


def errors(steps: Iterable[Simulated]) -> list[float]:
    return [found for found in map(error, steps) if found is not None]


def spread(found: list[float]) -> tuple[float, float, float]:
    """Median and largest of the sizes, median of the signed errors."""
    sizes = [abs(one) for one in found]
    return statistics.median(sizes), max(sizes), statistics.median(found)


def order(steps: Iterable[Simulated]) -> Counter:
    """Pairs of layouts that one could have chosen between: how many are "right" and "wrong", and
    how many are "alike", the same experiment, because it cannot say what makes them differ."""
    counts: Counter = Counter()
    for slow, fast in _pairs(steps):
        if _layout(slow.row) == _layout(fast.row):
            counts["alike"] += 1
        else:
            counts["right" if slow.tps < fast.tps else "wrong"] += 1
    return counts


def _pairs(steps: Iterable[Simulated]) -> Iterator[tuple[Simulated, Simulated]]:
    """The slower one by the published rates first."""
    steps = sorted((one for one in steps if error(one) is not None),
                   key=lambda one: (choice(one.row), one.row.pub_tps))
    for _, same in itertools.groupby(steps, key=lambda one: choice(one.row)):
        for slow, fast in itertools.combinations(same, 2):
            if fast.row.pub_tps > _APART * slow.row.pub_tps:
                yield slow, fast


def choice(row: Row) -> tuple:
    """What the layouts of a choice share."""
    return (row.section, row.group, row.gpu, row.layers, row.d_model, row.heads, row.kv, row.ffn,
            row.vocab, row.gpus, row.seq, row.gbs)


def _layout(row: Row) -> dict:
    return {**experiment(row), "name": ""}


def memory(steps: Iterable[Simulated]) -> Counter:
    """How many verdicts are "right", "fits" (only in the simulation) and "does not fit" (only
    there)."""
    counts: Counter = Counter()
    for one in steps:
        if not one.left_out and one.row.pub_fits is not None:
            counts["right" if one.fits == one.row.pub_fits
                   else "fits" if one.fits else "does not fit"] += 1
    return counts


def memory_ratios(steps: Iterable[Simulated]) -> list[float]:
    """Simulated over published bytes, where bytes were published."""
    return [one.memory / (one.row.pub_mem * 2**30) for one in steps
            if not one.left_out and one.row.pub_mem]
