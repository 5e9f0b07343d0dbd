# SPDX-License-Identifier: Apache-2.0
"""FLOPs of matrix products and of core attention, from the shapes and plain values of their inputs,
which a profiler with record_shapes tells."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

# Names of products, and which of their inputs are the factors.
_FACTORS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2),
            "aten::baddbmm": (1, 2), "aten::_scaled_mm": (0, 1)}
# The backward pass has five products of the size of the forward pass's two: the scores again, and
# the gradients of values, probabilities, queries and keys.
_BACKWARD = 2.5
_LONGEST = 2  # from the begins of documents to the length of the longest, among the inputs
_MOST = 1 << 60


class _Call(NamedTuple):
    """Places among the inputs. Key and value follow the query."""

    query: int
    causal: int  # whether a query sees only what comes before it
    packed: int = -1  # begins of documents, if the tensors are (tokens, heads, width)
    window: int = -1  # how many keys before it a query sees
    heads_first: bool = True  # (documents, heads, tokens, width), else tokens before heads


# By name without _backward: both passes. What these call in turn counts once, with them.
_ATTENTION = {
    "aten::_scaled_dot_product_flash_attention": (_Call(0, 4), _Call(1, 11)),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (_Call(0, 4), _Call(1, 7)),
    "aten::_scaled_dot_product_efficient_attention": (_Call(0, 6), _Call(1, 11)),
    "aten::_scaled_dot_product_cudnn_attention": (_Call(0, 6), _Call(1, 14)),
    "flash_attn::_flash_attn": (
        _Call(0, 5, window=6, heads_first=False), _Call(1, 11, window=12, heads_first=False)),
    "flash_attn::_flash_attn_varlen": (
        _Call(0, 9, packed=3, window=10, heads_first=False),
        _Call(1, 15, packed=9, window=16, heads_first=False)),
}


def tells_flops(name: str) -> bool:
    return name in _FACTORS or _attention(name) is not None


def flops_of(name: str, args: dict[str, Any]) -> int:
    """0: not told."""
    dims, values = args.get("Input Dims"), args.get("Concrete Inputs")
    if not isinstance(dims, list):
        return 0
    if name in _FACTORS:
        return _within(_of_product(dims, *_FACTORS[name]))
    found = _attention(name)
    if found is None or not isinstance(values, list):
        return 0
    call, passes = found
    return _within(passes * _of_attention(call, dims, values))


def _attention(name: str) -> tuple[_Call, float] | None:
    """What a call is told by, and its FLOPs by those of a forward pass."""
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


def _of_attention(call: _Call, dims: list[Any], values: list[Any]) -> float:
    """Of a forward pass: 2 (width of keys + width of values) for each query, key that it sees, and
    head."""
    query, key, value = (_shape(dims, call.query + at) for at in range(3))
    causal = _value(values, call.causal)
    if causal not in ("True", "False") or _value(values, call.window) not in ("", "-1"):
        return 0
    if call.packed >= 0:
        query, key, value = (_unpacked(call, shape, dims, values) for shape in (query, key, value))
    if not len(query) == len(key) == len(value) == 4:
        return 0
    heads, tokens = (1, 2) if call.heads_first else (2, 1)
    queries, keys = query[tokens], key[tokens]
    if causal == "True" and queries != keys:  # which of them a query sees, its program decides
        return 0
    pairs = queries * (queries + 1) // 2 if causal == "True" else queries * keys
    return 2 * query[0] * query[heads] * pairs * (key[-1] + value[-1])


def _unpacked(call: _Call, shape: list[int], dims: list[Any], values: list[Any]) -> list[int]:
    """(documents, tokens, heads, width), where all documents are as long as the longest."""
    begins = _shape(dims, call.packed)
    documents = begins[0] - 1 if len(begins) == 1 else 0
    if len(shape) != 3 or documents < 1 or shape[0] % documents:
        return []
    tokens = shape[0] // documents
    alike = documents == 1 or _value(values, call.packed + _LONGEST) == str(tokens)
    return [documents, tokens, *shape[1:]] if alike else []


def _shape(dims: list[Any], at: int) -> list[int]:
    """[]: none is told."""
    found = dims[at] if at < len(dims) else None
    sound = isinstance(found, list) and all(type(n) is int and 0 <= n < 1 << 31 for n in found)
    return found if sound else []


def _value(values: list[Any], at: int) -> object:
    """"": none is told."""
    return values[at] if 0 <= at < len(values) else ""


def _within(found: float) -> int:
    return int(found) if found < _MOST else 0
