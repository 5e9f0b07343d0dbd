# SPDX-License-Identifier: Apache-2.0
"""FLOPs of matrix products, from the shapes that a profiler with record_shapes tells."""

from __future__ import annotations

import math
from typing import Any

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
