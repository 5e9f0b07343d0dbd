# SPDX-License-Identifier: Apache-2.0
"""How long each rank computed, and how much, beside others.

How much is compared with peers, of the same role and pipeline stage; how fast with all ranks that
do the same operation, whatever their stage.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.read.columns import one_of, rows_of
from cadenza.graph.lanes import WORK, inside_computation

PHASES_OF_WORK = ("forward", "backward", "optimizer")  # recomputation is part of the backward pass
_SLOW_SCORE = 0.75  # as NVIDIA's resiliency extension has it
_SLOW_Z = 3.5  # Iglewicz and Hoaglin, 1993
_JITTER = 1.05  # of the machine's time
BY_CHANCE = 6.0  # standard deviations of a rank's sum: those it is compared with vary as well
_NO_CHANCE = 3.0  # times what a rank itself takes for such an operation
_NORMAL_MAD = 0.6745  # median absolute deviation of a standard normal


def operation_loads(events: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """@returns step, phase, category, name, rank, peers (number of the group), seconds, variance,
             still (seconds without a core), flops (of copies, which have none: bytes), count

    A rank's seconds of an operation in a step, without the collectives of a tensor group in it, and
    their variance().
    """
    inner = inside_computation(events)
    working = one_of(events["category"], *WORK) & one_of(events["lane"], "compute")
    events = events.assign(seconds=(events["end_ns"] - events["begin_ns"]) / 1e9)
    columns = ["step", "phase", "category", "name", "rank", "seconds", "flops", "still_ns"]
    part = events.loc[working, columns]
    part["still"] = part.pop("still_ns").clip(lower=0) / 1e9
    part.loc[part["category"] == "data", "flops"] = 1.0  # reading has none: by its times
    copies = (part["category"] == "compute_other") & (part["flops"] == 0)
    part["flops"] = part["flops"].where(~copies, events.loc[working, "bytes"].astype(float))
    part["seconds"] -= _inside(events, np.flatnonzero(working), np.flatnonzero(inner))
    phase = part["phase"].astype(object)
    part["phase"] = phase.where(phase != "recompute", "backward")
    part = part[part["phase"].isin(PHASES_OF_WORK)]
    keys = ["step", "phase", "category", "name", "rank"]
    part["variance"] = variance(part["seconds"], part["flops"], [part[key] for key in keys])
    part["count"] = 1
    values = ["seconds", "variance", "still", "flops", "count"]
    sums = part.groupby(keys, observed=True, sort=True)[values].sum().reset_index()
    for column in ("category", "name"):
        sums[column] = sums[column].astype(object)
    sums.insert(5, "peers", _peers(ranks).reindex(sums["rank"]).to_numpy())
    return sums


def begins_with_optimizer(events: pd.DataFrame) -> bool:
    """Whether a step begins with the optimizer of the one before it, as steps do that end with a
    collective. @param events  of one step"""
    computes = one_of(events["lane"], "compute")
    update, forward = (events[computes & one_of(events["phase"], name)]
                       for name in ("optimizer", "forward"))
    took = update["end_ns"] - update["begin_ns"]
    before = update["begin_ns"] < forward["begin_ns"].median()
    return bool(2 * took[before].sum() > took.sum())


def host_gaps(events: pd.DataFrame) -> pd.DataFrame:
    """What kept a rank's process from computing, or from launching what its device computes, in
    imported runs: a gap, a checkpoint, garbage collection.

    @returns step, phase, rank, name, seconds: sums
    """
    own = one_of(events["category"], "host", "checkpoint") & one_of(events["lane"], "compute")
    part = rows_of(events, np.flatnonzero(own),
                   ["step", "phase", "rank", "name", "begin_ns", "end_ns"])
    part["seconds"] = (part.pop("end_ns") - part.pop("begin_ns")) / 1e9
    keys = ["step", "phase", "rank", "name"]
    return part.groupby(keys, observed=True)["seconds"].sum().reset_index().astype(
        {"phase": object, "name": object})


def variance(seconds: pd.Series, flops: pd.Series, keys: list[pd.Series]) -> pd.Series:
    """Per operation the square of what it is off from the rank's own median at its FLOPs, whose sum
    over operations is the variance of their sum. A rank that is slow all along does not vary. Nor
    is it chance where an operation takes several times as long as the others.

    @param keys  what makes operations alike, the rank among it
    """
    work = flops.where(flops > 0, 1.0)
    pace = (seconds / work).groupby(keys, sort=False, observed=True).transform("median")
    off = seconds - pace * work
    return (off**2).where(seconds <= _NO_CHANCE * pace * work, 0.0)


def operation_times(events: pd.DataFrame) -> pd.DataFrame:
    """What all ranks did one thing after the other, waits included.

    Messages under way are left out: from post to completion, most of them are waiting. So is the
    host's lane: what it does lies around operations of the other lanes.

    @returns step, category, phase, name, count, seconds: sums over the ranks
    """
    own = ~events["non_blocking"].to_numpy(bool) & ~one_of(events["lane"], "host")
    rows = np.flatnonzero(own)
    part = rows_of(events, rows, ["step", "category", "phase", "name", "begin_ns", "end_ns"])
    part["seconds"] = (part.pop("end_ns") - part.pop("begin_ns")) / 1e9
    group = part.groupby(["step", "category", "phase", "name"], observed=True)["seconds"]
    found = group.agg(count="size", seconds="sum").reset_index()
    return found.astype(dict.fromkeys(("category", "phase", "name"), object))


def _inside(events: pd.DataFrame, outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """Seconds of the events `inner` that began in each of `outer`; all sorted by rank, begin."""
    spent = np.zeros(len(outer))
    if not len(inner) or not len(outer):
        return spent
    begin = events["begin_ns"].to_numpy(np.int64)
    key = events["rank"].to_numpy(np.int64) * (begin.max() - begin.min() + 1) + begin - begin.min()
    around = np.searchsorted(key[outer], key[inner], side="right") - 1
    np.add.at(spent, around[around >= 0], events["seconds"].to_numpy()[inner][around >= 0])
    return spent


def _peers(ranks: pd.DataFrame) -> pd.Series:
    numbers = ranks.groupby(["role", "pipeline"], sort=False).ngroup()
    return pd.Series(numbers.to_numpy(), index=ranks["rank"].to_numpy())


def usual(values: pd.Series, keys: list[str] | list[pd.Series]) -> pd.Series:
    """Per row what is usual in its group: the median of three or more; of two, where it would be
    halfway to whatever is wrong with one of them, the lesser; NaN for one alone."""
    group = values.groupby(keys, sort=False, observed=True)
    count = group.transform("count")
    return group.transform("median").where(count > 2, group.transform("min").where(count == 2))


def machine_slowness(spent: pd.Series, machine: pd.Series) -> pd.Series:
    """By how much ranks are slower than their machine; 1 where that is not known, or not more than
    jitter does.

    @param spent    seconds of computation, one row per rank (and step)
    @param machine  what the machine gives, in the same rows; 0: not known
    """
    slowness = (spent / machine.where(machine > 0)).fillna(1.0)
    return slowness.where(slowness > _JITTER, 1.0)


def lateness(loads: pd.DataFrame, machine: pd.Series | None = None) -> pd.DataFrame:
    """Per rank and operation, the seconds more than usual, and what makes them up.

    The usual pace, seconds per FLOP (or byte copied), is that of all ranks that do the operation in
    the phase of the step. At this pace the FLOPs above the median of the peers are cost; the rest
    is rate. Operations without either are compared with the peers' time: rate. What a rank alone
    does is taken to be as slow as the rest of what it does in the phase; where it does all of it
    alone, as its machine says. So is core attention whose FLOPs are not known, as documents may be
    longer: what it then takes more than the peers' is cost.

    @param loads    operation_loads()
    @param machine  seconds that the machine gives the rank's computation, by (step, rank); 0 or
                    left out: not known
    @returns `loads` with usual_flops, cost, rate (seconds), fair (seconds at the usual pace), alone
             (whether only the machine is a measure for the rank in the phase)
    """
    operation = [loads[key] for key in ("step", "phase", "category", "name")]
    counted = loads["flops"] > 0
    pace = usual((loads["seconds"] / loads["flops"]).where(counted), operation)
    peers = [*operation, loads["peers"]]
    flops = loads["flops"].groupby(peers, sort=False).transform("median")
    fair = (loads["flops"] * pace).where(counted, usual(loads["seconds"], peers))
    unknown = (loads["category"] == "compute_attention") & ~counted
    fair = fair.mask(unknown)
    owner = [loads[key] for key in ("step", "phase", "rank")]
    computes = loads["category"] != "data"  # of how fast a rank is, reading says nothing
    known = loads["seconds"].where(fair.notna() & computes).groupby(owner).transform("sum")
    alone = _beside_machine(loads, machine)
    slowness = known / fair.where(computes).groupby(owner).transform("sum")
    slowness = slowness.where(known > 0, alone)
    fair = fair.fillna(loads["seconds"] / slowness)
    cost = ((loads["flops"] - flops) * pace).where(counted, 0.0).fillna(0.0)
    more = fair - fair.groupby(peers, sort=False).transform("median")
    cost = cost.mask(unknown, more)
    return loads.assign(usual_flops=flops, cost=cost, rate=loads["seconds"] - fair, fair=fair,
                        alone=known <= 0)


def _beside_machine(loads: pd.DataFrame, machine: pd.Series | None) -> pd.Series:
    """machine_slowness() of each row's rank in its step."""
    if machine is None or machine.empty:
        return pd.Series(1.0, index=loads.index)
    place = pd.MultiIndex.from_frame(loads[["step", "rank"]])
    given = pd.Series(machine.reindex(place).fillna(0.0).to_numpy(), index=loads.index)
    spent = loads["seconds"].where(loads["category"] != "data")
    spent = spent.groupby([loads["step"], loads["rank"]]).transform("sum")
    return machine_slowness(spent, given)


