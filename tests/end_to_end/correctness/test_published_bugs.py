# SPDX-License-Identifier: Apache-2.0
"""Faults that public code of long-context attention had or has. Each is put into the dense
reference: `cadenza attend` must equal the reference without it, and the data must show it. Those
of sparse attention: test_published_sparse_bugs.py."""

import numpy as np
import pytest
from test_attend import attend, layout, random_input
from test_attention_kinds import rotate

import harness

DUAL = {"kind": "dual_chunk", "chunk": 40, "local": 9}
FULL = {"kind": "full"}
LENGTHS = [150, 1, 90, 37]
LAYOUTS = {
    "zigzag on 3": layout("zigzag", context=3),
    "cad on 3": layout("cad", data=3, block=16),
}
GRADIENTS = ("dq", "dk", "dv")


def paths_of(kind, positions, bug):
    """[(pairs, positions of queries)] and positions of keys, of tokens at these positions."""
    apart = positions[:, None] - positions[None, :]
    causal = apart >= 0
    if kind["kind"] == "full":
        if bug == "mask aligned at the top left":  # of the second half of the queries
            half = len(positions) // 2
            late = positions >= half
            causal[late] = apart[late] >= half
        return [(causal, None)], None
    stride = kind["chunk"] - (0 if bug == "stride is the chunk" else kind["local"])
    cap = stride + kind["local"] - (bug == "cap one too low")
    chunks = positions[:, None] // stride - positions[None, :] // stride
    place = positions % stride
    inter = np.full(len(positions), min(2 * stride - 1, cap))
    return [
        (causal & (chunks == 0), place),
        (causal & (chunks == 1), np.minimum(stride + place, cap)),
        (causal & (chunks >= 2), inter),
    ], place


def turn(x, positions):
    return x if positions is None else rotate(x, positions)


def turn_back(x, positions):
    return x if positions is None else rotate(x, -positions)


def backward_of_scores(scores, v, d, out, lse, bug):
    """P and the gradient of the scores of a path, with the statistics of all paths."""
    if bug in ("merge weights without a gradient", "statistics of a part"):
        with np.errstate(divide="ignore"):
            own = np.logaddexp.reduce(scores, axis=1)
        seen = np.isfinite(own)
        p = np.where(seen[:, None], np.exp(scores - np.where(seen, own, 0)[:, None]), 0)
        weight = 1 if bug == "statistics of a part" else np.exp(own - lse)[:, None]
        return weight * p, weight * p * (d @ v.T - np.sum(d * (p @ v), axis=1)[:, None])
    p = np.exp(scores - lse[:, None])
    return p, p * (d @ v.T - np.sum(d * out, axis=1)[:, None])


def scores_of(parts, q, keys, scale):
    return [np.where(pairs, turn(q, at) @ keys.T * scale, -np.inf) for pairs, at in parts]


