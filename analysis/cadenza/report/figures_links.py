# SPDX-License-Identifier: Apache-2.0
"""The matrix of who sends to whom, as pictures: by rank, or of many ranks by groups of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from cadenza.links.facts import matrix
from cadenza.report import style
from cadenza.study import Study
from cadenza.words import byte_count, byte_rate, seconds

_MOST_ROWS = 64  # of the matrix


def communication(study: Study) -> tuple[dict[str, go.Figure], pd.DataFrame] | None:
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
) -> go.Figure:
    table = _grid(frame, len(labels), frame[column])
    told = _grid(frame, len(labels), pd.Series([_text(row) for row in frame.itertuples()]))
    size = style.row_height(len(labels), 30, 220, 560)
    made = style.figure(size, "to", "from")
    most = np.nanmax(table.astype(float))
    made.add_heatmap(
        z=table.astype(np.float32), name=column, autocolorscale=True, zmin=least,
        zmax=max(float(most), 1.5 * least, 1e-12), xgap=1, ygap=1,
        customdata=[[_direction(labels, row, to, told[row, to]) for to in range(len(labels))]
                    for row in range(len(labels))],
        colorbar={"thickness": 10, "outlinewidth": 0, "title": {"text": unit, "side": "top"}},
        hovertemplate="%{customdata}<extra></extra>",
    )
    style.rank_rows(made, labels)
    every = -(-len(labels) // 12)
    ends = [label.removeprefix("ranks ").removeprefix("rank ").split(" ")[0] for label in labels]
    made.update_xaxes(tickvals=list(range(0, len(labels), every)), ticktext=ends[::every],
                      range=[-0.5, len(labels) - 0.5], showgrid=False)
    return made


def _grid(frame: pd.DataFrame, size: int, values: pd.Series) -> np.ndarray:
    """Values at their row and column, None where nothing was sent."""
    table = np.full((size, size), None, dtype=object)
    table[frame["row"], frame["column"]] = values.to_numpy(object)
    return table


def _text(row: tuple) -> str:
    rate = row.timed_bytes / row.seconds if row.seconds > 0 else None
    slower = f", {row.slower:.2f} × the usual time" if row.slower == row.slower else ""
    return (f"{byte_count(row.bytes)} in {row.messages:.0f} messages of a step<br>"
            f"{seconds(row.seconds)} of transfers, {byte_rate(rate)}{slower}")


def _direction(labels: list[str], sender: int, receiver: int, text: str | None) -> str:
    return f"{labels[sender]} → {labels[receiver]}<br>{text or 'nothing'}"
