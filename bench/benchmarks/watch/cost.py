# SPDX-License-Identifier: Apache-2.0
"""What the watch takes beside a real run of two ranks."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lib import tables
from lib.command import environment, mpirun, words_of
from lib.host import ROOT

RANKS = 2
TOKENS = 65536  # steps of some seconds: those of real runs are longer


def cost(program, steps):
    """Prints the processor times of a run of so many steps and of the watch, its start apart.
    @returns 0"""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = [*mpirun(RANKS), *words_of(
            program, ["train", ROOT / "inputs/quickstart.yaml", "--output", run, "--quiet"],
            [f"run.steps={steps}", f"batch.tokens={TOKENS}", "run.checkpoint.every=0"])]
        start = _start()
        begin = time.monotonic()
        trained = subprocess.Popen(words, env=environment(1), stdout=subprocess.DEVNULL)
        watched = subprocess.Popen([sys.executable, "-m", "cadenza.cli", "watch", str(run)],
                                   stdout=subprocess.PIPE, text=True)
        said = watched.stdout.read()
        _, _, of_watch = os.wait4(watched.pid, 0)
        _, _, of_run = os.wait4(trained.pid, 0)
        wall = time.monotonic() - begin
    print(said, file=sys.stderr)
    spent, whole = _seconds(of_watch), _seconds(of_run)
    tables.show(*tables.head(["run: steps", "wall s", "processor s", "watch: processor s",
                              "its start", "share", "without the start"]))
    tables.show(tables.row([steps, f"{wall:.0f}", f"{whole:.1f}", f"{spent:.2f}", f"{start:.2f}",
                            f"{spent / whole:.3%}", f"{max(spent - start, 0) / whole:.3%}"]))
    return 0


def _start():
    """Of Python and the packages alone."""
    child = subprocess.Popen([sys.executable, "-m", "cadenza.cli", "watch", "--help"],
                             stdout=subprocess.DEVNULL)
    return _seconds(os.wait4(child.pid, 0)[2])


def _seconds(used):
    return used.ru_utime + used.ru_stime
