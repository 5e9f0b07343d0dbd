# SPDX-License-Identifier: Apache-2.0
"""How long every rank computed in every step, and how long it should have.

What is usual is not the median: where a node or all ranks are slow, that is one of the slow. It is
the pace of the fastest group of ranks and steps that are alike (their lowest mode), or, of a
simulated run, what the machine file gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from cadenza.graph.loads import PHASES_OF_WORK
from cadenza.graph.rates import rates_of

_FAST = 0.2  # share of ranks and steps that must be alike to be what is usual
_ALIKE = 0.04  # logarithm of time over usual time: ranks and steps within it are alike
_BELOW = 0.25  # share of ranks and steps that may be faster than what is usual
_LEAST_NOISE = 0.003
_RANKS_ASKED = 32  # what an operation costs beside its FLOPs
_TWO_MODES = 10.0  # times the spread of the lower half, that of all
_MAD = 1.4826  # of a normal distribution: standard deviation / median absolute deviation


@dataclass(frozen=True)
class Cells:
    """Seconds by phase (forward, backward, optimizer), rank and step: (phases, ranks, steps)."""

    ranks: np.ndarray
    steps: np.ndarray
    run: np.ndarray  # with a core, without pauses
    fair: np.ndarray  # what that usually takes
    still: np.ndarray  # without a core, but for pauses
    noise: np.ndarray  # (phases,): standard deviation of log(run / fair) where nothing is wrong, or
    # what follows from how operations differ among themselves, if that is more
    alone: np.ndarray  # ranks whose work no other rank does: only a machine file tells their pace
    given: bool  # whether a machine file gave what is usual


def cells(
    ranks: np.ndarray, steps: np.ndarray, loads: pd.DataFrame, paused: pd.DataFrame,
    machine: pd.Series,
) -> Cells:
    """@param ranks, steps  in ascending order
    @param loads    loads.operation_loads() of these steps
    @param paused   pauses.pauses() of them
    @param machine  seconds that the machine gives a rank's computation, by (step, rank); 0: not
                    known
    """
    rows = loads[loads["category"] != "data"]
    rows = _without_pauses(rows, paused)
    cell = (np.searchsorted(ranks, rows["rank"]) * len(steps)
            + np.searchsorted(steps, rows["step"]))
    count = len(ranks) * len(steps)
    phase = pd.Categorical(rows["phase"], categories=PHASES_OF_WORK).codes.astype(np.int64)
    fair, shared = _fair(rows, cell, phase * count + cell)
    shape = (len(PHASES_OF_WORK), len(ranks), len(steps))

    def summed(values: np.ndarray) -> np.ndarray:
        return np.bincount(phase * count + cell, values, minlength=np.prod(shape)).reshape(shape)

    run, usual = summed(rows["run"].to_numpy()), summed(fair)
    given = machine.reindex(pd.MultiIndex.from_product([steps, ranks])).fillna(0.0)
    given = given.to_numpy().reshape(len(steps), len(ranks)).T
    whole = usual.sum(axis=0)
    usual *= np.where((given > 0) & (whole > 0), given / np.where(whole > 0, whole, 1.0), 1.0)
    level = log_ratio(run.sum(axis=0), usual.sum(axis=0))
    healthy = lowest_mode(np.where(run.sum(axis=0) > 0, level, np.nan).ravel())
    healthy = healthy.reshape(level.shape)
    chance = np.sqrt(summed(rows["variance"].to_numpy())) / np.where(run > 0, run, np.inf)
    noise = [max(_spread(log_ratio(*pair)[healthy]), float(np.median(by_chance[healthy])))
             if healthy.any() else _LEAST_NOISE
             for *pair, by_chance in zip(run, usual, chance, strict=True)]
    return Cells(ranks, steps, run, usual, summed(rows["still"].to_numpy()), np.array(noise),
                 np.setdiff1d(ranks, rows["rank"].to_numpy()[shared]), bool((given > 0).any()))


def _without_pauses(rows: pd.DataFrame, paused: pd.DataFrame) -> pd.DataFrame:
    """With `run` and `still`: seconds with and without a core beside pauses."""
    keys = ["step", "phase", "category", "name", "rank"]
    lost = 0.0
    if len(paused):
        sums = paused.groupby(keys)["seconds"].sum().rename("lost")
        lost = rows.join(sums, on=keys)["lost"].fillna(0.0)
    still = (rows["still"] - lost).clip(lower=0)
    return rows.assign(still=still, run=(rows["seconds"] - lost - still).clip(lower=0))


def _fair(
    rows: pd.DataFrame, cell: np.ndarray, of_phase: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds that each row usually takes, and which rows several ranks have.

    Operations that have FLOPs (or bytes) are compared by their time for each with all ranks that do
    the same, of whatever stage; others by their time with peers of the same role and stage. What a
    rank alone does is taken to be as slow as what else it does in the phase, or in the step; where
    that is nothing, its own fast steps are usual. So is core attention whose work is not known: its
    documents may be longer than others'.

    @param cell, of_phase  number of each row's rank and step, and of its rank, step and phase
    """
    amount = _amounts(rows)
    peers = rows["peers"].where(rows["flops"] <= 0, -1)
    operation = rows.assign(peers=peers).groupby(["phase", "category", "name", "peers"]).ngroup()
    run = rows["run"].to_numpy()
    pace = pd.Series(run / amount)
    operation = pd.Series(operation.to_numpy())
    ranks = pd.Series(rows["rank"].to_numpy()).groupby(operation).transform("nunique")
    unknown = (rows["category"] == "compute_attention") & (rows["flops"] <= 0)
    several = ((ranks > 1) & ~unknown.to_numpy()).to_numpy()
    compared = several | ~np.isin(cell, cell[several])
    first = amount * pace.groupby(operation).transform(lambda v: v.quantile(_FAST)).to_numpy()

    def level_of(fair: np.ndarray, where: np.ndarray) -> np.ndarray:
        """Of each row what is shared in its place takes more than fair; NaN: nothing is."""
        sums = [np.bincount(where[compared], v[compared], minlength=where.max() + 1)
                for v in (run, fair)]
        return np.where(sums[0] > 0, log_ratio(*sums), np.nan)

    healthy = lowest_mode(level_of(first, cell))[cell]
    # Of two ranks the faster: what is small in a step is not told from healthy by its level.
    usual = pace.where(healthy).groupby(operation).transform(
        lambda v: v.quantile(0.5, interpolation="lower"))
    fair = np.where(usual.notna(), amount * usual, first)
    slowness = level_of(fair, of_phase)[of_phase]
    slowness = np.where(np.isnan(slowness), level_of(fair, cell)[cell], slowness)
    return np.where(compared, fair, run / np.exp(np.nan_to_num(slowness))), several


