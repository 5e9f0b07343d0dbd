# SPDX-License-Identifier: Apache-2.0
"""Vertical-slash attention: the index that `cadenza attend` chooses against one written from the
definition, the same for every placement, and attention under it against a dense computation."""

import json

import h5py
import numpy as np
import pytest
from test_attend import attend, layout, random_input, write_input

import harness

OBSERVED = 64
LENGTHS = [300, 1, 37, 150, 65]
RULE = {
    "block": 8,
    "columns": 12,
    "slashes": 6,
    "sinks": 2,
    "window": 3,
    "dense_below": 38,
}
TOP_P = {**RULE, "columns": 200, "slashes": 100, "top_p": 0.6}
LAYOUTS = {
    "one rank": layout("cad"),
    "cad on 3": layout("cad", data=3),
    "cad, 2 trainers, 1 server": layout("cad", servers=1, data=2),
    "cad 2 x 2, keeps": layout("cad", data=2, context=2, inputs="keep"),
    "colocated on 2": layout("colocated", data=2),
    "all_gather on 3": layout("all_gather", context=3),
    "ring on 3": layout("ring", context=3),
    "zigzag on 4": layout("zigzag", context=4),
    "striped on 3": layout("striped", context=3),
    "striped on 4": layout("striped", context=4),
    "block_striped on 3": layout("block_striped", context=3, block=16),
    "block_striped, 7 tokens": layout("block_striped", context=2, block=7),
    "ulysses on 2": layout("ulysses", context=2),
    "ulysses_ring on 4": layout("ulysses_ring", context=4, head_parallel=2),
    "double_ring on 4": layout("double_ring", context=4, inner_ring=2),
    "block_striped in inner rings on 4": layout("block_striped", context=4, inner_ring=2),
}


def sparse(rule, dtype="float64"):
    return {"attention": {"kind": "vertical_slash", "sparse": rule}, "run": {"dtype": dtype}}


def inputs(seed=1, dtype=np.float64, lengths=LENGTHS, head_dim=16):
    arrays = random_input(seed, 4, 2, head_dim, lengths=lengths)
    return {
        name: value if name == "document_lengths" else value.astype(dtype)
        for name, value in arrays.items()
    }


def documents(arrays):
    begin = 0
    for number, length in enumerate(arrays["document_lengths"]):
        yield number, slice(begin, begin + length), int(length)
        begin += length


def largest(masses, most, forced, top_p):
    order = sorted(range(len(masses)), key=lambda i: (-masses[i], i))
    if top_p == 0:
        kept = list(range(min(forced, most, len(masses))))
        kept += [i for i in order if i not in kept][: max(0, most - len(kept))]
        return sorted(kept)
    kept, held = [], 0.0
    for i in order[:most]:
        held += masses[i]
        if held >= top_p * sum(masses):
            break
        kept.append(i)
    return sorted(kept)


