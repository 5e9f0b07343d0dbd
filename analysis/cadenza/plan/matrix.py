# SPDX-License-Identifier: Apache-2.0
"""Attention matrices of a plan in cells, before anything is drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cadenza.plan.read import Pattern, Plan, Range, Step, Task

NOBODY = -1  # computes the pair: the mask forbids it, or it is another plan's
CELLS = 512  # of a side at most: a cell shows the pair of tokens in its middle
_RUNS = 64  # that are shown of a document in stripes, which are too fine for a picture of it all
_THIN = 256  # cells of a side, of which one is a line that can be seen
_SMALLEST = 0.2  # part of the cells or runs: shorter documents have smaller pictures


@dataclass
class Matrix:
    """Of a document and a slice of its heads: queries downwards and keys to the right, in the order
    of the text."""

    document: int
    length: int
    heads: Range | None  # None: all of them
    shown: int  # tokens, the first ones
    servers: np.ndarray  # the rank that computes each cell
    opacity: np.ndarray  # of each cell, from 0 to 1: less than 1 where not all pairs are computed


def matrices(step: Step, plan: Plan, most: int) -> tuple[list[Matrix], int]:
    """Those of the longest documents that the plan computes, at most so many, and how many more
    there are."""
    of_document: dict[int, list[Task]] = {}
    for task in plan.tasks:
        of_document.setdefault(task.document, []).append(task)
    lengths = {document: step.documents[document] for document in of_document}
    longest = sorted(filter(lengths.get, lengths), key=lambda one: (-lengths[one], one))
    slices = [(document, heads) for document in longest
              for heads in _slices(step, document, of_document[document])]
    made = []
    for document, heads in slices[:most]:
        size = max(_SMALLEST, lengths[document] / lengths[longest[0]])
        made.append(_matrix(step, plan, document, heads, of_document[document], size))
    return made, len(slices) - len(made)


def _slices(step: Step, document: int, tasks: list[Task]) -> list[Range]:
    """Ranges of heads into which the tasks divide the document's. Of those of a document whose
    pattern is known it is the one of head 0, to which the pattern belongs."""
    edges = sorted({edge for task in tasks for edge in task.heads})
    found = list(zip(edges, edges[1:], strict=False))
    return found if _pattern(step, document) is None else found[:1]


def _pattern(step: Step, document: int) -> Pattern | None:
    return step.patterns[document] if step.patterns else None


def _matrix(
    step: Step, plan: Plan, document: int, heads: Range, tasks: list[Task], size: float
) -> Matrix:
    length = step.documents[document]
    shown = length if plan.stripes == 1 else min(length, int(size * _RUNS) * plan.run)
    cells = min(shown, int(size * CELLS))
    places = (2 * np.arange(cells) + 1) * shown // (2 * cells)  # in the text
    tokens = _tokens(plan, length, places)
    servers = np.full((cells, cells), NOBODY, np.int32)
    for task in tasks:
        if not task.heads[0] <= heads[0] < task.heads[1]:
            continue
        rows, columns = (np.flatnonzero((begin <= tokens) & (tokens < end))
                         for begin, end in (task.q, task.k))
        ahead = tokens[columns] - tokens[rows][:, None]
        seen = (task.low <= ahead) & (ahead <= task.high)
        servers[np.ix_(rows, columns)] = np.where(
            seen, task.server, servers[np.ix_(rows, columns)]
        )
    all_heads = {task.heads for task in tasks} == {heads}
    opacity = np.ones((cells, cells), np.float32)
    if (pattern := _pattern(step, document)) is not None:
        opacity = _active(pattern, shown, places)
    elif document in plan.densities:
        shares = np.array(plan.densities[document])
        opacity[:] = shares[places * len(shares) // length][:, None]
    return Matrix(document, length, None if all_heads else heads, shown, servers, opacity)


def _tokens(plan: Plan, length: int, places: np.ndarray) -> np.ndarray:
    """The plan's numbers of the tokens at these places in the text, as docs/plan.md explains."""
    runs, missing = -(-length // plan.run), -length % plan.run
    turn, inside = np.divmod(places, plan.run)
    turn, stripe = np.divmod(turn, plan.stripes)
    before = stripe * (runs // plan.stripes) + np.minimum(stripe, runs % plan.stripes)
    shorter = np.where(stripe > (runs - 1) % plan.stripes, missing, 0)
    return (before + turn) * plan.run - shorter + inside


def _active(pattern: Pattern, shown: int, places: np.ndarray) -> np.ndarray:
    """1 where a cell has an active pair. Columns that are narrower than a cell get some, as a line
    of one would be hard to see."""
    cells = len(places)
    width = np.arange(-(-cells // _THIN) if shown > cells else 1)
    found = np.zeros((cells, cells), np.float32)
    for row, place in enumerate(places):
        for begin, end in pattern.rows[place // pattern.block]:
            found[row, begin * cells // shown : -(-end * cells // shown)] = 1
        columns = pattern.columns[pattern.columns <= place]
        of_columns = (columns * cells // shown)[:, None] + width
        found[row, np.minimum(of_columns, cells - 1)] = 1
    return found
