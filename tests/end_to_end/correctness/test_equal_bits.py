# SPDX-License-Identifier: Apache-2.0
"""The same command on another number of threads: the same bits (docs/experiment.md, Equal bits)."""

import h5py
import numpy as np
import pytest

import harness
from test_bfloat16 import FLAGS

# Sums over rows and elements have several blocks; matrix products are so small that oneDNN does not
# cut them by the number of threads, unless it has AVX2 alone.
CHANGES = {
    "model": {"d_model": 64, "heads": 2, "kv_heads": 1, "ffn": 96},
    "data": {"source": "synthetic"},
    "run": {"steps": 3, "checkpoint": {"every": 3}},
}


# What a token attends to, of documents so long that threads could divide them in many ways.
LONG = {
    "data": {"lengths": {"distribution": "constant", "median": 1100}},
    "batch": {"tokens": 1100, "microbatch": 1100},
    "run": {"steps": 2, "checkpoint": {"every": 2}},
}
SPARSE = {"block": 16, "sinks": 1, "window": 2, "dense_below": 0}
KINDS = {
    "full": {},
    "window": {"window": 300, "sinks": 3},
    "prefix": {"prefix": 200},
    "dual_chunk": {"chunk": 256, "local": 64},
    "vertical_slash": {"sparse": {**SPARSE, "columns": 150, "slashes": 20}},
    "xattention": {"sparse": {"block": 32, "stride": 8, "threshold": 0.6, "dense_below": 0}},
}


def bits(folder, changes, threads):
    """Losses, gradient norms and every number of the last checkpoint, byte by byte."""
    run = harness.train(
        folder, harness.merged(CHANGES, changes), env={"OMP_NUM_THREADS": str(threads)}
    )
    found = {name: run.column(name).tobytes() for name in ("loss", "gradient_norm")}

    def take(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = np.asarray(item[...]).tobytes()

    newest = max((run.folder / "checkpoints").iterdir())
    with h5py.File(newest, "r") as file:
        file.visititems(take)
    assert len(found) > 50
    return found


def assert_equal_bits(folder, changes, numbers):
    """Of a run on one thread and of runs on other numbers of them."""
    alone = bits(folder / "1", changes, 1)
    for threads in numbers:
        found = bits(folder / str(threads), changes, threads)
        assert found.keys() == alone.keys()
        assert [name for name in found if found[name] != alone[name]] == [], threads


needs_avx512 = pytest.mark.skipif(
    "avx512f" not in FLAGS,
    reason="with AVX2 alone oneDNN cuts small products by the number of threads",
)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param("float32", marks=needs_avx512),
        "float64",
        pytest.param("bfloat16", marks=needs_avx512),
    ],
)
def test_threads_do_not_change_them(dtype, ranks, tmp_path):
    assert_equal_bits(tmp_path, {"parallel": {"data": ranks}, "run": {"dtype": dtype}}, (2, 3, 5))


def kinds(folder):
    """The words of attention.kind, as the program lists them: a new one cannot be forgotten."""
    experiment = harness.write_experiment(folder / "experiment.yaml", CHANGES)
    words = ["train", experiment, "--dry-run", "--set", "attention.kind=none"]
    return harness.run(1, words).complaints[0].split("valid: ")[1].split(", ")


@needs_avx512
def test_threads_do_not_change_those_of_any_kind(tmp_path):
    assert sorted(kinds(tmp_path)) == sorted(KINDS)
    for kind, keys in KINDS.items():
        changes = harness.merged(LONG, {"attention": {"kind": kind, **keys}})
        assert_equal_bits(tmp_path / kind, changes, (3,))
