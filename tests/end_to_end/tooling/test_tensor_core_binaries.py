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
MMA_PASSES = (*PASSES, *(f"Sparse{name}" for name in PASSES))
HEAD_DIMS = (32, 64, 96, 128)
KERNELS = {f"{name}{dim}" for name in MMA_PASSES for dim in HEAD_DIMS}
REGISTERS = 65536  # of a multiprocessor
WARPS = 8  # of a multiprocessor, at least: two for each of its four schedulers
WITHOUT_SPILLS = ("80", "90a")
FEW = 48  # bytes of spills, of what a walk over patterns leaves in the way on sm_80

nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
pytestmark = pytest.mark.skipif(nvcc is None, reason="nvcc is not here")


def disassembler():
    folders = [Path(folder) / "nvidia/cu13/bin" for folder in site.getsitepackages()]
    found = [folder / "cuobjdump" for folder in folders if (folder / "cuobjdump").is_file()]
    return found[0] if found else None


def short_name(mangled):
    """run_units<Forward, 128, 128, 2> as Forward128, and 128 threads, 2 blocks."""
    passes = r"((?:Sparse)?(?:Forward|QueryGradient|KeyGradient))"
    match = re.search(passes + r"ELi(\d+)ELi(\d+)ELi(\d+)E", mangled)
    return match[1] + match[2], int(match[3]), int(match[4])


