# SPDX-License-Identifier: Apache-2.0
"""Speed of attention in two builds of bench_attention, and a control.

Runs OLD, NEW and OLD again (the control) in turns and prints the medians of old / new and of old /
old. Above 1: NEW is faster."""

import contextlib
import itertools
from pathlib import Path

from lib import host, options, tables
from lib.process import Process
from lib.sampling import alternate, median, quartiles, ratios

WORK_TOKENS = 16384  # of all heads of a repetition: a few tenths of a second


def parse():
    parser = options.parser("pairs", __doc__)
    parser.add_argument("old", type=Path, help="a bench_attention")
    parser.add_argument("new", type=Path, help="a bench_attention")
    parser.add_argument("--pairs", type=int, default=30, metavar="N", help="of each case")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384], metavar="S",
                        help="lengths")
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 128], metavar="D",
                        help="sizes of a head")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], metavar="TYPE",
                        help="formats")
    parser.add_argument("--passes", nargs="+", default=["forward", "backward"], metavar="PASS",
                        help="directions")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of each program")
    parser.add_argument("--chunk", type=int, default=0, metavar="N",
                        help="NEW computes dual chunk attention of so many positions, and all "
                        "rotate Q; 0: all compute causal attention without rotation")
    parser.add_argument("--local", type=int, default=0, metavar="N", help="with --chunk")
    return parser.parse_args()


def works(case, chosen):
    """What OLD and NEW compute."""
    dtype, head_dim, tokens, direction = case
    heads = max(1, WORK_TOKENS // tokens)
    work = {"kind": "attention", "heads": heads, "kv_heads": heads, "head_dim": head_dim,
            "documents": [tokens], "pass": direction, "dtype": dtype}
    if chosen.chunk > 0:
        work["rotate"] = True
    return work, {**work, "chunk": chosen.chunk, "local": chosen.local}


def measure(programs, old, new, pairs):
    """Seconds of every round, by program."""
    for name, program in programs.items():
        program.ask({"prepare": "case", "work": new if name == "new" else old})
        program.ask({"run": "case"})
    seconds = alternate({name: lambda program=program: program.ask({"run": "case"})["seconds"]
                         for name, program in programs.items()}, most=pairs)
    for program in programs.values():
        program.ask({"release": "case"})
    return seconds


def cell(seconds, other):
    found = ratios(seconds["old"], seconds[other])
    low, high = quartiles(found)
    return f"{median(found):.3f} ({low:.3f} to {high:.3f})"


def main():
    chosen = parse()
    log = host.ROOT / "build/bench-logs/pairs.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    # OLD is in the middle: the neighbour of NEW and of the control in every round.
    commands = {"new": chosen.new, "old": chosen.old, "control": chosen.old}
    machine = host.describe()
    print(f"{machine['date']}, {machine['processor']}, {chosen.threads} threads, "
          f"{chosen.pairs} pairs, median (quartiles)\n")
    tables.show(*tables.head(["dtype", "head_dim", "tokens", "pass", "old / new", "old / old"]))
    with contextlib.ExitStack() as stack:
        programs = {name: stack.enter_context(contextlib.closing(
            Process([path.resolve(), "--interactive"], chosen.threads, log)))
            for name, path in commands.items()}
        for case in itertools.product(chosen.dtypes, chosen.head_dims, chosen.tokens,
                                      chosen.passes):
            seconds = measure(programs, *works(case, chosen), chosen.pairs)
            tables.show(tables.row([*case, cell(seconds, "new"), cell(seconds, "control")]))


if __name__ == "__main__":
    main()
