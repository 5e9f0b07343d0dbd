# SPDX-License-Identifier: Apache-2.0
"""`cadenza attend` against a naive float64 reference, and on input that is not right."""

import os
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

import harness

LENGTHS = [1, 70, 200, 33, 2, 129, 5, 90]


def layout(placement, servers=None, data=1, context=1, **options):
    """Ranks by axis and options of attention, as an experiment has them."""
    if servers is not None:
        options["servers"] = servers
    return {
        "parallel": {"data": data, "context": context},
        "attention": {"placement": placement, **options},
    }


LAYOUTS = {
    "one rank": layout("cad"),
    "colocated on 2": layout("colocated", data=2),
    "cad on 2": layout("cad", data=2),
    "cad on 3": layout("cad", data=3),
    "cad, 1 trainer, 2 servers": layout("cad", servers=2),
    "cad, 2 trainers, 1 server": layout("cad", servers=1, data=2),
    "colocated, 2 trainers, 1 server": layout("colocated", servers=1, data=2),
}
# Every other placement and option, each on as many ranks as show it.
PLACEMENTS = {
    "all_gather on 3": layout("all_gather", context=3),
    "all_gather, contiguous, by sequence on 4": layout(
        "all_gather", context=4, sharding="contiguous", shard_unit="sequence"
    ),
    "all_gather, predicted, 2 x 2": layout("all_gather", data=2, context=2, shard_unit="predicted"),
    "ring on 2": layout("ring", context=2),
    "ring on 8": layout("ring", context=8),
    "ring in halves on 3": layout("ring", context=3, overlap="ping_pong"),
    "ring that keeps on 4": layout("ring", context=4, inputs="keep"),
    "zigzag on 4": layout("zigzag", context=4),
    "zigzag 2 x 3": layout("zigzag", data=2, context=3),
    "striped on 3": layout("striped", context=3),
    "striped on 8": layout("striped", context=8),
    "block_striped on 4": layout("block_striped", context=4),
    "block_striped that keeps on 3": layout("block_striped", context=3, inputs="keep"),
    "ulysses on 2": layout("ulysses", context=2),
    "ulysses in halves 2 x 2": layout("ulysses", data=2, context=2, overlap="ping_pong"),
    "ulysses_ring on 4": layout("ulysses_ring", context=4, head_parallel=2),
    "ulysses_ring on 6": layout("ulysses_ring", context=6, head_parallel=2),
    "double_ring on 4": layout("double_ring", context=4, inner_ring=2),
    "block_striped in inner rings on 4": layout("block_striped", context=4, inner_ring=2, block=16),
    "double_ring on 6": layout("double_ring", context=6, inner_ring=3, sharding="contiguous"),
    "cad on 8": layout("cad", data=8),
    "cad 2 x 3": layout("cad", data=2, context=3),
    "cad in halves on 3": layout("cad", data=3, overlap="ping_pong"),
    "cad that keeps on 3": layout("cad", data=3, inputs="keep"),
    "cad, dedicated, keeps": layout("cad", servers=2, data=2, inputs="keep"),
    "cad, mixed, halves": layout("cad", servers=2, data=2, mixed=True, overlap="ping_pong"),
    "cad, mixed": layout("cad", servers=1, data=3, mixed=True),
    "cad as published": layout("cad", data=4, priority="paper", split_keys=False),
    "cad as its code": layout("cad", data=4, priority="public_code", bound="one_sided"),
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


def attend(folder, layout, arrays, *arguments):
    """Runs the command; its results by name."""
    data_ranks = layout.get("parallel", {}).get("data", 1)
    any_data = {"data": {"source": "synthetic"}, "batch": {"tokens": 128 * data_ranks}}
    experiment = harness.write_experiment(
        folder / "experiment.yaml", harness.merged(any_data, layout)
    )
    source = write_input(folder / "input.h5", arrays)
    ranks = harness.ranks_of(harness.merged(harness.DEFAULTS, layout))
    harness.run_well(
        ranks, ["attend", experiment, "--input", source, "--output", folder / "out.h5", *arguments]
    )
    with h5py.File(folder / "out.h5", "r") as file:
        return {name: value[...] for name, value in file.items() if isinstance(value, h5py.Dataset)}


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


def random_lengths(seed):
    """Documents of one token, short ones and one longer than a rank's share."""
    random = np.random.default_rng(seed)
    short = random.integers(1, 40, size=random.integers(1, 12))
    return [1, *map(int, short), int(random.integers(100, 500)), 1]


def heads_for(seed):
    """Groups of 1, 2 and 4 query heads; all counts that the head-parallel layouts can split."""
    return [(4, 4, 16), (4, 2, 40), (8, 2, 10), (2, 2, 64)][seed % 4]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_equals_the_reference(placement, dtype, tmp_path):
    seed = list(PLACEMENTS).index(placement) + (3 if dtype == "float64" else 0)
    arrays = random_input(seed, *heads_for(seed), lengths=random_lengths(seed))
    changes = harness.merged(PLACEMENTS[placement], {"run": {"dtype": dtype}})
    found = attend(tmp_path, changes, arrays)
    expected = reference(arrays)
    if dtype == "float32":
        assert_equal(found, expected)
        return
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-11, err_msg=name)


