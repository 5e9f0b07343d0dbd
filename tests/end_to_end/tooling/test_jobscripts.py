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
    "idle GPUs": (
        "single_node_cpu",
        {"SLURM_JOB_GPUS": "0,1"},
        [QUICKSTART],
        f"{QUICKSTART} computes on processors: run.device: cuda",
    ),
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


@pytest.mark.parametrize("name", ["restart", "single_node_cpu", "array"])
def test_a_folder_of_another_job_of_that_number(name, srun, tmp_path):
    """It is refused before the first start; a job that is started again takes its own."""
    elsewhere = os.path.relpath(tmp_path, harness.ROOT / "runs")
    (harness.ROOT / "runs").mkdir(exist_ok=True)  # "runs/../..." leads to tmp_path
    row = "2k-colocated"
    (tmp_path / "job-7" / row).mkdir(parents=True)
    environment = {
        "PATH": f"{srun}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": f"{elsewhere}/job",
        "SLURM_NTASKS": "3",  # refused later
    }
    if name == "array":
        environment |= {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0"}
        grid = tmp_path / "grid.txt"
        grid.write_text(f"{row} run.steps=1\n")
        arguments = [QUICKSTART, grid]
    else:
        arguments = []
    words = ["bash", f"jobscripts/{name}.sbatch", *arguments]
    first = run(words, **environment)
    assert first.returncode == 2, first.stdout
    assert "is there already, but job 7 was never started before" in first.stderr
    again = run(words, **environment, SLURM_RESTART_COUNT="1")
    assert "ranks, but the job has 3 tasks" in again.stderr


CHAIN = {  # where Slurm's signal meets a job: what each part does on its way to the ranks
    "while modules load": ("kill -USR1 $$", ""),
    "while the launcher starts": ("", "kill -USR1 $PPID; sleep 0.3"),
}


@pytest.fixture
def chain(srun, corpus, tmp_path):
    """Runs a script as a job: `launcher` is what srun does before it starts the rank."""
    (srun / "scontrol").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/scontrol\n')
    (srun / "cadenza-analyze").write_text("#!/bin/sh\n")
    for name in ("scontrol", "cadenza-analyze"):
        (srun / name).chmod(0o755)
    changes = {"data": harness.tokens_data(corpus), "run": {"checkpoint": {"every": 1000}}}
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)

    def attempt(*options, script="restart", site="", launcher="", **variables):
        (tmp_path / "site.sh").write_text(site)
        (srun / "srun").write_text(
            '#!/bin/bash\ncase "$*" in\n  *--mpi=list*) echo pmix; exit ;;\n'
            f"  *--mpi=none*) exit ;;\nesac\n{launcher}\n"
            'while [[ $1 == --* ]]; do shift; done\nexec "$@"\n'
        )
        environment = {
            **harness.environment(),
            "PATH": f"{srun}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NAME": "restart",
            "SLURM_NTASKS": "1",
            "CADENZA_RUN": str(tmp_path / "run"),
            "CADENZA_SITE": str(tmp_path / "site.sh"),
            **variables,
        }
        return run(["bash", f"jobscripts/{script}.sbatch", experiment, *options], **environment)

    return attempt


@pytest.mark.parametrize("when", CHAIN)
def test_a_signal_at_any_time_is_passed_on(when, chain, tmp_path):
    """Before the ranks can take it, it waits; then they end their step, and the job is requeued.
    The attempt after it passes over a checkpoint that was damaged meanwhile."""
    site, launcher = CHAIN[when]
    first = chain("--set", "run.steps=100000", site=site, launcher=launcher)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "== near the time limit" in first.stdout
    assert (tmp_path / "scontrol").read_text().split("\n")[-2] == "requeue 7"
    steps = [line["step"] for line in harness.read_metrics(tmp_path / "run/attempt-0")]
    newest = tmp_path / f"run/attempt-0/checkpoints/step-{len(steps):08}.h5"
    os.truncate(newest, 5000)
    second = chain()
    assert second.returncode == 0, second.stdout + second.stderr
    assert f"skipped   {newest}" in second.stdout
    done = [line["step"] for line in harness.read_metrics(tmp_path / "run/attempt-1")]
    assert done == [0, 1, 2]