def choose(q, k, rule):
    """Offsets of active blocks, and columns, of one document and head."""
    length = len(q)
    first = max(0, length - OBSERVED)
    scores = q[first:] @ k.T / np.sqrt(q.shape[1])
    query, key = np.arange(first, length)[:, None], np.arange(length)[None, :]
    scores = np.where(key <= query, scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    slashes = np.zeros(length)
    np.add.at(slashes, np.maximum(query - key, 0).ravel(), shares.ravel())
    top_p = rule.get("top_p", 0)
    columns = largest(shares.sum(axis=0), rule["columns"], rule["sinks"], top_p)
    chosen = largest(slashes, rule["slashes"], rule["window"], top_p)
    rows = -(-length // rule["block"])
    offsets = {0}
    for slash in chosen:
        offsets |= {slash // rule["block"], -(-slash // rule["block"])}
    return sorted(offset for offset in offsets if offset < rows), columns


def expected_index(arrays, rule):
    index = []
    group = arrays["q"].shape[1] // arrays["k"].shape[1]
    for _, rows, length in documents(arrays):
        for head in range(arrays["q"].shape[1]):
            dense = length < rule["dense_below"]
            q, k = arrays["q"][rows, head], arrays["k"][rows, head // group]
            index.append(([], []) if dense else choose(q, k, rule))
    return index


def read_index(path):
    with h5py.File(path) as file:
        lists = {
            name: np.split(file[f"index/{name}s"][...], file[f"index/{name}_begins"][1:-1])
            for name in ("offset", "column")
        }
        assert file["index/block"][0] == RULE["block"]
    return [
        (offsets.tolist(), columns.tolist())
        for offsets, columns in zip(lists["offset"], lists["column"], strict=True)
    ]


def visible(length, offsets, columns, block):
    i, j = np.arange(length)[:, None], np.arange(length)[None, :]
    if not offsets:
        return j <= i
    active = np.isin(i // block - j // block, offsets) | np.isin(j, columns)
    return (j <= i) & active


def dense_reference(arrays, index, block):
    return attention_under(arrays, lambda place, length: visible(length, *index[place], block))


def attention_under(arrays, visible_of):
    """@param visible_of  [length, length] of a place (document x heads + head) in the index"""
    q, k, v, dout = (arrays[name].astype(np.float64) for name in ("q", "k", "v", "dout"))
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    results = {
        "out": np.zeros_like(q),
        "lse": np.zeros(q.shape[:2]),
        "dq": np.zeros_like(q),
        "dk": np.zeros_like(k),
        "dv": np.zeros_like(v),
    }
    for number, rows, length in documents(arrays):
        for head in range(heads):
            sees = visible_of(number * heads + head, length)
            keys, values = k[rows, head // group], v[rows, head // group]
            scale = 1 / np.sqrt(q.shape[2])
            scores = np.where(sees, q[rows, head] @ keys.T * scale, -np.inf)
            lse = np.logaddexp.reduce(scores, axis=1)
            p = np.exp(scores - lse[:, None])
            out, d = p @ values, dout[rows, head]
            ds = p * (d @ values.T - np.sum(d * out, axis=1)[:, None]) * scale
            results["out"][rows, head], results["lse"][rows, head] = out, lse
            results["dq"][rows, head] = ds @ keys
            results["dk"][rows, head // group] += ds.T @ q[rows, head]
            results["dv"][rows, head // group] += p.T @ d
    return results


def assert_near(found, expected, tolerance):
    for name, values in expected.items():
        error = np.linalg.norm(found[name] - values)
        assert error <= tolerance * max(1, np.linalg.norm(values)), name


@pytest.mark.parametrize("rule", [RULE, TOP_P], ids=["budgets", "top_p"])
@pytest.mark.parametrize("where", LAYOUTS)
def test_index_and_attention_equal_the_definition(where, rule, tmp_path):
    arrays = inputs(seed=list(LAYOUTS).index(where))
    found = attend(tmp_path, harness.merged(LAYOUTS[where], sparse(rule)), arrays)
    index = read_index(tmp_path / "out.h5")
    assert index == expected_index(arrays, rule)
    assert any(columns for _, columns in index)
    assert_near(found, dense_reference(arrays, index, rule["block"]), 1e-11)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_placement_chooses_the_same_bits(dtype, tmp_path):
    arrays = inputs(dtype=np.float32)
    indices = {}
    for where in LAYOUTS:
        folder = tmp_path / where.replace(" ", "_").replace(",", "")
        folder.mkdir()
        changes = harness.merged(LAYOUTS[where], sparse(RULE, dtype))
        if dtype == "bfloat16":  # kernels of this type take multiples of 32
            arrays = {
                name: value if name == "document_lengths" else np.concatenate([value, value], 2)
                for name, value in inputs(dtype=np.float32).items()
            }
        found = attend(folder, changes, arrays)
        indices[where] = read_index(folder / "out.h5")
        if dtype == "float32":
            expected = dense_reference(arrays, indices[where], RULE["block"])
            assert_near(found, expected, 1e-5)
    assert all(index == indices["one rank"] for index in indices.values())


@pytest.mark.parametrize("where", ["one rank", "cad on 3", "striped on 3"])
def test_an_index_can_be_given(where, tmp_path):
    arrays, other = inputs(seed=1), inputs(seed=2)
    attend(tmp_path, harness.merged(layout("cad"), sparse(RULE)), other)
    (tmp_path / "out.h5").rename(tmp_path / "index.h5")
    changes = harness.merged(LAYOUTS[where], sparse(RULE))
    found = attend(tmp_path, changes, arrays, "--index", str(tmp_path / "index.h5"))
    index = read_index(tmp_path / "out.h5")
    assert index == expected_index(other, RULE) != expected_index(arrays, RULE)
    assert_near(found, dense_reference(arrays, index, RULE["block"]), 1e-11)


def edit(change):
    """An index with a fault: what is done to its file."""

    def apply(path):
        with h5py.File(path, "r+") as file:
            change(file)

    return apply


def replace(file, name, values):
    del file[name]
    file[name] = np.asarray(values)


BAD_INDEX = {  # a fault, and a word of the complaint
    "no block": (lambda f: f.pop("index/block"), "index/block"),
    "another block": (lambda f: replace(f, "index/block", [16]), "attention.sparse.block"),
    "no columns": (lambda f: f.pop("index/columns"), "index/columns"),
    "a column behind the end": (
        lambda f: f["index/columns"].__setitem__(3, 10**12),
        "ascending in [0, 300)",
    ),
    "a negative column": (lambda f: f["index/columns"].__setitem__(0, -1), "ascending"),
    "columns twice": (
        lambda f: f["index/columns"].__setitem__(1, f["index/columns"][0]),
        "ascending",
    ),
    "an offset behind the end": (
        lambda f: f["index/offsets"].__setitem__(1, 38),
        "ascending in [0, 38)",
    ),
    "begins that descend": (
        lambda f: f["index/offset_begins"].__setitem__(1, 10**6),
        "index/offset_begins",
    ),
    "begins that end early": (
        lambda f: f["index/column_begins"].__setitem__(-1, 0),
        "index/column_begins",
    ),
    "other documents": (
        lambda f: f["index/document_lengths"].__setitem__(0, 299),
        "found one of 299 tokens as document 0; valid: one of 300 tokens",
    ),
    "a document more": (
        lambda f: replace(f, "index/document_lengths", [*LENGTHS, 1]),
        "found one of 1 tokens as document 5; valid: none",
    ),
    "no lengths": (lambda f: f.pop("index/document_lengths"), "index/document_lengths"),
    "fewer documents": (
        lambda f: replace(f, "index/offset_begins", f["index/offset_begins"][:-4]),
        "index/offset_begins",
    ),
    "columns as floats": (
        lambda f: replace(f, "index/columns", f["index/columns"][...].astype(float)),
        "float64",
    ),
}


@pytest.mark.parametrize("fault", BAD_INDEX)
def test_a_wrong_index_is_refused(fault, good_index, tmp_path):
    change, word = BAD_INDEX[fault]
    path = tmp_path / "index.h5"
    path.write_bytes(good_index.read_bytes())
    edit(change)(path)
    result = attend_badly(tmp_path, sparse(RULE), "--index", path)
    assert result.code == harness.DATA and len(result.complaints) == 1, str(result)
    assert word in result.complaints[0] and str(path) in result.complaints[0], str(result)
    assert not (tmp_path / "out.h5").exists()


@pytest.fixture(scope="module")
def good_index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    attend(folder, harness.merged(layout("cad"), sparse(RULE)), inputs())
    return folder / "out.h5"


def attend_badly(folder, changes, *arguments):
    changes = harness.merged(
        {"data": {"source": "synthetic"}, "parallel": {"data": 2}, "batch": {"tokens": 256}},
        changes,
    )
    experiment = harness.write_experiment(folder / "experiment.yaml", changes)
    source = write_input(folder / "input.h5", inputs())
    command = ["attend", experiment, "--input", source, "--output", folder / "out.h5"]
    return harness.run(2, [*command, *arguments])


def test_other_budgets_refuse_an_index(good_index, tmp_path):
    fewer = attend_badly(tmp_path, sparse({**RULE, "columns": 4}), "--index", good_index)
    assert fewer.code == harness.DATA and "at most 4" in fewer.complaints[0], str(fewer)
    slashes = attend_badly(
        tmp_path, sparse({**RULE, "slashes": 2, "window": 1}), "--index", good_index
    )
    assert slashes.code == harness.DATA and "at most 5, for" in slashes.complaints[0], str(slashes)
    dense = attend_badly(tmp_path, sparse({**RULE, "dense_below": 400}), "--index", good_index)
    assert dense.code == harness.DATA and "dense_below makes it dense" in str(dense)
    kind = attend_badly(tmp_path, {"attention": {"kind": "full"}}, "--index", good_index)
    assert kind.code == harness.USAGE and "vertical_slash" in kind.complaints[0], str(kind)
    missing = attend_badly(tmp_path, sparse(RULE), "--index", tmp_path / "nowhere.h5")
    assert missing.code == harness.DATA and "nowhere.h5" in missing.complaints[0], str(missing)


def test_documents_shorter_than_the_observation_choose_too(tmp_path):
    rule = {**RULE, "dense_below": 0}
    arrays = inputs(lengths=[1, 2, 9, 63, 64, 65])
    found = attend(tmp_path, harness.merged(LAYOUTS["striped on 4"], sparse(rule)), arrays)
    index = read_index(tmp_path / "out.h5")
    assert index == expected_index(arrays, rule)
    assert_near(found, dense_reference(arrays, index, rule["block"]), 1e-11)


PLANNED = {
    "model": {"heads": 4, "kv_heads": 2, "d_model": 64},
    "data": {
        "source": "synthetic",
        "lengths": {"distribution": "list", "values": LENGTHS},
    },
    "batch": {"tokens": sum(LENGTHS), "microbatch": sum(LENGTHS)},
    "parallel": {"context": 2},
    "attention": {"placement": "zigzag"},
}


def plan(folder, changes, *words, form="json"):
    experiment = harness.merged(PLANNED, changes)
    path = harness.write_experiment(folder / "experiment.yaml", experiment)
    return harness.run(1, ["plan", path, "--format", form, *words])


@pytest.fixture(scope="module")
def planned_index(tmp_path_factory):
    """Of the documents of the step, in its order."""
    folder = tmp_path_factory.mktemp("planned")
    step = json.loads(plan(folder, sparse(RULE)).out)
    attend(folder, sparse(RULE), inputs(lengths=step["documents"]))
    return folder / "out.h5"


def test_a_plan_has_the_index_given(planned_index, tmp_path):
    result = plan(tmp_path, sparse(RULE), "--index", planned_index)
    assert result.code == 0, str(result)
    step, index = json.loads(result.out), read_index(planned_index)
    assert sum(pattern is not None for pattern in step["patterns"]) == 3
    for document, (length, pattern) in enumerate(
        zip(step["documents"], step["patterns"], strict=True)
    ):
        assert (pattern is None) == (length < RULE["dense_below"])
        if pattern is None:
            continue
        offsets, columns = index[4 * document]  # of head 0
        assert pattern["columns"] == columns and pattern["block"] == RULE["block"]
        seen = np.zeros((length, length), dtype=bool)
        seen[:, columns] = True
        for row, ranges in enumerate(pattern["rows"]):
            for begin, end in ranges:
                seen[row * RULE["block"] : (row + 1) * RULE["block"], begin:end] = True
        assert (np.tril(seen) == visible(length, offsets, columns, RULE["block"])).all()


def test_a_plan_without_an_index_has_no_patterns(tmp_path):
    assert "patterns" not in json.loads(plan(tmp_path, sparse(RULE)).out)


def test_pictures_show_the_index_or_what_is_expected(planned_index, tmp_path):
    for words, said in (
        (("--index", planned_index), "blocks and columns of head 0, under the index given"),
        ((), "the fainter, the fewer of their pairs are expected"),
    ):
        path = tmp_path / "step.json"
        path.write_text(plan(tmp_path, sparse(RULE), *words).out)
        harness.analyze("plan", path, "--output", tmp_path / "step.svg")
        assert said in (tmp_path / "step.svg").read_text()


def test_a_plan_refuses_other_indices(planned_index, tmp_path):
    longer = {"data": {"lengths": {"values": [301, *LENGTHS[1:]]}}}
    longer["batch"] = {"tokens": 554, "microbatch": 554}
    faults = [
        (harness.merged(sparse(RULE), longer), "json", harness.DATA, "index/document_lengths"),
        (sparse({**RULE, "block": 16}), "json", harness.DATA, "attention.sparse.block"),
        ({"model": {"heads": 2}, **sparse(RULE)}, "json", harness.DATA, "index/offset_begins"),
        ({"attention": {"kind": "full"}}, "json", harness.USAGE, "only with kind vertical_slash"),
        (sparse(RULE), "table", harness.USAGE, "only with --format json"),
    ]
    for changes, form, code, complaint in faults:
        result = plan(tmp_path, changes, "--index", planned_index, form=form)
        assert result.code == code and len(result.complaints) == 1, str(result)
        assert complaint in result.complaints[0], str(result)
        assert all(line.startswith("warning ") for line in result.out.splitlines()), str(result)
