# SPDX-License-Identifier: Apache-2.0
"""Job, nodes, ranks and lanes as a tree, with any metric beside them."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from cadenza.colours import PART_NAMES
from cadenza.report.blocks import Tree, packed
from cadenza.report.places import places
from cadenza.study import Study
from cadenza.time.parts import BUSY, LOST, PARTS

# What a rank's time is made of: each part is of one lane, so that lanes sum to their rank.
LANES = {
    "compute": (*BUSY, "no_core"),
    "communication": tuple(part for part in LOST
                           if part not in ("no_core", "host_gap", "other")),
    "host and rest": ("host_gap", "other"),
}
_DIGITS = 5


def system_tree(study: Study, name: str) -> Tree:
    """All metrics that are not zero everywhere."""
    metrics = {title: (unit, frame) for title, unit, frame in _metrics(study)
               if frame.any(axis=None)}
    ranks = study.ranks.sort_values("rank")
    nodes = ranks.groupby("host", sort=False)["rank"].agg(list)
    where, hosts = places(study), dict(ranks[["rank", "host"]].itertuples(index=False))
    data = {
        "job": name,
        "nodes": [(host or "host not told", of) for host, of in nodes.items()],
        "ranks": {rank: place.removeprefix(hosts[rank]).removeprefix(" · ")
                  for rank, place in where.items()},
        "metrics": [
            {"unit": unit, "lanes": {lane: dict(zip(frame.index.tolist(), map(_short, frame[lane]),
                                                    strict=True))
                                     for lane in frame if frame[lane].any()}}
            for unit, frame in metrics.values()
        ],
    }
    return Tree(name, list(metrics), packed(json.dumps(data)))


def _metrics(study: Study) -> list[tuple[str, str, pd.DataFrame]]:
    """(title, unit, frame): a row per rank, a column per lane, means over the steady steps; the
    column "" is of ranks, not of their lanes."""
    found = []
    steps = study.steady(study.steps).groupby("rank")
    if study.has_events:
        parts = study.steady(study.parts).groupby("rank")[list(PARTS)].mean() / 1e9
        chosen = {"computing": BUSY, "lost (all that is no work)": LOST, "step time": PARTS}
        chosen |= {PART_NAMES[part]: (part,) for part in PARTS}
        found += [(title, "s", pd.DataFrame({
            lane: parts[[part for part in of_lane if part in wanted]].sum(axis=1)
            for lane, of_lane in LANES.items()})) for title, wanted in chosen.items()]
    for column, title in (("bytes_sent", "bytes sent"), ("bytes_received", "bytes received")):
        found.append((title, "B", pd.DataFrame({"communication": steps[column].mean()})))
    found.append(("tasks of attention", "FLOP", _attention(study)))
    if len(study.peak_memory):
        found.append(("highest memory", "B", pd.DataFrame({"": study.peak_memory})))
    return found


def _attention(study: Study) -> pd.DataFrame:
    """FLOPs of the attention that each rank computes in a step."""
    tasks = study.steady(study.attention_tasks) if study.has_events else pd.DataFrame()
    if tasks.empty:
        return pd.DataFrame({"compute": []})
    sums = tasks.groupby("rank")["flops"].sum() / len(study.steady_steps)
    return pd.DataFrame({"compute": sums.reindex(study.ranks["rank"], fill_value=0.0)})


def _short(value: float) -> float:
    """Enough digits for a table."""
    return float(np.format_float_scientific(value, precision=_DIGITS, trim="-"))