def _amounts(rows: pd.DataFrame) -> np.ndarray:
    """FLOPs of each row, or 1. Of core attention with what each call costs beside them, in FLOPs of
    the same time: short documents take longer for each FLOP, and are no sign of a slow rank."""
    amount = rows["flops"].where(rows["flops"] > 0, 1.0)
    attention = rows[(rows["category"] == "compute_attention") & (rows["flops"] > 0)
                     & (rows["run"] > 0)]
    for _, alike in attention.groupby(["phase", "name"], observed=True):
        # Within ranks: between them it is slowness.
        ranks = alike["rank"].unique()
        some = ranks[:: -(-len(ranks) // _RANKS_ASKED)]
        rates = [rates_of(*one[["run", "count", "flops"]].to_numpy(float).T)
                 for _, one in alike[alike["rank"].isin(some)].groupby("rank")]
        known = [each / of_amount for each, of_amount in rates if of_amount > 0]
        amount.loc[alike.index] += alike["count"] * (np.median(known) if known else 0.0)
    return amount.to_numpy()


def lowest_mode(level: np.ndarray) -> np.ndarray:
    """Which values belong to the lowest group that has a fifth of all within _ALIKE; NaN do not.

    Where many lie below it, these are no exceptions but vary among themselves: they are alike
    within twice as much, or four times, ...
    """
    known = np.sort(level[np.isfinite(level)])
    if not len(known):
        return np.zeros(len(level), bool)
    alike = _ALIKE
    while True:
        within = np.searchsorted(known, known + alike, side="right") - np.arange(len(known))
        first = int(np.argmax(within >= max(1.0, _FAST * len(known))))
        if first <= _BELOW * len(known):
            break
        alike *= 2
    middle = np.median(known[first : first + within[first]])
    return np.abs(level - middle) <= alike


def log_ratio(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """log(one / other); 0 where either is nothing."""
    both = (one > 0) & (other > 0)
    return np.log(np.where(both, one, 1.0) / np.where(both, other, 1.0))


def _spread(values: np.ndarray) -> float:
    """Standard deviation; of the lower half where half of the values are slow."""
    if not len(values):
        return _LEAST_NOISE
    middle = np.quantile(values, 0.5, method="lower")
    whole = np.median(np.abs(values - np.median(values)))
    half = np.median(middle - values[values <= middle])
    return max(_MAD * float(half if whole > _TWO_MODES * half else whole), _LEAST_NOISE)
