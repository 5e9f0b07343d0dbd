# SPDX-License-Identifier: Apache-2.0
"""Simulated runs with a fault and without it."""

import shutil
import subprocess
from pathlib import Path

import yaml
from cadenza.run import open_run
from cadenza.study import Study
from fault_runs.faults import Fault, plant
from fault_runs.layouts import experiment, machine
from fault_runs.score import Answer, answer, score

FAST = (1e-7, 1e10)  # networks: latency in s, bytes per second
MODERATE = (1e-6, 2e8)  # messages take some of the time


class Runs:
    """Simulates and analyses in a folder; runs without a fault are made once per layout and seed.

    @param program  the cadenza that simulates
    """

    def __init__(self, folder: Path, program: Path) -> None:
        self.folder, self.program = folder, program
        self._clean: dict[tuple, float] = {}
        for name, network in (("fast", FAST), ("moderate", MODERATE)):
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(machine(*network)))

    def judge(self, kind: str, layout: str, seed: int) -> tuple[dict, Fault, Answer, float, float]:
        """Which checks hold; the truth, the answer, and seconds of a step without and with it."""
        network = "moderate" if kind == "link" else "fast"
        clean = experiment(layout, seed, str(self.folder / f"{network}.yaml"))
        without = self._seconds_without(network, layout, seed, clean)
        made, fault = plant(kind, layout, seed, clean, without)
        study = self._simulate("fault", made)
        seconds = float(study.step_times["seconds"].mean())
        said = answer(study)
        return score(fault, said, without, seconds), fault, said, without, seconds

    def _seconds_without(self, network: str, layout: str, seed: int, clean: dict) -> float:
        key = (network, layout, seed)
        if key not in self._clean:
            times = self._simulate("clean", clean, "summary").step_times["seconds"]
            self._clean[key] = float(times.mean())
        return self._clean[key]

    def _simulate(self, name: str, made: dict, trace: str = "full") -> Study:
        folder, file = self.folder / name, self.folder / f"{name}.yaml"
        shutil.rmtree(folder, ignore_errors=True)
        file.write_text(yaml.safe_dump(made, sort_keys=False))
        words = [self.program, "simulate", file, "--trace", trace, "--output", folder]
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
        return Study(open_run(folder))
