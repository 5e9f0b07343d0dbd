# SPDX-License-Identifier: Apache-2.0
"""run.dtype: bfloat16: attention within bounds of its roundings, training like float32's, and a
clear refusal where the processor cannot."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest

import harness
from test_attend import LAYOUTS, PLACEMENTS, attend, each_head, random_input, reference

ROUNDING = 2.0**-8  # largest relative error of rounding to bfloat16's 8 significant bits
FLOAT = 2.0**-24  # the same of float32
FLAGS = set(Path("/proc/cpuinfo").read_text().split())
HAS_BFLOAT16 = {"avx2", "fma"} <= FLAGS
needs_bfloat16 = pytest.mark.skipif(
    not HAS_BFLOAT16, reason="this processor has no AVX2 (/proc/cpuinfo)"
)
# And the flag of each.
KERNELS = {"amx": "amx_bf16", "avx512_bf16": "avx512_bf16", "avx512": "avx512vl", "avx2": "avx2"}
MODEL = {"d_model": 64, "heads": 2, "kv_heads": 1}  # head_dim 32
SHAPES = [(2, 2, 32), (4, 2, 64), (4, 1, 96), (8, 2, 128)]  # heads, kv_heads, head_dim


def rounded(values):
    """float32 to the nearest bfloat16, ties to even, as float64."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)
    return (bits & 0xFFFF0000).view(np.float32).astype(np.float64)


def rounded_inputs(arrays):
    return {k: v if k == "document_lengths" else rounded(v) for k, v in arrays.items()}


def bounds(arrays):
    """What each result may be off by, element by element, to first order.

    Q, K, V and dO are exact here. Rounded to bfloat16 are: P before it multiplies V and dO (and its
    sum may or may not have been taken before: two roundings), dS before it multiplies K and Q
    (one more; delta inherits the error of O). Nothing is rounded because it travels.
    """
    q, k, v, dout = (arrays[name] for name in ("q", "k", "v", "dout"))
    scale = 1 / np.sqrt(q.shape[2])
    exact = reference(arrays)
    off = {name: np.zeros_like(value) for name, value in exact.items()}
    # Scores of several units, summed in float32 over head_dim, and their exponential and logarithm.
    off["lse"] = 64 * FLOAT * (1 + np.abs(exact["lse"]))
    for rows, head, kv, scores in each_head(arrays):
        p = np.exp(scores - exact["lse"][rows, head][:, None])
        d = dout[rows, head]
        off_p = 2 * ROUNDING * p
        off_out = off_p @ np.abs(v[rows, kv])
        off["out"][rows, head] += off_out
        out = exact["out"][rows, head]
        off_delta = np.sum(np.abs(d) * off_out, axis=1)
        delta = np.sum(d * out, axis=1)
        ds = np.abs(d @ v[rows, kv].T - delta[:, None])
        off_ds = scale * (p * (off_delta[:, None] + ROUNDING * ds) + off_p * ds)
        off["dq"][rows, head] += off_ds @ np.abs(k[rows, kv])
        off["dk"][rows, kv] += off_ds.T @ np.abs(q[rows, head])
        off["dv"][rows, kv] += off_p.T @ np.abs(d)
    return exact, {name: value + 64 * FLOAT for name, value in off.items()}


def violations(found, exact, off):
    return {
        name: float(np.max(np.abs(found[name] - exact[name]) / off[name]))
        for name in exact
        if np.any(np.abs(found[name] - exact[name]) > off[name])
    }


def in_bfloat16(layout):
    return harness.merged(layout, {"run": {"dtype": "bfloat16"}})


@needs_bfloat16
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("layout", ["one rank", "cad on 2", "cad, 1 trainer, 2 servers"])
def test_attention_is_within_its_roundings(layout, shape, tmp_path):
    arrays = random_input(sum(shape), *shape)
    check_attention(tmp_path, in_bfloat16(LAYOUTS[layout]), arrays)


