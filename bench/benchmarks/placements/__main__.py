# SPDX-License-Identifier: Apache-2.0
"""Training steps with every placement in turn, on six mixes of document lengths.

On two ranks; prints the tables of docs/results/placements.md. Runs that the output file already
holds of the same program are kept."""

import contextlib
import statistics
import sys
import time
from pathlib import Path

from benchmarks.placements import cases, table
from benchmarks.placements.cases import BASELINES, CAD, MIXES, PLACEMENTS, REFERENCE
from benchmarks.placements.runs import Runs
from lib import host, options, results, sampling
from lib.command import RunError
from lib.process import Process

OVERHEAD = "overhead"  # its key among the cases
OVERHEAD_ROUNDS = 5  # for every round of runs
OVERHEAD_TARGET = 1.02  # step / bare loop of its kernels
OVERHEAD_LENGTH = 1024  # of every document
DROPPED = 1.08  # so much slower than the best baseline in the first round: sits out the rest


def parse(arguments):
    parser = options.parser("placements", __doc__, "--program", "--under", "--fresh")
    parser.add_argument("--mixes", **options.choice(MIXES))
    parser.add_argument("--placements", **options.choice(PLACEMENTS))
    parser.add_argument("--rounds", type=int, default=3, metavar="N",
                        help="of runs of every placement")
    parser.add_argument("--steps", type=int, default=2, metavar="N",
                        help="measured steps of a run, after one that warms up")
    parser.add_argument("--output", type=Path, metavar="FILE",
                        default=host.ROOT / "build/bench-placements.json",
                        help="every step, as JSON")
    return parser.parse_args(arguments)


def slow(records, mix):
    """Placements of which the first round says that they are not the best baseline."""
    first = {}
    for name in PLACEMENTS:
        rounds = records.get(f"{mix}/{name}", {}).get("rounds")
        if rounds:
            first[name] = statistics.median(step["seconds"] for step in rounds[0])
    best = min((first[name] for name in BASELINES if name in first), default=0)
    return {name for name in first if first[name] > DROPPED * best} - {CAD, REFERENCE}


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


def run(chosen, found, runs):
    records = found["cases"]
    begin = time.monotonic()
    for number in range(chosen.rounds):
        for mix in chosen.mixes:
            left_out = slow(records, mix) if number > 0 else set()
            for placement in sampling.turn(number, chosen.placements):
                record = records.get(f"{mix}/{placement}", {"rounds": []})
                done = len(record["rounds"]) > number or "error" in record
                if done or placement in left_out:
                    continue
                record = take(runs, records, mix, placement)
                results.save(chosen.output, found)
                minutes = (time.monotonic() - begin) / 60
                print(f"[round {number + 1}, {minutes:.1f} min] {mix}, {placement}: "
                      f"{summary(record)}", file=sys.stderr, flush=True)


def measure_overhead(program, log, rounds):
    """Seconds of a step, and of its kernels alone, in every round: what plan, program and executor
    add, both alternately in one process."""
    documents = [OVERHEAD_LENGTH] * (cases.MICROBATCH // OVERHEAD_LENGTH) or [cases.MICROBATCH]
    work = {**cases.MODEL, "documents": documents, "dtype": "float32"}
    with contextlib.closing(Process([program, "--interactive"], 1, log)) as bench:
        for kind in ("step", "kernels"):
            bench.ask({"prepare": kind, "work": {"kind": kind, **work}})
            bench.ask({"run": kind})
        sides = {kind: lambda kind=kind: bench.ask({"run": kind})["seconds"]
                 for kind in ("step", "kernels")}
        return sampling.alternate(sides, most=rounds)


def overhead_line(samples):
    ratios = sampling.ratios(samples["step"], samples["kernels"])
    found, (low, high) = sampling.median(ratios), sampling.quartiles(ratios)
    return ("Step / bare loop of its kernels, one rank, one balanced batch: "
            f"{found:.4f} (quartiles {low:.4f} to {high:.4f}, target ≤ {OVERHEAD_TARGET}, "
            f"{'met' if found <= OVERHEAD_TARGET else 'missed'})")


def main(arguments=None):
    chosen = parse(arguments)
    step = chosen.program.parent / "bench/bench_step"  # is built with it
    fingerprint = host.fingerprint(chosen.program, step)
    # What failed is tried again.
    kept = {key: record for key, record in results.load(chosen, fingerprint).items()
            if "error" not in record}
    machine = host.describe()
    found = {"host": machine, "programs": fingerprint, "cases": kept}
    runs = Runs(chosen.program, chosen.output.parent / "bench-placements", chosen.under,
                chosen.steps)
    run(chosen, found, runs)
    if OVERHEAD not in kept:
        rounds = OVERHEAD_ROUNDS * chosen.rounds
        kept[OVERHEAD] = measure_overhead(step, runs.folder / "bench_step.log", rounds)
        results.save(chosen.output, found)
    print(f"\n{machine['date']}, {machine['processor']}, {machine['cores']} cores, "
          f"commit {machine['commit']}\n")
    print("\n".join([*table.targets(kept), "", *table.times(kept), "", *table.memory(kept)]))
    print(f"\n{overhead_line(kept[OVERHEAD])}")
    print(f"\nAll steps: {chosen.output}")


if __name__ == "__main__":
    main()
