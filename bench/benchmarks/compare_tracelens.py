# SPDX-License-Identifier: Apache-2.0
"""FLOPs of calls in PyTorch's traces: ours beside those in the tests of AMD's TraceLens."""

import ast
import csv
import sys
from collections import Counter
from pathlib import Path

from lib import options, tables

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "analysis"))

from cadenza.sources.kineto.flops import Packed, flops_of, tells_flops  # noqa: E402
from cadenza.sources.kineto.packed import flops_of_packed  # noqa: E402

NEAR = 1e-9  # theirs have so many digits
REPORT = "unified_perf_summary.csv"


def parse():
    parser = options.parser("compare_tracelens", __doc__)
    parser.add_argument("folder", type=Path, help="tests/traces of TraceLens")
    return parser.parse_args()


def lists(value):
    """What JSON has where Python has tuples."""
    return [lists(one) for one in value] if isinstance(value, tuple | list) else value


def ours(row):
    args = {name: lists(ast.literal_eval(row[name])) for name in ("Input Dims", "Concrete Inputs")}
    found = flops_of(row["name"], args)
    return float(flops_of_packed([found], [0], {})[0]) if isinstance(found, Packed) else found


def compared(row):
    """Of a call's shape: its name, and how ours lie to theirs."""
    mine, theirs = ours(row), float(row["GFLOPS"]) * 1e9
    shapes = ast.literal_eval(row["Input Dims"])
    also = {"equal": mine}
    if row["name"] == "aten::addmm":
        also["equal but for adding"] = mine + shapes[1][0] * shapes[2][1]
    elif len(shapes[0]) == 4:  # of a causal mask they count half of the square
        also["equal but for half of the diagonal"] = mine * shapes[0][2] / (shapes[0][2] + 1)
    return row["name"], next((how for how, count in also.items()
                              if abs(count - theirs) <= NEAR * theirs), "other")


def main():
    chosen, found = parse(), Counter()
    for path in sorted(chosen.folder.rglob(f"*{REPORT}")):
        with path.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if tells_flops(row["name"])]
        found.update(compared(row) for row in rows if row.get("GFLOPS") not in (None, "", "nan"))
    tables.show(*tables.head(["call", "FLOPs", "shapes"]))
    for (name, how), shapes in sorted(found.items()):
        tables.show(tables.row([name, how, shapes]))


if __name__ == "__main__":
    main()
