# SPDX-License-Identifier: Apache-2.0
"""Which attention kernels a run takes: it says so once, and why where they are slow."""

import re
from pathlib import Path

import harness
import pytest

FLAGS = set(Path("/proc/cpuinfo").read_text().split())
AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= FLAGS
AVX2 = {"avx2", "fma"} <= FLAGS
FAST = "AVX-512" if AVX512 else "AVX2" if AVX2 else "portable"
SLOW = r"portable \(slow: head_dim 40 is not a multiple of 32 up to 256\)" if AVX2 else "portable"


@pytest.mark.parametrize(
    ("head_dim", "dtype", "expected"),
    [
        (32, "float32", FAST),
        (64, "float32", FAST),
        (40, "float32", SLOW),
        (64, "float64", "portable"),
    ],
)
def test_says_once_which_kernels_it_uses(tmp_path, head_dim, dtype, expected):
    changes = {
        "model": {"d_model": 2 * head_dim, "heads": 2, "kv_heads": 1},
        "data": {"source": "synthetic"},
        "parallel": {"data": 2},
        "run": {"steps": 1, "dtype": dtype},
    }
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    result = harness.run_well(2, ["train", experiment, "--output", tmp_path / "run"])
    said = [line for line in result.out.splitlines() if line.startswith("attention ")]
    assert len(said) == 1, str(result)
    assert re.fullmatch(rf"attention\s+{expected}", said[0]), said[0]
