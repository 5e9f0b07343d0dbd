# SPDX-License-Identifier: Apache-2.0
"""bench/faults: plants faults in simulated runs and counts what the analysis says of them."""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from fault_runs.faults import KINDS
from fault_runs.layouts import LAYOUTS
from fault_runs.runs import Runs
from fault_runs.score import CHECKS
from placement_runs.choice import listed, names

_TARGET = 0.98  # of the runs, for each check
_ROOT = Path(__file__).resolve().parents[2]


def fits(kind: str, layout: str) -> bool:
    """Longer documents make a rank late where attention stays with its data; the ranks of a ring
    have unequal work without any fault."""
    if kind == "data":
        return "data" in layout
    return kind != "clean" or layout != "ring 4"


def main() -> int:
    options = _parse()
    rows: dict[tuple[str, str], Counter] = {}
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), options.program)
        for seed in range(options.first, options.first + options.seeds):
            for layout in options.layouts:
                for kind in options.kinds:
                    if fits(kind, layout):
                        _one(runs, kind, layout, seed, rows)
    return _report(rows)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/faults", description=__doc__,
        epilog=f"Faults: {listed(KINDS)}. Layouts: {listed(LAYOUTS)}.")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=50, help="how many (default: 50)")
    parser.add_argument("--first", type=int, default=1000, help="the first (default: 1000)")
    parser.add_argument("--kinds", type=names(KINDS), default=list(KINDS), metavar="N,...",
                        help="numbers or names of faults (default: all)")  # fmt: skip
    parser.add_argument("--layouts", type=names(LAYOUTS), default=list(LAYOUTS), metavar="N,...",
                        help="numbers or names of layouts (default: all)")  # fmt: skip
    parser.add_argument("--program", type=Path, default=_ROOT / "build/release/cadenza",
                        help="the cadenza that simulates")  # fmt: skip
    return parser.parse_args()


def _one(runs: Runs, kind: str, layout: str, seed: int, rows: dict) -> None:
    right, fault, said, without, seconds = runs.judge(kind, layout, seed)
    count = rows.setdefault((kind, layout), Counter())
    for check, holds in right.items():
        count[check, "runs"] += 1
        count[check, "right"] += holds
    if not all(right.values()):
        wrong = [check for check, holds in right.items() if not holds]
        print(f"{kind}, {layout}, seed {seed}: {', '.join(wrong)}; planted {fault}, "
              f"{without:.6g} s -> {seconds:.6g} s; {said}", file=sys.stderr, flush=True)


def _report(rows: dict[tuple[str, str], Counter]) -> int:
    """Prints the table; 1 where a check of a kind is below its target over all layouts."""
    print("| fault | layout | " + " | ".join(CHECKS) + " |")
    print("| --- | --- | " + " | ".join("---" for _ in CHECKS) + " |")
    below = 0
    for kind in KINDS:
        mine = {layout: count for (k, layout), count in rows.items() if k == kind}
        for layout, count in mine.items():
            print(f"| {kind} | {layout} | {_cells(count)} |")
        if mine:
            total = sum(mine.values(), Counter())
            print(f"| **{kind}** | **all** | {_cells(total)} |")
            below += any(_short(total, check) for check in CHECKS)
    return 1 if below else 0


def _cells(count: Counter) -> str:
    return " | ".join(
        f"{count[check, 'right']} / {count[check, 'runs']}" if count[check, "runs"] else ""
        for check in CHECKS
    )


def _short(count: Counter, check: str) -> bool:
    return count[check, "right"] < _TARGET * count[check, "runs"]


if __name__ == "__main__":
    sys.exit(main())
