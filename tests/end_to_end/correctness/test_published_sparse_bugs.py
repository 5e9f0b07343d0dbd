# SPDX-License-Identifier: Apache-2.0
"""Faults of public code of dynamic sparse attention, each put into a dense reference: `cadenza
attend` with kind vertical_slash must equal the reference without it, and the data must show it.

Not here are faults that cannot be: unused places of an index that hold a sentinel (lists have a
length), sums of heads by atomics, an index per rank that others choose otherwise (the owner sends
it). Positions that do not go with their tokens and messages that do not match show in training
(test_layouts.py, tests/mpi), accumulators in bfloat16 in test_bfloat16.py."""

import numpy as np
import pytest
from test_attend import attend, layout
from test_published_bugs import GRADIENTS, attention, error
from test_sparse_attention import OBSERVED, choose, documents, inputs, largest, read_index, sparse

import harness

LENGTHS = [301, 1, 37, 151, 65]
BLOCK, RANKS, RUN = 8, 3, 16
BUDGETS = {
    "block": BLOCK,
    "columns": 60,  # more than a rank's share of the second longest document
    "slashes": 6,
    "sinks": 2,
    "window": 3,
    "dense_below": 38,
}
TOP_P = {**BUDGETS, "columns": 200, "slashes": 100, "top_p": 0.3}
# Kernels with patterns are those of float32; float64 cuts patterns into dense tasks.
LAYOUTS = {
    "zigzag on 3": (layout("zigzag", context=RANKS), "float64"),
    "block_striped on 3": (layout("block_striped", context=RANKS, block=RUN), "float32"),
    "cad on 3": (layout("cad", data=RANKS, block=RUN), "float32"),
}
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}


def observed_queries(q, rows, length, bug):
    """And the place of the first of them in the document."""
    if bug == "observed at the end of the pack":
        first = max(0, length - OBSERVED)
        return q[first - length :], first
    if bug == "padding is observed":  # to what the ranks' stripes divide
        padding = -length % (RANKS * RUN)
        q = np.concatenate([q[rows], np.zeros((padding, q.shape[1]))])
        first = max(0, len(q) - OBSERVED)
        return q[first:], first
    first = max(0, length - OBSERVED)
    return q[rows][first:], first


def masses(q, first, k, bug):
    """Of columns and slashes."""
    scores = q @ k.T / (1 if bug == "index without the scale" else np.sqrt(q.shape[1]))
    apart = first + np.arange(len(q))[:, None] - np.arange(len(k))[None, :]
    scores = np.where(apart >= 0, scores, -np.inf)
    if bug == "logits in place of shares":
        shares = np.where(apart >= 0, scores, 0)
    else:
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
    slashes = np.zeros(first + len(q))
    np.add.at(slashes, np.maximum(apart, 0).ravel(), shares.ravel())
    return shares.sum(axis=0), slashes


