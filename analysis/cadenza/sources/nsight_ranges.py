# SPDX-License-Identifier: Apache-2.0
"""What NVTX ranges say by their names: steps, phases, loading of data, checkpoints.

A new word is a pattern here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cadenza.sources.neutral import CHECKPOINT, DATA, PHASES

# Words stand alone: "backward_step" has one, "forward_backward" is both, which is neither.
_STEP = re.compile(r"(profilerstep|(?:global|train|training)?[ _-]?(?:step|iteration|iter))"
                   r"[ #_:=.-]*(\d{0,15})")
_PHASES = (("recompute", re.compile(r"(?<![a-z])recompute")),
           ("optimizer", re.compile(r"(?<![a-z])optimi[sz]er(?![a-z])")),
           ("backward", re.compile(r"(?<![a-z])backward(?![a-z])|backward\d|autograd::engine|"
                                   r"[a-z]backward(?![a-z])")),
           ("forward", re.compile(r"(?<![a-z])forward(?![a-z])")))
_HOST = ((DATA, re.compile(r"data[ _-]?load|load[ _-]?(data|batch)|(next|get|fetch)[ _-]?batch|"
                           r"batch[ _-]?generator")),
         (CHECKPOINT, re.compile(r"(save|load|write)[ _-]?(model[ _-]?)?checkpoint|"
                                 r"checkpoint[ _-]?(sav|writ|load)")))


@dataclass
class Ranges:
    """Ranges of one process, in the order of their begin. `name` is without what PyTorch adds to
    it, such as ", op_id = 7"."""

    begin: np.ndarray
    end: np.ndarray
    thread: np.ndarray
    name: np.ndarray  # objects: str

    def phase_at(self, times: np.ndarray) -> pd.Categorical:
        """Phase of the innermost range around each time that has one, on whichever thread: the
        backward pass is launched by a thread of its own."""
        phase = _by_name(self.name, _phase)
        chosen = np.flatnonzero(phase >= 0)
        chosen = chosen[np.argsort(self.begin[chosen] - self.end[chosen], kind="stable")]
        edges = np.unique(np.concatenate([self.begin[chosen], self.end[chosen]]))
        inside = np.full(len(edges) + 1, PHASES.index("other"), np.int8)
        first = np.searchsorted(edges, self.begin[chosen]) + 1
        last = np.searchsorted(edges, self.end[chosen]) + 1
        for one, begin, end in zip(phase[chosen], first, last):  # the longest first
            inside[begin:end] = one
        return pd.Categorical.from_codes(inside[np.searchsorted(edges, times, side="right")],
                                         list(PHASES))

    def on_host(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """By kind, begins and ends of what the process did instead of computing."""
        of = _by_name(self.name, _host_kind)
        return {kind: _outermost(self.begin[of == number], self.end[of == number])
                for number, (kind, _) in enumerate(_HOST)}

    def steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Number, begin and end: of the ranges with a word for steps, those that last longest."""
        codes, different = pd.factorize(self.name)
        matches = [_STEP.fullmatch(name.lower()) for name in different]
        words = np.array([match[1] if match else "" for match in matches] or [""], object)[codes]
        length = pd.Series(self.end - self.begin).groupby(words).sum().drop("", errors="ignore")
        if length.empty:
            return (np.zeros(0, np.int64),) * 3
        chosen = np.flatnonzero(words == length.idxmax())
        begin, end = self.begin[chosen], self.end[chosen]
        told = [matches[code][2] for code in codes[chosen]]
        number = np.array([int(text) for text in told]) \
            if all(told) and len(set(told)) == len(told) else np.arange(len(chosen))
        follows = number[1:] == number[:-1] + 1
        end[:-1] = np.where(follows, np.maximum(begin[1:], begin[:-1]), end[:-1])
        return number, begin, end


def plain(text: str) -> str:
    """A name without the numbers that PyTorch adds: "aten::mul, seq = 7, op_id = 9"."""
    return text.partition(", ")[0]


def _phase(name: str) -> int:
    found = [phase for phase, words in _PHASES if words.search(name)]
    if not found or {"forward", "backward"} <= set(found):
        return -1
    return PHASES.index(found[0])


def _host_kind(name: str) -> int:
    return next((number for number, (_, words) in enumerate(_HOST) if words.search(name)), -1)


def _by_name(names: np.ndarray, of: object) -> np.ndarray:
    """@param of  gives the number of a name in lower case, and is asked once for each"""
    codes, different = pd.factorize(names)
    return np.array([of(name.lower()) for name in different] or [0], np.int64)[codes]


def _outermost(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranges in order of begin, without those that lie in one before."""
    before = np.maximum.accumulate(np.concatenate([[-(1 << 62)], end]))[:-1]
    keep = end > before
    return np.maximum(begin[keep], before[keep]), end[keep]
