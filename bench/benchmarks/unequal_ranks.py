# SPDX-License-Identifier: Apache-2.0
"""The gain of attention.capacity where one of two ranks has half of a core, real and simulated."""

import contextlib
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from lib import host, options, tables
from lib.command import call, metrics, mpirun, words_of
from lib.sampling import turn

VICTIM = 1  # rank; mpirun binds it to the core of this number
SHARE = 0.5  # of its core that a busy loop leaves to it
PLANNED = f"attention.capacity=[[{VICTIM}, {SHARE * 100:.0f}]]"
SLOWED = f"cluster.slow_ranks=[[{VICTIM}, {SHARE}]]"
CASES = {"alone": [], "slowed": [], "slowed, planned for": [PLANNED]}


def parse(arguments):
    parser = options.parser("unequal_ranks", __doc__, "--program")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="runs of each case")
    parser.add_argument("--steps", type=int, default=4, metavar="N",
                        help="steps of a run; the first does not count")
    parser.add_argument("--experiment", type=Path, metavar="FILE",
                        default=Path(__file__).with_suffix(".yaml"), help="that is trained")
    parser.add_argument("--machine", metavar="FILE",
                        help="of the simulation: what `mpirun -n 2 cadenza calibrate` wrote here; "
                        "without it nominal rates")
    parser.add_argument("--output", type=Path, default=host.ROOT / "build/bench-unequal",
                        metavar="DIR", help="the runs")
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


def trained(chosen, case):
    """Seconds of each step of one run."""
    folder = chosen.output / "run"
    shutil.rmtree(folder, ignore_errors=True)
    words = words_of(chosen.program, ["train", chosen.experiment, "--output", folder],
                     [*CASES[case], f"run.steps={chosen.steps}"])
    with busy_loop(case != "alone"):
        call([*mpirun(2), *words])
    return [step["seconds"] for step in metrics(folder) if "seconds" in step][1:]


def simulated(chosen, case):
    """Mean seconds of a step."""
    settings = [*CASES[case], *([] if case == "alone" else [SLOWED]),
                *([f"cluster.machine={chosen.machine}"] if chosen.machine else [])]
    told = call(words_of(chosen.program, ["simulate", chosen.experiment, "--steps", chosen.steps,
                                          "--format", "json"], settings))
    return statistics.mean(json.loads(told)["step_seconds"])


def gain(seconds):
    """Of a slowed step: what a plan that knows of it saves."""
    return 1 - seconds["slowed, planned for"] / seconds["slowed"]


def main(arguments=None):
    chosen = parse(arguments)
    chosen.output.mkdir(parents=True, exist_ok=True)
    samples = {case: [] for case in CASES}
    for number in range(chosen.rounds):
        for case in turn(number, CASES):
            samples[case] += trained(chosen, case)
    real = {case: statistics.median(found) for case, found in samples.items()}
    told = {case: simulated(chosen, case) for case in CASES}
    about = host.describe()
    print(f"{about['date']}, {about['processor']}, {about['commit']}; {chosen.rounds} runs of "
          f"{chosen.steps} steps\n")
    tables.show(*tables.head(["step", "seconds", "simulated"]))
    for case in CASES:
        tables.show(tables.row([case, f"{real[case]:.3f}", f"{told[case]:.3f}"]))
    tables.show(tables.row(["gain of the capacity", f"{gain(real):.1%}", f"{gain(told):.1%}"]))
    print(f"\nreal gain / simulated gain: {gain(real) / gain(told):.2f}")


if __name__ == "__main__":
    main()
