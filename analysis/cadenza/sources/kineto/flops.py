# SPDX-License-Identifier: Apache-2.0
"""FLOPs of matrix products and of core attention, from the shapes and plain values of their inputs,
which a profiler with record_shapes tells."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from cadenza.sources.kineto.parameters import whole

# Names of products, and which of their inputs are the factors.
_FACTORS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2),
            "aten::baddbmm": (1, 2), "aten::_scaled_mm": (0, 1)}
# The backward pass has five products of the size of the forward pass's two: the scores again, and
# the gradients of values, probabilities, queries and keys.
_BACKWARD = 2.5
_MOST = 1 << 60


class Packed(NamedTuple):
    """A call on documents that lie one after another: how long each is, no shape tells."""

    tokens: int  # of all documents
    documents: int
    longest: int  # tokens of the longest document; -1: not told
    causal: bool
    pair: int  # FLOPs for a query and a key that it sees, in all heads


class _Call(NamedTuple):
    """Places among the inputs. Key and value follow the query."""

    query: int
    causal: int  # whether a query sees only what comes before it
    window: int = -1  # how many keys before it a query sees
    heads: int = 1  # of the query's (documents, heads, tokens, width); tokens are the other one
    # Where documents begin in (tokens, heads, width); two places on, the length of the longest.
    packed: int = -1


# By name without _forward or _backward: both passes, by the schemas of PyTorch 2.2 to 2.9 and
# FlashAttention 2.7. What these call in turn counts once, with them.
_ATTENTION = {
    "aten::_scaled_dot_product_flash_attention": (_Call(0, 4), _Call(1, 11)),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (_Call(0, 4), _Call(1, 7)),
    "aten::_scaled_dot_product_efficient_attention": (_Call(0, 6), _Call(1, 11)),
    "aten::_scaled_dot_product_cudnn_attention": (_Call(0, 6), _Call(1, 14)),
    "flash_attn::_flash_attn": (
        _Call(0, 5, window=6, heads=2), _Call(1, 11, window=12, heads=2)),
    "flash_attn::_flash_attn_varlen": (
        _Call(0, 9, window=10, packed=3), _Call(1, 15, window=16, packed=9)),
}


def tells_flops(name: str) -> bool:
    return name in _FACTORS or _attention(name) is not None


def flops_of(name: str, args: dict[str, Any]) -> int | Packed:
    """0: not told."""
    dims, values = args.get("Input Dims"), args.get("Concrete Inputs")
    if not isinstance(dims, list):
        return 0
    if name in _FACTORS:
        return within(_of_product(dims, *_FACTORS[name]))
    found = _attention(name)
    if found is None or not isinstance(values, list):
        return 0
    return _of_attention(*found, dims, values)


def within(found: float) -> int:
    """0 for more than there can be."""
    return int(found) if found < _MOST else 0


def seen(queries: int, keys: int, causal: bool) -> int:
    """Pairs of a query and a key that it sees; 0: which these are, only the program knows."""
    if not causal:
        return queries * keys
    return queries * (queries + 1) // 2 if queries == keys else 0


def _attention(name: str) -> tuple[_Call, float] | None:
    """Where a call tells what, and its FLOPs by those of a forward pass."""
    for ending, backward in (("_forward", False), ("_backward", True), ("", False)):
        calls = _ATTENTION.get(name.removesuffix(ending))
        if calls and name.endswith(ending):
            return calls[backward], _BACKWARD if backward else 1.0
    return None


def _of_product(dims: list[Any], one: int, other: int) -> float:
    """2 m k n of [m, k] and [k, n], times what comes before both."""
    a, b = _shape(dims, one), _shape(dims, other)
    if len(a) not in (2, 3) or len(a) != len(b) or a[-1] != b[-2] or a[:-2] != b[:-2]:
        return 0
    return 2 * math.prod(a) * b[-1]


def _of_attention(call: _Call, passes: float, dims: list[Any], values: list[Any]) -> int | Packed:
    query, key, value = (_shape(dims, call.query + at) for at in range(3))
    causal = _value(values, call.causal)
    told = causal in ("True", "False") and _value(values, call.window) in ("", "-1")
    rank = 3 if call.packed >= 0 else 4
    if not told or not len(query) == len(key) == len(value) == rank:
        return 0
    # Products of the forward pass: queries with keys, and probabilities with values.
    each = passes * 2 * query[call.heads] * (key[-1] + value[-1])
    if call.packed < 0:
        tokens = 3 - call.heads
        pairs = seen(query[tokens], key[tokens], causal == "True")
        return within(query[0] * pairs * each)
    begins = _shape(dims, call.packed)
    if query[0] != key[0] or len(begins) != 1 or begins[0] < 2:
        return 0
    return Packed(query[0], begins[0] - 1, whole(_value(values, call.packed + 2)),
                  causal == "True", within(each))


def _shape(dims: list[Any], at: int) -> list[int]:
    """[]: none is told."""
    found = dims[at] if at < len(dims) else None
    sound = isinstance(found, list) and all(type(n) is int and 0 <= n < 1 << 31 for n in found)
    return found if sound else []


def _value(values: list[Any], at: int) -> object:
    """"": none is told."""
    return values[at] if 0 <= at < len(values) else ""
