# SPDX-License-Identifier: Apache-2.0
"""bench/unequal_ranks: one of two ranks has half of a core; what attention.capacity gains."""

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from comparison import host
from placement_runs.runs import call, words_of

VICTIM = 1  # rank; mpirun binds it to the core of this number
SHARE = 0.5  # of its core that a busy loop leaves to it
PLANNED = f"attention.capacity=[[{VICTIM}, {SHARE * 100:.0f}]]"
SLOWED = f"cluster.slow_ranks=[[{VICTIM}, {SHARE}]]"
CASES = {"alone": [], "slowed": [], "slowed, planned for": [PLANNED]}


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="bench/unequal_ranks", formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="runs of each case")
    parser.add_argument("--steps", type=int, default=4, metavar="N",
                        help="steps of a run; the first does not count")
    parser.add_argument("--experiment", type=Path, metavar="FILE",
                        default=host.ROOT / "bench/unequal_runs/experiment.yaml")
    parser.add_argument("--machine", default="", metavar="FILE",
                        help="of the simulation: what `mpirun -n 2 cadenza calibrate` wrote here "
                        "(default: nominal rates)")
    parser.add_argument("--output", type=Path, default=host.ROOT / "build/bench-unequal",
                        metavar="DIR", help="the runs")
    parser.add_argument("--program", type=Path, default=host.ROOT / "build/release/cadenza",
                        metavar="FILE", help="a program that is built already")
    return parser.parse_args(arguments)


@contextlib.contextmanager
def busy_loop(wanted):
    """Shares the core of VICTIM, at the same priority."""
    if not wanted:
        yield
        return
    loop = subprocess.Popen(["taskset", "-c", str(VICTIM), sys.executable, "-c",
                             "while True: pass"])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def trained(options, case):
    """Seconds of each step of one run."""
    folder = options.output / "run"
    shutil.rmtree(folder, ignore_errors=True)
    keys = [*CASES[case], f"run.steps={options.steps}"]
    words = words_of(options.program, ["train", str(options.experiment), "--output", str(folder)],
                     keys)
    with busy_loop(case != "alone"):
        call(["mpirun", "--bind-to", "core", "-n", "2", *words])
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [step["seconds"] for step in map(json.loads, lines) if "seconds" in step][1:]


def simulated(options, case):
    """Mean seconds of a step."""
    keys = [*CASES[case], *([] if case == "alone" else [SLOWED])]
    if options.machine:
        keys.append(f"cluster.machine={options.machine}")
    told = call(words_of(options.program, ["simulate", str(options.experiment), "--steps",
                                           str(options.steps), "--format", "json"], keys))
    return statistics.mean(json.loads(told)["step_seconds"])


def gain(seconds):
    """Of a slowed step: what a plan that knows of it saves."""
    return 1 - seconds["slowed, planned for"] / seconds["slowed"]


def main(arguments):
    options = parse(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    samples = {case: [] for case in CASES}
    for turn in range(options.rounds):
        for case in list(CASES)[:: -1 if turn % 2 else 1]:
            samples[case] += trained(options, case)
    real = {case: statistics.median(found) for case, found in samples.items()}
    told = {case: simulated(options, case) for case in CASES}
    about = host.describe()
    print(f"{about['date']}, {about['processor']}, {about['commit']}; {options.rounds} runs of "
          f"{options.steps} steps\n")
    print("| step | seconds | simulated |\n| --- | --- | --- |")
    for case in CASES:
        print(f"| {case} | {real[case]:.3f} | {told[case]:.3f} |")
    print(f"| gain of the capacity | {gain(real):.1%} | {gain(told):.1%} |")
    print(f"\nreal gain / simulated gain: {gain(real) / gain(told):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
