# SPDX-License-Identifier: Apache-2.0
"""Which rank was late in which step and phase, by how much, and why: what verdicts rest on."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.graph.graph import StepGraph
from cadenza.graph.loads import BY_CHANCE, lateness, operation_loads, robust_z
from cadenza.graph.pauses import COLUMNS

_EQUAL = 0.01  # of a phase: less than this is no difference
_NOTICED = 0.001  # of a step's computation: nor is less than this
_WORTH = 0.005  # of a step's computation: a rank that is slower by less is not slow
_SHARE = 0.05  # of a rank's time: kinds of operations with less are not compared
_SAME = 0.05  # rates and lateness that differ by less are the same
_WORDS = {
    "compute_attention": "attention tasks",
    "compute_dense": "dense operations",
    "compute_other": "copies and small operations",
    "optimizer": "optimizer operations",
    "data": "data loading",
}
LATE = ("cost", "rate", "input", "paused")  # why a rank is late, where it is late at all
_NOBODY = "all ranks computed for the same time"
_CHANCE = "took longer, but within the usual spread of its operations"
_COLUMNS = ["step", "phase", "rank", "seconds", "usual_seconds", "late_seconds", "score",
            "robust_z", "work", "as_late", "why", "delay_caused_seconds", "cause",
            "amount", "explanation"]


def stragglers(
    events: pd.DataFrame, ranks: pd.DataFrame, delays: pd.DataFrame | None = None,
    machine: pd.Series | None = None, paused: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Per step and phase the rank that was latest, not by waiting, and, where that is for its work,
    the one that was slowest for its own.

    A rank is late by cost where it had more FLOPs than the median of its peers (same role and
    pipeline stage), by rate where it took longer for each than is usual on all ranks that do the
    same, by input where that was in reading its data; by pauses where it stood still (stopped,
    swapped out or without a core), whatever it was at, waits included; by waiting where all
    computed equally long, but it waited for others. Without any of these `why` is none. What may be
    by chance, as its operations differ among themselves, does not make a rank slow.

    @param delays   wait_causes() of steps for which it is wanted who waited for whom
    @param machine  seconds that the machine gives each rank's computation, by (step, rank): the
                    measure of ranks that do something alone
    @param paused   pauses.pauses() of steps for which it is known
    @returns step, phase, rank, seconds, usual_seconds, late_seconds, score (usual / own),
             robust_z, work (FLOPs / median's), as_late (other ranks that were late by nearly as
             much), why (cost, rate, input, paused, waiting or none), delay_caused_seconds (waits of
             others for it; NaN without `delays`), cause (words with a place for a number), amount
             (the number), explanation (both, and whose)
    """
    loads = operation_loads(events, ranks)
    if loads.empty:
        return pd.DataFrame(columns=_COLUMNS)
    paused = pd.DataFrame(columns=COLUMNS) if paused is None else paused
    each = lateness(_running(loads, paused), machine)
    compared = _ranks(each, paused)
    found = _latest(compared)
    of_rank = compared.set_index(["step", "phase", "rank"], drop=False).sort_index()
    each["seconds_alone"] = each["seconds"].where(each["alone"], 0.0)
    values = ["cost", "rate", "flops", "usual_flops", "seconds", "fair", "seconds_alone"]
    parts = each.groupby(["step", "phase", "rank", "category"])[values].sum()
    many = loads.groupby(["step", "phase"])["rank"].nunique() > 2
    rows = [_judged(row, of_rank, parts, many, delays, paused) for row in found.to_dict("records")]
    for row in rows:
        row["explanation"] = _explained(row["rank"], row["cause"], row["amount"])
    return pd.DataFrame(rows, columns=_COLUMNS)


def _explained(rank: int, cause: str, amount: float) -> str:
    said = cause.format(amount)
    return said if cause == _NOBODY else f"rank {rank}: {said}"


def _latest(compared: pd.DataFrame) -> pd.DataFrame:
    """Rows of the ranks that stragglers() judges, by step and phase.

    One that is slow beside a rank with more work is judged by its rate alone.
    """
    groups = compared.groupby(["step", "phase"], sort=True)
    equal = compared["late_seconds"] >= (1 - _SAME) * groups["late_seconds"].transform("max")
    others = equal.groupby([compared["step"], compared["phase"]]).transform("sum") - 1
    compared = compared.assign(as_late=others)
    latest = compared.loc[groups["late_seconds"].idxmax()]
    slowest = compared.loc[groups["rate"].idxmax()]
    by_work = latest["cost"] >= latest[["rate", "paused"]].max(axis=1)
    other = (latest["rank"].to_numpy() != slowest["rank"].to_numpy()) & by_work.to_numpy()
    slowest = slowest[other & slowest["slow"].to_numpy()]
    late = slowest["rate"]
    slowest = slowest.assign(cost=0.0, late_seconds=late, as_late=0,
                             usual_seconds=slowest["seconds"] - late)
    both = pd.concat([latest, slowest]).sort_values(["step", "phase"], kind="stable")
    return both.reset_index(drop=True)


