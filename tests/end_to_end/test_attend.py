# SPDX-License-Identifier: Apache-2.0
"""`cadenza attend` against a naive float64 reference, and on input that is not right."""

import h5py
import numpy as np
import pytest

import harness

LENGTHS = [1, 70, 200, 33, 2, 129, 5, 90]

LAYOUTS = {
    "one rank": {"attention": {"placement": "cad"}},
    "colocated on 2": {"parallel": {"data": 2}},
    "cad on 2": {"parallel": {"data": 2}, "attention": {"placement": "cad"}},
    "cad on 3": {"parallel": {"data": 3}, "attention": {"placement": "cad"}},
    "cad, 1 trainer, 2 servers": {"attention": {"placement": "cad", "servers": 2}},
    "cad, 2 trainers, 1 server": {
        "parallel": {"data": 2},
        "attention": {"placement": "cad", "servers": 1},
    },
    "colocated, 2 trainers, 1 server": {"parallel": {"data": 2}, "attention": {"servers": 1}},
}
SHAPES = [(2, 2, 16), (4, 2, 64), (4, 1, 40), (6, 3, 10)]  # heads, kv_heads, head_dim


def random_input(seed, heads, kv_heads, head_dim, lengths=LENGTHS, dout=True):
    random = np.random.default_rng(seed)
    tokens = sum(lengths)
    arrays = {
        "q": random.normal(size=(tokens, heads, head_dim)),
        "k": random.normal(size=(tokens, kv_heads, head_dim)),
        "v": random.normal(size=(tokens, kv_heads, head_dim)),
    }
    if dout:
        arrays["dout"] = random.normal(size=(tokens, heads, head_dim))
    arrays = {name: value.astype(np.float32) for name, value in arrays.items()}
    return {**arrays, "document_lengths": np.array(lengths, dtype=np.int64)}


def write_input(path, arrays):
    with h5py.File(path, "w") as file:
        for name, value in arrays.items():
            file[name] = value
    return path


def each_head(arrays):
    """Rows of a document, a query head, its key-value head and their masked scores."""
    q, k = (arrays[name].astype(np.float64) for name in ("q", "k"))
    group = q.shape[1] // k.shape[1]
    begin = 0
    for length in arrays["document_lengths"]:
        rows = slice(begin, begin + length)
        begin += length
        for head in range(q.shape[1]):
            scores = q[rows, head] @ k[rows, head // group].T / np.sqrt(q.shape[2])
            scores[np.triu_indices(length, 1)] = -np.inf
            yield rows, head, head // group, scores


def reference(arrays):
    """Causal attention of each document and head by itself, and its gradients; no rotation."""
    q, k, v = (arrays[name].astype(np.float64) for name in ("q", "k", "v"))
    dout = arrays.get("dout", np.zeros_like(q)).astype(np.float64)
    scale = 1 / np.sqrt(q.shape[2])
    results = {
        "out": np.zeros_like(q),
        "lse": np.zeros(q.shape[:2]),
        "dq": np.zeros_like(q),
        "dk": np.zeros_like(k),
        "dv": np.zeros_like(v),
    }
    for rows, head, kv, scores in each_head(arrays):
        lse = np.logaddexp.reduce(scores, axis=1)
        p = np.exp(scores - lse[:, None])
        out = p @ v[rows, kv]
        d = dout[rows, head]
        ds = p * (d @ v[rows, kv].T - np.sum(d * out, axis=1)[:, None]) * scale
        results["out"][rows, head] = out
        results["lse"][rows, head] = lse
        results["dq"][rows, head] = ds @ k[rows, kv]
        results["dk"][rows, kv] += ds.T @ q[rows, head]
        results["dv"][rows, kv] += p.T @ d
    return results


def attend(folder, layout, arrays):
    """Runs the command; its results by name."""
    experiment = harness.write_experiment(
        folder / "experiment.yaml", harness.merged({"data": {"source": "synthetic"}}, layout)
    )
    source = write_input(folder / "input.h5", arrays)
    ranks = harness.ranks_of(harness.merged(harness.DEFAULTS, layout))
    harness.run_well(
        ranks, ["attend", experiment, "--input", source, "--output", folder / "out.h5"]
    )
    with h5py.File(folder / "out.h5", "r") as file:
        return {name: file[name][...] for name in file}


def assert_equal(found, expected):
    for name in ("out", "lse"):
        assert found[name].shape == expected[name].shape
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-5, err_msg=name)
    for name in found.keys() - {"out", "lse"}:
        assert found[name].shape == expected[name].shape
        error = np.linalg.norm(found[name] - expected[name]) / np.linalg.norm(expected[name])
        assert error <= 1e-5, name


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_equals_the_reference(layout, shape, tmp_path):
    arrays = random_input(sum(shape), *shape)
    found = attend(tmp_path, LAYOUTS[layout], arrays)
    assert found.keys() == {"out", "lse", "dq", "dk", "dv"}
    assert_equal(found, reference(arrays))


def test_without_dout_there_are_no_gradients(tmp_path):
    arrays = random_input(3, 4, 2, 16, dout=False)
    found = attend(tmp_path, LAYOUTS["cad on 2"], arrays)
    assert found.keys() == {"out", "lse"}
    assert_equal(found, reference(arrays))


