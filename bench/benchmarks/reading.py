# SPDX-License-Identifier: Apache-2.0
"""What cadenza-analyze takes for a large simulated run: seconds and memory."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lib import options, tables
from lib.command import call, words_of

NODE = 8  # ranks: a tensor group
CONTEXT = 2
TOKENS = 131_072  # of a data-parallel rank


def parse():
    parser = options.parser("reading", __doc__, "--program")
    parser.add_argument("--ranks", type=int, default=512, help=f"a multiple of {NODE * CONTEXT}")
    parser.add_argument("--steps", type=int, default=5, help="of the run")
    parser.add_argument("--placement", default="cad", help="attention.placement")
    parser.add_argument("--commands", default="summary,check,report", metavar="NAME,...",
                        help="of cadenza-analyze")
    parser.add_argument("--run", type=Path, help="a run that is there already")
    return parser.parse_args()


def simulated(chosen, folder):
    """The 34B model of bench/clusters with so many ranks."""
    data = chosen.ranks // (NODE * CONTEXT)
    call(words_of(
        chosen.program, ["simulate", "bench/clusters/34b.yaml", "--steps", chosen.steps, "--trace",
                         "full", "--output", folder, "--quiet"],
        ["cluster.machine=inputs/machines/h200.yaml", f"parallel.data={data}",
         f"batch.tokens={data * TOKENS}", f"attention.placement={chosen.placement}"]),
        threads=None)
    return folder


def measured(words):
    """Wall and processor seconds, and MB of the largest of its processes."""
    begin = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.monotonic() - begin
    code = os.waitstatus_to_exitcode(status)
    if code:
        sys.exit(f"error: {' '.join(words)} ended with {code}")
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main():
    chosen = parse()
    with tempfile.TemporaryDirectory() as folder:
        run = chosen.run or simulated(chosen, Path(folder) / "run")
        tables.show(*tables.head(["command", "wall s", "processor s", "largest process MB"]))
        for command in chosen.commands.split(","):
            extra = ["--output", f"{folder}/report.html"] if command == "report" else []
            wall, processor, megabytes = measured(
                [sys.executable, "-m", "cadenza.cli", command, str(run), *extra])
            tables.show(tables.row([command, f"{wall:.1f}", f"{processor:.1f}",
                                    f"{megabytes:.0f}"]))


if __name__ == "__main__":
    main()
