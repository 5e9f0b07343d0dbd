# SPDX-License-Identifier: Apache-2.0
"""What the analysis says of faults in simulated runs.

Plants slow ranks, nodes and links, pauses, longer documents and wrong clocks, analyses the runs and
counts how often the verdicts name the right ranks, phase, cause, time and gain. A run may have
several faults: the run without each of them, and with each alone, is simulated, too. Exit code 1
where the verdicts are right too rarely."""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import yaml

from benchmarks.faults.layouts import LAYOUTS, experiment, machine
from benchmarks.faults.plant import KINDS, LINKS, Fault, fits, plant, spare, without
from benchmarks.faults.score import CHECKS, score, seconds_of, verdicts_of
from lib import options, tables
from lib.command import call, words_of

_TARGET = 0.98  # of the runs, for each check
_FAST = (1e-7, 1e10)  # networks: latency in s, bytes per second
_MODERATE = (2e-6, 5e7)  # messages take some of the time


class Runs:
    """Simulates and analyses in a folder; runs without a fault are made once per layout and seed.

    @param program  the cadenza that simulates
    """

    def __init__(self, folder: Path, program: Path) -> None:
        self.folder, self.program = folder, program
        self._without: dict[str, np.ndarray] = {}
        for name, network in (("fast", _FAST), ("moderate", _MODERATE)):
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(machine(*network)))

    def plant(self, kind: str, layout: str, seed: int) -> tuple:
        """The run with faults, the faults, and seconds of the steps with them and without them; of
        each fault, seconds of the steps without it alone, and with it alone."""
        network = "moderate" if kind in LINKS else "fast"
        clean = experiment(layout, seed, str(self.folder / f"{network}.yaml"))
        clean = without(kind, layout, seed, clean)
        key = yaml.safe_dump(clean)
        if key not in self._without:
            self._without[key] = seconds_of(self._simulate("clean", clean, "summary"))
        before = self._without[key]
        made, faults = plant(kind, layout, seed, clean, float(before[0]))
        run = self._simulate("faults", made, "full")
        seconds = seconds_of(run)
        if len(faults) < 2:
            return run, faults, seconds, before, [before], [seconds]
        spared = [self._spared(made, layout, [fault]) for fault in faults]
        alone = spared[::-1] if len(faults) == 2 else [
            self._spared(made, layout, [one for one in faults if one is not fault])
            for fault in faults]
        return run, faults, seconds, before, spared, alone

    def _spared(self, made: dict, layout: str, faults: list[Fault]) -> np.ndarray:
        for fault in faults:
            made = spare(made, layout, fault)
        return seconds_of(self._simulate("spared", made, "summary"))

    def judge(self, kind: str, layout: str, seed: int) -> tuple:
        """Which checks hold; the truth, the verdicts, and the shares of the time that are lost: by
        all faults, and by each."""
        run, faults, seconds, before, spared, alone = self.plant(kind, layout, seed)
        said = verdicts_of(run)
        lost = [float(1 - less.sum() / seconds.sum()) for less in (before, *spared)]
        return score(faults, layout, said, seconds, before, spared, alone), faults, said, lost

    def _simulate(self, name: str, made: dict, trace: str) -> Path:
        folder, file = self.folder / name, self.folder / f"{name}.yaml"
        shutil.rmtree(folder, ignore_errors=True)
        file.write_text(yaml.safe_dump(made, sort_keys=False))
        call(words_of(self.program, ["simulate", file, "--trace", trace, "--output", folder]))
        return folder


def main() -> int:
    chosen = _parse()
    rows: dict[tuple[str, str], Counter] = {}
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), chosen.program)
        for seed in range(chosen.first, chosen.first + chosen.seeds):
            for layout in chosen.layouts:
                for kind in chosen.kinds:
                    if fits(kind, layout):
                        _one(runs, kind, layout, seed, rows)
    return _report(rows)


def _parse() -> argparse.Namespace:
    parser = options.parser("faults", __doc__, "--program")
    parser.add_argument("--seeds", type=int, default=50, metavar="N", help="how many")
    parser.add_argument("--first", type=int, default=1000, metavar="SEED", help="the first")
    parser.add_argument("--kinds", **options.choice(KINDS))
    parser.add_argument("--layouts", **options.choice(LAYOUTS))
    return parser.parse_args()


def _one(runs: Runs, kind: str, layout: str, seed: int, rows: dict) -> None:
    right, faults, said, (lost, *each) = runs.judge(kind, layout, seed)
    count = rows.setdefault((kind, layout), Counter())
    for check, holds in right.items():
        count[check, "runs"] += 1
        count[check, "right"] += holds
    if not all(right.values()):
        wrong = [check for check, holds in right.items() if not holds]
        each = ", ".join(f"{one:.2%}" for one in each)
        print(f"{kind}, {layout}, seed {seed}: {', '.join(wrong)}; planted {faults}, "
              f"which lose {lost:.2%} (each: {each}); {said}", file=sys.stderr, flush=True)


def _report(rows: dict[tuple[str, str], Counter]) -> int:
    """Prints the table; 1 where a check of a kind is below its target over all layouts."""
    tables.show(*tables.head(["fault", "layout", *CHECKS]))
    below = 0
    for kind in KINDS:
        mine = {layout: count for (k, layout), count in rows.items() if k == kind}
        for layout, count in mine.items():
            tables.show(tables.row([kind, layout, *_cells(count)]))
        if mine:
            total = sum(mine.values(), Counter())
            tables.show(tables.row([f"**{kind}**", "**all**", *_cells(total)]))
            below += any(_short(total, check) for check in CHECKS)
    return 1 if below else 0


def _cells(count: Counter) -> list[str]:
    return [f"{count[check, 'right']} / {count[check, 'runs']}" if count[check, "runs"] else ""
            for check in CHECKS]


def _short(count: Counter, check: str) -> bool:
    return count[check, "right"] < _TARGET * count[check, "runs"]


if __name__ == "__main__":
    sys.exit(main())
