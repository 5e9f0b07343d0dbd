# SPDX-License-Identifier: Apache-2.0
"""Which attention kernels a run takes: it says so once, and why where they are slow; the trace says
so of every rank; attention.kernel overrides the choice."""

import re
from pathlib import Path

import h5py
import harness
import pytest

FLAGS = set(Path("/proc/cpuinfo").read_text().split())
AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= FLAGS
AVX2 = {"avx2", "fma"} <= FLAGS
FAST = "AVX-512" if AVX512 else "AVX2" if AVX2 else "portable"
SLOW = r"portable \(slow: head_dim 40 is not a multiple of 32 up to 256\)" if AVX2 else "portable"

# Of bfloat16, as a run's line names them.
NARROW = {"amx": "AMX BF16", "avx512_bf16": "AVX-512 BF16", "avx512": "AVX-512 in float32",
          "avx2": "AVX2 in float32"}
HERE = {"amx": "amx_bf16" in FLAGS, "avx512_bf16": AVX512 and "avx512_bf16" in FLAGS,
        "avx512": AVX512, "avx2": AVX2}


def small(head_dim, dtype, kernel="auto"):
    return {
        "model": {"d_model": 2 * head_dim, "heads": 2, "kv_heads": 1},
        "data": {"source": "synthetic"},
        "parallel": {"data": 2},
        "attention": {"kernel": kernel},
        "run": {"steps": 1, "dtype": dtype},
    }


def trained(tmp_path, changes):
    """What the run's line says, and what the trace says of its ranks."""
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    result = harness.run_well(2, ["train", experiment, "--output", tmp_path / "run"])
    said = [line for line in result.out.splitlines() if line.startswith("attention ")]
    assert len(said) == 1, str(result)
    with h5py.File(tmp_path / "run" / "trace" / "run.h5", "r") as index:
        of_ranks = [name.decode() for name in index["/ranks"]["attention_kernel"]]
    return said[0].removeprefix("attention").strip(), of_ranks


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
    line, of_ranks = trained(tmp_path, small(head_dim, dtype))
    assert re.fullmatch(expected, line), line
    word = {"AVX-512": "avx512", "AVX2": "avx2"}.get(expected, "portable")
    assert of_ranks == [word, word]


@pytest.mark.parametrize("kernel", NARROW)
def test_the_key_chooses_a_kernel_of_bfloat16(tmp_path, kernel):
    if not HERE[kernel]:
        pytest.skip(f"this processor has no {kernel}")
    assert trained(tmp_path, small(32, "bfloat16", kernel)) == (NARROW[kernel], [kernel] * 2)


def test_the_key_chooses_the_portable_kernel(tmp_path):
    assert trained(tmp_path, small(32, "float32", "portable")) == ("portable", ["portable"] * 2)


@pytest.mark.parametrize(
    ("dtype", "kernel", "valid"),
    [
        ("float64", "avx2", "portable"),
        ("float32", "amx", ""),
        ("float32", "sm90", ""),
        ("bfloat16", "sm90", ""),
        ("bfloat16", "portable", ""),
    ],
)
def test_refuses_a_kernel_that_is_not_there(tmp_path, dtype, kernel, valid):
    experiment = harness.write_experiment(tmp_path / "e.yaml", small(32, dtype, kernel))
    result = harness.run(2, ["train", experiment, "--output", tmp_path / "run"])
    complaint = f"attention.kernel: found {kernel}; valid for {dtype} here: auto, {valid}"
    assert result.code == 2, str(result)
    assert len(result.complaints) == 1 and complaint in result.complaints[0], str(result)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("device", "dtype", "kernel", "head_dim", "words"),
    [
        ("host", "bfloat16", "auto", 16, "attention in bfloat16: found head_dim 16; valid: a mul"),
        ("host", "float64", "avx512", 64, "found avx512; valid for float64: auto, portable"),
        ("host", "float32", "mma", 64, "found mma; valid for float32: auto, avx512, avx2, port"),
        ("cuda", "float32", "sm90", 64, "found sm90; valid for float32: auto, portable"),
        ("cuda", "bfloat16", "sm90", 32, "sm90 on a device: found head_dim 32; valid: 64, 128"),
        ("host", "bfloat16", "amx", 32, ""),
        ("cuda", "bfloat16", "mma", 96, ""),
    ],
)
def test_a_dry_run_refuses_what_can_run_nowhere(device, dtype, kernel, head_dim, words, tmp_path):
    changes = harness.merged(small(head_dim, dtype, kernel), {"run": {"device": device}})
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    result = harness.run(1, ["train", experiment, "--dry-run"])
    if not words:
        assert result.code == 0 and "tick 0:" in result.out, str(result)
        return
    assert result.code == 2 and len(result.complaints) == 1, str(result)
    assert words in result.complaints[0]
