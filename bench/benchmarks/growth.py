# SPDX-License-Identifier: Apache-2.0
"""How the cost of simulating a step grows with its ranks.

The 34B of the CAD paper, eight ranks to a tensor group, without and with a pipeline of 4 stages.
The last column is nanoseconds for each event of the clock, which may grow as log n does."""

import itertools
import re
from pathlib import Path

from lib import options, tables
from lib.command import call, words_of
from lib.host import ROOT

STAGES = (1, 4)
RANKS = (64, 128, 256, 512, 1024, 2048, 4096)
GROUP = 8  # ranks
TOKENS = 131072  # of a microbatch of one data rank
NUMBERS = re.compile(r"events (\d+) +plan ([\d.]+) s.*programs ([\d.]+) s +memory ([\d.]+) s +"
                     r"clock ([\d.]+) s +peak (\d+) MB", re.DOTALL)


def parse():
    parser = options.parser("growth", __doc__)
    parser.add_argument("program", type=Path, nargs="?", metavar="PROGRAM",
                        default=ROOT / "build/release/bench/bench_scale", help="bench_scale")
    return parser.parse_args()


def cells(program, stages, ranks):
    data = ranks // GROUP // stages
    microbatches = 1 if stages == 1 else 8
    told = call(words_of(program, ["inputs/paper/base.yaml"], [
        f"parallel.data={data}", f"parallel.pipeline={stages}",
        f"batch.tokens={TOKENS * data * microbatches}"]))
    events, *costs = NUMBERS.search(told).groups()
    return [ranks, stages, events, *costs, f"{1e9 * float(costs[3]) / int(events):.0f}"]


def main():
    program = parse().program.resolve()
    tables.show(*tables.head(["ranks", "stages", "events", "plan s", "programs s", "memory s",
                              "clock s", "MB", "ns per event"]))
    for stages, ranks in itertools.product(STAGES, RANKS):
        tables.show(tables.row(cells(program, stages, ranks)))


if __name__ == "__main__":
    main()
