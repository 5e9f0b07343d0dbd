# SPDX-License-Identifier: Apache-2.0
"""bench/compare: ours and the peers alternately in one run, and the performance table."""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from comparison import host, llm_c, table
from comparison.cases import FULL, OURS, QUICK, cases
from comparison.measure import measure
from comparison.process import ProgramError, Programs

PEERS = host.ROOT / "bench/peers"


def thread_counts(text):
    every = len(os.sched_getaffinity(0))
    counts = {every if word == "all" else int(word) for word in text.split(",")}
    if min(counts) < 1 or max(counts) > every:
        raise argparse.ArgumentTypeError(f"found {text}; valid: 1 to {every}, or all")
    return sorted(counts)


def row_names(text):
    unknown = set(text.split(",")) - set(table.ROWS)
    if unknown:
        raise argparse.ArgumentTypeError(
            f"found {', '.join(sorted(unknown))}; valid: {', '.join(table.ROWS)}")
    return set(text.split(","))


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="bench/compare",
        description="Runs Cadenza's benchmarks and its peers (PyTorch, llm.c) alternately on the "
        "same cores and prints the performance table. Cases that the output file already holds of "
        "the same programs are kept.")
    parser.add_argument("--quick", action="store_true",
                        help="short shapes, few repetitions, all cores only: a look, not the table")
    parser.add_argument("--threads", type=thread_counts, metavar="N,...",
                        help="numbers of threads (default: 1,all; --quick: all)")
    parser.add_argument("--rows", type=row_names, default=set(table.ROWS), metavar="NAME,...",
                        help=f"of {', '.join(table.ROWS)} (default: all)")
    parser.add_argument("--avx2", action="store_true",
                        help="both sides use AVX2 alone, whatever the processor has")
    parser.add_argument("--llm-c", metavar="FOLDER", help="a checkout of github.com/karpathy/llm.c")
    parser.add_argument("--output", type=Path, metavar="FILE",
                        help="every sample, as JSON (default: build/bench-results.json, with "
                        "--quick build/bench-quick.json; with --avx2 -avx2.json)")
    parser.add_argument("--fresh", action="store_true", help="measure again what is in the file")
    parser.add_argument("--programs", type=Path, metavar="FOLDER",
                        default=host.ROOT / "build/release/bench",
                        help="benchmarks that are built already (default: builds them)")
    options = parser.parse_args(arguments)
    name = f"bench-{'quick' if options.quick else 'results'}{'-avx2' if options.avx2 else ''}.json"
    options.output = options.output or host.ROOT / "build" / name
    options.extent = QUICK if options.quick else FULL
    options.threads = options.threads or thread_counts("all" if options.quick else "1,all")
    return options


def commands(options):
    """How the programs are started."""
    interactive = {name: [options.programs / name, "--interactive"]
                   for name in OURS}
    peers = {name: [sys.executable, PEERS / f"{name}.py"]
             for name in ("torch_attention", "torch_step")}
    found = {**interactive, **peers}
    if options.llm_c:
        found["llm_c"] = [llm_c.build(options.llm_c, options.output.parent / "bench-llm.c")]
    return found


def avx2_alone():
    """Variables for PyTorch's own loops and for the libraries of matrix products; oneDNN is ours
    too. MKL knows no more than AVX2 of other vendors' processors, and is slower there if told."""
    variables = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    if "Intel" in host.processor()[0]:
        variables["MKL_ENABLE_INSTRUCTIONS"] = "AVX2"
    return variables


def load(options, fingerprint):
    """What an earlier run with the same programs measured."""
    if options.fresh or not options.output.is_file():
        return {}
    earlier = json.loads(options.output.read_text())
    return earlier["cases"] if earlier["programs"] == fingerprint else {}


def save(path, results):
    """A run that is interrupted while it writes loses nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(results, indent=1))
    part.replace(path)


def is_done(case, records):
    record = records.get(case.key, {})
    if "sides" not in record or record["shape"] != case.shape:
        return False
    return case.sides.keys() <= record["sides"].keys()


def run(options, results):
    records = results["cases"]
    kernel = "avx2" if options.avx2 else "auto"
    todo = [case for case in cases(options.rows, options.threads, options.extent, kernel)
            if not is_done(case, records)]
    programs = Programs(commands(options), options.output.parent / "bench-logs",
                        avx2_alone() if options.avx2 else {})
    begin = time.monotonic()
    try:
        for number, case in enumerate(todo, 1):
            try:
                record = measure(programs, case)
            except ProgramError as error:
                record = {"name": case.name, "threads": case.threads, "error": str(error)}
            records[case.key] = record
            save(options.output, results)
            minutes = (time.monotonic() - begin) / 60
            print(f"[{number}/{len(todo)}, {minutes:.1f} min] {summary(record)}", file=sys.stderr)
    finally:
        programs.close()


def summary(record):
    text = f"{record['name']}, {record['threads']} threads:"
    if "error" in record:
        return f"{text} {record['error']}"
    rates = [f"{name} {side['flops'] / table.median(side['seconds']) * 1e-9:.1f}"
             for name, side in record["sides"].items()]
    return f"{text} {', '.join(rates)} GFLOP/s"


def main(arguments):
    options = parse(arguments)
    programs = [options.programs / name for name in OURS]
    missing = [str(program) for program in programs if not program.is_file()]
    if missing:
        raise SystemExit(f"compare: not there: {', '.join(missing)}")
    fingerprint = host.fingerprint(*programs)
    results = {"host": host.describe(), "quick": options.quick, "programs": fingerprint,
               "cases": load(options, fingerprint)}
    run(options, results)
    machine = results["host"]
    extensions = "AVX2 alone" if options.avx2 else " ".join(machine["extensions"])
    print(f"\n{machine['date']}, {machine['processor']}, {machine['cores']} cores, "
          f"{extensions}, commit {machine['commit']}\n")
    if options.quick:
        print("Quick: short shapes, eager PyTorch only; the targets are for the full run.\n")
    print("\n".join(table.make(results["cases"], options.threads, options.extent)))
    print("\nEvery case:\n")
    print("\n".join(table.details(results["cases"])))
    print(f"\nAll samples: {options.output}")


if __name__ == "__main__":
    main(sys.argv[1:])
