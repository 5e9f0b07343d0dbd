# SPDX-License-Identifier: Apache-2.0
"""Simulated runs with a fault and without it."""

import shutil
import subprocess
from pathlib import Path

import yaml
from cadenza.time.parts import step_times
from cadenza.read.run import Run, open_run
from fault_runs.faults import Fault, even_documents, plant
from fault_runs.layouts import experiment, machine
from fault_runs.score import Answer, answer, score

FAST = (1e-7, 1e10)  # networks: latency in s, bytes per second
_FELT = 1.01  # a slow link that few bytes go over need not be named
MODERATE = (2e-6, 5e7)  # messages take some of the time


class Runs:
    """Simulates and analyses in a folder; runs without a fault are made once per layout and seed.

    @param program  the cadenza that simulates
    """

    def __init__(self, folder: Path, program: Path) -> None:
        self.folder, self.program = folder, program
        self._without: dict[tuple, list[float]] = {}
        for name, network in (("fast", FAST), ("moderate", MODERATE)):
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(machine(*network)))

    def judge(self, kind: str, layout: str, seed: int) -> tuple[dict, Fault, Answer, float, float]:
        """Which checks hold; the truth, the answer, and seconds of the replayed step without the
        fault and with it."""
        network = "moderate" if kind == "link" else "fast"
        clean = experiment(layout, seed, str(self.folder / f"{network}.yaml"))
        if kind == "link":  # whose cost is not hidden behind that of documents
            clean = even_documents(clean)
        key = (network, layout, seed)
        if key not in self._without:
            self._without[key] = seconds_of(self._simulate("clean", clean, "summary"))
        without = self._without[key]
        made, fault = plant(kind, layout, seed, clean, without[0])
        run = self._simulate("fault", made, "full")
        step = fault.steps[0] if fault.steps else 1
        said, seconds = answer(run, step), seconds_of(run)[step]
        if kind == "link" and seconds < _FELT * without[step]:
            return {}, fault, said, without[step], seconds
        return score(fault, said, without[step], seconds), fault, said, without[step], seconds

    def _simulate(self, name: str, made: dict, trace: str) -> Run:
        folder, file = self.folder / name, self.folder / f"{name}.yaml"
        shutil.rmtree(folder, ignore_errors=True)
        file.write_text(yaml.safe_dump(made, sort_keys=False))
        words = [self.program, "simulate", file, "--trace", trace, "--output", folder]
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
        return open_run(folder)


def seconds_of(run: Run) -> list[float]:
    """Of each step, on the clock of all ranks."""
    return [float(seconds) for seconds in step_times(run.steps())["seconds"]]
