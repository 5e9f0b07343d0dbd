# SPDX-License-Identifier: Apache-2.0
"""What of two runs differs, as blocks of the page."""

from __future__ import annotations

from cadenza.report.blocks import Figure, Table
from cadenza.report.figures_compare import speed_up_waterfall
from cadenza.study import Study
from cadenza.words import number, signed

_OPERATIONS = 12


def comparison_blocks(
    studies: list[Study], names: list[str], comparisons: list[dict]
) -> list[Figure | Table]:
    """Blocks for each run after the first; none for a single run."""
    blocks: list[Figure | Table] = []
    for study, name, one in zip(studies[1:], names[1:], comparisons, strict=True):
        if one["waterfall"]:
            drawn, _ = speed_up_waterfall(studies[0], study, (names[0], name))
            blocks.append(Figure(f"{names[0]} → {name}", {"": drawn}, wide=True))
        blocks += [table for table in (_phases(one), _changed(one), _operations(one)) if table.rows]
    return blocks


def _phases(one: dict) -> Table:
    rows = [[row["phase"], *_three(row["first"], row["other"], row["change"])]
            for row in one["phases"]]
    return Table("Seconds of operations by phase", ["phase", one["first"], one["other"], "change"],
                 rows, numbers={1, 2, 3}, note="Means over ranks and steps; waits count too.",
    )


def _changed(one: dict) -> Table:
    rows = [[row["key"], row["first"], row["other"]] for row in one["changed_keys"]]
    return Table("Changed keys", ["key", one["first"], one["other"]], rows)


def _operations(one: dict) -> Table:
    rows = [
        [row["name"], row["phase"], number(row["count_first"], ".4g"),
         number(row["count_other"], ".4g"),
         *_three(row["seconds_first"], row["seconds_other"], row["change"])]
        for row in one["operations"][:_OPERATIONS]
    ]
    first, other = one["first"], one["other"]
    columns = ["operation", "phase", f"n, {first}", f"n, {other}", f"s, {first}", f"s, {other}",
               "change"]
    return Table("Operations that changed most", columns, rows, numbers={2, 3, 4, 5, 6}, wide=True,
                 note="Means per rank and step: number n and seconds s. Messages under way are "
                      "not counted.")


def _three(first: float, other: float, change: float) -> list[str]:
    return [f"{first:.4f}", f"{other:.4f}", signed(change, ".4f")]
