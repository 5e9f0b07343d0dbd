# SPDX-License-Identifier: Apache-2.0
"""bench/reading: how long cadenza-analyze takes for a large simulated run."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_NODE = 8  # ranks: a tensor group
_CONTEXT = 2
_TOKENS = 131_072  # of a data-parallel rank
_COMMANDS = ("summary", "check", "report")


def main() -> int:
    options = _parse()
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or _simulated(options, Path(folder) / "run")
        print("| command | wall s | processor s | largest process MB |")
        print("| --- | --- | --- | --- |")
        for command in options.commands.split(","):
            extra = ["--output", f"{folder}/report.html"] if command == "report" else []
            words = [sys.executable, "-m", "cadenza.cli", command, str(run), *extra]
            wall, processor, megabytes = _measured(words)
            print(f"| {command} | {wall:.1f} | {processor:.1f} | {megabytes:.0f} |", flush=True)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/reading", description=__doc__)
    parser.add_argument("--ranks", type=int, default=512,
                        help=f"a multiple of {_NODE * _CONTEXT} (default: 512)")  # fmt: skip
    parser.add_argument("--steps", type=int, default=5, help="default: 5")
    parser.add_argument("--placement", default="cad", help="default: cad")
    parser.add_argument("--commands", default=",".join(_COMMANDS), metavar="NAME,...",
                        help=f"default: {','.join(_COMMANDS)}")  # fmt: skip
    parser.add_argument("--run", type=Path, help="a run that is there already")
    parser.add_argument("--program", type=Path, default=_ROOT / "build/release/cadenza",
                        help="the cadenza that simulates")  # fmt: skip
    return parser.parse_args()


def _simulated(options: argparse.Namespace, folder: Path) -> Path:
    """The 34B model of bench/clusters with so many ranks."""
    data = options.ranks // (_NODE * _CONTEXT)
    keys = {"cluster.machine": "inputs/machines/h200.yaml", "parallel.data": data,
            "batch.tokens": data * _TOKENS, "attention.placement": options.placement}  # fmt: skip
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    subprocess.run(
        [options.program, "simulate", "bench/clusters/34b.yaml", *words, "--steps",
         str(options.steps), "--trace", "full", "--output", folder, "--quiet"],
        cwd=_ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return folder


def _measured(words: list[str]) -> tuple[float, float, float]:
    """Wall and processor seconds, and MB of the largest of its processes."""
    begin = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.monotonic() - begin
    code = os.waitstatus_to_exitcode(status)
    if code:
        sys.exit(f"error: {' '.join(words)} ended with {code}")
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