@pytest.mark.parametrize(
    "placement", [layout("ulysses", context=3), layout("ulysses_ring", context=3, head_parallel=3)]
)
def test_heads_are_those_of_the_input(placement, tmp_path):
    """3 heads, which 3 ranks split; the 4 heads of the experiment's model have no say."""
    arrays = random_input(5, 3, 3, 8)
    assert_equal(attend(tmp_path, placement, arrays), reference(arrays))


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


def test_huge_scores_keep_their_largest(tmp_path):
    """Of scores of 1e10 one takes each row, whichever rank has it."""
    arrays = random_input(7, 2, 1, 32, lengths=[200], dout=False)
    arrays["q"] *= 1.7e10
    found = attend(tmp_path, layout("ring", context=3), arrays)
    expected = reference(arrays)
    for rows, head, _, scores in each_head(arrays):
        second, first = np.sort(scores, axis=1)[1:, -2:].T
        clear = np.append(True, first - second > 1e-3 * np.abs(scores[-1]).max())
        assert np.mean(clear) > 0.9
        for name, rtol in (("out", 1e-6), ("lse", 1e-4)):
            values, wanted = (of[name][rows, head][clear] for of in (found, expected))
            np.testing.assert_allclose(values, wanted, rtol=rtol, err_msg=name)


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
    "lengths whose sum wraps around": (
        lambda a: a.update(document_lengths=[2**62] * 4 + [50]),
        "document_lengths",
    ),
    "fractional lengths": (lambda a: a.update(document_lengths=[20.5, 30.5]), "document_lengths"),
    "whole lengths as floats": (lambda a: a.update(document_lengths=[20.0, 30.0]), "float64"),
    "lengths in two dimensions": (lambda a: a.update(document_lengths=[[20, 30]]), "[1, 2]"),
    "more lengths than tokens": (lambda a: a.update(document_lengths=[1] * 51), "[51]"),
    "no tokens": (
        lambda a: [a.update({name: a[name][:0]}) for name in a],
        "0 tokens",
    ),
    "heads no multiple of kv_heads": (
        lambda a: a.update(k=np.zeros((50, 3, 8)), v=np.zeros((50, 3, 8))),
        "heads",
    ),
}


def assert_refused(result, word, output, code=3):
    assert result.code == code, str(result)
    assert len(result.complaints) == 1, str(result)
    assert word in result.complaints[0]
    assert not list(output.parent.glob("out.h5*")), "nothing half-made stays"


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


def refused(folder, ranks, change, dtype="float32", attention=None):
    """What the command says to an input that `change` spoilt after it was written; its output."""
    changes = {
        "data": {"source": "synthetic"},
        "parallel": {"data": ranks},
        "run": {"dtype": dtype},
        "attention": attention or {},
    }
    experiment = harness.write_experiment(folder / "e.yaml", changes)
    source = write_input(folder / "in.h5", wrong(lambda arrays: None))
    with h5py.File(source, "r+") as file:
        change(file)
    output = folder / "out.h5"
    arguments = ["attend", experiment, "--input", source, "--output", output]
    return harness.run(ranks, arguments), output


def replace(file, name, make):
    values = file[name][...]
    del file[name]
    make(values)


