# SPDX-License-Identifier: Apache-2.0
"""The performance table: ours and the peers (PyTorch, llm.c) in turns on the same cores.

Cases that the output file already holds of the same programs are kept."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.compare import table
from benchmarks.compare.cases import FULL, OURS, QUICK, cases
from benchmarks.compare.measure import measure
from lib import host, options, results, sampling
from lib.process import ProgramError, Programs

PEERS = host.ROOT / "bench/peers"
# What the Makefile of llm.c compiles its trainer with.
LLM_C = ["gcc", "-Ofast", "-march=native", "-fopenmp", "-DOMP", "-w"]


def thread_counts(text):
    every = len(os.sched_getaffinity(0))
    counts = {every if word == "all" else int(word) for word in text.split(",")}
    if min(counts) < 1 or max(counts) > every:
        raise argparse.ArgumentTypeError(f"found {text}; valid: 1 to {every}, or all")
    return sorted(counts)


def parse(arguments):
    parser = options.parser("compare", __doc__, "--fresh")
    parser.add_argument("--quick", action="store_true",
                        help="short shapes, few repetitions, all cores only: a look, not the table")
    parser.add_argument("--threads", type=thread_counts, metavar="N,...",
                        help="numbers of threads (default: 1,all; --quick: all)")
    parser.add_argument("--rows", **options.choice(table.ROWS))
    parser.add_argument("--avx2", action="store_true",
                        help="both sides use AVX2 alone, whatever the processor has")
    parser.add_argument("--llm-c", type=Path, metavar="FOLDER",
                        help="a checkout of github.com/karpathy/llm.c")
    parser.add_argument("--output", type=Path, metavar="FILE",
                        help="every sample, as JSON (default: build/bench-results.json, with "
                        "--quick build/bench-quick.json; with --avx2 -avx2.json)")
    parser.add_argument("--programs", type=Path, metavar="FOLDER",
                        default=host.ROOT / "build/release/bench",
                        help="benchmarks that are built already; without this option they are "
                        "built first")
    chosen = parser.parse_args(arguments)
    name = f"bench-{'quick' if chosen.quick else 'results'}{'-avx2' if chosen.avx2 else ''}.json"
    chosen.output = chosen.output or host.ROOT / "build" / name
    chosen.extent = QUICK if chosen.quick else FULL
    chosen.threads = chosen.threads or thread_counts("all" if chosen.quick else "1,all")
    return chosen


def commands(chosen):
    """How the programs are started."""
    found = {name: [chosen.programs / name, "--interactive"] for name in OURS}
    for name in ("torch_attention", "torch_step"):
        found[name] = [sys.executable, PEERS / f"{name}.py"]
    if chosen.llm_c:
        found["llm_c"] = [build_llm_c(chosen.llm_c, chosen.output.parent / "bench-llm.c")]
    return found


def build_llm_c(checkout, folder):
    """The program, made from the checkout's train_gpt2.c and our few lines around it."""
    if not (checkout / "train_gpt2.c").is_file():
        raise SystemExit(f"compare: --llm-c {checkout}: no train_gpt2.c in this folder")
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "llm_c_step"
    subprocess.run([*LLM_C, f"-I{checkout.resolve()}", PEERS / "llm_c_step.c", "-o", program,
                    "-lm"], check=True)
    return program


def avx2_alone():
    """Variables for PyTorch's own loops and for the libraries of matrix products; oneDNN is ours
    too. MKL knows no more than AVX2 of other vendors' processors, and is slower there if told."""
    variables = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    if "Intel" in host.processor()[0]:
        variables["MKL_ENABLE_INSTRUCTIONS"] = "AVX2"
    return variables


def is_done(case, records):
    record = records.get(case.key, {})
    if "sides" not in record or record["shape"] != case.shape:
        return False
    return case.sides.keys() <= record["sides"].keys()


def run(chosen, found):
    records = found["cases"]
    kernel = "avx2" if chosen.avx2 else "auto"
    todo = [case for case in cases(set(chosen.rows), chosen.threads, chosen.extent, kernel)
            if not is_done(case, records)]
    programs = Programs(commands(chosen), chosen.output.parent / "bench-logs",
                        avx2_alone() if chosen.avx2 else {})
    begin = time.monotonic()
    try:
        for number, case in enumerate(todo, 1):
            try:
                record = measure(programs, case)
            except ProgramError as error:
                record = {"name": case.name, "threads": case.threads, "error": str(error)}
            records[case.key] = record
            results.save(chosen.output, found)
            minutes = (time.monotonic() - begin) / 60
            print(f"[{number}/{len(todo)}, {minutes:.1f} min] {summary(record)}", file=sys.stderr)
    finally:
        programs.close()


def summary(record):
    text = f"{record['name']}, {record['threads']} threads:"
    if "error" in record:
        return f"{text} {record['error']}"
    rates = [f"{name} {side['flops'] / sampling.median(side['seconds']) * 1e-9:.1f}"
             for name, side in record["sides"].items()]
    return f"{text} {', '.join(rates)} GFLOP/s"


def main(arguments=None):
    chosen = parse(arguments)
    fingerprint = host.fingerprint(*(chosen.programs / name for name in OURS))
    machine = host.describe()
    found = {"host": machine, "quick": chosen.quick, "programs": fingerprint,
             "cases": results.load(chosen, fingerprint)}
    run(chosen, found)
    extensions = "AVX2 alone" if chosen.avx2 else " ".join(machine["extensions"])
    print(f"\n{machine['date']}, {machine['processor']}, {machine['cores']} cores, "
          f"{extensions}, commit {machine['commit']}\n")
    if chosen.quick:
        print("Quick: short shapes, eager PyTorch only; the targets are for the full run.\n")
    print("\n".join(table.make(found["cases"], chosen.threads, chosen.extent)))
    print("\nEvery case:\n")
    print("\n".join(table.details(found["cases"])))
    print(f"\nAll samples: {chosen.output}")


if __name__ == "__main__":
    main()
