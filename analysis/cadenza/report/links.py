# SPDX-License-Identifier: Apache-2.0
"""Links between ranks, as blocks of the page."""

from __future__ import annotations

from cadenza.links.facts import verdict
from cadenza.links.slow import groups, links
from cadenza.report.blocks import Figure, Table
from cadenza.report.figures_links import communication
from cadenza.report.places import places
from cadenza.study import Study
from cadenza.words import NONE, byte_count, byte_rate, counted, number, ranks_of, seconds

_SHOWN = 8  # rows of a table


def link_blocks(runs: list[tuple[Study, str]]) -> list[Figure | Table]:
    blocks: list[Figure | Table] = []
    for study, name in runs:
        if len(study.ranks) < 2:
            continue
        drawn = communication(study)
        said = " ".join(verdict(study))
        if drawn is not None:
            blocks.append(Figure(f"{name}: who sends to whom", drawn[0], said))
        blocks += _link_tables(study, name, "" if drawn else said)
    return blocks


def _link_tables(study: Study, name: str, note: str) -> list[Table]:
    pairs, of_groups = links(study.pair_times), groups(study.group_times)
    where = places(study, short=True)
    rows = [[f"{row.low}-{row.high}", f"{where.get(row.low, NONE)} – {where.get(row.high, NONE)}",
             byte_count(row.bytes), seconds(row.seconds), byte_rate(row.achieved),
             byte_rate(row.usual), number(row.share, ".2f")]
            for row in pairs.head(_SHOWN).itertuples()]
    columns = ["link", "where", "bytes", "moving", "rate", "usual", "share"]
    over = f"sums over {counted(len(study.steady_steps), 'step')}"
    title = f"{name}: links, slowest first ({len(pairs)} in all); {over}"
    made = [Table(title, columns, rows, {2, 3, 4, 5, 6})]
    rows = [[ranks_of(row.members), byte_count(row.bytes), seconds(row.seconds),
             seconds(row.usual_seconds), number(row.share, ".2f")]
            for row in of_groups.head(_SHOWN).itertuples()]
    columns = ["ranks", "bytes", "moving", "usual", "share"]
    title = f"{name}: groups with collectives, slowest first ({len(of_groups)} in all); {over}"
    made.append(Table(title, columns, rows, {1, 2, 3, 4}, note))
    return [table for table in made if table.rows]
