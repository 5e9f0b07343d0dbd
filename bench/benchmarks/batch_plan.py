# SPDX-License-Identifier: Apache-2.0
"""What the plan of a batch takes a data loader's worker: cadenza_planner.plan, from a fresh wheel.

One core, warm: the median of 20 calls, their least and their most. Documents are log-normal, as
lengths of long-context corpora are; every rank has as many tokens."""

import itertools
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile

import numpy as np

from lib import options, tables
from lib.host import ROOT

RANKS = (8, 64, 256)
TOKENS = (32768, 131072)  # of a rank
CALLS = 20
LAYOUT = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}


def batch(ranks, tokens):
    random = np.random.default_rng(1)
    microbatches = []
    for _ in range(ranks):
        left, lengths = tokens, []
        while left > 0:
            lengths.append(int(min(left, np.clip(random.lognormal(8.5, 1.6), 16, tokens))))
            left -= lengths[-1]
        microbatches.append(lengths)
    return microbatches


def cells(planner, ranks, tokens):
    lengths = batch(ranks, tokens)
    layout = {**LAYOUT, "data": ranks}
    planner.plan(lengths, layout)
    seconds = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        plan = planner.plan(lengths, layout)
        seconds.append(time.perf_counter() - begin)
    milliseconds = [f"{1e3 * f(seconds):.2f}" for f in (statistics.median, min, max)]
    documents = sum(map(len, lengths))
    return [ranks, tokens, documents, *milliseconds, len(plan.tasks), len(plan.moves)]


def main():
    options.parser("batch_plan", __doc__).parse_args()
    subprocess.run([ROOT / "scripts/wheel"], check=True, stdout=sys.stderr)
    (wheel,) = (ROOT / "build/wheel").glob("*.whl")
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        sys.path.insert(0, folder)
        import cadenza_planner

        tables.show(*tables.head(["ranks", "tokens of a rank", "documents", "median ms", "least",
                                  "most", "tasks", "moves"]))
        for ranks, tokens in itertools.product(RANKS, TOKENS):
            tables.show(tables.row(cells(cadenza_planner, ranks, tokens)))


if __name__ == "__main__":
    main()
