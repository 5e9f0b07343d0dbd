# SPDX-License-Identifier: Apache-2.0
"""Threads and cores of ranks: what the first line says, what the trace records, where they run."""

import os
import shutil
from pathlib import Path

import h5py
import pytest

import harness

CORES = sorted(os.sched_getaffinity(0))[:2]
pytestmark = pytest.mark.skipif(
    len(CORES) < 2 or shutil.which("taskset") is None, reason="needs two cores and taskset"
)
FREE = {"OMP_NUM_THREADS": None, "OMP_PROC_BIND": None}


def listed(cores):
    first, second = cores
    return f"{first}-{second}" if second == first + 1 else f"{first},{second}"


def words(ranks, arguments):
    return ["taskset", "-c", ",".join(map(str, CORES)), *harness.command(ranks, arguments)]


def experiment(folder, ranks, steps):
    changes = {
        "data": {"source": "synthetic"},
        "parallel": {"data": ranks},
        "run": {"steps": steps},
    }
    return harness.write_experiment(folder / "e.yaml", changes)


def train(folder, ranks, env):
    """The line on threads, and the threads of each rank as its trace has them."""
    arguments = ["train", experiment(folder, ranks, 1), "--output", folder / "run"]
    result = harness.finish(harness.start(words(ranks, arguments), env=env))
    assert result.code == 0, str(result)
    lines = [line for line in result.out.splitlines() if line.startswith("threads ")]
    assert len(lines) == 1, str(result)
    threads = []
    for rank in range(ranks):
        with h5py.File(folder / "run" / "trace" / f"rank-{rank:05}.h5", "r") as file:
            threads.append(int(file["/meta/rank"]["threads"][0]))
    return lines[0].removeprefix("threads   "), threads


BOTH = listed(CORES) if len(CORES) == 2 else ""
APART = " | ".join(map(str, CORES))
CASES = {  # ranks, environment, the line, threads of a rank
    "one rank": (1, FREE, f"1 rank x 2 threads, cores {BOTH} (pinned)", 2),
    "two ranks": (2, FREE, f"2 ranks x 1 thread, cores {APART} (pinned)", 1),
    "two ranks that ask": (
        2,
        {**FREE, "OMP_NUM_THREADS": "1"},
        f"2 ranks x 1 thread, cores {APART} (pinned)",
        1,
    ),
    "too many": (
        2,
        {**FREE, "OMP_NUM_THREADS": "2"},
        f"2 ranks x 2 threads, cores {BOTH} (not pinned); "
        "oversubscribed: 4 threads on 2 cores, so times will be longer",
        2,
    ),
    "more ranks than cores": (
        3,
        FREE,
        f"3 ranks x 1 thread, cores {BOTH} (not pinned); "
        "oversubscribed: 3 threads on 2 cores, so times will be longer",
        1,
    ),
    "the user's binding": (
        2,
        {"OMP_NUM_THREADS": None},
        f"2 ranks x 1 thread, cores {BOTH} (binding as OMP_PROC_BIND says)",
        1,
    ),
    "the user's places": (
        2,
        {"OMP_NUM_THREADS": None, "OMP_PROC_BIND": "spread", "OMP_PLACES": "threads"},
        f"2 ranks x 1 thread, cores {CORES[0]} (binding as OMP_PROC_BIND and OMP_PLACES say); "
        "oversubscribed: 2 threads on 1 core, so times will be longer: OMP_PROC_BIND and "
        "OMP_PLACES bind the threads of all ranks alike, unset them",
        1,
    ),
    "the user's cores": (
        1,
        {**FREE, "OMP_PLACES": f"{{{CORES[0]}}}"},
        f"1 rank x 1 thread, cores {CORES[0]} (binding as OMP_PLACES says)",
        1,
    ),
    "fewer than OpenMP was asked for": (  # Kokkos would wait for the others
        1,
        {**FREE, "OMP_THREAD_LIMIT": "1", "OMP_DYNAMIC": "true", "OMP_MAX_ACTIVE_LEVELS": "0"},
        f"1 rank x 1 thread, cores {BOTH} (not pinned); a rank can have no more than 1 thread, "
        "not 2: use more ranks",
        1,
    ),
    "more than Kokkos has room for": (
        1,
        {**FREE, "OMP_NUM_THREADS": "600"},
        f"1 rank x 512 threads, cores {BOTH} (not pinned); oversubscribed: 512 threads on 2 "
        "cores, so times will be longer; a rank can have no more than 512 threads, not 600",
        512,
    ),
    "Slurm's cores": (
        1,
        {**FREE, "SLURM_CPUS_PER_TASK": "1"},
        f"1 rank x 1 thread, cores {BOTH} (not pinned)",
        1,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_first_line_and_trace(case, tmp_path):
    ranks, env, line, threads = CASES[case]
    assert train(tmp_path, ranks, env) == (line, [threads] * ranks)


def cores_of_threads(folder):
    """For every rank that writes into `folder`: the cores its threads may run on, first its main
    thread's."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:  # it ended
            continue
        if command[0] != str(harness.PROGRAM) or str(folder) not in command:
            continue
        tasks = sorted((process / "task").iterdir(), key=lambda task: int(task.name))
        found.append([cores for task in tasks for cores in allowed(task / "status")])
    return sorted(found)


def allowed(status):
    """The cores of one thread; nothing for one that ended since it was listed."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return []
    return [line.split()[1] for line in lines if line.startswith("Cpus_allowed_list:")]


def watch(folder, ranks, env):
    arguments = ["train", experiment(folder, ranks, 100000), "--output", folder / "run"]
    process = harness.start(words(ranks, arguments), env=env)
    try:
        harness.wait_for_steps(process, folder / "run", 1)
        return cores_of_threads(folder / "run")
    finally:
        harness.stop(process)
        process.communicate()


def test_two_ranks_run_on_cores_of_their_own(tmp_path):
    assert [threads[0] for threads in watch(tmp_path, 2, FREE)] == sorted(map(str, CORES))


def test_one_ranks_second_thread_is_pinned_to_the_second_core(tmp_path):
    (threads,) = watch(tmp_path, 1, FREE)
    assert threads[0] == BOTH
    assert str(CORES[1]) in threads[1:]
    assert str(CORES[0]) not in threads


def test_nothing_is_pinned_where_the_user_binds(tmp_path):
    found = watch(tmp_path, 2, {"OMP_NUM_THREADS": None})
    assert [threads[0] for threads in found] == [BOTH, BOTH]