def put_outside(file, name):
    """The raw data of a dataset lies in another file of the system."""

    def make(values):
        outside = Path(file.filename).with_name("rows.raw")
        values.tofile(outside)
        file.create_dataset(
            name,
            values.shape,
            values.dtype,
            external=[(str(outside), 0, values.nbytes)],
        )

    replace(file, name, make)


def link_outside(file, name):
    def make(values):
        other = Path(file.filename).with_name("other.h5")
        write_input(other, {name: values})
        file[name] = h5py.ExternalLink(str(other), f"/{name}")

    replace(file, name, make)


def virtual(file, name):
    def make(values):
        other = Path(file.filename).with_name("other.h5")
        write_input(other, {name: values})
        layout = h5py.VirtualLayout(values.shape, values.dtype)
        layout[...] = h5py.VirtualSource(other, name, values.shape)
        file.create_virtual_dataset(name, layout)

    replace(file, name, make)


def many_heads(file):
    """2^32 query heads, which 32 bits take for none, in 8 MB of compressed zeros."""
    chunk = zlib.compress(bytes(2 << 22), 9)
    for name in list(file):
        del file[name]
    heads = 1 << 32
    q = file.create_dataset(
        "q", (1, heads, 1), "f2", chunks=(1, 1 << 22, 1), compression="gzip", compression_opts=9
    )
    for begin in range(0, heads, 1 << 22):
        q.id.write_direct_chunk((0, begin, 0), chunk)
    for name in ("k", "v"):
        file[name] = np.ones((1, 1, 1), "f4")
    file["document_lengths"] = np.array([1])


