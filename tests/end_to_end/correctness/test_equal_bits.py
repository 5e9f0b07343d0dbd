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


def bits(folder, ranks, dtype, threads):
    """Losses, gradient norms and every number of the last checkpoint, byte by byte."""
    changes = harness.merged(CHANGES, {"parallel": {"data": ranks}, "run": {"dtype": dtype}})
    run = harness.train(folder, changes, env={"OMP_NUM_THREADS": str(threads)})
    found = {name: run.column(name).tobytes() for name in ("loss", "gradient_norm")}

    def take(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = np.asarray(item[...]).tobytes()

    with h5py.File(run.folder / "checkpoints/step-00000003.h5", "r") as file:
        file.visititems(take)
    assert len(found) > 50
    return found


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
    alone = bits(tmp_path / "1", ranks, dtype, 1)
    for threads in (2, 3, 5):
        found = bits(tmp_path / str(threads), ranks, dtype, threads)
        assert found.keys() == alone.keys()
        assert [name for name in found if found[name] != alone[name]] == [], threads