@needs_bfloat16
def test_float64_is_rounded_once(tmp_path):
    arrays = random_input(8, 2, 1, 32, lengths=[1], dout=False)
    # A little more than the middle between two numbers; as float32 it is the middle.
    arrays["v"] = np.full(arrays["v"].shape, 1 + 2**-8 + 2**-40)
    found = attend(tmp_path, in_bfloat16(LAYOUTS["one rank"]), arrays)
    assert np.all(found["out"] == 1 + 2**-7)


@pytest.mark.parametrize("kernel", KERNELS)
def test_attention_of_every_kernel_is_within_its_roundings(kernel, tmp_path):
    if KERNELS[kernel] not in FLAGS:
        pytest.skip(f"this processor has no {KERNELS[kernel]} (/proc/cpuinfo)")
    changes = harness.merged(LAYOUTS["cad on 2"], {"attention": {"kernel": kernel}})
    check_attention(tmp_path, in_bfloat16(changes), random_input(13, 4, 2, 64))


def check_attention(tmp_path, experiment, arrays):
    found = attend(tmp_path, experiment, arrays)
    exact, off = bounds(rounded_inputs(arrays))
    assert found.keys() == exact.keys()
    assert violations(found, exact, off) == {}
    # Errors of one rounding lie evenly between its limits, ROUNDING / sqrt(3) on the average; at
    # most three in a row, of either sign, add up to sqrt(3) of them.
    for name in ("out", "dq", "dk", "dv"):
        error = np.linalg.norm(found[name] - exact[name]) / np.linalg.norm(exact[name])
        assert error <= ROUNDING, name
    # It is bfloat16 that was given: with the numbers unrounded the results are others.
    assert np.max(np.abs(found["out"] - reference(arrays)["out"])) > 1e-4


TRAVELLERS = {
    **{name: PLACEMENTS[name] for name in ("striped on 3", "ulysses_ring on 4")},
    "cad, mixed, halves": PLACEMENTS["cad, mixed, halves"],
    "zigzag on 8": harness.merged(PLACEMENTS["ring on 8"], {"attention": {"placement": "zigzag"}}),
    "cad on 8": PLACEMENTS["cad on 8"],
}


def errors(folder, layout):
    """Root of the mean square of the error of each result, computed in float32 by avx2."""
    arrays = random_input(17, 4, 2, 64)
    kernel = {"attention": {"kernel": "avx2"}}
    found = attend(folder, in_bfloat16(harness.merged(layout, kernel)), arrays)
    exact = reference(rounded_inputs(arrays))
    return {name: np.sqrt(np.mean((found[name] - exact[name]) ** 2)) for name in exact}


@pytest.fixture(scope="module")
def errors_on_one_rank(tmp_path_factory):
    return errors(tmp_path_factory.mktemp("alone"), LAYOUTS["one rank"])


@needs_bfloat16
@pytest.mark.parametrize("layout", TRAVELLERS)
def test_ranks_add_no_error(layout, errors_on_one_rank, tmp_path):
    """By the kernel whose own error is float32's. Rounded to bfloat16 on their way, parts of dK and
    dV are off by a thousand times as much."""
    for name, error in errors(tmp_path, TRAVELLERS[layout]).items():
        assert error <= 1.2 * errors_on_one_rank[name], name


@needs_bfloat16
def test_bounds_notice_a_missing_key(tmp_path):
    arrays = random_input(9, 4, 2, 64)
    found = attend(tmp_path, in_bfloat16(LAYOUTS["cad on 2"]), arrays)
    exact, off = bounds(rounded_inputs(arrays))
    arrays["k"][300] = 0
    other = reference(rounded_inputs(arrays))
    assert violations(found, other, off).keys() == exact.keys()


@needs_bfloat16
@pytest.mark.parametrize("ranks", [1, 2])
def test_attention_of_a_head_dim_that_no_kernel_takes(ranks, tmp_path):
    changes = {"data": {"source": "synthetic"}, "run": {"dtype": "bfloat16"}}
    path = harness.write_experiment(
        tmp_path / "e.yaml", harness.merged(changes, {"parallel": {"data": ranks}})
    )
    result = harness.run(ranks, ["train", path, "--output", tmp_path / "run"])  # head_dim 8
    assert_refused(result, "head_dim 8")
    assert not (tmp_path / "run").exists()


