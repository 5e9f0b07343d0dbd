# SPDX-License-Identifier: Apache-2.0
"""The shipped GPU experiment and its job script, held against described devices; what a program for
devices says where it cannot compute."""

import os
import re
import subprocess

import pytest

import harness

EXPERIMENT = "inputs/clusters/two_gpu_nodes.yaml"
H100 = "inputs/machines/h100.yaml"
DEVICE_PROGRAM = harness.ROOT / "build/cuda/cadenza"
# A driver that knows its version alone.
DRIVER = """
#define _GNU_SOURCE
#include <dlfcn.h>
static int nothing(void) { return 0; }
int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int* version) { *version = 12040; return 0; }
int cuGetExportTable(const void** table, const void* id) { *table = id; return 500; }
int cuGetProcAddress(const char* name, void** found) {
  *found = dlsym(RTLD_DEFAULT, name);
  if (!*found) *found = (void*)nothing;
  return 0;
}
int cuGetProcAddress_v2(const char* name, void** found) { return cuGetProcAddress(name, found); }
"""


def dry_run(*settings):
    words = [word for setting in settings for word in ("--set", setting)]
    return harness.run(1, ["train", EXPERIMENT, "--dry-run", *words], cwd=harness.ROOT)


def small_machine(tmp_path, gigabytes):
    """An H100 with another memory."""
    path = tmp_path / "small.yaml"
    text = (harness.ROOT / H100).read_text()
    path.write_text(re.sub(r"^memory: .*", f"memory: {gigabytes}000000000", text, flags=re.M))
    return path


@pytest.mark.parametrize("machine", ["h100", "h200", "a100"])
def test_the_experiment_is_accepted_for(machine):
    result = dry_run(f"cluster.machine=inputs/machines/{machine}.yaml")
    assert result.code == 0, result
    assert "16 ranks" in result.out and f"machine {machine}" in result.out


def test_too_little_memory_is_said_with_the_largest_part(tmp_path):
    machine = f"cluster.machine={small_machine(tmp_path, 20)}"
    result = dry_run(machine)
    assert result.code == harness.USAGE
    (line,) = result.complaints
    assert re.search(r"memory of the machine h100: found 18.6 GiB, but rank \d+ needs \S+ GiB "
                     r"\(most of it: activations ", line), line
    assert dry_run(machine, "run.device=host").code == 0  # a host has what it has
    assert dry_run(machine, "run.memory=30000000000").code == 0  # who says so knows better


def test_a_head_dim_without_tensor_core_kernels_is_refused():
    heads = ["model.heads=8", "model.kv_heads=8"]
    result = dry_run(*heads)
    assert result.code == harness.USAGE
    assert result.complaints == [
        "cadenza: attention in bfloat16 on a device: found head_dim 256; valid: 32, 64, 96, 128"]
    assert dry_run(*heads, "run.dtype=float32").code == 0


def test_a_program_of_the_host_does_not_train_on_devices():
    words = ["train", EXPERIMENT, "--set", "parallel.data=1", "--set", "parallel.tensor=1"]
    result = harness.run(1, words, cwd=harness.ROOT)
    assert result.code == harness.USAGE
    (line,) = result.complaints
    assert "run.device: found cuda; valid: host" in line


@pytest.fixture
def job(tmp_path):
    """sbatch jobscripts/multi_node_gpu.sbatch with an srun that only says what it would start."""
    srun = tmp_path / "bin/srun"
    srun.parent.mkdir()
    srun.write_text('#!/bin/sh\necho "srun: pmix $*"\n')
    srun.chmod(0o755)

    def start(*arguments):
        return subprocess.run(
            ["bash", "jobscripts/multi_node_gpu.sbatch", *arguments], cwd=harness.ROOT,
            env={**os.environ, "CADENZA": str(harness.PROGRAM), "SLURM_JOB_ID": "1",
                 "PATH": f"{srun.parent}:{os.environ['PATH']}", "SLURM_JOB_NAME": "gpu",
                 "SLURM_NTASKS": "16", "CADENZA_RUN": str(tmp_path / "run")},
            capture_output=True, text=True, timeout=harness.TIMEOUT, check=False)
    return start


def test_the_job_starts_what_the_dry_run_accepts(job, tmp_path):
    result = job(EXPERIMENT, "--set", f"cluster.machine={H100}")
    assert f"train {EXPERIMENT} --set cluster.machine={H100}" in result.stdout, result.stderr
    assert "srun: pmix" in result.stdout
    result = job(EXPERIMENT, "--set", f"cluster.machine={small_machine(tmp_path, 20)}")
    assert result.returncode == harness.USAGE
    assert "most of it: activations" in result.stderr and "srun: pmix" not in result.stdout


@pytest.fixture
def old_driver(tmp_path):
    source = tmp_path / "driver.c"
    source.write_text(DRIVER)
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-w", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return tmp_path


def test_a_program_for_devices_names_a_driver_too_old(old_driver):
    if not DEVICE_PROGRAM.is_file():
        pytest.skip(f"{DEVICE_PROGRAM} is not built")
    result = harness.finish(harness.start(
        [DEVICE_PROGRAM, "train", EXPERIMENT], cwd=harness.ROOT,
        env={"LD_LIBRARY_PATH": f"{old_driver}:{os.environ.get('LD_LIBRARY_PATH', '')}"}))
    assert result.code == harness.USAGE
    said = (r"cadenza: this build computes on an NVIDIA device: its driver is for CUDA 12\.4, "
            r"older than this program's CUDA \d+\.\d+")
    assert re.fullmatch(said, result.err.strip()), result
