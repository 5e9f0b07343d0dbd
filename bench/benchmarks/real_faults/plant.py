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

from lib.command import TIMEOUT, RunError, environment, failure, words_of

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
}
PAUSE = 0.4  # s
SLICE = 0.01  # s that a slow rank runs, and is stopped, in turns
DELAY_US = 20_000  # of each read of late data
WARM_UP = 3  # steps without a pause
TRUTH = "truth.json"


def settings(layout, seed):
    return [*COMMON, *LAYOUTS[layout], f"seed={seed + 1}"]


def plant(program, experiment, under, folder, kind, layout, seed):
    """One run with one fault. @returns what was planted: victim, and for a pause its begin and end
    on the clock of the traces (CLOCK_MONOTONIC, ns)."""
    if (folder / TRUTH).exists():
        return json.loads((folder / TRUTH).read_text())
    chance = random.Random(f"{kind} {layout} {seed}")
    truth = {"victim": chance.randrange(RANKS)}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wrapper = delayed(folder, truth["victim"]) if kind == "late data" else []
    words = words_of(program, ["train", experiment, "--output", folder / "run"],
                     settings(layout, seed))
    process = subprocess.Popen([*under, "mpirun", "-n", str(RANKS), *wrapper, *words],
                               env=environment(), stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    try:
        truth |= disturb(process, folder, kind, chance, truth["victim"])
        _, complaints = process.communicate(timeout=TIMEOUT)
    finally:
        if process.poll() is None:
            process.terminate()  # mpirun ends its ranks
    if process.returncode != 0:
        raise failure(process.returncode, complaints)
    (folder / TRUTH).write_text(json.dumps(truth))
    return truth


def disturb(process, folder, kind, chance, victim):
    if kind == "late data":
        return {}
    first = wait_for_steps(process, folder, 1)
    rank = rank_processes(process.pid)[victim]
    if kind == "slow":
        take_turns(process, rank)
        return {}
    each = (wait_for_steps(process, folder, WARM_UP) - first) / (WARM_UP - 1)
    time.sleep(chance.uniform(0, 0.6) * each * (STEPS - WARM_UP))
    return pause(rank, PAUSE)


def pause(rank, seconds):
    os.kill(rank, signal.SIGSTOP)
    begin = time.monotonic_ns()
    time.sleep(seconds)
    os.kill(rank, signal.SIGCONT)
    return {"begin_ns": begin, "end_ns": time.monotonic_ns()}


def take_turns(process, rank):
    """Until the rank is gone; it is left running."""
    with contextlib.suppress(ProcessLookupError):
        while process.poll() is None:
            os.kill(rank, signal.SIGSTOP)
            time.sleep(SLICE)
            os.kill(rank, signal.SIGCONT)
            time.sleep(SLICE)


def delayed(folder, victim):
    """Words before the program's: `victim` runs under strace, which holds each pread64 up. Only the
    text corpus reads with it."""
    script = folder / "delayed"
    inject = f"inject=pread64:delay_enter={DELAY_US}"
    script.write_text(
        "#!/bin/sh\n"
        'rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-$PMI_RANK}}\n'
        f'[ "$rank" = {victim} ] || exec "$@"\n'
        f'exec strace -f --seccomp-bpf -qq -o /dev/null -e trace=pread64 -e {inject} "$@"\n')
    script.chmod(0o755)
    return [str(script)]


def wait_for_steps(process, folder, count):
    """@returns when it was seen that `count` steps are over"""
    metrics = folder / "run/metrics.jsonl"
    end = time.monotonic() + TIMEOUT
    while not metrics.exists() or metrics.read_text().count("\n") < count:
        if process.poll() is not None or time.monotonic() > end:
            raise RunError(f"ended before step {count}")
        time.sleep(0.005)
    return time.monotonic()


def rank_processes(launcher):
    """Process of each rank below a launcher, by rank."""
    children = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found, below = {}, [launcher]
    for process in below:
        below += children.get(process, [])
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            ranks = [v for v in variables if v.startswith((b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK="))]
            if ranks:
                found[int(ranks[0].partition(b"=")[2])] = process
    return found
