# SPDX-License-Identifier: Apache-2.0
"""`cadenza attend` with every attention.kind, under every placement, against dense float64
references that are written from the definitions alone."""

import numpy as np
import pytest
from test_attend import attend, layout, random_input

import harness

BASE = 10000.0


def plain(i, j):
    return j <= i


KINDS = {
    "window": ({"kind": "window", "window": 37}, lambda i, j: plain(i, j) & (i - j < 37)),
    "window of one": ({"kind": "window", "window": 1}, lambda i, j: i == j),
    "window, sinks": (
        {"kind": "window", "window": 20, "sinks": 5},
        lambda i, j: plain(i, j) & ((i - j < 20) | (j < 5)),
    ),
    "prefix": ({"kind": "prefix", "prefix": 45}, lambda i, j: plain(i, j) | ((i < 45) & (j < 45))),
    "dual chunk": ({"kind": "dual_chunk", "chunk": 40, "local": 9}, plain),
    "dual chunk, paper": (
        {"kind": "dual_chunk", "chunk": 24, "local": 8, "cap": "paper"},
        plain,
    ),
    "dual chunk, much local": ({"kind": "dual_chunk", "chunk": 30, "local": 19}, plain),
}
LAYOUTS = {
    "one rank": layout("cad"),
    "cad on 3": layout("cad", data=3),
    "cad, 2 trainers, 1 server": layout("cad", servers=1, data=2),
    "cad 2 x 2, keeps": layout("cad", data=2, context=2, inputs="keep"),
    "cad as published": layout("cad", data=4, priority="paper", split_keys=False),
    "colocated on 2": layout("colocated", data=2),
    "all_gather on 3": layout("all_gather", context=3),
    "ring on 3": layout("ring", context=3),
    "zigzag on 4": layout("zigzag", context=4),
    "striped on 3": layout("striped", context=3),
    "block_striped on 3": layout("block_striped", context=3, block=16),
    "ulysses on 2": layout("ulysses", context=2),
    "ulysses_ring on 4": layout("ulysses_ring", context=4, head_parallel=2),
    "double_ring on 4": layout("double_ring", context=4, inner_ring=2),
    "block_striped in inner rings on 4": layout("block_striped", context=4, inner_ring=2),
}
HALVES = {
    "cad in halves on 3": layout("cad", data=3, overlap="ping_pong"),
    "zigzag in halves on 2": layout("zigzag", context=2, overlap="ping_pong"),
}


