# SPDX-License-Identifier: Apache-2.0
"""bench/placements: every placement on every mix of lengths, in turns, and the table."""

import argparse
import json
import shlex
import statistics
import sys
import time
from pathlib import Path

from comparison import host
from placement_runs import overhead, table
from placement_runs.cases import BASELINES, CAD, MIXES, PLACEMENTS, REFERENCE
from placement_runs.choice import listed, names
from placement_runs.runs import RunError, Runs, save

OVERHEAD = "overhead"  # its key among the cases
OVERHEAD_ROUNDS = 5  # for every round of runs
DROPPED = 1.08  # so much slower than the best baseline in the first round: sits out the rest


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="bench/placements",
        description="Trains on two ranks with every placement in turn, on six mixes of document "
        "lengths, and prints the table of docs/results/placements.md. Runs that the output file "
        "already holds of the same program are kept.",
        epilog=f"Mixes: {listed(MIXES)}. Placements: {listed(PLACEMENTS)}.")
    parser.add_argument("--mixes", type=names(MIXES), default=list(MIXES), metavar="N,...",
                        help="numbers of mixes (default: all)")
    parser.add_argument("--placements", type=names(PLACEMENTS), default=list(PLACEMENTS),
                        metavar="N,...", help="numbers of placements (default: all)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N",
                        help="of runs of every placement (default: 3)")
    parser.add_argument("--steps", type=int, default=2, metavar="N",
                        help="measured steps of a run, after one that warms up (default: 2)")
    parser.add_argument("--under", type=shlex.split, default=[], metavar="WORDS",
                        help="what mpirun is started with, such as 'nice -n -20'")
    parser.add_argument("--output", type=Path, metavar="FILE",
                        default=host.ROOT / "build/bench-placements.json",
                        help="every step, as JSON (default: build/bench-placements.json)")
    parser.add_argument("--fresh", action="store_true", help="measure again what is in the file")
    parser.add_argument("--program", type=Path, metavar="FILE",
                        default=host.ROOT / "build/release/cadenza",
                        help="a program that is built already, with bench/bench_step beside it "
                        "(default: builds both)")
    return parser.parse_args(arguments)


def load(options, fingerprint):
    """What an earlier run with the same programs measured; what failed is tried again."""
    if options.fresh or not options.output.is_file():
        return {}
    earlier = json.loads(options.output.read_text())
    if earlier["program"] != fingerprint:
        return {}
    return {key: record for key, record in earlier["cases"].items() if "error" not in record}


def slow(records, mix):
    """Placements of which the first round says that they are not the best baseline."""
    first = {}
    for name in PLACEMENTS:
        rounds = records.get(f"{mix}/{name}", {}).get("rounds")
        if rounds:
            first[name] = statistics.median(step["seconds"] for step in rounds[0])
    best = min((first[name] for name in BASELINES if name in first), default=0)
    return {name for name in first if first[name] > DROPPED * best} - {CAD, REFERENCE}


def turn(number, placements):
    """The order of a round: there and back."""
    return placements if number % 2 == 0 else list(reversed(placements))


def take(runs, records, mix, placement):
    record = records.setdefault(f"{mix}/{placement}", {"rounds": []})
    try:
        if "planned_bytes" not in record:
            record["planned_bytes"] = runs.planned(mix, placement)
        record["rounds"].append(runs.measure(mix, placement))
    except RunError as error:
        record["error"] = str(error)
    return record


def summary(record):
    if "error" in record:
        return record["error"]
    steps = record["rounds"][-1]
    return ", ".join(f"{step['seconds']:.2f} s ({step['seconds'] / table.bound(step):.3f})"
                     for step in steps)


def run(options, results, runs):
    records = results["cases"]
    begin = time.monotonic()
    for number in range(options.rounds):
        for mix in options.mixes:
            left_out = slow(records, mix) if number > 0 else set()
            for placement in turn(number, options.placements):
                record = records.get(f"{mix}/{placement}", {"rounds": []})
                done = len(record["rounds"]) > number or "error" in record
                if done or placement in left_out:
                    continue
                record = take(runs, records, mix, placement)
                save(options.output, results)
                minutes = (time.monotonic() - begin) / 60
                print(f"[round {number + 1}, {minutes:.1f} min] {mix}, {placement}: "
                      f"{summary(record)}", file=sys.stderr, flush=True)


def main(arguments):
    options = parse(arguments)
    step = options.program.parent / "bench/bench_step"
    missing = [str(program) for program in (options.program, step) if not program.is_file()]
    if missing:
        raise SystemExit(f"placements: not there: {', '.join(missing)}")
    fingerprint = host.fingerprint(options.program, step)
    results = {"host": host.describe(), "program": fingerprint,
               "cases": load(options, fingerprint)}
    runs = Runs(options.program, options.output.parent / "bench-placements", options.under,
                options.steps)
    run(options, results, runs)
    if OVERHEAD not in results["cases"]:
        rounds = OVERHEAD_ROUNDS * options.rounds
        results["cases"][OVERHEAD] = overhead.measure(step, runs.folder / "bench_step.log", rounds)
        save(options.output, results)
    machine = results["host"]
    print(f"\n{machine['date']}, {machine['processor']}, {machine['cores']} cores, "
          f"commit {machine['commit']}\n")
    print("\n".join(table.targets(results["cases"])))
    print()
    print("\n".join(table.times(results["cases"])))
    print(f"\n{overhead.line(results['cases'][OVERHEAD])}")
    print(f"\nAll steps: {options.output}")


if __name__ == "__main__":
    main(sys.argv[1:])
