# SPDX-License-Identifier: Apache-2.0
"""The error of the simulator on this machine.

Calibrates the machine, then trains with every placement, and with other kinds of attention, on
every mix of document lengths, simulates the same experiment, and prints how far apart they are.
With --servers it measures nothing and compares dedicated servers on simulated clusters."""

import shutil
import sys
import time
from pathlib import Path

from benchmarks.placements.cases import CAD, MIXES, PLACEMENTS, RANKS, settings
from benchmarks.placements.runs import WARM_UP, Runs
from benchmarks.simulation import classes, servers, table
from lib import host, options, results
from lib.command import RunError, call, words_of

TOO_NOISY = 4  # exit code of a calibration that nobody should rely upon
ONE_RANK = "one rank"
# Other kinds of attention: the placement of each and the keys that it has beside.
KINDS = {
    "CAD, window": (CAD, ["attention.kind=window", "attention.window=2048", "attention.sinks=64"]),
    "CAD, prefix": (CAD, ["attention.kind=prefix", "attention.prefix=4096"]),
    "CAD, dual chunk": (CAD, ["attention.kind=dual_chunk", "attention.chunk=4096",
                              "attention.local=512"]),
    "zigzag ring, dual chunk": ("zigzag ring", ["attention.kind=dual_chunk",
                                                "attention.chunk=4096", "attention.local=512"]),
    "striped, window": ("striped", ["attention.kind=window", "attention.window=2048"]),
}
# All of what vertical-slash attention may keep is forced, so that the simulator knows what is kept:
# its rates are compared, not its guess at what a model attends to.
SPARSE = ["attention.kind=vertical_slash", "attention.sparse.block=64",
          "attention.sparse.columns=256", "attention.sparse.sinks=256",
          "attention.sparse.slashes=961", "attention.sparse.window=961"]
KINDS |= {f"{name}, vertical-slash": (name, SPARSE)
          for name in (CAD, "zigzag ring", "striped", "block-striped", "ring")}
CASES = [*PLACEMENTS, ONE_RANK, *KINDS]


def parse(arguments):
    parser = options.parser("simulation", __doc__, "--program", "--under")
    parser.add_argument("--mixes", **options.choice(MIXES))
    parser.add_argument("--placements", **options.choice(CASES))
    parser.add_argument("--steps", type=int, default=2, metavar="N",
                        help="measured steps of a run, after one that warms up")
    parser.add_argument("--servers", action="store_true",
                        help="only the table of dedicated servers on simulated clusters")
    parser.add_argument("--output", type=Path, metavar="FILE",
                        default=host.ROOT / "build/bench-simulation.json",
                        help="all seconds, as JSON")
    return parser.parse_args(arguments)


def keys_of(mix, placement, steps):
    if placement == ONE_RANK:
        return settings(mix, "colocated", steps) + ["parallel.data=1"]
    where, kind = KINDS.get(placement, (placement, []))
    return settings(mix, where, steps) + kind


def ranks_of(placement):
    return 1 if placement == ONE_RANK else RANKS


def calibrate(runs, ranks):
    """A machine file of this machine with so many ranks busy: alone, a rank is faster."""
    machine = runs.folder / f"machine-{ranks}.yaml"
    print(f"calibrating with {ranks} rank{'s' if ranks > 1 else ''}", file=sys.stderr, flush=True)
    # A machine file that is too noisy says so, and the results keep it.
    runs.call(ranks, ["calibrate", runs.experiment, "--output", machine],
              keys_of(next(iter(MIXES)), "colocated", 1), accepted=(0, TOO_NOISY))
    return machine


def simulated(runs, machine, keys):
    output = runs.folder / "simulated"
    shutil.rmtree(output, ignore_errors=True)
    call(words_of(runs.program, ["simulate", runs.experiment, "--trace", "full", "--output",
                                 output], [*keys, f"cluster.machine={machine}"]))
    return classes.read(output, 0)


def take(runs, machine, mix, placement):
    keys = keys_of(mix, placement, WARM_UP + runs.steps)
    try:
        real = runs.train(ranks_of(placement), keys)
        return {"real": classes.read(real, WARM_UP), "simulated": simulated(runs, machine, keys)}
    except RunError as error:
        return {"error": str(error)}


def summary(case):
    if "error" in case:
        return case["error"]
    real, found = case["real"]["seconds"], case["simulated"]["seconds"]
    return f"{real:.2f} s, simulated {found:.2f} s ({100 * table.error(found, real):+.1f} %)"


def run(chosen, runs, found):
    """All cases. Every mix has its own machine files: a machine's speed drifts."""
    begin = time.monotonic()
    for mix in chosen.mixes:
        machines = {ranks: calibrate(runs, ranks)
                    for ranks in sorted({ranks_of(name) for name in chosen.placements})}
        found["machines"][mix] = {ranks: file.read_text() for ranks, file in machines.items()}
        for placement in chosen.placements:
            case = take(runs, machines[ranks_of(placement)], mix, placement)
            found["cases"][f"{mix}/{placement}"] = case
            results.save(chosen.output, found)
            minutes = (time.monotonic() - begin) / 60
            print(f"[{minutes:.1f} min] {mix}, {placement}: {summary(case)}", file=sys.stderr,
                  flush=True)


def main(arguments=None):
    chosen = parse(arguments)
    if chosen.servers:
        servers.show(chosen.program)
        return
    cases = {}
    found = {"host": host.describe(), "programs": host.fingerprint(chosen.program),
             "machines": {}, "cases": cases}
    runs = Runs(chosen.program, chosen.output.parent / "bench-simulation", chosen.under,
                chosen.steps)
    run(chosen, runs, found)
    print("\n".join([*table.steps(cases, chosen.mixes, chosen.placements), "",
                     *table.calm(cases, chosen.mixes), "", *table.classes(cases), "",
                     *table.verdict(cases)]))
    print(f"\nAll seconds: {chosen.output}")


if __name__ == "__main__":
    main()
