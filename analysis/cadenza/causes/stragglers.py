# SPDX-License-Identifier: Apache-2.0
"""Which rank was late, by how much, and why."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.graph.graph import StepGraph
from cadenza.graph.loads import BY_CHANCE, lateness, operation_loads, robust_z
from cadenza.graph.pauses import COLUMNS

_EQUAL = 0.01  # of a phase: less than this is no difference
_NOTICED = 0.001  # of a step's computation: nor is less than this
_WORTH = 0.005  # of a step's computation: a rank that is slower by less is not slow
_COUNTS = 0.1  # of its worst step: a rank that is late by less was hardly late
_PERSISTENT = 0.5  # share of steps
_ALSO = 0.1  # of what a rank lost to its main reason: another one is named too
_MAIN = 0.9  # of what a rank was late by: the rest is noise
_SHARE = 0.05  # of a rank's time: kinds of operations with less are not compared
_SAME = 0.05  # rates and lateness that differ by less are the same
_WORDS = {
    "compute_attention": "attention tasks",
    "compute_dense": "dense operations",
    "compute_other": "copies and small operations",
    "optimizer": "optimizer operations",
    "data": "data loading",
}
_ITSELF = ("rate", "input", "paused")  # why a rank is late, where it is not for its work
LATE = ("cost", *_ITSELF)  # and where it is late at all
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


def persistent(found: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """Per rank how often it was the slowest of a step, and whether that is its work or itself.

    - persistent: in more than half of the steps, and mostly not for its work
    - data: its work made it late more than its rate
    - paused: in some steps, mostly by standing still
    - intermittent: in some steps
    - none: never

    Where several ranks are late by the same, as in a tensor group, one of them stands for all.

    The slowest of a step is the rank that is latest over its phases; where that is for its work,
    one may be late by itself as well. A rank that is late for its work in some steps and by itself
    in others is judged by what it loses more to; the explanation names the other reason where that
    is a tenth of it or more. Steps count in which a rank lost a tenth or more of what it lost in
    its worst step.

    @param found  stragglers()
    @returns rank, slowest_share (of steps), persistence, phase (in which it lost nine tenths of
             what it was late by; empty: in several), late_seconds (sum over these steps),
             as_late (other ranks, in most of them), explanation; longest first
    """
    worst = _slowest(found[found["why"].isin(LATE)])
    steps = max(found["step"].nunique(), 1)
    of_rank = dict(list(worst.groupby("rank")))
    rows = []
    for rank in sorted(int(r) for r in ranks["rank"]):
        if rank not in of_rank:  # most of a large run
            rows.append((rank, 0.0, "none", "", 0.0, 0, "never the slowest"))
            continue
        main, other = _by_reason(of_rank[rank])
        mine = _counted(main)
        late_in = mine["step"].nunique()
        kind = _persistence(late_in / steps, mine)
        text = f"rank {rank}: {_usual_cause(kind, mine)}, in {late_in} of {steps} steps"
        late = mine["late_seconds"].sum()
        other = _counted(other)
        if other["late_seconds"].sum() >= _ALSO * late:
            often = f"in {other['step'].nunique()} of {steps} steps"
            text += f"; also {_usual_cause('', other)}, {often}"
        others = int(mine["as_late"].median())
        rows.append((rank, late_in / steps, kind, _main_phase(mine), late, others, text))
    columns = ["rank", "slowest_share", "persistence", "phase", "late_seconds", "as_late",
               "explanation"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.sort_values("late_seconds", ascending=False, kind="stable", ignore_index=True)


def _by_reason(mine: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of a rank that are late for its work, and the others; first those that lose more."""
    by_work = mine["why"] == "cost"
    late = mine["late_seconds"]
    main = by_work if late[by_work].sum() >= late[~by_work].sum() else ~by_work
    return mine[main], mine[~main]


def _counted(mine: pd.DataFrame) -> pd.DataFrame:
    """Rows of the steps in which a rank lost a tenth or more of what it lost in its worst one."""
    of_step = mine.groupby("step")["late_seconds"].transform("sum")
    return mine[of_step >= _COUNTS * of_step.max()]


def _usual_cause(kind: str, mine: pd.DataFrame) -> str:
    """Of the causes of a rank's lateness the one that it lost most to, in a mean by its times. A
    rank that is slow all along and also stood still for once is slow."""
    if kind == "persistent" and (mine["why"] != "paused").any():
        mine = mine[mine["why"] != "paused"]
    cause = mine.groupby("cause")["late_seconds"].sum().idxmax()
    of_cause = mine[mine["cause"] == cause]
    weight = of_cause["seconds"] / of_cause["seconds"].sum()
    return cause.format((of_cause["amount"] * weight).sum())


def _slowest(late: pd.DataFrame) -> pd.DataFrame:
    """Rows of the rank that is latest in a step, over its phases, and of the one that is latest by
    itself."""
    chosen = np.zeros(len(late), bool)
    for mine in (late, late[late["why"].isin(_ITSELF)]):
        sums = mine.groupby(["step", "rank"])["late_seconds"].sum()
        first = sums.loc[sums.groupby(level="step").idxmax()] if len(sums) else sums
        chosen |= pd.MultiIndex.from_frame(late[["step", "rank"]]).isin(first.index)
    return late[chosen]


def _persistence(share: float, mine: pd.DataFrame) -> str:
    late = mine.groupby("why")["late_seconds"].sum()
    if "cost" in late:
        return "data"
    if share > _PERSISTENT:
        return "persistent"
    return "paused" if late.get("paused", 0.0) >= late.sum() / 2 else "intermittent"


def _main_phase(mine: pd.DataFrame) -> str:
    late = mine.groupby("phase")["late_seconds"].sum()
    return str(late.idxmax()) if len(late) and late.max() >= _MAIN * late.sum() else ""


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
