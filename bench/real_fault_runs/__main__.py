# SPDX-License-Identifier: Apache-2.0
"""bench/real_faults: runs with a fault each, judged; the table."""

import argparse
import json
import shlex
import sys
from pathlib import Path

from comparison import host
from placement_runs.choice import listed, names
from placement_runs.runs import RunError
from real_fault_runs import faults, verdicts
from real_fault_runs.cases import KINDS, LAYOUTS

ASKED = ("rank", "phase", "cause")


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="bench/real_faults",
        description="Trains on two ranks with a fault in one of them, and prints how often the "
        f"analysis finds rank, phase and cause. {faults.described()}.",
        epilog=f"Kinds: {listed(KINDS)}. Layouts: {listed(LAYOUTS)}.")
    parser.add_argument("--kinds", type=names(KINDS), default=list(KINDS), metavar="N,...",
                        help="numbers of kinds of faults (default: all)")
    parser.add_argument("--layouts", type=names(LAYOUTS), default=list(LAYOUTS), metavar="N,...",
                        help="numbers of layouts (default: all)")
    parser.add_argument("--seeds", type=int, default=16, metavar="N",
                        help="runs of each kind and layout (default: 16)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED",
                        help="the first seed (default: 0)")
    parser.add_argument("--under", type=shlex.split, default=[], metavar="WORDS",
                        help="what mpirun is started with, such as 'nice -n -20'")
    parser.add_argument("--output", type=Path, metavar="DIR",
                        default=host.ROOT / "build/bench-real-faults",
                        help="the runs, which are kept and judged again by the next call "
                        "(default: build/bench-real-faults)")
    parser.add_argument("--program", type=Path, metavar="FILE",
                        default=host.ROOT / "build/release/cadenza",
                        help="a program that is built already (default: builds it)")
    return parser.parse_args(arguments)


def judged(options, kind, layout, seed):
    folder = options.output / f"{kind.replace(' ', '_')}-{layout}-{seed:02}"
    try:
        truth = faults.plant(options.program, host.ROOT / "inputs/quickstart.yaml",
                             options.under, folder, kind, layout, seed)
    except RunError as error:
        return {"error": str(error)}
    return verdicts.judge(folder, kind, truth)


def cell(found):
    """Right of how many: rank / phase / cause."""
    known = [one for one in found if "rank" in one]
    asked = [name for name in ASKED if all(name in one for one in known)]
    counts = " / ".join(str(sum(one[name] for one in known)) for name in asked)
    return f"{counts} of {len(known)}" if known else "–"


def table(results, options):
    lines = ["| rank / phase / cause | " + " | ".join(options.layouts) + " | all |",
             "| --- " * (2 + len(options.layouts)) + "|"]
    for kind in options.kinds:
        of_kind = [results[kind, layout] for layout in options.layouts]
        row = [cell(found) for found in [*of_kind, sum(of_kind, [])]]
        lines.append(f"| {kind} | " + " | ".join(row) + " |")
    return lines


def main(arguments):
    options = parse(arguments)
    results = {}
    for kind in options.kinds:
        for seed in range(options.first, options.first + options.seeds):
            for layout in options.layouts:
                found = judged(options, kind, layout, seed)
                results.setdefault((kind, layout), []).append(found)
                print(f"{kind}, {layout}, {seed}: {json.dumps(found)}", file=sys.stderr, flush=True)
    print("\n".join(table(results, options)))
    outside = sum("outside" in one for found in results.values() for one in found)
    failed = sum("error" in one for found in results.values() for one in found)
    print(f"\n{outside} pauses fell between two steps and are not counted; {failed} runs failed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
