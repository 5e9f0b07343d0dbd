# SPDX-License-Identifier: Apache-2.0
"""What a model has learned: losses by place in the document, answers by depth and length, and what
sparse attention keeps by distance."""

from __future__ import annotations

import numpy as np
import pandas as pd

DEPTHS = 5  # of equal width


def last_steps(steps: pd.Series) -> list[int]:
    """The last tenth of the steps, at least one: what a model can do at the end of a run."""
    found = sorted(set(steps.tolist()))
    return [int(step) for step in found[-max(1, len(found) // 10) :]]


def by_position(positions: pd.DataFrame) -> pd.DataFrame:
    """From Run.positions(): for each bin of places, position (where it begins), targets, loss (mean
    cross-entropy) and accuracy (share of targets that were the model's first choice)."""
    sums = positions.groupby("position", as_index=False)[["targets", "hits", "loss"]].sum()
    targets = sums["targets"].clip(lower=1)
    return pd.DataFrame({"position": sums["position"], "targets": sums["targets"],
                         "loss": sums["loss"] / targets,
                         "accuracy": sums["hits"] / targets})


def by_depth(answers: pd.DataFrame, depths: int = DEPTHS) -> pd.DataFrame:
    """From Run.answers(): for each length of documents (the power of two below it) and depth (the
    share of the document before the fact, where its bin begins): answers, loss (mean over their
    tokens) and accuracy (share of answers of which every token was the model's first choice)."""
    if answers.empty:
        return pd.DataFrame(columns=["length", "depth", "answers", "loss", "accuracy"])
    tokens = answers.sort_values("position")
    whole = tokens.groupby(["step", "document", "question"], as_index=False).agg(
        length=("length", "first"), fact=("fact", "first"), hit=("hit", "min"),
        loss=("loss", "sum"), tokens=("hit", "size"))
    length = whole["length"].to_numpy(np.int64)
    depth = whole["fact"].to_numpy(np.int64) * depths // length
    keys = {"length": 2 ** np.floor(np.log2(length)).astype(np.int64), "depth": depth / depths}
    groups = whole.assign(**keys).groupby(["length", "depth"], as_index=False)
    found = groups.agg(answers=("hit", "size"), loss=("loss", "sum"), accuracy=("hit", "mean"),
                       tokens=("tokens", "sum"))
    found["loss"] /= found.pop("tokens")
    return found.sort_values(["length", "depth"], ignore_index=True)


def by_distance(recall: pd.DataFrame) -> pd.DataFrame:
    """From Run.recall(): for each class of distances, distance (where it begins), attention (the
    share of all attention that goes so far), recall (the share of it that is kept) and unseen (the
    share of the keys that no query at this distance or further sees)."""
    columns = ["kept", "attention", "keys", "unseen"]
    sums = recall.groupby("distance", as_index=False)[columns].sum()
    return pd.DataFrame({"distance": sums["distance"],
                         "attention": sums["attention"] / max(sums["attention"].sum(), 1e-300),
                         "recall": sums["kept"] / sums["attention"].where(sums["attention"] > 0),
                         "unseen": sums["unseen"] / sums["keys"].where(sums["keys"] > 0)})
