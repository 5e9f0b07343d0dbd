# SPDX-License-Identifier: Apache-2.0
"""How right the simulator is about published training runs.

Simulates one step of every published run that an experiment can say, and compares tokens per second
and GPU, the order of layouts that one could have chosen between, and whether the step fits."""

import argparse
import csv
import sys
from collections import Counter
from pathlib import Path

from benchmarks.published import checked, grids, judge, rows, runs
from benchmarks.published.runs import Simulated
from lib import options, tables
from lib.host import ROOT

_COLUMNS = ["class", "group", "id", "left_out", "published_tokens_per_second_per_gpu",
            "simulated_tokens_per_second_per_gpu", "error", "published_fits", "simulated_fits",
            "published_gib", "simulated_gib"]
_GOOD = 0.97  # share of the best published rate that a choice should have


def main() -> None:
    known = rows.read()
    chosen = _parse(list(dict.fromkeys(row.section for row in known)))
    taken = [row for row in known
             if row.section in chosen.classes and row.id.startswith(chosen.rows)]
    if not taken:
        raise SystemExit("no row has such an id and class")
    if not chosen.program.is_file():
        raise SystemExit(f"not there: {chosen.program}")
    if chosen.fit:
        from benchmarks.published import fit  # needs scipy
        fit.report(chosen.program, chosen.jobs)
        return
    steps = list(runs.simulate_all(taken, chosen.program, chosen.jobs))
    _write(chosen.output, steps)
    if chosen.checked:
        checked.write(chosen.checked, steps)
    _report(steps)
    print(f"\nAll rows: {chosen.output}")


def _parse(classes: list[str]) -> argparse.Namespace:
    parser = options.parser("published", __doc__, "--program")
    parser.add_argument("--classes", **options.choice(classes))
    parser.add_argument("--rows", type=lambda text: tuple(text.split(",")), default="",
                        metavar="ID,...", help="those whose id begins so")
    parser.add_argument("--fit", action="store_true",
                        help="fit the constants again, each group left out in turn")
    parser.add_argument("--checked", type=Path, metavar="FILE",
                        help="of all rows: what cadenza advise reads, inputs/checked.json")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="simulations at a time")
    parser.add_argument("--output", type=Path, default=ROOT / "build/bench-published.csv",
                        metavar="FILE", help="a line for each row")
    return parser.parse_args()


def _write(path: Path, steps: list[Simulated]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(map(_line, steps))


def _line(one: Simulated) -> list:
    row = one.row
    known = [row.section, row.group, row.id, one.left_out]
    published = row.pub_fits if row.pub_fits is not None else ""
    if one.left_out:
        return [*known, row.pub_tps or "", "", "", published, "", row.pub_mem or "", ""]
    error = judge.error(one)
    return [*known, row.pub_tps or "", f"{one.tps:.1f}",
            "" if error is None else f"{error:.4f}", published, one.fits, row.pub_mem or "",
            f"{one.memory / 2**30:.2f}"]


def _report(steps: list[Simulated]) -> None:
    """Prints the tables."""
    tables.show(*tables.head(["class", "group", "rows", "median error", "largest", "signed median",
                              "pairs in order", "memory right", "only ours fits",
                              "only theirs fits", "memory / published"]))
    for section in dict.fromkeys(one.row.section for one in steps):
        mine = [one for one in steps if one.row.section == section and not one.left_out]
        groups = dict.fromkeys(one.row.group for one in mine)
        for group in groups:
            _show(section, group, [one for one in mine if one.row.group == group])
        if len(groups) > 1:
            _show(f"**{section}**", "**all**", mine)
    _show("**all**", "", [one for one in steps if not one.left_out])
    _show_grids(list(grids.find(steps)))
    _counted("not simulated", [one.left_out for one in steps])


def _show(section: str, group: str, steps: list[Simulated]) -> None:
    if steps:
        tables.show(tables.row([section, group, len(steps), *cells(steps)]))


def cells(steps: list[Simulated]) -> list[str]:
    """Of a line of the table."""
    found, order, memory = judge.errors(steps), judge.order(steps), judge.memory(steps)
    ratios = judge.memory_ratios(steps)
    median, largest, signed = judge.spread(found) if found else (None,) * 3
    alike = f" ({order['alike']} alike)" if order["alike"] else ""
    return [_percent(median), _percent(largest), _percent(signed, "+"),
            _of(order["right"], order["right"] + order["wrong"]) + alike,
            _of(memory["right"], memory.total()), memory["fits"] or "",
            memory["does not fit"] or "",
            f"{judge.spread(ratios)[0]:.2f}" if ratios else ""]


def _show_grids(found: list[grids.Grid]) -> None:
    """Prints what a choice by simulation gives, where a source tried several layouts."""
    if not found:
        return
    print()
    tables.show(*tables.head(["class", "grid", "GPUs", "layouts measured",
                              "fastest simulated that fits", "its share of the best rate",
                              "of the first that ran", "the best"]))
    for grid in found:
        tables.show(tables.row([grid.best.section, grid.best.group, grid.best.gpus,
                                _of(len(grid.measured), len(grid.steps)),
                                grid.chosen.id if grid.chosen else "none fits",
                                f"{100 * grid.share:.1f} %",
                                f"{100 * grid.share_that_ran:.1f} %", grid.best.id]))
    good = sum(grid.share >= _GOOD for grid in found)
    print(f"\nAt least {100 * _GOOD:.0f} % of the best rate: {good} of {len(found)} grids")


def _percent(size: float | None, sign: str = "") -> str:
    return "" if size is None else f"{100 * size:{sign}.1f} %"


def _of(right: int, total: int) -> str:
    return f"{right} / {total}" if total else ""


def _counted(title: str, reasons: list[str]) -> None:
    """Prints how many rows have each reason, those without one aside."""
    counts = Counter(filter(None, reasons))
    if counts:
        print()
        tables.show(*tables.head([title, "rows"]),
                    *(tables.row(line) for line in counts.most_common()))


if __name__ == "__main__":
    sys.exit(main())
