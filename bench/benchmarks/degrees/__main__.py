# SPDX-License-Identifier: Apache-2.0
"""Context parallelism that follows the documents, beside CAD, on 256 simulated H200.

Runs sweep.yaml in this folder and prints seconds of a step, each system at the context degree that
is fastest for it (in brackets) among those that fit into memory. The best of a row is bold."""

import subprocess
from pathlib import Path

import pandas as pd
from lib import options, tables

SWEEP = Path(__file__).with_name("sweep.yaml")
WORKLOAD = ["model", "data", "length"]


def parse():
    parser = options.parser("degrees", __doc__, "--program")
    parser.add_argument("--steps", type=int, metavar="N", help="simulated at every point")
    parser.add_argument("--output", type=Path, metavar="DIR", default=Path("runs/degrees"),
                        help="folder of the sweep; points that are in it are kept")
    return parser.parse_args()


def cells(points, systems):
    """A row's cells: the best point of each system."""
    best = points.loc[points.groupby("system").seconds.idxmin()].set_index("system")
    for system in systems:
        if system not in best.index:
            yield "–"
            continue
        seconds = f"{best.seconds[system]:.2f}"
        bold = "**" if best.seconds[system] == best.seconds.min() else ""
        yield f"{bold}{seconds}{bold} ({best['parallel.context'][system]})"


def main():
    arguments = parse()
    words = [arguments.program, "sweep", SWEEP, "--output", arguments.output]
    if arguments.steps:
        words += ["--steps", str(arguments.steps)]
    subprocess.run(words, check=True)
    table = pd.read_csv(arguments.output / "sweep.csv")
    table = table[table.status == "ok"]
    systems = list(dict.fromkeys(table.system))
    tables.show(*tables.head([*WORKLOAD, *systems]))
    for workload, points in table.groupby(WORKLOAD, sort=False):
        tables.show(tables.row([*workload, *cells(points, systems)]))


if __name__ == "__main__":
    main()