def _running(loads: pd.DataFrame, paused: pd.DataFrame) -> pd.DataFrame:
    """Loads without the pauses in them."""
    if paused.empty:
        return loads
    keys = ["step", "phase", "category", "name", "rank"]
    lost = paused.groupby(keys)["seconds"].sum().rename("lost")
    lost = loads.join(lost, on=keys)["lost"].fillna(0.0)
    return loads.assign(seconds=(loads["seconds"] - lost).clip(lower=0))


def _ranks(each: pd.DataFrame, paused: pd.DataFrame) -> pd.DataFrame:
    """Sums over the operations of a rank in a phase of a step, and the lateness worth a word."""
    keys = ["step", "phase", "rank"]
    values = ["seconds", "flops", "usual_flops", "cost", "rate", "variance"]
    lost = paused.groupby(keys)["seconds"].sum().rename("paused")
    sums = each.groupby(keys)[values].sum().join(lost, how="outer").fillna(0.0).reset_index()
    sums["seconds"] += sums["paused"]
    late = sums["cost"] + sums["rate"] + sums["paused"]
    sums = sums.assign(late_seconds=late, usual_seconds=sums["seconds"] - late)
    sums["score"] = (sums["usual_seconds"] / sums["seconds"]).where(sums["seconds"] > 0, 1.0)
    sums["robust_z"] = robust_z(late, [sums["step"], sums["phase"]])
    sums["work"] = (sums["flops"] / sums["usual_flops"]).where(sums["usual_flops"] > 0, 1.0)
    typical = sums.groupby(["step", "phase"])["usual_seconds"].median()
    of_step = typical.groupby("step").sum()
    whole = sums["step"].map(of_step)
    sums["limit"] = np.maximum(_EQUAL * sums["usual_seconds"], _NOTICED * whole)
    chance = BY_CHANCE * np.sqrt(sums["variance"])
    sums["slow"] = sums["rate"] > np.maximum(sums["limit"], np.maximum(_WORTH * whole, chance))
    return sums


def _judged(
    row: dict,
    of_rank: pd.DataFrame,
    parts: pd.DataFrame,
    many: pd.Series,
    delays: pd.DataFrame | None,
    paused: pd.DataFrame,
) -> dict:
    """A row of stragglers(), given the rank that computed longest."""
    step, phase, rank = row["step"], row["phase"], row["rank"]
    waits = None if delays is None else delays[delays["step"] == step]
    if waits is not None:
        waits = None if waits.empty else waits[waits["phase"] == phase]
    certain = row["slow"] or row["rate"] < max(row["cost"], row["paused"])
    if row["late_seconds"] > row["limit"] and certain:
        known = (step, phase, rank) in parts.index
        mine = parts.loc[(step, phase, rank)] if known else None
        if mine is None or row["paused"] > mine[["cost", "rate"]].to_numpy().max():
            why = _why_paused(paused, row)
        else:
            by_work = row["cost"] >= row["rate"]
            why = _why_late(mine, bool(many[step, phase]), by_work)
    else:
        why = _longest_wait(waits, row["limit"])
        if why["cause"] == _NOBODY and row["late_seconds"] > row["limit"]:
            why["cause"] = _CHANCE
        who = (step, phase, why.get("rank", rank))
        # In a phase of pauses alone, who waits has nothing that could be compared.
        row = of_rank.loc[who].to_dict() if who in of_rank.index else {**row, "rank": who[2]}
    caused = np.nan
    if waits is not None:
        caused = waits.loc[waits["cause"] == row["rank"], "seconds"].sum()
    return {"as_late": 0, **row, **why, "delay_caused_seconds": caused}


def _why_paused(paused: pd.DataFrame, row: dict) -> dict:
    """In which operation it stood still longest."""
    mine = np.logical_and.reduce([paused[key] == row[key] for key in ("step", "phase", "rank")])
    longest = paused.loc[paused.loc[mine, "seconds"].idxmax()]
    name = longest["name"].replace("{", "{{").replace("}", "}}")  # `cause` is a format
    text = f"stood still for {{:.3g}} s in {name} "
    text += "(stopped, swapped out or without a core)"
    return {"why": "paused", "cause": text, "amount": longest["seconds"]}


