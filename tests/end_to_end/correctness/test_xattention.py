# SPDX-License-Identifier: Apache-2.0
"""Attention of blocks that sums over antidiagonals choose (XAttention): the index that `cadenza
attend` chooses against one written from the definition, the same for every placement, and attention
under it against a dense computation."""

import h5py
import numpy as np
import pytest
from test_attend import attend, layout
from test_sparse_attention import (
    LAYOUTS,
    assert_near,
    attend_badly,
    attention_under,
    documents,
    inputs,
    replace,
)

import harness

RULE = {"block": 16, "stride": 4, "threshold": 0.6, "dense_below": 38}
MANY = {
    **LAYOUTS,
    "zigzag on 8": layout("zigzag", context=8),
    "ring on 6": layout("ring", context=6),
}


def blocks(rule, dtype="float64"):
    return {"attention": {"kind": "xattention", "sparse": rule}, "run": {"dtype": dtype}}


def padded(rows, stride):
    return np.concatenate([rows, np.zeros((-len(rows) % stride, rows.shape[1]))])


def block_masses(q, k, rule):
    """[rows, rows]: what a row of blocks gives to each block."""
    stride, side = rule["stride"], rule["block"] // rule["stride"]
    queries, keys = (padded(x, stride).reshape(-1, stride, x.shape[1]) for x in (q, k))
    scores = np.einsum("utd,wtd->uw", queries[:, ::-1], keys) / np.sqrt(q.shape[1]) / stride
    groups = len(scores)
    scores = np.where(np.tri(groups, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    rows = -(-groups // side)
    masses = np.zeros((rows, rows))
    where = np.arange(groups) // side
    np.add.at(masses, (where[:, None], where[None, :]), shares)
    return masses


def choose(q, k, rule):
    """[rows, rows] of active blocks of one document and head."""
    masses = block_masses(q, k, rule)
    active = np.zeros(masses.shape, bool)
    for row, of in enumerate(masses):
        kept = {0, row}
        enough = rule["threshold"] * sum(of)
        for block in sorted(range(row + 1), key=lambda c: (-of[c], c)):
            if sum(of[c] for c in kept) >= enough:
                break
            kept.add(block)
        active[row, sorted(kept)] = True
    return active


def expected_index(arrays, rule):
    index = []
    group = arrays["q"].shape[1] // arrays["k"].shape[1]
    for _, rows, length in documents(arrays):
        for head in range(arrays["q"].shape[1]):
            q, k = arrays["q"][rows, head], arrays["k"][rows, head // group]
            index.append(None if length < rule["dense_below"] else choose(q, k, rule))
    return index


def read_index(path, arrays, rule):
    with h5py.File(path) as file:
        assert file["index/block"][0] == rule["block"]
        words = np.split(file["index/bits"][...], file["index/bit_begins"][1:-1])
    index = []
    for number, _, length in documents(arrays):
        for of in words[number * 4 : number * 4 + 4]:
            rows = -(-length // rule["block"])
            active = np.zeros((rows, rows), bool)
            bits = np.unpackbits(of.astype("<u8").view(np.uint8), bitorder="little")
            if len(of):
                active[np.tril_indices(rows)] = bits[: rows * (rows + 1) // 2]
            index.append(active if len(of) else None)
    return index


def visible(length, active, block):
    i, j = np.arange(length)[:, None], np.arange(length)[None, :]
    return (j <= i) & (active is None or active[i // block, j // block])


def dense_reference(arrays, index, rule):
    return attention_under(
        arrays, lambda place, length: visible(length, index[place], rule["block"])
    )


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("where", MANY)
def test_index_and_attention_equal_the_definition(where, tmp_path):
    arrays = inputs(seed=10 + list(MANY).index(where))
    found = attend(tmp_path, harness.merged(MANY[where], blocks(RULE)), arrays)
    index = read_index(tmp_path / "out.h5", arrays, RULE)
    assert_same(index, expected_index(arrays, RULE))
    left_out = [np.tril(~active).sum() for active in index if active is not None]
    assert sum(left_out) > 100
    assert_near(found, dense_reference(arrays, index, RULE), 1e-11)


@pytest.mark.parametrize("stride", [1, 16])
@pytest.mark.parametrize("where", ["one rank", "striped on 4"])
def test_strides_and_short_documents(where, stride, tmp_path):
    rule = {"block": 16, "stride": stride, "threshold": 0.5, "dense_below": 0}
    arrays = inputs(seed=stride, lengths=[1, 2, 15, 16, 17, 65, 130])
    found = attend(tmp_path, harness.merged(MANY[where], blocks(rule)), arrays)
    index = read_index(tmp_path / "out.h5", arrays, rule)
    assert_same(index, expected_index(arrays, rule))
    assert_near(found, dense_reference(arrays, index, rule), 1e-11)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_placement_chooses_the_same_bits(dtype, tmp_path):
    # Kernels of bfloat16 take multiples of 32.
    arrays = {
        name: value if name == "document_lengths" else np.concatenate([value, value], 2)
        for name, value in inputs(dtype=np.float32).items()
    }
    first = None
    for where in MANY:
        folder = tmp_path / where.replace(" ", "_").replace(",", "")
        folder.mkdir()
        found = attend(folder, harness.merged(MANY[where], blocks(RULE, dtype)), arrays)
        index = read_index(folder / "out.h5", arrays, RULE)
        first = first or index
        assert_same(index, first)
        if dtype == "float32":
            assert_near(found, dense_reference(arrays, index, RULE), 1e-5)


@pytest.mark.parametrize("where", ["one rank", "cad on 3", "zigzag on 8"])
def test_an_index_can_be_given(where, tmp_path):
    arrays, other = inputs(seed=1), inputs(seed=2)
    attend(tmp_path, harness.merged(layout("cad"), blocks(RULE)), other)
    (tmp_path / "out.h5").rename(tmp_path / "index.h5")
    changes = harness.merged(MANY[where], blocks(RULE))
    found = attend(tmp_path, changes, arrays, "--index", str(tmp_path / "index.h5"))
    index = read_index(tmp_path / "out.h5", arrays, RULE)
    assert_same(index, expected_index(other, RULE))
    assert_near(found, dense_reference(arrays, index, RULE), 1e-11)


BAD_INDEX = {  # a fault, and a word of the complaint
    "no bits": (lambda f: f.pop("index/bits"), "index/bits"),
    "a row that does not see itself": (
        lambda f: f["index/bits"].__setitem__(0, 0),
        "the bits of the diagonal",
    ),
    "a word more": (
        lambda f: f["index/bit_begins"].__setitem__(1, f["index/bit_begins"][1] + 1),
        "words for document 0 head 0",
    ),
    "signed words": (
        lambda f: replace(f, "index/bits", f["index/bits"][...].astype(np.float64)),
        "float64",
    ),
    "another block": (lambda f: replace(f, "index/block", [32]), "attention.sparse.block"),
}


@pytest.mark.parametrize("fault", BAD_INDEX)
def test_a_wrong_index_is_refused(fault, tmp_path):
    attend(tmp_path, harness.merged(layout("cad"), blocks(RULE)), inputs())
    path = (tmp_path / "out.h5").rename(tmp_path / "index.h5")
    change, word = BAD_INDEX[fault]
    with h5py.File(path, "r+") as file:
        change(file)
    result = attend_badly(tmp_path, blocks(RULE), "--index", path)
    assert result.code == harness.DATA and len(result.complaints) == 1, str(result)
    assert word in result.complaints[0] and str(path) in result.complaints[0], str(result)
    assert not (tmp_path / "out.h5").exists()


def test_the_index_of_another_kind_is_refused(tmp_path):
    rule = {"block": 16, "dense_below": 38}
    kind = {"attention": {"kind": "vertical_slash", "sparse": rule}, "run": {"dtype": "float64"}}
    attend(tmp_path, harness.merged(layout("cad"), kind), inputs())
    path = (tmp_path / "out.h5").rename(tmp_path / "index.h5")
    result = attend_badly(tmp_path, blocks(RULE), "--index", path)
    assert result.code == harness.DATA and "index/bit_begins" in str(result), str(result)


def test_a_rank_that_owns_nothing_of_one_document_owns_all_of_the_next(tmp_path):
    """Five ranks, two heads: the fifth chooses nothing of the long document, which all share; the
    microbatch after it has a document on each rank, about which no message is sent."""
    changes = {
        "model": {"layers": 2, "d_model": 64, "heads": 2, "kv_heads": 1, "ffn": 96, "vocab": 64},
        "data": {
            "source": "synthetic",
            "documents": 60,
            "max_document": 640,
            "lengths": {"distribution": "list", "values": [640] + 5 * [128]},
        },
        "batch": {"tokens": 1280, "microbatch": 640},
        "attention": {
            "kind": "xattention",
            "placement": "all_gather",
            "sharding": "contiguous",
            "shard_unit": "sequence",
            "sparse": {"block": 8, "stride": 4, "threshold": 0.5, "dense_below": 0},
        },
        "run": {"steps": 3, "dtype": "float64", "checkpoint": {"every": 0}},
    }
    one = harness.train(tmp_path / "one", changes)
    five = harness.train(tmp_path / "five", harness.merged(changes, {"parallel": {"context": 5}}))
    np.testing.assert_allclose(five.losses, one.losses, rtol=1e-11)
    assert one.column("sparsity")[0] > 0.2