HOSTILE = {  # what is done to a good file, a word of the complaint
    "q in external storage": (lambda file: put_outside(file, "q"), "q is stored in other files"),
    "lengths in external storage": (
        lambda file: put_outside(file, "document_lengths"),
        "document_lengths is stored in other files",
    ),
    "k behind an external link": (lambda file: link_outside(file, "k"), "k is a link"),
    "v of another file's rows": (lambda file: virtual(file, "v"), "v is stored in other files"),
    "2^32 query heads": (many_heads, "4294967296 query heads"),
    "a dimension of 2^62 without rows": (
        lambda file: replace(
            file, "q", lambda q: file.create_dataset("q", (2**62, 4, 8), "f4", chunks=(1, 4, 8))
        ),
        "q",
    ),
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_input(case, ranks, tmp_path):
    change, word = HOSTILE[case]
    result, output = refused(tmp_path, ranks, change)
    assert_refused(result, word, output)


def set_number(file, name, at, value, dtype="f4"):
    def make(values):
        values = values.astype(dtype)
        values[at] = value
        file[name] = values

    replace(file, name, make)


def set_two(file):
    set_number(file, "v", (30, 0, 1), np.nan)
    set_number(file, "v", (12, 1, 7), -np.inf)


def set_large(file):
    """Finite numbers whose products are not: q k of token 33 and head 2, which reads key head 1."""
    set_number(file, "q", (33, 2), 1e30)
    set_number(file, "k", (22, 1), 1e30)


NOT_FINITE = {  # what is done to a good file, run.dtype, the complaint
    "nan in q": (lambda f: set_number(f, "q", (7, 3, 0), np.nan), "float32", "q: token 7, head 3"),
    "the first of two": (set_two, "float32", "v: token 12, head 1 holds -inf"),
    "inf in dout": (
        lambda f: set_number(f, "dout", (49, 0, 7), np.inf),
        "float64",
        "dout: token 49, head 0 holds inf",
    ),
    "float64 that overflows float32": (
        lambda f: set_number(f, "k", (41, 1, 5), 1e39, "f8"),
        "float32",
        "k: token 41, head 1 holds inf",
    ),
    "a product that overflows": (set_large, "float32", "out: token 33, head 2 is"),
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", NOT_FINITE)
def test_numbers_that_are_not_finite(case, ranks, tmp_path):
    change, dtype, complaint = NOT_FINITE[case]
    result, output = refused(tmp_path, ranks, change, dtype)
    assert_refused(result, complaint, output, code=4)


@pytest.mark.parametrize("kind", ["vertical_slash", "xattention"])
def test_no_pattern_is_chosen_from_logits_that_overflow(kind, tmp_path):
    sparse = {"kind": kind, "sparse": {"block": 16, "dense_below": 0}}
    result, output = refused(tmp_path, 2, set_large, attention=sparse)
    assert_refused(result, "sparse attention cannot choose its pattern", output, code=4)


def test_float64_holds_what_float32_does_not(tmp_path):
    result, output = refused(
        tmp_path, 1, lambda f: set_number(f, "v", (41, 1, 5), 1e39, "f8"), "float64"
    )
    assert result.code == 0, str(result)
    with h5py.File(output, "r") as file:
        assert np.isfinite(file["out"][...]).all()


@pytest.mark.parametrize("ranks", [1, 2])
def test_results_that_are_not_finite_leave_the_earlier_output(ranks, tmp_path):
    with h5py.File(tmp_path / "out.h5", "w") as file:
        file.attrs["schema"] = np.bytes_("cadenza-attend/1")  # as if it were an earlier output
        file["out"] = 17
    result, output = refused(tmp_path, ranks, set_large)
    assert result.code == 4, str(result)
    with h5py.File(output) as file:
        assert file["out"][()] == 17
    assert [path.name for path in tmp_path.glob("out.h5*")] == ["out.h5"]


def test_only_its_own_output_is_replaced(tmp_path):
    experiment = harness.write_experiment(tmp_path / "e.yaml", {"data": {"source": "synthetic"}})
    source = write_input(tmp_path / "in.h5", wrong(lambda arrays: None))
    words = ["attend", experiment, "--input", source, "--output"]
    before = experiment.read_text()
    result = harness.run(1, [*words, experiment])
    assert result.code == 3, str(result)
    assert result.complaints == [
        f"cadenza: {experiment}: exists and was not written by cadenza attend; valid: --output "
        "with a new name, or --force"
    ]
    assert experiment.read_text() == before
    other = write_input(tmp_path / "other.h5", wrong(lambda arrays: None))
    assert harness.run(1, [*words, other]).code == 3, "HDF5, but not its own"
    for target in (other, tmp_path / "nothing"):
        link = tmp_path / "link.h5"
        link.symlink_to(target)
        result = harness.run(1, [*words, link, "--force"])
        assert result.code == 3 and f"{link}: is a link to {target}" in result.complaints[0]
        assert link.is_symlink() and not (tmp_path / "nothing").exists()
        link.unlink()
    harness.run_well(1, [*words, other, "--force"])
    harness.run_well(1, [*words, other])
    with h5py.File(other) as file:
        assert "lse" in file and "q" not in file


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
def test_input_on_which_the_library_breaks_down(ranks, tmp_path):
    """A file that fuzzing found: HDF5 1.10 writes to address 0 when it looks for a dataset."""
    experiment = harness.write_experiment(
        tmp_path / "e.yaml", {"data": {"source": "synthetic"}, "parallel": {"data": ranks}}
    )
    source = harness.ROOT / "tests/end_to_end/data/breaks-hdf5.h5"
    words = ["attend", experiment, "--input", source, "--output", tmp_path / "out.h5"]
    result = harness.run(ranks, words)
    assert result.code == 3 and str(source) in result.complaints[0], str(result)
    assert len(set(result.complaints)) == 1, str(result)  # each rank breaks down by itself


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
    assert not list(tmp_path.glob("out.h5*")), "nothing half-made stays"


def test_output_that_is_no_file_stays(tmp_path):
    experiment = harness.write_experiment(tmp_path / "e.yaml", {"data": {"source": "synthetic"}})
    source = write_input(tmp_path / "in.h5", wrong(lambda arrays: None))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    result = harness.run(1, ["attend", experiment, "--input", source, "--output", pipe])
    assert result.code == 3, str(result)
    assert len(result.complaints) == 1, str(result)
    assert pipe.is_fifo()


def test_output_over_the_input_keeps_the_input(tmp_path):
    experiment = harness.write_experiment(tmp_path / "e.yaml", {"data": {"source": "synthetic"}})
    arrays = wrong(lambda arrays: None)
    source = write_input(tmp_path / "in.h5", arrays)
    result = harness.run(1, ["attend", experiment, "--input", source, "--output", source])
    assert result.code in (2, 3), str(result)
    assert len(result.complaints) == 1, str(result)
    with h5py.File(source, "r") as file:
        assert file.keys() == arrays.keys()