def test_more_ranks_than_documents(tmp_path):
    arrays = random_input(4, 2, 1, 8, lengths=[150])
    assert_equal(attend(tmp_path, LAYOUTS["cad on 3"], arrays), reference(arrays))


def test_large_scores_do_not_overflow(tmp_path):
    arrays = random_input(5, 2, 1, 8, lengths=[3, 60], dout=False)
    arrays["q"] *= 40
    found = attend(tmp_path, LAYOUTS["cad on 2"], arrays)
    expected = reference(arrays)
    np.testing.assert_allclose(found["lse"], expected["lse"], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found["out"], expected["out"], rtol=0, atol=1e-4)


def test_float64_is_computed_in_float64(tmp_path):
    arrays = random_input(6, 4, 2, 16)
    layout = harness.merged(LAYOUTS["cad on 2"], {"run": {"dtype": "float64"}})
    found = attend(tmp_path, layout, arrays)
    for name, value in reference(arrays).items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-12, err_msg=name)


def wrong(change):
    arrays = random_input(7, 4, 2, 8, lengths=[20, 30])
    change(arrays)
    return arrays


BAD_INPUT = {  # what is done to a good input, a word of the complaint
    "no q": (lambda a: a.pop("q"), "q"),
    "no v": (lambda a: a.pop("v"), "v"),
    "no lengths": (lambda a: a.pop("document_lengths"), "document_lengths"),
    "q of two dimensions": (lambda a: a.update(q=a["q"][:, 0]), "q"),
    "k of other tokens": (lambda a: a.update(k=a["k"][:-1]), "k"),
    "v of other heads": (lambda a: a.update(v=a["v"][:, :1]), "v"),
    "dout of another shape": (lambda a: a.update(dout=a["dout"][:, :, :4]), "dout"),
    "lengths that do not sum": (lambda a: a.update(document_lengths=[20, 29]), "document_lengths"),
    "a length of zero": (lambda a: a.update(document_lengths=[20, 0, 30]), "document_lengths"),
    "a negative length": (lambda a: a.update(document_lengths=[60, -10]), "document_lengths"),
    "heads no multiple of kv_heads": (
        lambda a: a.update(k=np.zeros((50, 3, 8)), v=np.zeros((50, 3, 8))),
        "heads",
    ),
}


def assert_refused(result, word, output):
    assert result.code == 3, str(result)
    assert len(result.complaints) == 1, str(result)
    assert word in result.complaints[0]
    assert not output.exists()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(case, ranks, tmp_path):
    change, word = BAD_INPUT[case]
    experiment = harness.write_experiment(
        tmp_path / "e.yaml", {"data": {"source": "synthetic"}, "parallel": {"data": ranks}}
    )
    source = write_input(tmp_path / "in.h5", wrong(change))
    output = tmp_path / "out.h5"
    result = harness.run(ranks, ["attend", experiment, "--input", source, "--output", output])
    assert_refused(result, word, output)
    assert str(source) in result.complaints[0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_input_that_is_not_there_or_not_hdf5(ranks, tmp_path):
    experiment = harness.write_experiment(
        tmp_path / "e.yaml", {"data": {"source": "synthetic"}, "parallel": {"data": ranks}}
    )
    text = tmp_path / "text.h5"
    text.write_text("not HDF5")
    for source in (tmp_path / "missing.h5", text):
        output = tmp_path / "out.h5"
        result = harness.run(ranks, ["attend", experiment, "--input", source, "--output", output])
        assert_refused(result, str(source), output)


@pytest.mark.parametrize("ranks", [1, 2])
def test_output_that_cannot_be_written(ranks, tmp_path):
    experiment = harness.write_experiment(
        tmp_path / "e.yaml", {"data": {"source": "synthetic"}, "parallel": {"data": ranks}}
    )
    source = write_input(tmp_path / "in.h5", wrong(lambda arrays: None))
    output = source / "out.h5"  # below a regular file
    result = harness.run(ranks, ["attend", experiment, "--input", source, "--output", output])
    assert result.code == 3, str(result)
    assert len(result.complaints) == 1, str(result)
    assert str(output) in result.complaints[0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_output_that_finds_no_room(ranks, tmp_path):
    experiment = harness.write_experiment(
        tmp_path / "e.yaml", {"data": {"source": "synthetic"}, "parallel": {"data": ranks}}
    )
    source = write_input(tmp_path / "in.h5", random_input(8, 4, 2, 64))
    output = tmp_path / "out.h5"
    result = harness.run_limited(
        300, ranks, ["attend", experiment, "--input", source, "--output", output]
    )
    assert result.code == 3, str(result)
    assert len(result.complaints) == 1, str(result)
    assert str(output) in result.complaints[0]
    assert "File too large" in result.complaints[0]


def test_output_over_the_input_keeps_the_input(tmp_path):
    experiment = harness.write_experiment(tmp_path / "e.yaml", {"data": {"source": "synthetic"}})
    arrays = wrong(lambda arrays: None)
    source = write_input(tmp_path / "in.h5", arrays)
    result = harness.run(1, ["attend", experiment, "--input", source, "--output", source])
    assert result.code in (2, 3), str(result)
    assert len(result.complaints) == 1, str(result)
    with h5py.File(source, "r") as file:
        assert file.keys() == arrays.keys()
