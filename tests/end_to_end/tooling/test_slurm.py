# SPDX-License-Identifier: Apache-2.0
"""jobscripts/ run by sbatch, on the throw-away Slurm of scripts/slurm-local with two nodes."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

import harness

LIMIT = 900.0  # seconds a job may take, waiting included; on a calm machine none takes 60
STUCK = "srun: First task exited 60s ago"  # its other tasks, as srun believes, run on


class Slurm:
    """Submits job scripts from the repository's root and waits for them."""

    def __init__(self, state, results, tools):
        self.results = results
        self.environment = {
            **os.environ,
            **harness.environment(),
            "CADENZA": str(harness.PROGRAM),
            "CADENZA_SLURM": str(state),
            "PATH": f"{tools}:{os.environ['PATH']}",
        }

    def run(self, *words, **environment):
        return subprocess.run(
            ["scripts/slurm-local", *map(str, words)],
            cwd=harness.ROOT,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )

    def command(self, *words, **environment):
        result = self.run("run", *words, **environment)
        assert result.returncode == 0, f"{words}\n{result.stdout}{result.stderr}"
        return result.stdout

    def submit(self, script, *arguments, options=(), **environment):
        """A job of jobscripts/`script`; its results go to a folder of their own."""
        folder = Path(tempfile.mkdtemp(prefix=f"{script}-", dir=self.results))
        said = self.command(
            "sbatch",
            f"--output={folder}/log-%a",
            *options,
            f"jobscripts/{script}.sbatch",
            *arguments,
            **{"CADENZA_RUN": str(folder / "run"), **environment},
        )
        return Job(self, int(re.search(r"job (\d+)", said)[1]), folder)


def has_ended(states):
    return not {"PENDING", "RUNNING", "COMPLETING"} & {state for state, _ in states}


class Job:
    def __init__(self, slurm, number, folder):
        self.slurm = slurm
        self.number = number
        self.folder = folder / "run"

    @property
    def log(self):
        return "".join(path.read_text() for path in sorted(self.folder.parent.glob("log-*")))

    def states(self):
        """States and exit codes of the job or of all its array tasks or components."""
        shown = self.slurm.command("scontrol", "show", "job", self.number)
        return re.findall(r"JobState=(\w+).*? ExitCode=(\d+)", shown, re.DOTALL)

    def wait(self, done=has_ended):
        end = time.monotonic() + LIMIT
        while not done(states := self.states()):
            assert time.monotonic() < end, f"{states}\n{self.log}"
            time.sleep(0.3)
        return states

    def succeed(self):
        states = self.wait()
        assert set(states) == {("COMPLETED", "0")}, f"{states}\n{self.log}"

    def wait_for_steps(self, attempt, count):
        metrics = self.folder / f"attempt-{attempt}/metrics.jsonl"
        self.wait(lambda _: metrics.exists() and metrics.read_text().count("\n") >= count)

    def attempt(self, number):
        """Steps of an attempt, which its trace has as well."""
        folder = self.folder / f"attempt-{number}"
        steps = [line["step"] for line in harness.read_metrics(folder)]
        for rank in range(2):
            rows = harness.committed_steps(folder / f"trace/rank-{rank:05}.h5")
            assert list(rows["step"]) == steps
        return steps


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    tools = tmp_path_factory.mktemp("tools")
    analyze = tools / "cadenza-analyze"
    package = harness.ROOT / "analysis"
    analyze.write_text(
        f'#!/bin/sh\nPYTHONPATH={package} exec {sys.executable} -m cadenza.cli "$@"\n'
    )
    analyze.chmod(0o755)
    state = Path(tempfile.mkdtemp())  # short: sockets lie in it
    cluster = Slurm(state / "slurm", tmp_path_factory.mktemp("results"), tools)
    try:
        started = cluster.run("start", "2")
        if started.returncode == 77:
            pytest.skip(started.stderr.strip())
        assert started.returncode == 0, started.stdout + started.stderr
        yield cluster
    finally:
        cluster.run("stop")
        shutil.rmtree(state)


@pytest.fixture(scope="module")
def experiment(corpus, tmp_path_factory):
    """Writes DEFAULTS with changes for two trainers; returns the path."""
    folder = tmp_path_factory.mktemp("experiments")

    def write(name, **changes):
        base = {
            "data": harness.tokens_data(corpus),
            "parallel": {"data": 2},
            "attention": {"placement": "cad"},
        }
        return harness.write_experiment(folder / f"{name}.yaml", harness.merged(base, changes))

    return write