def attention(arrays, kind, bug=None, chosen=None):
    """chosen(document, head, backward): parts of kinds that choose their pairs, as paths_of has."""
    q, k, v, dout = (arrays[name].astype(np.float64) for name in ("q", "k", "v", "dout"))
    heads, kv_heads = q.shape[1], k.shape[1]
    scale = 1 if bug == "scale left out" else 1 / np.sqrt(q.shape[2])
    lengths = arrays["document_lengths"]
    if bug == "documents are one":
        lengths = [sum(lengths)]
    results = {"out": np.zeros_like(q), "lse": np.zeros(q.shape[:2])}
    results.update({f"d{name}": np.zeros_like(arrays[name], dtype=float) for name in "qkv"})
    begin = 0
    for document, length in enumerate(lengths):
        rows = slice(begin, begin + length)
        first = begin if bug == "chunks from the start of the pack" else 0
        begin += length
        positions = first + np.arange(length)
        if bug == "rotated twice":
            q[rows], k[rows] = (
                np.stack([rotate(x[rows, h], positions) for h in range(x.shape[1])], axis=1)
                for x in (q, k)
            )
        for h in range(heads):
            kv = h % kv_heads if bug == "heads dealt in turn" else h // (heads // kv_heads)
            paths, of_keys = (chosen(document, h, False), None) if chosen else paths_of(
                kind, positions, bug
            )
            queries, keys, values = q[rows, h], turn(k[rows, kv], of_keys), v[rows, kv]
            scores, d = scores_of(paths, queries, keys, scale), dout[rows, h]
            lse = np.logaddexp.reduce(np.concatenate(scores, axis=1), axis=1)
            seen = np.where(np.isfinite(lse), lse, 0)  # a query without keys has no output
            out = sum(np.exp(s - seen[:, None]) @ values for s in scores)
            results["out"][rows, h], results["lse"][rows, h] = out, lse
            of_group = bug != "keys get one head's gradient" or h % (heads // kv_heads) == 0
            if chosen:
                paths = chosen(document, h, True)
                scores = scores_of(paths, queries, keys, scale)
            for s, (_, at) in zip(scores, paths, strict=True):
                p, ds = backward_of_scores(s, values, d, out, seen, bug)
                results["dq"][rows, h] += turn_back(scale * ds @ keys, at)
                turned = scale * ds.T @ turn(queries, at)
                results["dk"][rows, kv] += of_group * turn_back(turned, of_keys)
                results["dv"][rows, kv] += of_group * (p.T @ d)
    return results


# The kind that each is planted in, and the results that it spoils.
BUGS = {
    "merge weights without a gradient": (DUAL, ("dq", "dk")),
    "statistics of a part": (DUAL, GRADIENTS),
    "stride is the chunk": (DUAL, ("out", "lse", *GRADIENTS)),
    "cap one too low": (DUAL, ("out", "lse", *GRADIENTS)),
    "chunks from the start of the pack": (DUAL, ("out", "lse", *GRADIENTS)),
    "rotated twice": (DUAL, ("out", "lse", *GRADIENTS)),
    "scale left out": (FULL, ("out", "lse", *GRADIENTS)),
    "documents are one": (FULL, ("out", "lse", *GRADIENTS)),
    "heads dealt in turn": (FULL, ("out", "lse", *GRADIENTS)),
    "keys get one head's gradient": (FULL, ("dk", "dv")),
    "mask aligned at the top left": (FULL, ("out", "lse", *GRADIENTS)),
}


def error(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@pytest.fixture(scope="module", params=LAYOUTS)
def found(request, tmp_path_factory):
    """What the program computes, by kind, and of what."""
    arrays = random_input(8, 4, 2, 16, lengths=LENGTHS)
    results = {}
    for kind in (FULL, DUAL):
        changes = {"attention": kind, "run": {"dtype": "float64"}}
        folder = tmp_path_factory.mktemp("bugs")
        where = LAYOUTS[request.param]
        results[kind["kind"]] = attend(folder, harness.merged(where, changes), arrays)
    return arrays, results


@pytest.mark.parametrize("bug", BUGS)
def test_published_bug_is_not_ours(bug, found):
    arrays, results = found
    kind, spoilt = BUGS[bug]
    right, wrong = attention(arrays, kind), attention(arrays, kind, bug)
    for name, value in results[kind["kind"]].items():
        assert error(value, right[name]) < 1e-10, name
        if name in spoilt:
            assert error(value, wrong[name]) > 1e-3, f"the data do not show it in {name}"


@pytest.mark.parametrize("where", LAYOUTS)
@pytest.mark.parametrize("logit", [-1000.0, 300.0])
def test_logits_far_from_zero(logit, where, tmp_path):
    """A running maximum that begins at 0 loses rows of -1000; exp of 300 overflows."""
    arrays = random_input(2, 2, 1, 16, lengths=[100, 60])
    arrays["q"] = np.full_like(arrays["q"], 1)
    arrays["k"] = np.full_like(arrays["k"], logit / 4)  # 16 products of this, over 4
    expected = attention(arrays, FULL)
    results = attend(tmp_path, LAYOUTS[where], arrays)
    np.testing.assert_allclose(results["lse"], expected["lse"], rtol=1e-6)
    np.testing.assert_allclose(results["out"], expected["out"], atol=1e-4)
    assert np.linalg.norm(results["dv"] - expected["dv"]) < 1e-4 * np.linalg.norm(expected["dv"])


@pytest.mark.parametrize("where", LAYOUTS)
def test_parts_far_apart(where, tmp_path):
    """Merging parts whose log-sum-exp differ by hundreds: weights overflow unless the larger one is
    taken out."""
    arrays = random_input(3, 2, 1, 16, lengths=[120])
    arrays["q"] = np.full_like(arrays["q"], 1)
    for first, last, logit in ((0, 40, -300.0), (40, 80, 300.0), (80, 120, 0.0)):
        arrays["k"][first:last] = logit / 4
    expected = attention(arrays, FULL)
    results = attend(tmp_path, LAYOUTS[where], arrays)
    np.testing.assert_allclose(results["lse"], expected["lse"], rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(results["out"], expected["out"], atol=1e-4)
    for name in GRADIENTS:
        assert np.all(np.isfinite(results[name])), name
