# SPDX-License-Identifier: Apache-2.0
"""What a picture of one step shows, before anything is drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from cadenza import intervals
from cadenza import shares as sh
from cadenza.errors import DataError
from cadenza.pieces import lane_pieces
from cadenza.run import Run
from cadenza.tables import role_name

# Legend entry: colour, categories. Order is priority where several share a column of the picture.
COMPUTE = {
    "core attention": ("#d1495b", ("compute_attention",)),
    "dense": ("#2e6f9e", ("compute_dense",)),
    "other compute": ("#8fc1e3", ("compute_other",)),
    "optimizer": ("#4c956c", ("optimizer",)),
    "waiting": ("#d9d9d9", ("wait",)),
    "data, plan, host": ("#b8a47e", ("data", "checkpoint", "host", "plan", "trace_overhead")),
}
COMMUNICATION = {
    "attention dispatch": ("#edae49", ("attention_dispatch",)),
    "attention return": ("#8d5a97", ("attention_return",)),
    "collective": ("#3d3d3d", ("collective",)),
    "point to point": ("#00a6a6", ("p2p_send", "p2p_receive")),
}


@dataclass
class Panel:
    """One run's step, ready to be drawn. Times in ns from the begin of the step."""

    title: str
    labels: list[str]
    bars: pd.DataFrame  # row, lane, label, begin_ns, end_ns
    busy: list[float]
    duration_ns: int


def choose_step(runs: list[Run], step: int | None) -> int:
    """`step` if all runs completed it; else of their common steps the one of median length."""
    times = [sh.step_times(run.steps()).set_index("step")["seconds"] for run in runs]
    common = pd.concat(times, axis=1, join="inner")
    if common.empty:
        raise DataError(f"{runs[0].path}: no complete step" if len(runs) == 1 else
                        "the runs have no complete step in common")  # fmt: skip
    if step is None:
        ordered = common.iloc[:, 0].sort_values(kind="stable")
        return int(ordered.index[(len(ordered) - 1) // 2])
    if step not in common.index:
        raise DataError(
            f"step {step} is not complete in every run; "
            f"complete are {common.index.min()} to {common.index.max()}"
        )
    return step


def panel(run: Run, step: int, resolution_ns: float) -> Panel:
    """Draws nothing: says what is to be drawn, at most one piece per lane and `resolution_ns`."""
    steps = run.steps()
    steps = steps[steps["step"] == step]
    begin, end = int(steps["begin_ns"].min()), int(steps["end_ns"].max())
    events, ranks = run.events(steps=[step]), run.ranks()
    edges = begin + np.arange(0, end - begin + resolution_ns, resolution_ns).astype(np.int64)
    pieces = lane_pieces(events)
    bars = []
    for row, rank in enumerate(ranks["rank"]):
        mine = pieces[pieces["rank"] == rank]
        for lane, kinds in (("compute", COMPUTE), ("communication", COMMUNICATION)):
            bars += [(row, lane, *bar) for bar in _merge(mine, kinds, edges)]
    frame = pd.DataFrame(bars, columns=["row", "lane", "label", "begin_ns", "end_ns"])
    frame[["begin_ns", "end_ns"]] = frame[["begin_ns", "end_ns"]].clip(begin, end) - begin
    shares = sh.time_shares(events, steps)
    totals = sh.rank_totals(shares).set_index("rank")["busy_share"]
    return Panel(
        title=_title(run, step, (end - begin) / 1e9, shares, ranks),
        labels=[
            f"rank {rank} · {role_name(role)}"
            for rank, role in ranks[["rank", "role"]].itertuples(index=False)
        ],
        bars=frame,
        busy=[float(totals.get(rank, np.nan)) for rank in ranks["rank"]],
        duration_ns=end - begin,
    )


def _merge(pieces: pd.DataFrame, kinds: dict, edges: np.ndarray) -> list[tuple[str, int, int]]:
    """Runs of columns in which the same kind covers most of the time.

    What is shorter than a column does not get lost: a column is empty only if less than a quarter
    of it is covered.
    """
    sets = [
        intervals.union(intervals.make(part["begin_ns"].to_numpy(), part["end_ns"].to_numpy()))
        for part in (pieces[pieces["category"].isin(names)] for _, names in kinds.values())
    ]
    parts, covered = [], np.zeros(len(edges) - 1)
    for index in range(len(sets)):  # what a kind adds to those before it
        total = intervals.coverage(intervals.union(*sets[: index + 1]), edges)
        parts.append(total - covered)
        covered = total
    kind = np.where(covered < 0.25 * np.diff(edges), -1, np.argmax(parts, axis=0))
    change = np.flatnonzero(np.diff(kind)) + 1
    starts, ends = np.concatenate(([0], change)), np.concatenate((change, [len(kind)]))
    names = list(kinds)
    return [
        (names[kind[s]], int(edges[s]), int(edges[e]))
        for s, e in zip(starts, ends, strict=True)
        if kind[s] >= 0
    ]


def _title(run: Run, step: int, seconds: float, shares: pd.DataFrame, ranks: pd.DataFrame) -> str:
    attention = run.config.get("attention")
    placement = attention.get("placement") if isinstance(attention, dict) else None
    parts = [str(run.config.get("name", run.path.name)), f"step {step}", f"{seconds:.3f} s"]
    if placement:
        parts.insert(1, f"placement {placement}")
    imbalance = sh.attention_imbalance(shares, ranks)["imbalance"]
    if imbalance.notna().any():
        parts.append(f"attention imbalance {imbalance.iloc[0]:.2f}")
    return "  ·  ".join(parts)