def scores(events: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """Every rank's operations beside those of its peers.

    @param events  Run.events(), of one step or several
    @returns rank, phase, category, name, seconds (sum), median_seconds (of the peers), score
             (median / own, at most about 1 for a slow rank), robust_z
             (0.6745 (own - median) / median absolute deviation), slow (by either: score below
             0.75 or z above 3.5); slowest first
    """
    loads = operation_loads(events, ranks)
    keys = ["phase", "category", "name", "peers"]
    sums = loads.groupby([*keys, "rank"], sort=False)["seconds"].sum().reset_index()
    compared = with_medians(sums, keys)
    compared["slow"] = (compared["score"] < _SLOW_SCORE) | (compared["robust_z"] > _SLOW_Z)
    columns = ["rank", "phase", "category", "name", "seconds", "median_seconds", "score",
               "robust_z", "slow"]
    return compared.sort_values("score", kind="stable", ignore_index=True)[columns]


def with_medians(sums: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Adds median_seconds over the ranks of a group, score and robust_z of each."""
    median = sums.groupby(keys, sort=False)["seconds"].transform("median")
    return sums.assign(
        median_seconds=median,
        score=(median / sums["seconds"].where(sums["seconds"] > 0)).fillna(1.0),
        robust_z=robust_z(sums["seconds"], [sums[key] for key in keys]),
    )


def robust_z(values: pd.Series, keys: list[pd.Series]) -> pd.Series:
    """0.6745 (value - median) / median absolute deviation of its group; infinite where most are
    equal and one is not, 0 where it is."""
    off = values - values.groupby(keys, sort=False).transform("median")
    spread = off.abs().groupby(keys, sort=False).transform("median")
    alone = np.where(off == 0, 0.0, np.sign(off) * np.inf)
    return (_NORMAL_MAD * off / spread.where(spread > 0)).where(spread > 0, alone)
