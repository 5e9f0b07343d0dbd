# SPDX-License-Identifier: Apache-2.0
"""What the analysis says of faults in real runs.

Trains on two ranks with a fault in one of them, and prints how often the verdicts of the analysis
say who, in which phase, why and when: the table of docs/results/faults.md. Runs are kept and judged
again by the next call."""

import json
import sys
from pathlib import Path

from benchmarks.real_faults import plant, verdicts
from benchmarks.real_faults.plant import KINDS, LAYOUTS
from lib import host, options, tables
from lib.command import RunError

ASKED = ("who", "phase", "cause", "time")
ATTEMPTS = 5  # to let a pause fall between two steps


def parse(arguments):
    parser = options.parser("real_faults", __doc__, "--program", "--under")
    parser.epilog = "; ".join(f"{kind}: {what}" for kind, what in KINDS.items()) + "."
    parser.add_argument("--kinds", **options.choice(KINDS))
    parser.add_argument("--layouts", **options.choice(LAYOUTS))
    parser.add_argument("--seeds", type=int, default=16, metavar="N",
                        help="runs of each kind and layout")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed")
    parser.add_argument("--output", type=Path, metavar="DIR",
                        default=host.ROOT / "build/bench-real-faults", help="the runs")
    return parser.parse_args(arguments)


def judged(chosen, kind, layout, seed):
    found = {}
    for attempt in range(ATTEMPTS if kind == "pause between" else 1):
        again = f"-{attempt}" if attempt else ""
        folder = chosen.output / f"{kind.replace(' ', '_')}-{layout}-{seed:02}{again}"
        try:
            truth = plant.plant(chosen.program, host.ROOT / "inputs/quickstart.yaml", chosen.under,
                                folder, kind, layout, seed)
        except RunError as error:
            return {"error": str(error)}
        found = verdicts.judge(folder, kind, truth)
        if "outside" not in found:
            break
    return found


def cell(found):
    """Right of how many: who / phase / cause / time, those of them that the kind has."""
    known = [one for one in found if "who" in one]
    if any("silent" in one for one in found):
        silent, true = (sum(one[name] for one in found) for name in ("silent", "true"))
        return f"{silent} silent, {true} right of {len(found)}"
    counts = " / ".join(str(sum(one[name] for one in known)) if name in known[0] else "–"
                        for name in ASKED) if known else "–"
    return f"{counts} of {len(known)}"


def table(results, chosen):
    lines = tables.head(["who / phase / cause / time", *chosen.layouts, "all"])
    for kind in chosen.kinds:
        of_kind = [results[kind, layout] for layout in chosen.layouts]
        lines.append(tables.row([kind, *map(cell, [*of_kind, sum(of_kind, [])])]))
    return lines


def main(arguments=None):
    chosen = parse(arguments)
    results = {}
    for kind in chosen.kinds:
        for seed in range(chosen.first, chosen.first + chosen.seeds):
            for layout in chosen.layouts:
                found = judged(chosen, kind, layout, seed)
                results.setdefault((kind, layout), []).append(found)
                print(f"{kind}, {layout}, {seed}: {json.dumps(found)}", file=sys.stderr, flush=True)
    print("\n".join(table(results, chosen)))
    outside = sum("outside" in one for found in results.values() for one in found)
    failed = sum("error" in one for found in results.values() for one in found)
    others = sum(one.get("others", 0) for found in results.values() for one in found)
    print(f"\n{outside} faults fell elsewhere and are not counted; {failed} runs failed. {others} "
          "further verdicts were given.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
