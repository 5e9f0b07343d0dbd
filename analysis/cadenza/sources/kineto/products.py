# SPDX-License-Identifier: Apache-2.0
"""FLOPs of matrix products, from the shapes that a profiler with record_shapes tells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

# Names of operations, and which of their inputs are the factors.
FACTORS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2),
           "aten::_scaled_mm": (0, 1)}
_MOST = 1 << 60


def flops_of(name: str, args: dict[str, Any]) -> int:
    """2 m k n of [m, k] and [k, n], times what comes before both; 0: not told."""
    dims = args.get("Input Dims")
    one, other = FACTORS[name]
    if not isinstance(dims, list) or len(dims) <= other:
        return 0
    a, b = dims[one], dims[other]
    if not (_is_shape(a) and _is_shape(b)):
        return 0
    if len(a) != len(b) or a[-1] != b[-2] or a[:-2] != b[:-2]:
        return 0
    found = 2 * math.prod(a) * b[-1]
    return found if found < _MOST else 0


def _is_shape(found: object) -> bool:
    return isinstance(found, list) and len(found) in (2, 3) and \
        all(type(size) is int and 0 <= size < 1 << 31 for size in found)


def within(
    lane: np.ndarray, begin: np.ndarray, end: np.ndarray, of: np.ndarray, at: np.ndarray,
) -> np.ndarray:
    """Which of disjoint spans (sorted by lane, begin) each moment is in; -1: in none.

    @param of, at  lane and time of the moments
    """
    if not len(lane):
        return np.full(len(of), -1, np.int64)
    order = np.lexsort((begin, lane))
    low = min(int(begin.min()), int(at.min(initial=begin.min())))
    size = max(int(end.max()), int(at.max(initial=end.max()))) - low + 1
    lanes = np.unique(np.concatenate([lane, of]))
    span = np.searchsorted(lanes, lane[order]) * float(size) + (begin[order] - low)
    moment = np.searchsorted(lanes, of) * float(size) + (at - low)
    found = np.searchsorted(span, moment, side="right") - 1
    safe = np.maximum(found, 0)
    inside = (found >= 0) & (lane[order][safe] == of) & (at < end[order][safe])
    return np.where(inside, order[safe], -1)
