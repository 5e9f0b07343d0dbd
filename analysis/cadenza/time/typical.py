# SPDX-License-Identifier: Apache-2.0
"""Which step stands for all, and which steps are of another kind.

Steps are compared by where their time went: seconds of each part, means over the ranks. A step of
median time can be one in which nothing was unbalanced, in a run where most steps are unbalanced.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.time.parts import PARTS

_MOST = 200  # steps whose distances are taken pair by pair
_KINDS = 3
_FEWEST = 8  # steps: of fewer, chance makes groups
_APART = 0.1  # of a step: kinds whose steps differ by less are one
_CLEAR = 0.85  # mean silhouette (Rousseeuw, 1987) above which kinds are apart


def step_features(step_times: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    """Where the time of each step went, in units of the median step.

    @param parts  time_parts(); empty where events are not known
    @returns a row per step of `step_times`, indexed by it: seconds, and a column per part
    """
    times = step_times.set_index("step")[["seconds"]]
    if len(parts):
        times = times.join(parts.groupby("step")[list(PARTS)].mean() / 1e9)
    return times / times["seconds"].median()


def typical(features: pd.DataFrame) -> int:
    """The step that is nearest to the median of every feature; of equal ones the first."""
    distance = (features - features.median()).abs().sum(axis=1)
    return int(distance.index[int(distance.to_numpy().argmin())])


def kinds_of_steps(features: pd.DataFrame) -> pd.Series:
    """Groups of steps that are alike, where steps fall into groups: 0 for the largest, 1 for the
    next. All are 0 where they differ by degrees only, or are fewer than eight.

    Steps are joined by average linkage, from all alone to one group. Of the last few groupings
    the one with the highest mean silhouette counts, if it is clear. Of more than 200 steps, 200
    spread evenly over the order of their times are grouped, the others follow the nearest.
    """
    ordered = features.sort_values("seconds", kind="stable")
    places = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), _MOST)).astype(int))
    chosen = ordered.iloc[places].to_numpy()
    if len(chosen) < _FEWEST:
        return pd.Series(0, index=features.index, name="kind")
    labels = _grouped(np.abs(chosen[:, None, :] - chosen[None, :, :]).sum(axis=2))
    order = np.argsort(-np.bincount(labels), kind="stable")
    number = np.empty(len(order), int)
    number[order] = np.arange(len(order))
    nearest = [int(np.abs(chosen - row).sum(axis=1).argmin()) for row in features.to_numpy()]
    return pd.Series(number[labels[nearest]], index=features.index, name="kind")


def _grouped(distance: np.ndarray) -> np.ndarray:
    """A label per point."""
    count = len(distance)
    labels, best, best_score = np.arange(count), np.zeros(count, int), _CLEAR
    mean = distance.astype(float).copy()  # between groups, by their lowest member
    np.fill_diagonal(mean, np.inf)
    size = np.ones(count)
    for groups in range(count, 1, -1):
        if groups <= _KINDS and mean.min() > _APART:
            score = _silhouette(distance, labels)
            if score > best_score:
                best, best_score = np.unique(labels, return_inverse=True)[1], score
        a, b = sorted(np.unravel_index(int(mean.argmin()), mean.shape))
        joined = (size[a] * mean[a] + size[b] * mean[b]) / (size[a] + size[b])
        mean[a], mean[:, a] = joined, joined
        mean[b], mean[:, b] = np.inf, np.inf
        mean[a, a] = np.inf
        size[a] += size[b]
        labels[labels == b] = a
    return best


def _silhouette(distance: np.ndarray, labels: np.ndarray) -> float:
    """Mean over the points; a point that is alone in its group counts as well placed."""
    groups = np.unique(labels)
    sums = np.stack([distance[:, labels == g].sum(axis=1) for g in groups], axis=1)
    sizes = np.array([(labels == g).sum() for g in groups])
    mine = np.searchsorted(groups, labels)
    rows = np.arange(len(labels))
    within = sums[rows, mine] / np.maximum(sizes[mine] - 1, 1)
    others = sums / sizes
    others[rows, mine] = np.inf
    nearest = others.min(axis=1)
    return float(((nearest - within) / np.maximum(np.maximum(nearest, within), 1e-12)).mean())
