# SPDX-License-Identifier: Apache-2.0
"""What `cadenza advise` says of how right simulations are: errors by stack and machine."""

import json
import statistics
from collections import defaultdict
from pathlib import Path

from benchmarks.published import judge
from benchmarks.published.experiments import experiment
from benchmarks.published.runs import Simulated

_SOURCE = "docs/results/published.md"


def write(path: Path, steps: list[Simulated]) -> None:
    """Replaces the rows of published runs in the file; those of other sources stay."""
    others = [row for row in json.loads(path.read_text(encoding="utf-8"))
              if row["source"] != _SOURCE] if path.is_file() else []
    kinds = defaultdict(list)
    for one in steps:
        if not one.left_out:
            kinds[experiment(one.row)["cluster"]["software"]["file"], one.row.gpu].append(one)
    rows = [_row(*kind, mine) for kind, mine in sorted(kinds.items()) if judge.errors(mine)]
    lines = ",\n".join("  " + json.dumps(row) for row in rows + others)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _row(software: str, machine: str, steps: list[Simulated]) -> dict:
    sizes = sorted(abs(one) for one in judge.errors(steps))
    memory = judge.memory(steps)
    return {"software": software, "machine": machine, "steps": len(sizes),
            "median": round(statistics.median(sizes), 4),
            "ninety": round(sizes[int(0.9 * (len(sizes) - 1))], 4),
            "memory_right": memory["right"], "memory_all": memory.total(), "source": _SOURCE}
