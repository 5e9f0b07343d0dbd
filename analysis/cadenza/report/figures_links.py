# SPDX-License-Identifier: Apache-2.0
"""The matrix of who sends to whom, as pictures: by rank, or of many ranks by groups of them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.links.facts import matrix
from cadenza.report import style
from cadenza.report.style import Plot
from cadenza.study import Study
from cadenza.words import byte_count, byte_rate, seconds

_MOST_ROWS = 64  # of the matrix


def communication(study: Study) -> tuple[dict[str, Plot], pd.DataFrame] | None:
    """Pictures of how much slower than usual, the bytes and the seconds of transfers of a step.

    None where ranks send one another no messages. Frame: row, column (positions), bytes, messages,
    seconds, timed_bytes (means of a step), slower (the slowest pair's time / its usual time; NaN:
    nothing is usual).
    """
    if study.pair_times.empty:
        return None
    block, labels = _blocks(study)
    frame = _summed(study, block)
    made = {"bytes of a step": _picture(frame, labels, "bytes", "B", 0.0),
            "seconds of transfers": _picture(frame, labels, "seconds", "s", 0.0)}
    if frame["slower"].notna().any():
        made = {"times the usual time": _picture(frame, labels, "slower", "×", 1.0), **made}
    return made, frame


def _blocks(study: Study) -> tuple[pd.Series, list[str]]:
    """Per rank its row, and what the rows are called: ranks, nodes, or as many ranks each."""
    ranks = study.ranks.sort_values("rank")
    numbers, hosts = ranks["rank"].to_numpy(), ranks["host"].to_numpy()
    if len(ranks) <= _MOST_ROWS:
        return pd.Series(np.arange(len(ranks)), index=numbers), [f"rank {r}" for r in numbers]
    row, names = pd.factorize(hosts)
    if not 1 < len(names) <= _MOST_ROWS:
        row = np.arange(len(ranks)) // -(-len(ranks) // _MOST_ROWS)
    spans = pd.Series(numbers).groupby(row).agg(["min", "max"])
    labels = [f"ranks {low} to {high}" for low, high in spans.itertuples(index=False)]
    return pd.Series(row, index=numbers), labels


def _summed(study: Study, block: pd.Series) -> pd.DataFrame:
    frame = matrix(study)
    frame["row"], frame["column"] = frame["sender"].map(block), frame["receiver"].map(block)
    both = study.pair_times.dropna(subset=["usual_seconds"])
    both = both.groupby(["sender", "receiver"])[["seconds", "usual_seconds"]].sum()
    slower = (both["seconds"] / both["usual_seconds"]).rename("slower")
    frame = frame.join(slower, on=["sender", "receiver"])
    group = frame.groupby(["row", "column"])
    sums = group[["bytes", "messages", "seconds", "timed_bytes"]].sum() / len(study.steady_steps)
    return sums.assign(slower=group["slower"].max()).reset_index()


def _picture(
    frame: pd.DataFrame, labels: list[str], column: str, unit: str, least: float
) -> Plot:
    size = (len(labels), len(labels))
    table, told = np.full(size, np.nan), np.full((2, *size), "", object)
    table[frame["row"], frame["column"]] = frame[column]
    told[:, frame["row"], frame["column"]] = np.array([_text(row) for row in frame.itertuples()]).T
    ends = [label.removeprefix("ranks ").removeprefix("rank ").split(" ")[0] for label in labels]
    to = np.broadcast_to(np.array(labels, object), size).ravel()
    return style.heat_map(
        labels, ends, table, x="to", y="from", unit=unit, least=least,
        most=max(float(np.nanmax(table)), 1.5 * least, 1e-12), sizes=(220, 560), name=column,
        text="@of_row → @to<br>@sent<br>@moved", to=to, sent=told[0].ravel(), moved=told[1].ravel())


def _text(row: tuple) -> tuple[str, str]:
    rate = row.timed_bytes / row.seconds if row.seconds > 0 else None
    slower = f", {row.slower:.2f} × the usual time" if row.slower == row.slower else ""
    return (f"{byte_count(row.bytes)} in {row.messages:.0f} messages of a step",
            f"{seconds(row.seconds)} of transfers, {byte_rate(rate)}{slower}")
