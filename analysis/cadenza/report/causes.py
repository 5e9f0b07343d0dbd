# SPDX-License-Identifier: Apache-2.0
"""Stragglers, what-if and the critical path, as blocks of the page."""

from __future__ import annotations

import pandas as pd

from cadenza.causes.stragglers import LATE
from cadenza.graph.critical_path import switches_said
from cadenza.report.blocks import Figure, Table
from cadenza.report.figures_compare import critical_path, path_label, what_if
from cadenza.report.places import places, step_and_time
from cadenza.study import Study
from cadenza.words import number, ranks_of, seconds, share

_HOSTS, _STEPS, _SHARES = 4, 6, 10
_WORDS = {"gap": "nothing recorded", "host": "work of the host"}  # kinds of a critical path


def straggler_tables(runs: list[tuple[Study, str]]) -> list[Table]:
    blocks = []
    for study, name in runs:
        blocks += [_verdicts(study, name), _by_phase(study, name)]
    return [table for table in blocks if table.rows]


def _verdicts(study: Study, name: str) -> Table:
    where = places(study)
    rows = [[share(row.saves), str(row.kind), ranks_of(row.members), _where(row, where),
             str(row.cause), str(row.phase) or "all", str(row.trend),
             step_and_time(study, row.since_step)]
            for row in study.verdicts.itertuples()]
    columns = ["saves", "what", "ranks", "where", "cause", "phase", "when", "since step"]
    return Table(f"{name}: what a repair saves", columns, rows, numbers={0}, wide=True,
                 note="Each with those above it repaired: the sum is what all repairs save.")


def _where(row: tuple, where: dict[int, str]) -> str:
    """Of one rank its place, of several their hosts."""
    if len(row.members) == 1 and row.members[0] in where:
        return where[row.members[0]]
    return ", ".join(row.hosts[:_HOSTS])


def _by_phase(study: Study, name: str) -> Table:
    frame = study.steady(study.stragglers)
    frame = frame[frame["why"].isin(LATE)]
    frame = frame.sort_values("late_seconds", ascending=False, kind="stable")
    where = places(study)
    rows = [[step_and_time(study, row.step), str(row.phase), str(row.rank), where[row.rank],
             seconds(row.seconds), seconds(row.late_seconds), number(row.score, ".2f"),
             str(row.explanation)]
            for row in frame.head(_STEPS).itertuples()]
    columns = ["step", "phase", "rank", "where", "computed", "late by", "score", "why"]
    return Table(f"{name}: the largest delays", columns, rows, numbers={2, 4, 5, 6}, wide=True,
                 note="Score: the usual time / the rank's own; below 0.75 is commonly called a "
                      "straggler.")


def what_if_blocks(runs: list[tuple[Study, str]]) -> list[Figure | Table]:
    drawn = [(study, name, *what_if(study)) for study, name in runs]
    return [
        *(Figure(f"{name}, mean of {_steps(study)}", {"": picture})
          for study, name, picture, _ in drawn),
        *(_scenarios(frame, name) for _, name, _, frame in drawn),
    ]


def _steps(study: Study) -> str:
    count, all_steps = len(study.replayed_steps), len(study.steady_steps)
    of_all = f" of {all_steps}" if count < all_steps else ""
    return f"{count}{of_all} steps" if all_steps > 1 else "one step"


def _scenarios(frame: pd.DataFrame, name: str) -> Table:
    rows = [[str(row["name"]), seconds(row["seconds"]), seconds(row["saved_seconds"]),
             str(row["explanation"])] for row in frame.to_dict("records")]
    return Table(f"{name}: scenarios", ["scenario", "step", "saved", "meaning"], rows,
                 numbers={1, 2})


def path_blocks(runs: list[tuple[Study, str]]) -> list[Figure | Table]:
    return [
        *(_path(study, name) for study, name in runs),
        *(_shares(study, name) for study, name in runs),
        *(_operations(study, name) for study, name in runs),
    ]


def _path(study: Study, name: str) -> Figure:
    drawn, frame = critical_path(study)
    note = f"The path {switches_said(frame)}."
    return Figure(f"{name}, step {study.typical_step}", {"": drawn}, note, wide=True, dense=True)


def _shares(study: Study, name: str) -> Table:
    rows = [[_WORDS.get(str(row.kind)) or path_label(str(row.kind), str(row.category)),
             str(row.phase), seconds(row.seconds), share(row.share)]
            for row in study.path_shares.head(_SHARES).itertuples()]
    return Table(f"{name}: path time by operation, mean of {_steps(study)}",
                 ["what", "phase", "seconds", "share"], rows, numbers={2, 3})


def _operations(study: Study, name: str) -> Table:
    path = study.critical_path(study.typical_step)
    path = path[path["kind"] != "gap"].assign(seconds=(path["end_ns"] - path["begin_ns"]) / 1e9)
    keys = ["rank", "phase", "name"]
    path[keys[1:]] = path[keys[1:]].astype(str)
    sums = path.groupby(keys)["seconds"].agg(["sum", "size"]).reset_index()
    sums = sums.sort_values("sum", ascending=False, kind="stable").head(_SHARES)
    where = places(study)
    rows = [[str(row["name"]), str(row["phase"]), str(row["rank"]), where[row["rank"]],
             str(row["size"]), seconds(row["sum"])] for row in sums.to_dict("records")]
    columns = ["operation", "phase", "rank", "where", "times", "seconds"]
    title = f"{name}, step {study.typical_step}: the longest operations on the path"
    return Table(title, columns, rows, numbers={2, 4, 5}, wide=True)