def assert_refused(result, word):
    assert result.code == 2, str(result)
    assert len(result.complaints) == 1, str(result)
    assert word in result.complaints[0]


def training(corpus, layout, dtype):
    changes = {
        "model": MODEL,
        "data": harness.tokens_data(corpus),
        "batch": {"tokens": 12 * 96, "microbatch": 96},
        "optimizer": {"lr": 3e-3, "warmup": 4},
        "run": {"steps": 10, "dtype": dtype, "checkpoint": {"every": 10}},
    }
    return harness.merged(changes, layout)


@pytest.fixture(scope="module")
def single(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("single")
    return {
        dtype: harness.train(folder / dtype, training(corpus, {}, dtype))
        for dtype in ("float32", "bfloat16")
    }


@needs_bfloat16
def test_training_follows_float32(single):
    """The loss is a mean over many tokens of logits with a relative error of a few roundings, of
    either sign: together they stay below one rounding. So does the norm of the first gradient, of
    many elements. Master weights in bfloat16 would stand still: an update is below their spacing.
    """
    narrow, wide = single["bfloat16"], single["float32"]
    assert wide.losses[-1] < wide.losses[0] - 0.2
    np.testing.assert_allclose(narrow.losses, wide.losses, rtol=ROUNDING)
    assert np.any(narrow.losses != wide.losses)
    norms = narrow.column("gradient_norm")[0], wide.column("gradient_norm")[0]
    np.testing.assert_allclose(*norms, rtol=ROUNDING)
    start, end = narrow.checkpoint(0), narrow.checkpoint(10)
    expected_start, expected_end = wide.checkpoint(0), wide.checkpoint(10)
    for name, value in expected_start.items():
        np.testing.assert_array_equal(start[name], value, err_msg=name)
        step = np.linalg.norm(expected_end[name] - value)
        assert np.linalg.norm(end[name] - expected_end[name]) < 0.25 * step, name


@needs_bfloat16
@pytest.mark.parametrize("layout", ["cad on 2", "cad on 3", "cad, 2 trainers, 1 server"])
def test_layout_trains_like_one_rank(layout, single, corpus, tmp_path):
    """Only the order of sums differs, which lets some of them round to the next bfloat16 where a
    product reads them: that changes what an update does by a rounding at most, and so the loss by
    that part of what training did to it.
    """
    run = harness.train(tmp_path, training(corpus, LAYOUTS[layout], "bfloat16"))
    expected = single["bfloat16"]
    assert run.losses[0] == pytest.approx(expected.losses[0], rel=1e-6)
    assert run.column("gradient_norm")[0] == pytest.approx(
        expected.column("gradient_norm")[0], rel=ROUNDING
    )
    moved = np.max(expected.losses) - np.min(expected.losses)
    np.testing.assert_allclose(run.losses, expected.losses, rtol=0, atol=ROUNDING * moved)
    assert np.all(run.column("bytes_moved") > 0)


@needs_bfloat16
def test_a_run_is_repeated_bit_by_bit(single, corpus, tmp_path):
    run = harness.train(tmp_path, training(corpus, {}, "bfloat16"))
    np.testing.assert_array_equal(run.losses, single["bfloat16"].losses)


@needs_bfloat16
def test_inputs_have_half_the_size_in_messages(corpus, tmp_path):
    """Q, K, V and dO; results and statistics are as long as in float32."""
    moved = {}
    for dtype in ("float32", "bfloat16"):
        changes = training(corpus, {"attention": {"servers": 1}}, dtype)
        changes = harness.merged(changes, {"run": {"steps": 1, "checkpoint": {"every": 0}}})
        moved[dtype] = harness.train(tmp_path / dtype, changes).column("bytes_moved")[0]
    # Of one token: Q, K, V, then Q, dO, K, V; O, LSE, then LSE, delta, dQ, dK, dV.
    heads, kv_heads, dim = MODEL["heads"], MODEL["kv_heads"], MODEL["d_model"] // MODEL["heads"]
    inputs = (3 * heads + 4 * kv_heads) * dim
    sums = (2 * heads + 2 * kv_heads) * dim + 3 * heads
    ratio = (2 * inputs + 4 * sums) / (4 * (inputs + sums))
    assert moved["bfloat16"] / moved["float32"] == pytest.approx(ratio, rel=1e-12)


ACTIVATIONS = 3  # kind of memory


def of_rank(run, dataset, field, rank=0):
    with h5py.File(run.folder / "trace" / f"rank-{rank:05}.h5", "r") as file:
        return file[dataset][field][-1]


@needs_bfloat16
def test_a_residual_stream_in_bfloat16(single, corpus, tmp_path):
    """Its rows are rounded twice in every layer, and stages of a pipeline send half as much."""
    stored = {"run": {"residual": "stored"}}
    alone = harness.train(tmp_path / "alone", training(corpus, stored, "bfloat16"))
    np.testing.assert_allclose(alone.losses, single["float32"].losses, rtol=2 * ROUNDING)
    assert np.any(alone.losses != single["bfloat16"].losses)
    ran = {}
    for name, keys in {"sums": {}, "stored": stored}.items():
        stages = {"parallel": {"pipeline": 2}, **keys}
        ran[name] = harness.train(tmp_path / name, training(corpus, stages, "bfloat16"))
    np.testing.assert_array_equal(ran["stored"].losses, alone.losses)
    sent = {name: of_rank(run, "/steps", "bytes_sent") for name, run in ran.items()}
    assert sent["sums"] == 2 * sent["stored"] > 0

    def kept(run):
        return of_rank(run, "/memory/highwater", "peak_bytes")[ACTIVATIONS]

    # Two rows in each of two layers, one after them, the gradient and its rounded copy.
    elements = (2 * 2 + 3) * 96 * MODEL["d_model"]
    assert kept(single["bfloat16"]) - kept(alone) == 2 * elements


@pytest.mark.skipif(HAS_BFLOAT16, reason="this processor has AVX2: nothing to refuse")
@pytest.mark.parametrize("ranks", [1, 2])
def test_refused_where_the_processor_cannot(ranks, corpus, tmp_path):
    changes = harness.merged(training(corpus, {}, "bfloat16"), {"parallel": {"data": ranks}})
    path = harness.write_experiment(tmp_path / "e.yaml", changes)
    result = harness.run(ranks, ["train", path, "--output", tmp_path / "run"])
    assert_refused(result, "valid here: float32, float64")
    assert not (tmp_path / "run").exists()


def test_dry_run_works_on_any_host(corpus, tmp_path):
    path = harness.write_experiment(tmp_path / "e.yaml", training(corpus, {}, "bfloat16"))
    assert "tick 0:" in harness.run_well(1, ["train", path, "--dry-run"]).out


@needs_bfloat16
def test_dry_run_estimates_the_peak_of_the_run(corpus, tmp_path):
    """On a trainer and on a server, whose rows and messages alone take memory."""
    changes = training(corpus, {"attention": {"placement": "cad", "servers": 1}}, "bfloat16")
    run = harness.train(tmp_path, changes)
    out = harness.run_well(1, ["train", tmp_path / "experiment.yaml", "--dry-run"]).out
    rows = [re.findall(r"([\d.]+) ([KM]iB|B)", line) for line in out.splitlines()]
    rows = [row for row in rows if len(row) == 6]  # ranks; the last column is the sum
    for rank, row in enumerate(rows):
        number, unit = row[-1]
        announced = float(number) * {"B": 1, "KiB": 2**10, "MiB": 2**20}[unit]
        with h5py.File(run.folder / "trace" / f"rank-{rank:05}.h5", "r") as file:
            measured = int(file["/memory/highwater"]["peak_total_bytes"][0])
        assert announced == pytest.approx(measured, rel=0.1), rank
    assert len(rows) == 2
