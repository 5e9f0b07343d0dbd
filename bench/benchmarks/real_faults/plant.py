# SPDX-License-Identifier: Apache-2.0
"""Running the program with a fault in one of its ranks; what was planted, and when."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sysconfig
import time
from pathlib import Path

from benchmarks.real_faults.processes import (
    Waits, Writes, at_once, rank_processes, wait_for_steps,
)
from lib.command import TIMEOUT, environment, failure, words_of

RANKS = 2
STEPS = 10
LIBRARY = sysconfig.get_paths()["stdlib"]
COMMON = [f"data.path=['{LIBRARY}/*.py', '{LIBRARY}/*/*.py']", "attention.placement=colocated",
          "batch.tokens=4096", "batch.microbatch=1024", f"run.steps={STEPS}"]
LAYOUTS = {
    "data": [],
    "tensor": ["parallel.data=1", "parallel.tensor=2"],
    "pipeline": ["parallel.data=1", "parallel.pipeline=2"],
    "cad": ["attention.placement=cad", "attention.tolerance=0.1", "attention.overlap=none"],
    # Not plain ring, whose second rank has more to attend: it would be late by that, too.
    "zigzag": ["parallel.data=1", "parallel.context=2", "attention.placement=zigzag"],
}
KINDS = {
    "pause": "the rank is stopped (SIGSTOP) once, for 0.4 s, at a random moment",
    "slow": "the rank is stopped for 10 ms of every 20 ms, in all of the run",
    "late data": "every read of the rank's documents takes 20 ms longer (strace)",
    "pause between": "a rank is, or both are, stopped for 0.4 s while they write a step's trace",
    "busy core": "a loop runs on the rank's core (taskset), in all of the run or from a moment on",
    "late start": "the rank sleeps for 0.1 to 0.3 s before it begins steps (LD_PRELOAD)",
    "clean": "nothing is planted",
}
PAUSE = 0.4  # s
SLICE = 0.01  # s that a slow rank runs, and is stopped, in turns
DELAY_US = 20_000  # of each read of late data
WARM_UP = 3  # steps without a pause
TRUTH = "truth.json"


def settings(layout, seed):
    return [*COMMON, *LAYOUTS[layout], f"seed={seed + 1}"]


def plant(program, experiment, under, folder, kind, layout, seed):
    """One run with one fault. @returns what was planted: its ranks; of what lasts for a while its
    begin and end on the clock of the traces (CLOCK_MONOTONIC, ns); by rank the share of the time in
    which it had no core (`waits`)."""
    if (folder / TRUTH).exists():
        return json.loads((folder / TRUTH).read_text())
    chance = random.Random(f"{kind} {layout} {seed}")
    victim = chance.randrange(RANKS)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    words = words_of(program, ["train", experiment, "--output", folder / "run"],
                     settings(layout, seed))
    process = subprocess.Popen(
        [*under, "mpirun", "-n", str(RANKS), *wrapper(kind, folder, victim, chance), *words],
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    waits = Waits(process, folder)
    try:
        truth = {"ranks": [victim], **DISTURB[kind](process, folder, chance, victim)}
        _, complaints = process.communicate(timeout=TIMEOUT)
    finally:
        if process.poll() is None:
            process.terminate()  # mpirun ends its ranks
    if process.returncode != 0:
        raise failure(process.returncode, complaints)
    truth["waits"] = waits.shares()
    (folder / TRUTH).write_text(json.dumps(truth))
    return truth


# --- What is done to the ranks while they run. @returns what of it belongs to the truth ---


def pause_once(process, folder, chance, victim):
    first = wait_for_steps(process, folder, 1)
    each = (wait_for_steps(process, folder, WARM_UP) - first) / (WARM_UP - 1)
    time.sleep(chance.uniform(0, 0.6) * each * (STEPS - WARM_UP))
    return pause([rank_processes(process.pid)[victim]], PAUSE)


def pause_between(process, folder, chance, victim):
    """Each is stopped as soon as it writes to its trace, which it does only between two steps."""
    ranks = chance.choice([[victim], list(range(RANKS))])
    wait_for_steps(process, folder, chance.randrange(WARM_UP, STEPS - 2))
    processes = rank_processes(process.pid)
    traces = {folder / f"run/trace/rank-{rank:05}.h5": processes[rank] for rank in ranks}
    with at_once(), Writes(traces) as writes:
        for trace in writes:
            os.kill(traces[trace], signal.SIGSTOP)
        return {"ranks": ranks, **pause(traces.values(), PAUSE)}


def pause(processes, seconds):
    for one in processes:
        os.kill(one, signal.SIGSTOP)
    begin = time.monotonic_ns()
    time.sleep(seconds)
    for one in processes:
        os.kill(one, signal.SIGCONT)
    return {"begin_ns": begin, "end_ns": time.monotonic_ns()}


def take_turns(process, folder, _, victim):
    """Until the rank is gone; it is left running."""
    wait_for_steps(process, folder, 1)
    rank = rank_processes(process.pid)[victim]
    with contextlib.suppress(ProcessLookupError):
        while process.poll() is None:
            os.kill(rank, signal.SIGSTOP)
            time.sleep(SLICE)
            os.kill(rank, signal.SIGCONT)
            time.sleep(SLICE)
    return {}


def busy_core(process, folder, chance, victim):
    if chance.random() < 0.5:
        wait_for_steps(process, folder, chance.randrange(WARM_UP, STEPS - 3))
    loop = subprocess.Popen(["taskset", "-c", str(core_of(victim)), "sh", "-c",
                             "while :; do :; done"], start_new_session=True)
    with contextlib.suppress(OSError):  # as important as the ranks, which are a session as well
        nice = Path("/proc/self/autogroup").read_text().split()[-1]
        Path(f"/proc/{loop.pid}/autogroup").write_text(nice)
    begin = time.monotonic_ns()
    try:
        process.wait(timeout=TIMEOUT)
    finally:
        loop.kill()
        loop.wait()
    return {"begin_ns": begin}


def late_starts(process, folder, chance, _):
    """What the rank does before step k + 1 is decided while step k runs."""
    begin = chance.randrange(WARM_UP, STEPS - 3)
    late = chance.choice([range(1, STEPS), range(begin, STEPS), range(begin, begin + 1),
                          range(begin % 2 + 1, STEPS, 2)])
    for step in range(1, STEPS):
        wait_for_steps(process, folder, step - 1)
        (folder / "late").touch() if step in late else (folder / "late").unlink(missing_ok=True)
    return {}


def nothing(*_):
    return {}


DISTURB = {"pause": pause_once, "slow": take_turns, "late data": nothing,
           "pause between": pause_between, "busy core": busy_core, "late start": late_starts,
           "clean": nothing}


# --- What ranks are started with ---


def wrapper(kind, folder, victim, chance):
    """Words before the program's."""
    script = folder / "start"
    script.write_text('#!/bin/sh\nrank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-$PMI_RANK}}\n'
                      + started(kind, folder, victim, chance) + '\nexec "$@"\n')
    script.chmod(0o755)
    return [str(script)]


def started(kind, folder, victim, chance):
    """Lines of a shell before the program is started. Only the text corpus reads with pread64."""
    of_victim = f'[ "$rank" = {victim} ] || exec "$@"\n'
    if kind == "late data":
        return (of_victim + "exec strace -f --seccomp-bpf -qq -o /dev/null -e trace=pread64 "
                f'-e inject=pread64:delay_enter={DELAY_US} "$@"')
    if kind == "late start":
        delay = round(chance.uniform(0.1, 0.3) * 1e6)
        return (of_victim + f"export LD_PRELOAD={late_start_library(folder)} "
                f"LATE_START_FILE={folder / 'late'} LATE_START_US={delay}")
    if kind == "busy core":
        cores = " ".join(str(core_of(rank)) for rank in range(RANKS))
        return f'taskset -pc $(echo {cores} | cut -d" " -f$((rank + 1))) $$ > /dev/null'
    return ""


def core_of(rank):
    cores = sorted(os.sched_getaffinity(0))
    return cores[rank % len(cores)]


def late_start_library(folder):
    library = folder / "late_start.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library,
                    Path(__file__).with_name("late_start.c"), "-ldl"], check=True)
    return library