def test_a_launcher_that_dies_of_the_signal_ends_the_job(chain, tmp_path):
    """bash's `wait` gives the same code for that and for a signal of its own."""
    died = chain(launcher="kill -USR1 $$")
    assert died.returncode == 138, died.stdout + died.stderr
    assert "requeue" not in (tmp_path / "scontrol").read_text()


def test_a_job_that_slurm_starts_again_keeps_the_facts_of_each_start(chain, tmp_path):
    """Also those of a start that was taken down with its node."""
    killed = 'kill -KILL $PPID; mkdir -p "${@: -1}/trace"; touch "${@: -1}/experiment.yaml"; exit'
    chain(script="single_node_cpu", launcher=killed)
    again = chain(script="single_node_cpu", SLURM_RESTART_COUNT="1")
    assert again.returncode == 0, again.stdout + again.stderr
    for folder, is_second in (("run.1", False), ("run", True)):
        facts = (tmp_path / folder / "job/environment.txt").read_text()
        assert ("SLURM_RESTART_COUNT=1\n" in facts) == is_second, folder
    assert not (tmp_path / "run.job").exists()


# A name in a folder of everybody that others know: they can be there first, with a link or a file.
SHARED = re.compile(
    r"""(/tmp|/var/tmp|/dev/shm|TMPDIR:-[^}]*\}|gettempdir\(\)|temp_directory_path\(\))["']?
        \ */\ *["']?(?![^"'\s]*XXXXXX)\w""",
    re.VERBOSE,
)
OF_A_NAMESPACE = {"/dev/shm/pmix"}  # scripts/slurm-local mounts it for its hosts


def shared_names(text):
    return [
        line.strip()
        for line in text.splitlines()
        if SHARED.search(line) and not any(name in line for name in OF_A_NAMESPACE)
    ]


def test_no_predictable_names_in_shared_folders():
    paths = [
        path
        for folder in ("scripts", "jobscripts", "bench", "containers")
        for path in sorted((harness.ROOT / folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".out"
    ]
    assert len(paths) > 50
    found = {str(path): shared_names(path.read_text()) for path in paths}
    assert not {path: lines for path, lines in found.items() if lines}


@pytest.mark.parametrize(
    "line",
    [
        "folder=${CADENZA_SLURM:-${TMPDIR:-/tmp}/cadenza-slurm}",
        'default=Path("/tmp/cadenza-sparse")',
        'path = std::filesystem::temp_directory_path() / "cadenza-bench.h5";',
    ],
)
def test_predictable_names_are_found(line):
    assert shared_names(line) == [line]


@pytest.mark.parametrize("verb", [["start"], ["run", "true"], ["stop"]], ids=lambda verb: verb[0])
@pytest.mark.parametrize("fault", ["owner", "link", "writable", "above"])
def test_slurm_local_trusts_nobody_elses_folder(verb, fault, tmp_path):
    """Its configuration names libraries that root loads."""
    state = tmp_path / "above/state"
    state.mkdir(parents=True)
    for name in (".slurm-local", "slurm.conf", "network"):
        (state / name).touch()
    (state / "slurmctld.pid").write_text("1")
    if fault == "link":
        state.rename(tmp_path / "above/elsewhere")
        state.symlink_to(tmp_path / "above/elsewhere")
    elif fault == "writable":
        state.chmod(0o777)
    else:
        try:
            os.chown(state if fault == "owner" else state.parent, 65534, 65534)
        except PermissionError:
            pytest.skip("only root can give a folder away")
    result = run(["scripts/slurm-local", *verb], CADENZA_SLURM=str(state))
    assert result.returncode == 1, result.stdout + result.stderr
    at = state.parent if fault == "above" else state
    assert result.stderr.startswith(f"error: {at}: "), result.stderr
    assert "valid for CADENZA_SLURM: a folder of your own" in result.stderr
    assert (state / "slurmctld.pid").exists()


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
