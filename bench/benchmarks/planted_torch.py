# SPDX-License-Identifier: Apache-2.0
"""Faults planted in PyTorch programs (gloo): whether imported traces tell who and why."""

import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lib import options, tables

ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
sys.path[:0] = [str(ANALYSIS), str(ANALYSIS / "tests")]

import cadenza  # noqa: E402
from cadenza.sources.importing import import_run  # noqa: E402

# What may be said of a fault: (cause, phase). A pause of a process is seen where it computes
# (it stood still, or had no core) or where it does not (a gap).
TRUTH = {
    "slow": {("slow", ""), ("slow", "forward"), ("slow", "backward")},
    "backward": {("slow", "backward")},
    "data": {("input", "forward")},
    "pause": {(cause, "forward") for cause in ("host gap", "paused", "no core", "slow")},
}
LAYOUTS = (("ddp", 2), ("ddp", 4), ("pipeline", 2))


def parse():
    parser = options.parser("planted_torch", __doc__)
    parser.add_argument("--seeds", type=int, default=2, help="of each case")
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--traces", nargs="+", default=["kineto", "hook"])
    parser.add_argument("--python", default=sys.executable, help="one that has torch")
    return parser.parse_args()


def verdict_of(chosen, mode, world, trace, fault, rank, seed):
    """The first verdict that names a rank, or None, and all sentences."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = ["--world", world, "--mode", mode, "--trace", trace, "--fault", fault, "--rank",
                 rank, "--steps", chosen.steps, "--seed", seed, "--output", folder / "traces"]
        with open(os.devnull, "w") as nothing:
            subprocess.run([chosen.python, ANALYSIS / "tests/torch_runs.py", *map(str, words)],
                           check=True, stdout=nothing, stderr=nothing)
        import_run([folder / "traces"], folder / "run")
        found = cadenza.Study(cadenza.open(folder / "run")).verdicts
    named = found[found["kind"] != "all"]
    return (named.iloc[0] if len(named) else None), found["sentence"].tolist()


def main():
    chosen = parse()
    tables.show(*tables.head(["trace", "mode", "ranks", "fault", "of rank", "right", "said"]))
    right, clean, cases, cleans = 0, 0, 0, 0
    for seed, trace, (mode, world), fault in itertools.product(
            range(chosen.first, chosen.first + chosen.seeds), chosen.traces, LAYOUTS,
            ("none", *TRUTH)):
        rank = seed % world
        found, said = verdict_of(chosen, mode, world, trace, fault, rank, seed)
        if fault == "none":
            good = found is None
            clean, cleans = clean + good, cleans + 1
        else:
            good = found is not None and list(found["members"]) == [rank] and \
                (found["cause"], found["phase"]) in TRUTH[fault]
            right, cases = right + good, cases + 1
        tables.show(tables.row([trace, mode, world, fault, rank, "yes" if good else "NO",
                                found["sentence"] if found is not None else "; ".join(said)]))
    print(f"\nnamed: {right} of {cases} planted; silent: {clean} of {cleans} clean")


if __name__ == "__main__":
    main()
