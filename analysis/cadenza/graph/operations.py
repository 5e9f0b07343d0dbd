# SPDX-License-Identifier: Apache-2.0
"""A step as the computations of whole microbatches, messages between stages and collectives, and
what each of them waits for: the operations of arXiv 2505.05713.

What a rank computes in one pass of a microbatch is one computation, or pieces of one, where
collectives begin or end meanwhile. Which of two operations of a rank came first is asked of the
middle of one, as clocks and roundings may let what follows something begin before that ends.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd

from cadenza.graph.lanes import COMPUTE, Lanes, inside_computation, make_lanes
from cadenza.read.columns import one_of, rows_of
from cadenza.read.partners import collective_members, message_ends

COMPUTATION, MESSAGE, COLLECTIVE = "computation", "message", "collective"
COLUMNS = ["step", "rank", "kind", "type", "phase", "microbatch", "sends", "begin_ns", "end_ns",
           "seconds", "share", "meeting"]
_OF_PHASE = {"forward": "forward compute", "backward": "backward compute", "optimizer": "optimizer"}
_ORDER = ["step", "rank", "begin_ns"]


def operations(events: pd.DataFrame, steps: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """@param events  of one step, of all ranks
    @param steps   rows of Run.steps() of that step
    @param ranks   Run.ranks()
    @returns COLUMNS, one row per operation: kind (COMPUTATION, MESSAGE, COLLECTIVE), type (whose
             operations could take equally long), sends (of messages), seconds (of a computation
             what it computed; of others from when all have begun it to its end, at least 0), share
             (of the seconds of a whole computation; 1 of others), meeting (a number, equal on all
             ranks that meet in it; -1: a computation)
    """
    windows = steps[steps["rank"].isin(events["rank"].unique())].sort_values("rank")
    if windows.empty:
        return pd.DataFrame(columns=COLUMNS)
    lanes = make_lanes(events.reset_index(drop=True), windows)
    made = pd.concat([_computations(lanes), _communications(lanes.events, ranks)])
    made = made.assign(step=int(windows["step"].iloc[0]))
    return made.sort_values(_ORDER, kind="stable", ignore_index=True)[COLUMNS]


def _computations(lanes: Lanes) -> pd.DataFrame:
    """Cut where a collective begins, which can then go on beside the rest, or ends, for which the
    rest may have waited."""
    inside = inside_computation(lanes.events)[lanes.event] & (lanes.event >= 0)
    node = np.flatnonzero(lanes.where("category", *COMPUTE) | inside)
    of_node = rows_of(lanes.events, lanes.event[node], ["phase", "microbatch"])
    phase = _pass(of_node["phase"])
    microbatch = of_node["microbatch"].to_numpy(np.int64)
    met = np.cumsum(lanes.where("category", "collective") & ~inside)[node]
    whole = _runs(lanes.rank[node], pd.factorize(phase)[0], microbatch, met)
    piece = _runs(whole, _seen(lanes, node))
    first = np.flatnonzero(np.diff(piece, prepend=-1))
    last = np.append(first, len(node))[1:] - 1
    took = lanes.end[node] - lanes.begin[node]
    seconds = np.bincount(piece, took) / 1e9
    of_whole = (np.bincount(whole, took) / 1e9)[whole[first]]
    return pd.DataFrame({
        "rank": lanes.ranks[lanes.rank[node[first]]], "kind": COMPUTATION,
        "type": [_OF_PHASE.get(one, "other compute") for one in phase[first]],
        "phase": phase[first], "microbatch": microbatch[first], "sends": False,
        "begin_ns": lanes.begin[node[first]] + lanes.origin,
        "end_ns": lanes.end[node[last]] + lanes.origin, "seconds": seconds,
        "share": np.divide(seconds, of_whole, out=np.ones(len(first)), where=of_whole > 0),
        "meeting": -1,
    })


def _runs(*columns: np.ndarray) -> np.ndarray:
    """Numbers from 0 of rows that follow one another and have the same values."""
    changes = np.logical_or.reduce([np.diff(one, prepend=one[:1]) != 0 for one in columns])
    return np.cumsum(changes)


def _seen(lanes: Lanes, node: np.ndarray) -> np.ndarray:
    """How many begins and ends of collectives a rank, and those before it, had seen in the middle
    of each node."""
    events = lanes.events
    row = np.flatnonzero(one_of(events["category"], "collective") & ~inside_computation(events))
    rank = np.searchsorted(lanes.ranks, events["rank"].to_numpy(np.int64)[row])
    seen = np.concatenate([lanes.key(rank, events[name].to_numpy(np.int64)[row] - lanes.origin)
                           for name in ("begin_ns", "end_ns")])
    middle = (lanes.begin[node] + lanes.end[node]) // 2
    return np.searchsorted(np.sort(seen), lanes.key(lanes.rank[node], middle))


def _communications(events: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """Messages between stages, and collectives that are not a part of a computation. What lacks its
    partners meets nobody."""
    messages = message_ends(events).rename(columns={"message": "meeting"})
    collectives = collective_members(events, ranks).rename(columns={"collective": "meeting"})
    collectives["meeting"] += messages["meeting"].max() + 1 if len(messages) else 0
    met = pd.concat([messages, collectives]).set_index("event")["meeting"]
    message = one_of(events["category"], "p2p_send", "p2p_receive")
    collective = one_of(events["category"], "collective") & ~inside_computation(events)
    row = np.flatnonzero(message | collective)
    made = rows_of(events, row, ["rank", "phase", "microbatch", "sends", "begin_ns", "end_ns"])
    made["phase"] = _pass(made["phase"])
    alone = met.max() + 1 + np.arange(len(row)) if len(met) else np.arange(len(row))
    meeting = met.reindex(row).to_numpy(float)
    made["meeting"] = np.where(np.isnan(meeting), alone, meeting).astype(np.int64)
    made["kind"] = np.where(message[row], MESSAGE, COLLECTIVE)
    names = events["name"].astype(object).to_numpy()[row]
    made["type"] = np.where(message[row], made["phase"] + " messages", names)
    all_there = made.groupby("meeting")["begin_ns"].transform("max")
    return made.assign(seconds=(made["end_ns"] - all_there).clip(lower=0) / 1e9, share=1.0)


def _pass(phase: pd.Series) -> np.ndarray:
    """What is computed again belongs to the backward pass that needs it."""
    found = phase.astype(object).to_numpy()
    return np.where(found == "recompute", "backward", found)


def dependencies(made: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of rows of operations(), of one or more steps: the second begins when the first is
    over. Of a rank

    - computations follow one another, and so do messages of one direction and pass;
    - a message leaves after the computation of its microbatch; a computation waits for what it
      receives, which is asked for after the computation before it in the same pass;
    - a collective follows the computation and the collective before it; the optimizer waits for
      all collectives, a pass for what gathers parameters for it.
    """
    keys = {"of": ["step", "rank"], "pass": ["step", "rank", "phase"],
            "queue": ["step", "rank", "phase", "sends"],
            "unit": ["step", "rank", "phase", "microbatch"]}
    made = made[["kind", "type", "phase", "sends", "begin_ns", "end_ns"]].assign(
        row=np.arange(len(made)), middle_ns=made["begin_ns"] + (made["end_ns"] - made["begin_ns"])
        // 2, **{name: made.groupby(by, sort=False).ngroup() for name, by in keys.items()})
    computed, messages, collectives = (made[(made["kind"] == kind).to_numpy()]
                                       for kind in (COMPUTATION, MESSAGE, COLLECTIVE))
    sends = messages["sends"].to_numpy(bool)
    sent, received = messages[sends], messages[~sends]
    passes = computed["phase"].isin(["forward", "backward"]).to_numpy()
    gathers = collectives[collectives["type"].str.contains("gather", case=False).to_numpy(bool)]
    arrives, needs = _pairs(received, "end_ns", computed, "middle_ns", "unit", "forward")
    in_pass = dict(zip(*reversed(_following(computed, "pass")), strict=True))
    again = np.array([in_pass.get(row, -1) for row in needs.tolist()], np.int64)
    pairs = [
        _following(computed, "of"), _following(messages, "queue"), (arrives, needs),
        (again[again >= 0], arrives[again >= 0]),
        *(_pairs(*one)[::-1] for one in (
            (sent, "begin_ns", computed, "middle_ns", "unit"),
            (collectives, "begin_ns", computed, "middle_ns", "of"),
            (collectives, "middle_ns", collectives, "end_ns", "of"),
            (computed[passes], "middle_ns", gathers, "end_ns", "of"),
            (computed[~passes], "middle_ns", collectives, "end_ns", "of"))),
    ]
    first, second = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return first, second


def _following(rows: pd.DataFrame, by: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows that follow one another in a group, in the order of time."""
    order = np.argsort(rows[by].to_numpy(), kind="stable")
    row, group = rows["row"].to_numpy(np.int64)[order], rows[by].to_numpy()[order]
    same = np.flatnonzero(group[1:] == group[:-1])
    return row[same], row[same + 1]


def _pairs(
    rows: pd.DataFrame, at: str, others: pd.DataFrame, when: str, by: str,
    direction: Literal["backward", "forward"] = "backward",
) -> tuple[np.ndarray, np.ndarray]:
    """Each row with the last of the others in its group that was before it (forward: the first
    after it), where there is one."""
    found = pd.merge_asof(
        rows[["row", by, at]].sort_values(at), others[["row", by, when]].sort_values(when),
        left_on=at, right_on=when, by=by, direction=direction, allow_exact_matches=False,
        suffixes=("", "_other"))
    found = found[found["row_other"].notna()]
    return found["row"].to_numpy(np.int64), found["row_other"].to_numpy(np.int64)
