# SPDX-License-Identifier: Apache-2.0
"""jobscripts/ without a Slurm: their shell, scripts/slurm-check and the checks before a run."""

import os
import re
import shutil
import subprocess

import pytest

import harness

SCRIPTS = sorted((harness.ROOT / "jobscripts").glob("*.sbatch"))
SHELL = [
    *SCRIPTS,
    *sorted((harness.ROOT / "jobscripts").rglob("*.sh")),
    harness.ROOT / "scripts/slurm-local",
]


def run(words, **environment):
    return subprocess.run(
        list(map(str, words)),
        cwd=harness.ROOT,
        env={**os.environ, "CADENZA": str(harness.PROGRAM), **environment},
        capture_output=True,
        text=True,
        timeout=harness.TIMEOUT,
        check=False,
    )


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_shell(path):
    result = run(["bash", "-n", path])
    assert result.returncode == 0, result.stderr
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed: only bash -n was run")
    result = run(["shellcheck", "-x", path])
    assert result.returncode == 0, result.stdout


def test_slurm_check_has_nothing_to_say_of_ours():
    result = run(["scripts/slurm-check"])
    assert result.returncode == 0, result.stdout
    assert ".sbatch" not in result.stdout


FAULTS = {
    "directive after a command": (
        "single_node_cpu",
        lambda text: text + "\n# More:\n#SBATCH --ntasks-per-node=2\n",
        r"line \d+: a directive after the first command",
    ),
    "ranks": (
        "single_node_cpu",
        lambda text: text.replace("--ntasks-per-node=2", "--ntasks-per-node=3"),
        r"3 tasks, but inputs/quickstart.yaml has 2 ranks",
    ),
    "nodes": (
        "multi_node_gpu",
        lambda text: text.replace("#SBATCH --nodes=2", "#SBATCH --nodes=3"),
        r"24 tasks, but \S+ has 16 ranks",
    ),
    "servers": (
        "dedicated_servers",
        lambda text: text[::-1].replace("2=edon-rep-sksatn", "1=edon-rep-sksatn", 1)[::-1],
        r"2 \+ 1 tasks, but \S+ has 2 \+ 2 ranks",
    ),
    "array": (
        "array",
        lambda text: text.replace("--array=0-8", "--array=0-9"),
        r"--array=0-9%3, but \S+ has rows 0 to 8",
    ),
    "log folder": (
        "compare",
        lambda text: text.replace("jobscripts/logs", "jobscripts/log"),
        r"there is no such folder",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_slurm_check_finds(fault, tmp_path):
    name, plant, said = FAULTS[fault]
    path = tmp_path / f"{name}.sbatch"
    path.write_text(plant((harness.ROOT / f"jobscripts/{name}.sbatch").read_text()))
    result = run(["scripts/slurm-check", path])
    assert result.returncode == 1, result.stdout
    lines = [line for line in result.stdout.splitlines() if line.startswith(str(path))]
    assert len(lines) == 1, result.stdout
    assert re.search(said, lines[0])


QUICKSTART = "inputs/quickstart.yaml"
REFUSALS = {
    "no job": ("single_node_cpu", {"SLURM_JOB_ID": ""}, [], "start job scripts with sbatch"),
    "site": ("single_node_cpu", {"CADENZA_SITE": "nowhere"}, [], "no such site; valid"),
    "program": ("single_node_cpu", {"CADENZA": "build/nothing"}, [], "cmake --preset release"),
    "ranks": ("single_node_cpu", {"SLURM_NTASKS": "4"}, [], "asks for 2 ranks, but the job has 4"),
    "experiment": (
        "single_node_cpu",
        {},
        [QUICKSTART, "--set", "model.layer=1"],
        "nearest is 'layers'",
    ),
    "components": (
        "dedicated_servers",
        {"SLURM_HET_SIZE": "2", "SLURM_NTASKS_HET_GROUP_0": "2", "SLURM_NTASKS_HET_GROUP_1": "1"},
        [],
        "asks for 2 trainers and 2 dedicated servers, but the job's components have 2 1 tasks",
    ),
    "second placement": (
        "compare",
        {},
        [QUICKSTART, "colocated", "elsewhere"],
        "elsewhere",
    ),
    "array task": (
        "array",
        {"SLURM_ARRAY_TASK_ID": "9"},
        [],
        "has rows 0 to 8, none for task 9",
    ),
    "checkpoints": ("restart", {}, [QUICKSTART], "set run.checkpoint.every"),
}


@pytest.fixture
def srun(tmp_path):
    """An srun that knows pmix and computes nothing; its folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "srun").write_text('#!/bin/sh\necho "MPI plugin types are...\n\tnone\n\tpmix"\n')
    (folder / "srun").chmod(0o755)
    return folder


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_before_anything_is_computed(case, srun, tmp_path):
    name, variables, arguments, said = REFUSALS[case]
    environment = {
        "PATH": f"{srun}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NAME": name,
        "SLURM_NTASKS": "2",
        "CADENZA_RUN": str(tmp_path / "run"),
        **variables,
    }
    result = run(["bash", f"jobscripts/{name}.sbatch", *arguments], **environment)
    assert result.returncode == 2, result.stdout + result.stderr
    (line,) = result.stderr.splitlines()
    assert said in line
    assert not (tmp_path / "run").exists()


def test_no_pmix(srun, tmp_path):
    (srun / "srun").write_text('#!/bin/sh\necho "MPI plugin types are...\n\tnone\n\tpmi2"\n')
    result = run(
        ["bash", "jobscripts/single_node_cpu.sbatch"],
        PATH=f"{srun}:{os.environ['PATH']}",
        SLURM_JOB_ID="1",
        SLURM_JOB_NAME="cpu",
        SLURM_NTASKS="2",
    )
    assert result.returncode == 2
    assert "set launcher=mpirun in jobscripts/sites/default.sh" in result.stderr


def test_example_site_can_be_sourced(tmp_path):
    """With a `module` that notes its arguments; the job finds the site that it named."""
    result = run(
        [
            "bash",
            "-euc",
            'module() { echo "module $*"; }; source jobscripts/sites/example.sh;'
            ' echo "$CADENZA_SITE $launcher $build $SBATCH_PARTITION $OMPI_MCA_pml"',
        ]
    )
    assert result.returncode == 0, result.stderr
    *modules, last = result.stdout.splitlines()
    assert modules[0] == "module purge"
    assert modules[1].startswith("module load ")
    assert last == "example srun build/cuda gpu ucx"
