# SPDX-License-Identifier: Apache-2.0
"""What analysis/examples/torch_hook.py costs a PyTorch training: processor time of two DDP ranks.

Ranks train two equal models on one thread each, in turns without and with the hook. The hook's own
code is timed by the processor time of its threads; the division of gradients counts as its own, as
it is a pass that DDP does not need. The difference of whole turns says the same where a machine is
calm. The table has medians over turns and ranks."""

import json
import os
import subprocess
import sys
import tempfile

import numpy as np

from lib import options, tables
from lib.host import ROOT

RANKS = 2
# Width, layers, rows of a batch, steps of a turn: steps of some ms, and of some hundred ms
SIZES = ((256, 4, 64, 40), (512, 4, 4096, 10))


def measured(*size):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, ROOT / "bench/peers/torch_hook_cost.py"]
        ranks = [subprocess.Popen([*command, str(rank), str(RANKS), f"{folder}/meet",
                                   *map(str, size)],
                                  stdout=subprocess.PIPE, text=True,
                                  env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"})
                 for rank in range(RANKS)]
        said = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("a rank of the training failed (see above)")
    return [json.loads(one.splitlines()[-1]) for one in said]


def cells(width, layers, rows, steps, turns):
    found = measured(width, layers, rows, steps, turns)
    without, hooked, own = (np.concatenate([one[name] for one in found])
                            for name in ("without", "with", "hook"))
    low, middle, high = np.percentile(hooked - without, (25, 50, 75)) * 1e6
    return [f"{layers} × {width}², {rows} rows", f"{1e3 * np.median(without):.2f}",
            f"{1e6 * np.median(own):.0f}", f"{np.median(own / hooked):.2%}",
            f"{middle:.0f} ({low:.0f} to {high:.0f})",
            f"{np.mean([one['bytes'] for one in found]) / 1024:.1f}"]


def main():
    parser = options.parser("hook_cost", __doc__)
    parser.add_argument("--turns", type=int, default=12)
    turns = parser.parse_args().turns
    tables.show(*tables.head(["model", "ms of a step", "µs of the hook", "share",
                              "µs more (quartiles)", "KiB a step and rank"]))
    for size in SIZES:
        tables.show(tables.row(cells(*size, turns)))


if __name__ == "__main__":
    main()