def assert_analysed(folder, ranks, hosts):
    """The traces tell the nodes; the report was made of them."""
    names = set()
    for rank in range(ranks):
        path = folder / f"trace/rank-{rank:05}.h5"
        assert len(harness.committed_steps(path)) == 3
        with h5py.File(path) as file:
            names.add(file["/meta/rank"][0]["host"].decode())
    assert names == hosts
    assert "<html" in (folder / "report.html").read_text()
    facts = (folder / "job/nodes.txt").read_text()
    assert set(re.findall(r"^node (\S+):", facts, re.MULTILINE)) == hosts


def test_single_node(slurm, experiment):
    job = slurm.submit("single_node_cpu", experiment("cpu"))
    job.succeed()
    assert_analysed(job.folder, 2, {"node1"})
    facts = {path.name for path in (job.folder / "job").iterdir()}
    assert facts == {"environment.txt", "job.txt", "nodes.txt", "program.txt"}
    assert f"SLURM_JOB_ID={job.number}" in (job.folder / "job/environment.txt").read_text()


def test_two_nodes_with_gpus(slurm, experiment):
    """Of GPUs there are names only: what is held is that the ranks are told all of their node's."""
    job = slurm.submit(
        "multi_node_gpu",
        experiment("gpu"),
        "--set",
        "run.device=host",
        options=["--ntasks-per-node=1", "--gpus-per-node=4", "--cpus-per-task=2"],
    )
    job.succeed()
    assert_analysed(job.folder, 2, {"node1", "node2"})
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3" in (job.folder / "job/environment.txt").read_text()


def test_mpirun_where_the_site_says_so(slurm, experiment, tmp_path):
    site = tmp_path / "site.sh"
    site.write_text("launcher=mpirun\n")
    options = ["--nodes=2", "--ntasks-per-node=1"]
    job = slurm.submit(
        "single_node_cpu", experiment("mpirun"), options=options, CADENZA_SITE=str(site)
    )
    job.succeed()
    assert_analysed(job.folder, 2, {"node1", "node2"})
    assert "== mpirun --bind-to none " in job.log


def heterogeneous(slurm, *words):
    """A job that succeeded. Slurm 22.05 may miss that a step of a heterogeneous job has ended on
    both nodes, and wait for ever; the program has ended then, and the job is submitted again."""
    job = slurm.submit(*words)
    job.wait(lambda states: has_ended(states) or STUCK in job.log)
    if STUCK in job.log:
        slurm.command("scancel", job.number)
        assert "next      cadenza-analyze report" in job.log
        job = slurm.submit(*words)
    job.succeed()
    return job


def test_dedicated_servers_on_their_own_node(slurm, experiment):
    job = heterogeneous(
        slurm, "dedicated_servers", experiment("servers", attention={"servers": 2})
    )
    assert_analysed(job.folder, 4, {"node1", "node2"})
    for rank, place in enumerate([("node1", 0), ("node1", 0), ("node2", 1), ("node2", 1)]):
        with h5py.File(job.folder / f"trace/rank-{rank:05}.h5") as file:
            row = file["/meta/rank"][0]
        assert (row["host"].decode(), row["role"]) == place


def test_array(slurm, experiment, tmp_path):
    grid = tmp_path / "grid.txt"
    grid.write_text(
        "# two rows\n\n"
        "home attention.placement=colocated\n"
        "  spread attention.placement=cad run.steps=4\n"
    )
    job = slurm.submit(
        "array", experiment("array"), grid, options=["--array=0-1", "--ntasks-per-node=2"]
    )
    job.succeed()
    assert len(harness.read_metrics(job.folder / "home")) == 3
    assert len(harness.read_metrics(job.folder / "spread")) == 4


def test_compare(slurm, experiment):
    job = slurm.submit("compare", experiment("compare"), "colocated", "cad")
    job.succeed()
    for name in ("colocated", "cad"):
        written = yaml.safe_load((job.folder / name / "experiment.yaml").read_text())
        assert written["attention"]["placement"] == name
    first, second = (harness.Run(job.folder / name).losses for name in ("colocated", "cad"))
    np.testing.assert_allclose(first, second, rtol=1e-5)
    assert "<html" in (job.folder / "report.html").read_text()


def test_wrong_shape_costs_nothing(slurm, experiment):
    job = slurm.submit("single_node_cpu", experiment("shape"), options=["--ntasks-per-node=1"])
    assert job.wait() == [("FAILED", "2")]
    assert "asks for 2 ranks, but the job has 1 tasks" in job.log
    assert not job.folder.exists()


def test_failed_run_fails_the_job(slurm, experiment):
    """With the program's own code, and without a report."""
    wild = experiment("wild", optimizer={"lr": 1e30, "clip": 0, "warmup": 0}, run={"steps": 50})
    job = slurm.submit("single_node_cpu", wild)
    assert job.wait() == [("FAILED", "4")]
    assert not (job.folder / "report.html").exists()


