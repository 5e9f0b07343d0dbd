# SPDX-License-Identifier: Apache-2.0
"""Lengths of documents, which few traces tell, from a file of the user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pandas as pd

from cadenza.errors import DataError
from cadenza.files import printable, read_text
from cadenza.sources.neutral import Lengths
from cadenza.words import shortened

_MOST = 1 << 31  # tokens of a rank in a step: pairs of them fit in 64 bits
_VALID = "a line is: step rank length length ..."
_LARGEST = 1 << 26  # bytes of the file
_QUOTED = 60  # letters of a line in a message


def read_lengths(path: Path) -> Lengths:
    """Of every step and rank a line: `step rank length length ...`, in tokens, in the order in
    which the rank computes them. Lines of the same step and rank add to one another; what follows
    a # is no part of a line.

    @throws DataError naming the line that is none
    """
    if path.is_file() and path.stat().st_size > _LARGEST:
        raise DataError(f"{path}: has more than {_LARGEST >> 20} MiB; valid: {_VALID}")
    found: dict[int, dict[int, list[int]]] = {}
    tokens: Counter[tuple[int, int]] = Counter()
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) < 3 or not all(word.isascii() and word.isdecimal() and len(word) < 12
                                     for word in words):
            shown = shortened(printable(line), _QUOTED)
            raise DataError(f"{path}: line {number}: found '{shown}'; valid: {_VALID}")
        step, rank, *lengths = map(int, words)
        found.setdefault(rank, {}).setdefault(step, []).extend(lengths)
        tokens[step, rank] += sum(lengths)
        if 0 in lengths or tokens[step, rank] >= _MOST:
            raise DataError(f"{path}: line {number}: step {step} of rank {rank} has a document of "
                            f"no token or {_MOST} tokens or more; valid: 1 to {_MOST - 1} tokens")
    if not found:
        raise DataError(f"{path}: no lengths in it; valid: {_VALID}")
    return found


def unmatched(lengths: Lengths, steps: Mapping[int, Collection[int]]) -> list[str]:
    """Sentences about steps (by rank) of which nothing is told. A file may tell of more.

    @param steps  by rank, those of the traces
    """
    known = {(rank, step) for rank, mine in lengths.items() for step in mine}
    there = {(rank, step) for rank, mine in steps.items() for step in mine}
    if known and not known & there:
        return ["No line of the file of lengths is of a rank and a step of the traces."]
    lacking = sorted(one for one in there - known if one[0] in lengths)
    if not lacking:
        return []
    rank, step = lacking[0]
    more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    return [f"The file of lengths has no line for step {step} of rank {rank}{more}."]


def with_lengths(steps: pd.DataFrame, lengths: Mapping[int, Sequence[int]]) -> pd.DataFrame:
    """STEP rows of a rank, with the lengths that are told."""
    texts = {step: ",".join(map(str, known)) for step, known in lengths.items()}
    known = steps["lengths"].astype(object)
    return steps.assign(lengths=steps["step"].map(texts).astype(object).where(
        steps["step"].isin(texts), known))
