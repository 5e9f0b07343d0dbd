# SPDX-License-Identifier: Apache-2.0
"""Running the program: its words, its environment, what its failure says, its metrics."""

import json
import os
import subprocess

TIMEOUT = 900  # s of a run


class RunError(SystemExit):
    """A run ended badly, and with it the benchmark that does not expect that."""


def environment(threads=1):
    """Of a run whose ranks have so many threads; None: as many as they choose."""
    chosen = {"OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "false"} if threads else {}
    return {**os.environ, **chosen}


def words_of(program, arguments, settings=()):
    """@param settings  KEY=VALUE each"""
    return [str(word) for word in (program, *arguments)] + [
        word for setting in settings for word in ("--set", setting)]


def mpirun(ranks, under=()):
    """What starts so many ranks: each has a core of its own where there are enough."""
    enough = len(os.sched_getaffinity(0)) >= ranks
    return [*under, "mpirun", "-n", str(ranks),
            *(["--bind-to", "core"] if enough else ["--oversubscribe"])]


def failure(code, *told):
    """Says the last line of the first of the texts that has one."""
    said = next((text.strip() for text in told if text.strip()), "no output")
    return RunError(f"{said.splitlines()[-1]} (exit code {code})")


def call(words, accepted=(0,), threads=1, timeout=TIMEOUT):
    """What the command prints; its exit code must be one of `accepted`."""
    try:
        done = subprocess.run(words, env=environment(threads), capture_output=True, text=True,
                              check=False, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise RunError(f"stopped after {timeout} s") from error
    if done.returncode not in accepted:
        raise failure(done.returncode, done.stderr, done.stdout)
    return done.stdout


def metrics(run):
    """Of every step of the run in a folder."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