LONG = {"model": {"d_model": 64, "ffn": 192}, "batch": {"tokens": 2048}}  # some 30 ms a step
MORE = 20  # steps of a second attempt
# A first attempt that does not end by itself, however fast the machine is, and a second that does.
IN_TWO_ATTEMPTS = f"""#!/bin/bash
if [[ "$*" =~ --from[[:space:]]([^[:space:]]+) ]]; then
  from=$(find "${{BASH_REMATCH[1]}}/attempt-0" -name 'step-*.h5' | sort | tail -n 1)
  from=${{from##*/step-}}
  set -- "$@" --set run.steps=$((10#${{from%.h5}} + {MORE}))
fi
exec {harness.PROGRAM} "$@"
"""


@pytest.fixture(scope="module")
def chains(slurm, experiment, tmp_path_factory):
    """Three chains at once, as they mostly wait: their second attempts run when this returns."""
    program = tmp_path_factory.mktemp("program") / "cadenza"
    program.write_text(IN_TWO_ATTEMPTS)
    program.chmod(0o755)

    def submit(name, every, *options, **environment):
        long = experiment(name, **LONG, run={"steps": 100000, "checkpoint": {"every": every}})
        options = ["--cpus-per-task=1", *options]
        return slurm.submit("restart", long, options=options, **environment)

    # Slurm looks every 30 s and signals up to as much earlier: 15 to 45 s after the job's start.
    limit = submit("limit", 100000, "--time=2", "--signal=B:USR1@75")
    signalled = submit("signalled", 100000, CADENZA=str(program))
    requeued = submit("requeued", 4, CADENZA=str(program))
    signalled.wait_for_steps(0, 3)
    slurm.command("scancel", "--batch", "--signal=USR1", signalled.number)
    requeued.wait_for_steps(0, 6)
    slurm.command("scontrol", "requeue", requeued.number)
    limit.wait_for_steps(1, 2)
    slurm.command("scancel", limit.number)
    return {"limit": limit, "signalled": signalled, "requeued": requeued}


def test_restart_chain(chains):
    """Signalled, queued again, resumed: every step once, the job ends well."""
    job = chains["signalled"]
    job.succeed()
    first, second = job.attempt(0), job.attempt(1)
    assert len(first) >= 3
    assert first + second == list(range(len(first) + MORE))
    assert "<html" in (job.folder / "attempt-1/report.html").read_text()


def test_restart_of_a_job_that_was_taken_down(chains):
    """As by a node that fails or a job that goes first: it resumes from the newest checkpoint."""
    job = chains["requeued"]
    job.succeed()
    newest = max(path.stem for path in job.folder.glob("attempt-0/checkpoints/step-*.h5"))
    begin = int(newest.removeprefix("step-"))
    assert begin >= 4
    assert job.attempt(1) == list(range(begin, begin + MORE))
    assert f"attempt-0/checkpoints/{newest}.h5" in job.log


def test_restart_at_the_time_limit(chains):
    """Slurm itself signalled, up to a minute before it was asked to."""
    job = chains["limit"]
    assert job.wait()[0][0] == "CANCELLED"
    assert "== near the time limit" in job.log
    assert job.attempt(1)[0] == job.attempt(0)[-1] + 1


def test_restart_needs_progress(slurm, experiment, tmp_path):
    """An attempt that leaves no newer checkpoint is not tried for ever."""
    program = tmp_path / "cadenza"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *--dry-run*) exec {harness.PROGRAM} "$@" ;; esac\nexit 85\n'
    )
    program.chmod(0o755)
    stuck = experiment("stuck", run={"checkpoint": {"every": 1}})
    job = slurm.submit("restart", stuck, CADENZA=str(program))
    assert job.wait() == [("FAILED", "2")]
    assert "wrote no newer checkpoint" in job.log


def test_slurm_accepts_all_scripts(slurm):
    """sbatch --test-only against nodes of eight GPUs that are names only; it refuses nine."""
    environment = {"SBATCH_PARTITION": "phantom"}
    assert slurm.command("scripts/slurm-check", **environment) == ""
    script = slurm.results / "nine.sbatch"
    text = (harness.ROOT / "jobscripts/multi_node_gpu.sbatch").read_text()
    script.write_text(text.replace("--gpus-per-node=8", "--gpus-per-node=9"))
    refused = slurm.run("run", "scripts/slurm-check", script, **environment)
    assert refused.returncode == 1
    assert "sbatch --test-only" in refused.stdout
