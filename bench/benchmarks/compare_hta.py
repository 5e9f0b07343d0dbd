# SPDX-License-Identifier: Apache-2.0
"""Times of kernels in PyTorch's traces: ours beside those of Holistic Trace Analysis (HTA)."""

import json
import os
import subprocess
import sys
from pathlib import Path

from lib import options, tables

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "analysis"))

import pandas as pd  # noqa: E402

from cadenza.errors import DataError  # noqa: E402
from cadenza.sources import neutral  # noqa: E402
from cadenza.sources.kineto import KINETO  # noqa: E402

CLASSES = ("COMPUTATION", "COMMUNICATION", "MEMORY")
# What HTA's Python runs: us by class and by name, of one file. It takes waits for a device, which
# newer files list, for computation: they are left out.
THEIRS = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/",
                         include_last_profiler_step=True)
_, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=10**9)
kernels = kernels[~kernels["name"].str.match("(Stream|Event|Context) Sync|Stream Wait Event")]
print("RESULT", json.dumps([kernels.groupby(column)["sum (us)"].sum().to_dict()
                            for column in ("kernel_type", "name")]))
"""


def parse():
    parser = options.parser("compare_hta", __doc__)
    parser.add_argument("folder", type=Path, help="with traces, such as tests/data of HTA")
    parser.add_argument("--hta", metavar="PYTHON", required=True,
                        help="a Python that has HolisticTraceAnalysis")
    return parser.parse_args()


def ours(path):
    """us by class and by name of the kernel, of a file with a device; None: it has none."""
    try:
        (rank,) = KINETO.read(path)
    except DataError:
        return None
    events = rank.events
    events = events[events["stream"].astype(str).str.startswith(("stream", "device"))]
    if events.empty:
        return None
    events = events[_kept_by_hta(events, rank.events)]
    kind = events["kind"].astype(str)
    kind = kind.where(~kind.isin(neutral.COMMUNICATION), "COMMUNICATION")
    kind = kind.replace({neutral.COPY: "MEMORY"})
    kind = kind.where(kind.isin(CLASSES), "COMPUTATION")
    spent = (events["end_ns"] - events["begin_ns"]) / 1000
    # A collective has the name of what was called: its kernels are compared by their class.
    by_name = spent[kind != "COMMUNICATION"].groupby(events["name"], observed=True).sum()
    return spent.groupby(kind).sum(), by_name[by_name > 0]


def _kept_by_hta(events, everything):
    """It leaves out what was launched after the last step of the profiler, or by nobody knows whom,
    unless the file tells no launches."""
    launched = events["enqueued_ns"]
    steps = everything[everything["kind"] == neutral.STEP]
    if not launched.any():
        return launched == 0
    return (launched != 0) & (launched <= (steps["end_ns"].max() if len(steps) else launched.max()))


def theirs(path, python):
    """The same, from HTA, told to keep nanoseconds; None: it reads no kernels there."""
    done = subprocess.run(
        [python, "-c", THEIRS, str(path.resolve())], capture_output=True, text=True, check=False,
        env={**os.environ, "HTA_DISABLE_NS_ROUNDING": "1", "PYTHONPATH": ""})
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return tuple(map(pd.Series, json.loads(lines[-1][7:]))) if lines else None


def main():
    chosen = parse()
    tables.show(*tables.head(["file", *(f"{name.lower()}, us: ours / HTA" for name in CLASSES),
                              "names", "largest difference of a name, us"]))
    different = 0
    for path in sorted(chosen.folder.rglob("*.json*")):
        mine = ours(path) if KINETO.claims(path) else None
        other = theirs(path, chosen.hta) if mine else None
        if mine is None or other is None:
            continue
        pairs = [(float(mine[0].get(name, 0)), float(other[0].get(name, 0))) for name in CLASSES]
        apart = (mine[1] - other[1].reindex(mine[1].index, fill_value=0)).abs().max()
        different += any(abs(one - two) > 0.01 for one, two in pairs) or apart > 0.01
        tables.show(tables.row([path.relative_to(chosen.folder),
                                *(f"{one:.3f} / {two:.3f}" for one, two in pairs),
                                len(mine[1]), f"{apart:.3f}"]))
    tables.show("", f"{different} files differ by more than 0.01 us.")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
