# SPDX-License-Identifier: Apache-2.0
"""bench/simulation: calibrate, train and simulate the same experiments, compare."""

import argparse
import shlex
import shutil
import sys
import time
from pathlib import Path

from comparison import host
from placement_runs.cases import CAD, MIXES, PLACEMENTS, RANKS, settings
from placement_runs.choice import listed, names
from placement_runs.runs import TOO_NOISY, WARM_UP, RunError, Runs, call, save, words_of
from simulation_runs import classes, table

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
          for name in (CAD, "zigzag ring", "striped", "block-striped")}
CASES = [*PLACEMENTS, ONE_RANK, *KINDS]


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="bench/simulation",
        description="Calibrates this machine, then trains with every placement, and with other "
        "kinds of attention, on every mix of document lengths, simulates the same experiment, and "
        "prints how far apart they are.",
        epilog=f"Mixes: {listed(MIXES)}. Placements: {listed(CASES)}.")
    parser.add_argument("--mixes", type=names(MIXES), default=list(MIXES), metavar="N,...",
                        help="numbers of mixes (default: all)")
    parser.add_argument("--placements", type=names(CASES), default=list(CASES), metavar="N,...",
                        help="numbers of placements (default: all)")
    parser.add_argument("--steps", type=int, default=2, metavar="N",
                        help="measured steps of a run, after one that warms up (default: 2)")
    parser.add_argument("--under", type=shlex.split, default=[], metavar="WORDS",
                        help="what mpirun is started with, such as 'nice -n -20'")
    parser.add_argument("--output", type=Path, metavar="FILE",
                        default=host.ROOT / "build/bench-simulation.json",
                        help="all seconds, as JSON (default: build/bench-simulation.json)")
    parser.add_argument("--program", type=Path, metavar="FILE",
                        default=host.ROOT / "build/release/cadenza",
                        help="a program that is built already (default: builds it)")
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
    runs.launch(ranks, ["calibrate", str(runs.experiment), "--output", str(machine)],
                keys_of(next(iter(MIXES)), "colocated", 1), accepted=(0, TOO_NOISY))
    return machine


def simulated(runs, machine, keys):
    output = runs.folder / "simulated"
    shutil.rmtree(output, ignore_errors=True)
    call(words_of(runs.program, ["simulate", str(runs.experiment), "--trace", "full",
                                 "--output", str(output)], keys + [f"cluster.machine={machine}"]))
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


def run(options, runs, results):
    """All cases. Every mix has its own machine files: a machine's speed drifts."""
    begin = time.monotonic()
    for mix in options.mixes:
        machines = {ranks: calibrate(runs, ranks)
                    for ranks in sorted({ranks_of(name) for name in options.placements})}
        results["machines"][mix] = {ranks: file.read_text() for ranks, file in machines.items()}
        for placement in options.placements:
            case = take(runs, machines[ranks_of(placement)], mix, placement)
            results["cases"][f"{mix}/{placement}"] = case
            save(options.output, results)
            minutes = (time.monotonic() - begin) / 60
            print(f"[{minutes:.1f} min] {mix}, {placement}: {summary(case)}", file=sys.stderr,
                  flush=True)


def main(arguments):
    options = parse(arguments)
    if not options.program.is_file():
        raise SystemExit(f"simulation: not there: {options.program}")
    runs = Runs(options.program, options.output.parent / "bench-simulation", options.under,
                options.steps)
    results = {"host": host.describe(), "machines": {}, "cases": {}}
    run(options, runs, results)
    cases = results["cases"]
    print("\n".join(table.steps(cases, options.mixes, options.placements)))
    print()
    print("\n".join(table.calm(cases, options.mixes)))
    print()
    print("\n".join(table.classes(cases)))
    print()
    print("\n".join(table.verdict(cases)))
    print(f"\nAll seconds: {options.output}")


if __name__ == "__main__":
    main(sys.argv[1:])