def _why_late(mine: pd.DataFrame, many: bool, by_work: bool) -> dict:
    """By cost or rate, and of which kind of operation.

    @param mine     its sums of lateness(), by category
    @param many     whether the usual rate is a median, not that of the faster of two
    @param by_work  whether it is late for its work
    """
    why = "cost" if by_work else "rate"
    usual = "the median rate" if many else "the other rank's rate"
    if why == "rate" and _alike(mine):
        rate = mine["fair"].sum() / mine["seconds"].sum()
        return {"why": why, "cause": f"all its operations run at {{:.2f}} x {usual}",
                "amount": rate}
    category = mine[why].idxmax()
    one = mine.loc[category]
    share, name = np.nan, _WORDS[category]
    if why == "cost":
        if one["flops"] <= 0:
            return {"why": why, "amount": np.nan, "cause": f"its {name} take longer, its "
                    "other work does not: its documents are longer"}
        share = one["flops"] / one["usual_flops"] if one["usual_flops"] > 0 else np.inf
        copies = category == "compute_other"
        much = "move {:.2f} x the median bytes" if copies else "have {:.2f} x the median FLOPs"
        text = f"its {name} {much}"
    elif category == "data":
        why, text = "input", f"its {name} takes longer"
    elif one["flops"] == 0 and one["seconds_alone"] == 0:
        text = f"its {name} take longer"
    else:
        share = one["fair"] / one["seconds"]
        usual = "its machine's rate" if one["seconds_alone"] > 0 else usual
        text = f"its {name} run at {{:.2f}} x {usual}"
    return {"why": why, "cause": text, "amount": share}


def _alike(mine: pd.DataFrame) -> bool:
    """Whether several categories are slow, all that take time by nearly the same factor."""
    worth = mine[(mine["seconds"] >= _SHARE * mine["seconds"].sum()) & (mine["flops"] > 0)]
    rates = worth["fair"] / worth["seconds"]
    return len(worth) > 1 and (worth["seconds_alone"] == 0).all() and np.ptp(rates) <= _SAME


def _longest_wait(waits: pd.DataFrame | None, limit: float) -> dict:
    """Who waited longest for one other rank, where that is worth a word."""
    nobody = {"why": "none", "cause": _NOBODY, "amount": np.nan}
    if waits is None or waits.empty:
        return nobody
    worst = waits.loc[waits["seconds"].idxmax()]
    if worst["seconds"] <= limit:
        return nobody
    rank, cause = int(worst["rank"]), int(worst["cause"])
    text = f"waited {{:.3g}} s for rank {cause}"
    return {"rank": rank, "why": "waiting", "cause": text, "amount": worst["seconds"]}


def wait_causes(graph: StepGraph) -> pd.DataFrame:
    """Who waited for whom: until the last rank had come; what the transfer then took is its own.

    @returns step, phase, rank, cause (the rank that came last), seconds
    """
    lanes, meetings = graph.lanes, graph.meetings
    last = np.full(meetings.count, -1)
    order = np.lexsort((meetings.post_time, meetings.post_meeting))
    last[meetings.post_meeting[order]] = meetings.post_node[order]
    begin = lanes.begin[meetings.end_node]
    ready = np.minimum(graph.ready[meetings.end_meeting], lanes.end[meetings.end_node])
    waited = ready - begin
    # A wait for several messages is for the last of them.
    order = np.lexsort((-waited, meetings.end_node))
    order = order[np.diff(meetings.end_node[order], prepend=-1) > 0]
    node, cause = meetings.end_node[order], last[meetings.end_meeting[order]]
    waits = (waited[order] > 0) & (lanes.rank[node] != lanes.rank[cause])
    order, node, cause = order[waits], node[waits], cause[waits]
    phase = lanes.events["phase"].iloc[lanes.event[node]].astype(object).to_numpy()
    phase = np.where(lanes.event[node] >= 0, phase, "other")
    frame = pd.DataFrame(
        {
            "phase": np.where(phase == "recompute", "backward", phase).astype(object),
            "rank": lanes.ranks[lanes.rank[node]],
            "cause": lanes.ranks[lanes.rank[cause]],
            "seconds": waited[order] / 1e9,
        }
    )
    keys = ["phase", "rank", "cause"]
    sums = frame.groupby(keys, as_index=False)["seconds"].sum()
    sums.insert(0, "step", graph.step)
    return sums.sort_values("seconds", ascending=False, ignore_index=True)