def rotate(x, positions):
    """Rows of x [rows, head_dim], pairs (d, d + half), turned by their positions."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * BASE ** (-2 * np.arange(half) / x.shape[-1])
    cos, sin = np.cos(angle), np.sin(angle)
    low, high = x[:, :half], x[:, half : 2 * half]
    turned = x.copy()
    turned[:, :half] = low * cos - high * sin
    turned[:, half : 2 * half] = high * cos + low * sin
    return turned


class Paths:
    """Which pairs are scored at which positions: [(pairs, query positions)], key positions."""

    def __init__(self, kind, sees, length):
        t = np.arange(length)
        allowed = sees(t[:, None], t[None, :])
        self.rotates = kind["kind"] == "dual_chunk"
        if not self.rotates:
            self.keys, self.queries = t, [(allowed, t)]
            return
        local, paper = kind["local"], kind.get("cap") == "paper"
        stride = kind["chunk"] - local
        cap = stride + local - paper
        apart = t[:, None] // stride - t[None, :] // stride
        inter = cap if paper else min(2 * stride - 1, cap)
        self.keys = t % stride
        self.queries = [
            (allowed & (apart == 0), t % stride),
            (allowed & (apart == 1), np.minimum(stride + t % stride, cap)),
            (allowed & (apart >= 2), np.full(length, inter)),
        ]

    def turn(self, x, positions):
        return rotate(x, positions) if self.rotates else x


def reference(arrays, kind, sees):
    """Attention of each document and head by itself, and its gradients."""
    q, k, v, dout = (arrays[name].astype(np.float64) for name in ("q", "k", "v", "dout"))
    scale = 1 / np.sqrt(q.shape[2])
    group = q.shape[1] // k.shape[1]
    results = {
        "out": np.zeros_like(q),
        "lse": np.zeros(q.shape[:2]),
        "dq": np.zeros_like(q),
        "dk": np.zeros_like(k),
        "dv": np.zeros_like(v),
    }
    begin = 0
    for length in arrays["document_lengths"]:
        rows = slice(begin, begin + length)
        begin += length
        paths = Paths(kind, sees, length)
        for head in range(q.shape[1]):
            kv = head // group
            keys = paths.turn(k[rows, kv], paths.keys)
            scores = np.full((length, length), -np.inf)
            for pairs, at in paths.queries:
                some = paths.turn(q[rows, head], at) @ keys.T * scale
                scores[pairs] = some[pairs]
            lse = np.logaddexp.reduce(scores, axis=1)
            p = np.exp(scores - lse[:, None])
            out, d = p @ v[rows, kv], dout[rows, head]
            ds = p * (d @ v[rows, kv].T - np.sum(d * out, axis=1)[:, None]) * scale
            results["out"][rows, head] = out
            results["lse"][rows, head] = lse
            results["dv"][rows, kv] += p.T @ d
            turned = np.zeros((length, q.shape[2]))
            for pairs, at in paths.queries:
                part = np.where(pairs, ds, 0)
                results["dq"][rows, head] += paths.turn(part @ keys, -at)
                turned += part.T @ paths.turn(q[rows, head], at)
            results["dk"][rows, kv] += paths.turn(turned, -paths.keys)
    return results


def lengths_for(seed):
    """Shorter and longer than windows, prefixes, one chunk and five."""
    random = np.random.default_rng(seed)
    return [1, *map(int, random.integers(1, 70, size=4)), int(random.integers(120, 240)), 31, 40]


def assert_equal(found, expected, atol, relative):
    for name in ("out", "lse"):
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=atol, err_msg=name)
    for name in ("dq", "dk", "dv"):
        error = np.linalg.norm(found[name] - expected[name])
        small = 0.1 * np.sqrt(expected[name].size)  # a query that sees one key has no gradient
        assert error <= relative * max(small, np.linalg.norm(expected[name])), name


def check(kind, where, dtype, folder, seed):
    keys, sees = KINDS[kind]
    arrays = random_input(seed, 4, 2, (16, 10, 32)[seed % 3], lengths=lengths_for(seed))
    changes = harness.merged(where, {"attention": keys, "run": {"dtype": dtype}})
    found = attend(folder, changes, arrays)
    tolerance = (1e-5, 1e-5) if dtype == "float32" else (1e-10, 1e-10)
    assert_equal(found, reference(arrays, keys, sees), *tolerance)


@pytest.mark.parametrize("where", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_placement_equals_the_definition(kind, where, tmp_path):
    seed = list(KINDS).index(kind) + 3 * list(LAYOUTS).index(where)
    check(kind, LAYOUTS[where], ("float64", "float32")[seed % 2], tmp_path, seed)


@pytest.mark.parametrize("where", HALVES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "prefix"])
def test_halves_equal_the_definition(kind, where, tmp_path):
    check(kind, HALVES[where], "float64", tmp_path, 5)


@pytest.mark.parametrize("where", ["one rank", "cad on 3", "striped on 3"])
def test_bfloat16_is_near(where, tmp_path):
    keys, sees = KINDS["dual chunk"]
    arrays = random_input(3, 4, 2, 32, lengths=[100, 7, 41])
    rounded = {  # what bfloat16 holds: the first 16 bits, here of numbers cut to them
        name: (np.ascontiguousarray(value).view(np.uint32) & 0xFFFF0000).view(np.float32)
        for name, value in arrays.items()
        if name != "document_lengths"
    }
    rounded["document_lengths"] = arrays["document_lengths"]
    changes = harness.merged(LAYOUTS[where], {"attention": keys, "run": {"dtype": "bfloat16"}})
    found = attend(tmp_path, changes, rounded)
    assert_equal(found, reference(rounded, keys, sees), 0.05, 0.02)


# One head of 18 tokens, chunks of 6, 4 local: sums and norms of an independent implementation that
# was checked by finite differences.
GOLDEN = {
    "paper": {
        "out": [0.726913408130, 0.451239652377, -0.004666160171, 0.088391992019],
        "lse": 3.129498810833,
        "sums": (26.445361177266, 38.571974393612, -2.540306141883, -0.680894782663),
        "squares": (0.405369893463, 1.365595426449, 36.139221296192),
    },
    "megatron": {
        "out": [0.716048841784, 0.435621201629, -0.026892789954, 0.061754268395],
        "lse": 3.148383039444,
        "sums": (26.186920787826, 38.543258130887, -2.769844415207, -0.404261839161),
        "squares": (0.415053754092, 1.024726947932, 35.515270682947),
    },
}


@pytest.mark.parametrize("where", ["one rank", "cad on 3", "zigzag on 4"])
@pytest.mark.parametrize("cap", GOLDEN)
def test_golden_numbers(cap, where, tmp_path):
    i, d = np.arange(18.0)[:, None], np.arange(4.0)[None, :]
    arrays = {
        "q": np.sin(0.3 * i + 0.7 * d + 0.1)[:, None],
        "k": np.cos(0.2 * i - 0.5 * d)[:, None],
        "v": np.sin(0.11 * i * (d + 1))[:, None],
        "dout": np.cos(0.17 * i + 0.9 * d)[:, None],
        "document_lengths": np.array([18]),
    }
    kind = {"kind": "dual_chunk", "chunk": 10, "local": 4, "cap": cap}
    changes = harness.merged(LAYOUTS[where], {"attention": kind, "run": {"dtype": "float64"}})
    found, golden = attend(tmp_path, changes, arrays), GOLDEN[cap]
    np.testing.assert_allclose(found["out"][17, 0], golden["out"], atol=1e-10)
    np.testing.assert_allclose(found["lse"][17, 0], golden["lse"], atol=1e-10)
    sums = [found[name].sum() for name in ("out", "lse", "dq", "dk")]
    np.testing.assert_allclose(sums, golden["sums"], atol=1e-10)
    squares = [np.sum(found[name] ** 2) for name in ("dq", "dk", "dv")]
    np.testing.assert_allclose(squares, golden["squares"], atol=1e-10)
