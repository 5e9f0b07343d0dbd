# SPDX-License-Identifier: Apache-2.0
"""Many runs in one table, the fastest first, and which of them the page shows in detail."""

from __future__ import annotations

import numpy as np

from cadenza.colours import PART_NAMES
from cadenza.report.blocks import Table
from cadenza.study import Study
from cadenza.time.parts import lost_shares
from cadenza.words import NONE, byte_count, number, ranks_of, seconds, share

FEW = 4  # runs: so many are all shown in detail


def detailed(studies: list[Study]) -> list[int]:
    """Numbers of the runs with figures: all if they are few, else the first, with which the others
    are compared, the fastest and the slowest, in the order given."""
    if len(studies) <= FEW:
        return list(range(len(studies)))
    times = np.array([study.seconds for study in studies])
    return sorted({0, int(times.argmin()), int(times.argmax())})


def ranking(
    studies: list[Study], names: list[str], summaries: list[dict], comparisons: list[dict]
) -> Table:
    """A row per run, the shortest step time first."""
    rows = []
    for study, name, summary, one in zip(studies, names, summaries, [None, *comparisons],
                                         strict=True):
        whole, largest = _lost(study)
        rows.append([name, seconds(study.seconds), _against(one),
                     number(summary["tokens_per_second"], ",.0f"), whole, largest,
                     number(summary["attention_imbalance"]["median"], ".3f"),
                     byte_count(summary["memory"]["largest_bytes"]), _repair(study)])
    order = np.argsort([study.seconds for study in studies], kind="stable")
    columns = ["", "run", "step", f"of {names[0]}", "tokens/s", "lost", "mainly", "imbalance",
               "memory", "largest repair"]
    return Table(f"{len(studies)} runs, the fastest first",
                 columns, [[str(place + 1), *rows[row]] for place, row in enumerate(order)],
                 numbers={0, 2, 3, 4, 5, 7, 8}, wide=True,
                 note=f"Step: the mean. Of {names[0]}: the ratio of equal steps and its 95 % "
                      "interval. Lost: the share of the ranks' time that is no work. Figures below "
                      "are of the first run, the fastest and the slowest.")


def _against(one: dict | None) -> str:
    """Of a comparison with the first run."""
    if one is None:
        return "1"
    times = one["step_time"]
    if times["verdict"] in ("not comparable", "unknown"):
        why = "too few steps" if times["verdict"] == "unknown" else "not comparable"
        return f"{times['ratio']:.3f} ({why})" if times["ratio"] else NONE
    return f"{times['ratio']:.3f} ({times['low']:.3f} to {times['high']:.3f})"


def _lost(study: Study) -> tuple[str, str]:
    """The share of the ranks' time that is no work, and what most of it is."""
    if not study.has_events:
        return NONE, NONE
    lost = lost_shares(study.steady(study.parts))
    return share(lost.sum()), PART_NAMES[str(lost.idxmax())] if lost.any() else NONE


def _repair(study: Study) -> str:
    """What is to be repaired first, how much else, and what all of it saves."""
    if not study.has_events or study.verdicts.empty:
        return NONE
    first = study.verdicts.iloc[0]
    who = f"{first['kind']} {ranks_of(first['members'])}"
    more = f" and {len(study.verdicts) - 1} more" if len(study.verdicts) > 1 else ""
    return f"{who}, {first['cause']}{more}: {share(study.verdicts['saves'].sum())}"