def choose_wrongly(q, first, k, rule, bug):
    columns, slashes = masses(q, first, k, bug)
    most, top_p, forced = rule["columns"], rule.get("top_p", 0), (rule["sinks"], rule["window"])
    if bug == "budget capped by a rank's tokens":
        most = min(most, len(k) // RANKS)
    if bug == "nothing is forced":
        forced = 0, 0
    kept = largest(columns, most, forced[0], top_p)
    chosen = largest(slashes, rule["slashes"], forced[1], top_p)
    if bug == "forced with top_p":
        kept = sorted({*kept, *range(forced[0])})
        chosen = sorted({*chosen, *range(forced[1])})
    offsets = {0}
    for slash in chosen:
        offsets |= {slash // BLOCK, -(-slash // BLOCK)}
    return sorted(o for o in offsets if o < -(-len(k) // BLOCK)), kept


def index_of(arrays, rule, bug=None):
    q, k = (arrays[name].astype(np.float64) for name in ("q", "k"))
    heads, kv_heads = q.shape[1], k.shape[1]
    index = {}
    for number, rows, length in documents(arrays):
        for head in range(heads):
            kv = head % kv_heads if bug == "index heads dealt in turn" else head * kv_heads // heads
            if length < rule["dense_below"]:
                index[number, head] = [], []
            elif bug is None:
                index[number, head] = choose(q[rows, head], k[rows, kv], rule)
            else:
                observed, first = observed_queries(q[:, head], rows, length, bug)
                index[number, head] = choose_wrongly(observed, first, k[rows, kv], rule, bug)
    return index


def parts_of(length, offsets, columns, bug=None):
    """Pairs in active blocks, and in columns beside them."""
    i, j = np.arange(length)[:, None], np.arange(length)[None, :]
    causal = j <= i
    if not offsets:
        return [(causal, None)]
    row, column = i // BLOCK, j // BLOCK
    if bug == "block of the diagonal left out":
        offsets = offsets[1:]
    active = np.isin(row - column, offsets)
    blocks, bars = active & causal, np.isin(j, columns) & causal & ~active
    if bug == "columns in active blocks count twice":
        bars = np.isin(j, columns) & causal
    if bug == "the last listed block is causal":  # of a list that begins at the diagonal
        last = row - column == max(offsets)
        blocks = active & (column <= row) & ~(last & (j % BLOCK > i % BLOCK))
    if bug == "stripes causal by element":
        slot_of_q, slot_of_k = (t // RUN // RANKS * RUN + t % RUN for t in (i, j))
        earlier = j // RUN % RANKS <= i // RUN % RANKS  # the key's rank, in the ring
        blocks = blocks & np.where(earlier, slot_of_k <= slot_of_q, slot_of_k < slot_of_q)
    if bug == "lengths cut to what ranks divide":
        whole = length // (2 * RANKS) * (2 * RANKS)
        blocks, bars = (pairs & (i < whole) & (j < whole) for pairs in (blocks, bars))
    return [(blocks, None), (bars, None)]


def reference(arrays, index, bug=None, again=None):
    """`again`: the index of the backward pass."""
    lengths = arrays["document_lengths"]

    def chosen(document, head, backward):
        pattern = (again if again and backward else index)[document, head]
        return parts_of(lengths[document], *pattern, bug)

    return attention(arrays, {"kind": "vertical_slash"}, bug, chosen)


EVERYTHING = ("out", "lse", *GRADIENTS)
INDEX_BUGS = {  # and the rule that shows each
    "index heads dealt in turn": BUDGETS,
    "index without the scale": BUDGETS,
    "logits in place of shares": BUDGETS,
    "observed at the end of the pack": BUDGETS,
    "padding is observed": BUDGETS,
    "budget capped by a rank's tokens": BUDGETS,
    "nothing is forced": BUDGETS,
    "forced with top_p": TOP_P,
}
BUGS = {  # and what each spoils; a query without keys has no finite log-sum-exp
    "scale left out": EVERYTHING,
    "heads dealt in turn": EVERYTHING,
    "keys get one head's gradient": ("dk", "dv"),
    "merge weights without a gradient": ("dq", "dk"),
    "statistics of a part": GRADIENTS,
    "columns in active blocks count twice": EVERYTHING,
    "block of the diagonal left out": ("out", *GRADIENTS),
    "the last listed block is causal": EVERYTHING,
    "stripes causal by element": EVERYTHING,
    "lengths cut to what ranks divide": ("out", *GRADIENTS),
}


@pytest.fixture(scope="module", params=LAYOUTS)
def found(request, tmp_path_factory):
    """(rule, index, what the program computed), which is right, and what of."""
    where, dtype = LAYOUTS[request.param]
    arrays = inputs(8, dtype, LENGTHS, 32)
    results = []
    for rule in (BUDGETS, TOP_P):
        folder = tmp_path_factory.mktemp("bugs")
        computed = attend(folder, harness.merged(where, sparse(rule, dtype)), arrays)
        index = index_of(arrays, rule)
        assert read_index(folder / "out.h5") == list(index.values())
        expected = reference(arrays, index)
        for name, value in computed.items():
            assert error(value, expected[name]) < TOLERANCE[dtype], name
        results.append((rule, index, computed))
    return arrays, results


def assert_shown(computed, wrong, spoilt):
    for name in spoilt:
        assert error(computed[name], wrong[name]) > 1e-3, f"the data do not show it in {name}"


@pytest.mark.parametrize("bug", INDEX_BUGS)
def test_published_bug_of_the_index_is_not_ours(bug, found):
    arrays, results = found
    for rule, index, computed in results:
        if rule is INDEX_BUGS[bug]:
            wrong = index_of(arrays, rule, bug)
            assert index != wrong, "the data do not show it"
            assert_shown(computed, reference(arrays, wrong), EVERYTHING)


@pytest.mark.parametrize("bug", BUGS)
def test_published_bug_under_an_index_is_not_ours(bug, found):
    arrays, results = found
    for _, index, computed in results:
        assert_shown(computed, reference(arrays, index, bug), BUGS[bug])


def test_the_backward_pass_has_the_same_index(found):
    """Chosen again, of nearly equal masses it may be another."""
    arrays, results = found
    for rule, index, computed in results:
        again = index_of(arrays, {**rule, "sinks": 3, "top_p": 0.9 * rule.get("top_p", 0)})
        assert_shown(computed, reference(arrays, index, again=again), ("dq", "dk"))


def test_documents_are_not_one(found):
    arrays, results = found
    pack = {**arrays, "document_lengths": np.array([sum(LENGTHS)])}
    for rule, _, computed in results:
        assert_shown(computed, reference(pack, index_of(pack, rule)), EVERYTHING)