def compiled(folder, architecture, source=SOURCE, name=short_name):
    """The object; by kernel: registers, bytes of spills, threads of the blocks that are to fit on a
    multiprocessor; and the lines in which ptxas says that it makes products wait for each other, or
    keeps registers that it was to give away."""
    target = folder / f"sm_{architecture}.o"
    words = [nvcc, "-x", "cu", "-std=c++20", "--expt-relaxed-constexpr", "-O3",
             f"-arch=sm_{architecture}", "-Xptxas", "-v", "-DFMT_USE_CONSTEXPR=1",
             "-Xcompiler", "-Wall,-Wextra,-Werror", "-Werror", "all-warnings",
             "-I", harness.ROOT / "include", "-I", SOURCE.parent, "-c", source, "-o", target]
    run = subprocess.run(words, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = {}
    for block in run.stderr.split("Compiling entry function")[1:]:
        kernel, threads, blocks = name(block.split("'")[1])
        spills = sum(map(int, re.findall(r"(\d+) bytes spill", block)))
        found[kernel] = {"registers": int(re.search(r"Used (\d+) registers", block)[1]),
                         "spills": spills, "threads": threads * blocks}
    losses = [line for line in run.stderr.splitlines() if "Potential Performance Loss" in line]
    return target, found, losses


@pytest.fixture(scope="module", params=[
    "90a", *(pytest.param(of, marks=pytest.mark.thorough) for of in ("80", "100"))])
def binary(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("binaries")
    return request.param, *compiled(folder, request.param)


def test_registers_and_spills(binary):
    architecture, _, found, losses = binary
    assert not losses
    assert found.keys() == KERNELS
    for name, kernel in found.items():
        assert kernel["registers"] * kernel["threads"] <= REGISTERS, name
        assert kernel["threads"] >= 32 * WARPS, name
        if architecture in WITHOUT_SPILLS:
            few = FEW if architecture == "80" and name.startswith("Sparse") else 0
            assert kernel["spills"] <= few, name


def for_one_width(text):
    """A source whose kernels have head_dim 128 alone: compiled in a part of the time."""
    others = r"integral_constant<int, (32|64|96)>|head_dim == 64\) return launch_dim<64>"
    return re.sub(others, lambda found: re.sub("32|64|96", "128", found[0]), text)


def test_a_kernel_without_registers_spills(tmp_path):
    """The planted fault: what the test above looks for is there when it must be."""
    planted = tmp_path / "planted.cpp"
    text = SOURCE.read_text()
    assert "__launch_bounds__(kThreads, kBlocks)" in text
    text = text.replace("__launch_bounds__(kThreads, kBlocks)", "__launch_bounds__(kThreads, 8)")
    planted.write_text(for_one_width(text))  # 64 registers a thread
    _, found, _ = compiled(tmp_path, "80", planted)
    assert all(found[f"{name}128"]["spills"] > FEW for name in MMA_PASSES)


def instructions(target, name=short_name):
    """By kernel, as cuobjdump prints them."""
    if disassembler() is None:
        pytest.skip("cuobjdump is not here")
    run = subprocess.run([disassembler(), "-sass", target], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return {name(text.split("\n")[0])[0]: text for text in run.stdout.split("Function : ")[1:]}


def test_tensor_cores_compute(binary):
    _, target, _, _ = binary
    functions = instructions(target)
    assert functions.keys() == KERNELS
    for name in KERNELS:
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


HOPPER = harness.ROOT / "kernels/sm90/cuda_kernels.cpp"
HOPPER_KERNELS = {f"{name}{dim}" for name in PASSES for dim in (64, 128)}


def hopper_name(mangled):
    match = re.search(r"(Forward|QueryGradient|KeyGradient)Loader.*?Li(\d+)E", mangled)
    return match[1] + match[2], 384, 1


@pytest.fixture(scope="module")
def hopper(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("hopper"), "90a", HOPPER, hopper_name)


def test_hopper_registers_and_spills(hopper):
    _, found, losses = hopper
    assert found.keys() == HOPPER_KERNELS
    assert not losses
    for name, kernel in found.items():
        assert kernel["registers"] * kernel["threads"] <= REGISTERS, name
        assert kernel["spills"] == 0, name


def test_hopper_without_registers_to_give_away_spills(tmp_path):
    """The planted fault: the computing warpgroups keep what they had at the start."""
    planted = tmp_path / "planted.cpp"
    text = HOPPER.read_text()
    assert "kConsumerRegisters = 232" in text
    text = for_one_width(text).replace("kConsumerRegisters = 232", "kConsumerRegisters = 168")
    planted.write_text(text.replace('#include "', f'#include "{HOPPER.parent}/')
                       .replace(f'"{HOPPER.parent}/cadenza', '"cadenza'))
    _, found, losses = compiled(tmp_path, "90a", planted, hopper_name)
    assert all(found[f"{name}128"]["spills"] > 0 for name in PASSES)
    assert any("serialized" in line for line in losses)


def test_hopper_multiplies_from_what_the_copy_engine_brings(hopper):
    target, _, _ = hopper
    functions = instructions(target, hopper_name)
    assert functions.keys() == HOPPER_KERNELS
    for name, code in functions.items():
        dim = int(re.search(r"\d+", name)[0])
        products = re.findall(r"HGMMA\.64x(\d+)x16\.F32\.BF16", code)
        # A tile of logits over head_dim, 16 elements at a time, and what is multiplied with it.
        assert len(products) >= 2 * dim // 16, name
        assert f"HGMMA.64x{dim}x16.F32.BF16" in code, name  # O, dQ, dK, dV
        assert re.search(r"HGMMA\S+ R\d+, R\d+, gdesc\[UR\d+\]\.tnspB", code), name
        # Groups of products that are waited for: more would mean that ptxas put them in a row.
        assert len(re.findall(r"WARPGROUP\.DEPBAR", code)) <= 5, name
        assert re.search(r"UTMALDG\.3D", code), name
        assert re.search(r"SYNCS\S*\.TRYWAIT", code), name
        assert code.count("USETMAXREG") == 2, name
        assert not re.search(r"\b(STL|LDL)\b", code), name


EXPONENTIALS = {"Forward": 128 // 2, "QueryGradient": 128 // 2}  # of a tile of keys, a thread


def exponentials_beside_products(code):
    """The most of them between a wait that leaves products running and the one for those: ptxas
    moves the second wait up past them where nothing ends the basic block."""
    found = re.findall(r"(MUFU\.EX2|WARPGROUP\.DEPBAR\.LE gsb0, 0x[01])", code)
    between = "".join({"M": "e", "W": word[-1]}[word[0]] for word in found)
    return max(map(len, re.findall(r"(?<=1)e*(?=0)", between)), default=0)


def test_hopper_computes_exponentials_beside_products(hopper):
    functions = instructions(hopper[0], hopper_name)
    for name, code in functions.items():
        least = EXPONENTIALS.get(re.match(r"\D+", name)[0], 0)
        assert exponentials_beside_products(code) >= least, name


def test_waits_that_move_past_the_exponentials_are_found(tmp_path):
    """The planted fault: nothing ends the basic block."""
    folder = tmp_path / "kernels"
    shutil.copytree(HOPPER.parent.parent, folder)
    thread = folder / "sm90/device_thread.hpp"
    text = thread.read_text()
    branch = "if (__any_sync(0xffffffffu, not_negative < 0) != 0)"
    assert branch in text
    thread.write_text(text.replace(branch, "if (false)"))
    source = folder / "sm90/cuda_kernels.cpp"
    source.write_text(for_one_width(source.read_text()))
    target, _, _ = compiled(tmp_path, "90a", source, hopper_name)
    code = instructions(target, hopper_name)["QueryGradient128"]
    assert exponentials_beside_products(code) < EXPONENTIALS["QueryGradient"]


def test_queries_are_rotated_in_vectors_without_divisions_of_64_bits(tmp_path):
    source = harness.ROOT / "kernels/device/rotation.cpp"
    target, found, _ = compiled(tmp_path, "90a", source, lambda mangled: ("rotate", 256, 1))
    code = instructions(target, lambda mangled: ("rotate", 256, 1))["rotate"]
    assert found["rotate"]["spills"] == 0
    loads = re.findall(r"\bLDG?\.E\S*\.128", code)
    assert len(loads) >= 2 + 4, code  # a row's two halves; cos and sin
    assert len(re.findall(r"\bSTG?\.E\S*\.128", code)) == 2
    assert "CALL" not in code  # what a division of 64 bits is on a device
