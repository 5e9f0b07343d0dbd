# SPDX-License-Identifier: Apache-2.0
"""What nvcc makes of the kernels for tensor cores, for devices that are not here: instructions,
registers, spills, and whether as many blocks fit as their launch assumes."""

import re
import shutil
import site
import subprocess
from pathlib import Path

import pytest

import harness

SOURCE = harness.ROOT / "kernels/mma/cuda_kernels.cpp"
PASSES = ("Forward", "QueryGradient", "KeyGradient")
HEAD_DIMS = (32, 64, 96, 128)
KERNELS = {f"{name}{dim}" for name in PASSES for dim in HEAD_DIMS} | {"rotate"}
REGISTERS = 65536  # of a multiprocessor
WARPS = 8  # of a multiprocessor, at least: two for each of its four schedulers
WITHOUT_SPILLS = ("80", "90a")

nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
pytestmark = pytest.mark.skipif(nvcc is None, reason="nvcc is not here")


def disassembler():
    folders = [Path(folder) / "nvidia/cu13/bin" for folder in site.getsitepackages()]
    found = [folder / "cuobjdump" for folder in folders if (folder / "cuobjdump").is_file()]
    return found[0] if found else None


def short_name(mangled):
    """run_units<Forward, 128, 128, 2> as Forward128, and 128 threads, 2 blocks."""
    match = re.search(r"(Forward|QueryGradient|KeyGradient)ELi(\d+)ELi(\d+)ELi(\d+)E", mangled)
    return (match[1] + match[2], int(match[3]), int(match[4])) if match else ("rotate", 256, 1)


def compiled(folder, architecture, source=SOURCE):
    """The object and, by kernel: registers, bytes of spills, threads of the blocks that are to fit
    on a multiprocessor."""
    target = folder / f"sm_{architecture}.o"
    words = [nvcc, "-x", "cu", "-std=c++20", "--expt-relaxed-constexpr", "-O3",
             f"-arch=sm_{architecture}", "-Xptxas", "-v", "-DFMT_USE_CONSTEXPR=1",
             "-Xcompiler", "-Wall,-Wextra,-Werror", "-Werror", "all-warnings",
             "-I", harness.ROOT / "include", "-I", SOURCE.parent, "-c", source, "-o", target]
    run = subprocess.run(words, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = {}
    for block in run.stderr.split("Compiling entry function")[1:]:
        name, threads, blocks = short_name(block.split("'")[1])
        spills = sum(map(int, re.findall(r"(\d+) bytes spill", block)))
        found[name] = {"registers": int(re.search(r"Used (\d+) registers", block)[1]),
                       "spills": spills, "threads": threads * blocks}
    return target, found


@pytest.fixture(scope="module", params=["80", "90a", "100"])
def binary(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("binaries")
    return request.param, *compiled(folder, request.param)


def test_registers_and_spills(binary):
    architecture, _, found = binary
    assert found.keys() == KERNELS
    for name, kernel in found.items():
        assert kernel["registers"] * kernel["threads"] <= REGISTERS, name
        assert kernel["threads"] >= 32 * WARPS, name
        if architecture in WITHOUT_SPILLS:
            assert kernel["spills"] == 0, name


def test_a_kernel_without_registers_spills(tmp_path):
    """The planted fault: what the test above looks for is there when it must be."""
    planted = tmp_path / "planted.cpp"
    text = SOURCE.read_text()
    assert "__launch_bounds__(kThreads, kBlocks)" in text
    planted.write_text(text.replace("__launch_bounds__(kThreads, kBlocks)",
                                    "__launch_bounds__(kThreads, 8)"))  # 64 registers a thread
    _, found = compiled(tmp_path, "80", planted)
    assert all(found[f"{name}128"]["spills"] > 0 for name in PASSES)


def test_tensor_cores_compute(binary):
    if disassembler() is None:
        pytest.skip("cuobjdump is not here")
    architecture, target, _ = binary
    run = subprocess.run([disassembler(), "-sass", target], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    functions = {short_name(text.split("\n")[0])[0]: text
                 for text in run.stdout.split("Function : ")[1:]}
    assert functions.keys() == KERNELS
    for name in KERNELS - {"rotate"}:
        code = functions[name]
        dim = int(re.search(r"\d+", name)[0])
        # Each pass multiplies at least a part of 32 rows by 32 columns over head_dim, twice, and
        # what it reads for the left or the right factor serves two products at least.
        products = len(re.findall(r"HMMA\.16816\.F32\.BF16", code))
        assert products >= 2 * dim // 2, name
        assert products >= 2 * len(re.findall(r"LDSM", code)), name
        assert re.search(r"LDSM\.16\.M88\.4", code), name  # matrices as they lie
        assert re.search(r"LDSM\.16\.MT88\.4", code), name  # and transposed
        assert re.search(r"LDGSTS\.E\.BYPASS", code), name  # past registers to shared memory
