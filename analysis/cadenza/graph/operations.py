# SPDX-License-Identifier: Apache-2.0
"""A step as the computations of whole microbatches, messages between stages and collectives, and
what each of them waits for: the operations of arXiv 2505.05713.

What a rank computes in one pass of a microbatch, without a collective in between, is one
computation. Which of two operations of a rank came first is asked of the middle of the later
computation, as clocks and roundings may let what follows something begin before that ends.
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
           "seconds", "meeting"]
_OF_PHASE = {"forward": "forward compute", "backward": "backward compute", "optimizer": "optimizer"}
_ORDER = ["step", "rank", "begin_ns"]


def operations(events: pd.DataFrame, steps: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """@param events  of one step, of all ranks
    @param steps   rows of Run.steps() of that step
    @param ranks   Run.ranks()
    @returns COLUMNS, one row per operation: kind (COMPUTATION, MESSAGE, COLLECTIVE), type (whose
             operations could take equally long), sends (of messages), seconds (of a computation
             what it computed; of others from when all have begun it to its end, at least 0),
             meeting (a number, equal on all ranks that meet in it; -1: a computation)
    """
    windows = steps[steps["rank"].isin(events["rank"].unique())].sort_values("rank")
    if windows.empty:
        return pd.DataFrame(columns=COLUMNS)
    lanes = make_lanes(events.reset_index(drop=True), windows)
    made = pd.concat([_computations(lanes), _communications(lanes.events, ranks)])
    made = made.assign(step=int(windows["step"].iloc[0]))
    return made.sort_values(_ORDER, kind="stable", ignore_index=True)[COLUMNS]


def _computations(lanes: Lanes) -> pd.DataFrame:
    inside = inside_computation(lanes.events)[lanes.event] & (lanes.event >= 0)
    node = np.flatnonzero(lanes.where("category", *COMPUTE) | inside)
    met = np.cumsum(lanes.where("category", "collective") & ~inside)[node]
    of_node = rows_of(lanes.events, lanes.event[node], ["phase", "microbatch"])
    phase = _pass(of_node["phase"])
    microbatch = of_node["microbatch"].to_numpy(np.int64)
    place = [lanes.rank[node], pd.factorize(phase)[0], microbatch, met]
    changes = np.logical_or.reduce([np.diff(one, prepend=-9) != 0 for one in place])
    first = np.flatnonzero(changes)
    last = np.append(first, len(node))[1:] - 1
    took = np.cumsum(np.append(0, lanes.end[node] - lanes.begin[node]))
    return pd.DataFrame({
        "rank": lanes.ranks[lanes.rank[node[first]]], "kind": COMPUTATION,
        "type": [_OF_PHASE.get(one, "other compute") for one in phase[first]],
        "phase": phase[first], "microbatch": microbatch[first], "sends": False,
        "begin_ns": lanes.begin[node[first]] + lanes.origin,
        "end_ns": lanes.end[node[last]] + lanes.origin,
        "seconds": (took[last + 1] - took[first]) / 1e9, "meeting": -1,
    })


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
    return made.assign(seconds=(made["end_ns"] - all_there).clip(lower=0) / 1e9)


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
    - a collective follows the computation and the collective before it; a forward pass waits for
      collectives of the forward pass (parameters), the optimizer for all.
    """
    keys = {"of": ["step", "rank"], "pass": ["step", "rank", "phase"],
            "queue": ["step", "rank", "phase", "sends"],
            "unit": ["step", "rank", "phase", "microbatch"]}
    made = made[["kind", "phase", "sends", "begin_ns", "end_ns"]].assign(
        row=np.arange(len(made)), middle_ns=made["begin_ns"] + (made["end_ns"] - made["begin_ns"])
        // 2, **{name: made.groupby(by, sort=False).ngroup() for name, by in keys.items()})
    computed, messages, collectives = (made[(made["kind"] == kind).to_numpy()]
                                       for kind in (COMPUTATION, MESSAGE, COLLECTIVE))
    sends = messages["sends"].to_numpy(bool)
    sent, received = messages[sends], messages[~sends]
    forward = computed[(computed["phase"] == "forward").to_numpy()]
    updates = computed[~computed["phase"].isin(["forward", "backward"]).to_numpy()]
    parameters = collectives[(collectives["phase"] == "forward").to_numpy()]
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
            (forward, "middle_ns", parameters, "end_ns", "of"),
            (updates, "middle_ns", collectives, "end_ns", "of"))),
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
