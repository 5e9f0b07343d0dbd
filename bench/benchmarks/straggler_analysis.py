# SPDX-License-Identifier: Apache-2.0
"""Slowdowns of published traces (arXiv 2505.05713), beside those that their authors publish."""

import json
import sys
import tempfile
import time
from pathlib import Path

import cadenza
from cadenza.causes.slowdown import slowdown
from cadenza.sources.importing import import_run
from lib import host, options, tables

FARTHEST = 0.01  # of a published number that ours may differ by
# Our types by the names of theirs, where they differ.
NAMES = {"forward-compute": "forward compute", "backward-compute": "backward compute",
         "forward-pp-comm": "forward messages", "backward-pp-comm": "backward messages"}
NOT_OURS = "gc"  # never takes time in their traces


def parse():
    parser = options.parser("straggler_analysis", __doc__)
    parser.add_argument("folder", type=Path,
                        help="with trace-*.parquet, result-*.json, mw-*.json and ms-*.json: data/ "
                             "of ByteDance's StragglerAnalysis")
    return parser.parse_args()


def pairs(found, published):
    """(what, ours, theirs) of every number.

    @param found  causes.slowdown.Slowdown
    @param published  by file: "result", "mw", "ms"
    """
    result = published["result"]
    yield "S", found.total, result["blocking_slowdown"]
    yield "M of the worst workers", found.of_worst, published["mw"]["Mw"]
    yield "M of the last stage", found.of_last_stage, published["ms"]["Ms"]
    for what, frame, name, theirs in (
        ("type", found.types, "type", "optype"), ("replica", found.replicas, "data", "dp_rank"),
        ("stage", found.stages, "pipeline", "stage"),
    ):
        ours = frame.set_index(frame[name].astype(str))["slowdown"]
        for key, value in result[f"blocking_decompose_by_{theirs}"].items():
            if key != NOT_OURS:
                yield f"S of each {what}", ours[NAMES.get(key, key)], value


def farthest(compared):
    """By what is compared, in its order: how many numbers, and the pair that differs most."""
    groups = {}
    for what, ours, theirs in compared:
        groups.setdefault(what, []).append((abs(ours / theirs - 1), ours, theirs))
    return {what: (len(rows), *max(rows)) for what, rows in groups.items()}


def main():
    folder = parse().folder
    traces = sorted(folder.glob("trace-*.parquet"))
    if not traces:
        sys.exit(f"error: {folder}: no trace-*.parquet")
    print(json.dumps(host.describe()))
    tables.show(*tables.head(["trace", "number", "of them", "ours", "theirs", "difference"]))
    worst, seconds = 0.0, []
    for trace in traces:
        name = trace.stem.removeprefix("trace-")
        published = {kind: json.loads((folder / f"{kind}-{name}.json").read_text())
                     for kind in ("result", "mw", "ms")}
        with tempfile.TemporaryDirectory() as scratch:
            begin = time.monotonic()
            import_run([trace], Path(scratch) / "run")
            imported = time.monotonic()
            found = slowdown(cadenza.Study(cadenza.open(Path(scratch) / "run")))
            seconds.append(tables.row([name, f"{imported - begin:.1f}",
                                       f"{time.monotonic() - imported:.1f}"]))
        for what, (count, off, ours, theirs) in farthest(pairs(found, published)).items():
            tables.show(tables.row([name, what, count, f"{ours:.5f}", f"{theirs:.5f}",
                                    f"{off:.1e}"]))
            worst = max(worst, off)
    tables.show("", *tables.head(["trace", "import s", "slowdown s"]), *seconds)
    return 1 if worst > FARTHEST else 0


if __name__ == "__main__":
    sys.exit(main())
