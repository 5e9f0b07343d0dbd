# SPDX-License-Identifier: Apache-2.0
"""When a communication really moved data: a rank that came early waited for its partner.

The writer never guesses this, as it cannot know the partner's clock. Both ends of a message and all
members of a collective carry the same flow, so here the last of them to arrive marks the start.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.schema import (
    COMMUNICATION,
    PACK,
    REPLICA_COLLECTIVES,
    TENSOR_COLLECTIVES,
    WAIT_FOR_ATTENTION,
    WAIT_FOR_RANKS,
    WAIT_FOR_STAGE,
)

_EXCHANGE = ("rank", "step", "phase", "layer", "tick", "half", "stage")
_PLACE = (*_EXCHANGE, "microbatch")  # which differs between the ranks of an exchange


def transfer_begin(events: pd.DataFrame) -> np.ndarray:
    """Per event: the time from which its data could move, within [begin_ns, end_ns].

    It is begin_ns for everything but communication, and where the partner is not in the frame or a
    rank uses a flow twice in a step, so that who belongs to whom is not known.
    """
    start = events["begin_ns"].to_numpy(np.int64, copy=True)
    kind = events["category"].isin(COMMUNICATION).to_numpy()
    flow = (events["flow"] > 0).to_numpy()
    for paired, number in (
        (kind & flow, lambda part: part["flow"]),
        (kind & ~flow & (events["peer"] >= 0).to_numpy(), _order),
    ):
        if paired.any():
            part = events[paired]
            start[paired] = _last_begin(part, number(part))
    return start


def _last_begin(part: pd.DataFrame, number: pd.Series) -> np.ndarray:
    """The last begin of a message's or collective's ends; `number` is equal on all of them."""
    alone = part["peer"] < 0
    key = pd.DataFrame(
        {
            "step": part["step"],
            "number": number,
            "low": np.minimum(part["rank"], part["peer"]).where(~alone, -1),
            "high": np.maximum(part["rank"], part["peer"]).where(~alone, -1),
        }
    )
    names = list(key.columns)
    key["twice"] = key.assign(rank=part["rank"]).duplicated(keep=False)
    key["begin_ns"] = part["begin_ns"]
    group = key.groupby(names, sort=False)
    last = group["begin_ns"].transform("max").to_numpy()
    unclear = group["twice"].transform("any").to_numpy()
    own = part["begin_ns"].to_numpy()
    return np.where(unclear, own, np.minimum(last, part["end_ns"].to_numpy()))


def _order(part: pd.DataFrame) -> pd.Series:
    """Messages without a flow arrive in the order in which they were sent: their number among
    those of the step and phase in the same direction, made different for each direction."""
    sends = (part["category"] == "p2p_send").to_numpy()
    sender = part["rank"].where(sends, part["peer"])
    receiver = part["peer"].where(sends, part["rank"])
    phase = pd.Categorical(part["phase"]).codes
    named = pd.DataFrame({"s": sender, "r": receiver, "p": phase, "step": part["step"]})
    ordered = named.assign(rank=part["rank"], begin=part["begin_ns"]).sort_values("begin")
    count = ordered.groupby(["s", "r", "p", "step", "rank"]).cumcount().reindex(part.index)
    return count * 16 + 2 * phase + (sender > receiver)


def collective_arrivals(events: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """Who came when to each blocking collective.

    @returns one row per collective and rank: row, wait_row (positions in `events`; -1: no wait
             before it), begin_ns (the rank's arrival), pipeline_ns (the last arrival of the
             rank's own pipeline, where the collective spans stages and ends the backward pass;
             else begin_ns), last_ns (the last arrival of all)
    """
    frame = _entries(events)
    place = ranks.set_index("rank")[["data", "pipeline", "tensor"]].reindex(frame["rank"])
    for column in place:
        frame[column] = place[column].fillna(-1).to_numpy(np.int64)
    # A flow used to be a hash of the name alone, equal for groups that never meet.
    replicas = frame["name"].isin(REPLICA_COLLECTIVES).to_numpy()
    frame["part"] = np.where(replicas, frame["pipeline"] * 65536 + frame["tensor"], -1)
    frame["alone"] = np.where(frame["flow"] > 0, -1, frame["row"])
    key = ["step", "flow", "part", "alone"]
    frame["last_ns"] = frame.groupby(key, sort=False)["begin_ns"].transform("max")
    own = frame.groupby([*key, "data"], sort=False)
    spans = (own["pipeline"].transform("nunique") > 1) & (frame["phase"] == "optimizer")
    frame["pipeline_ns"] = own["begin_ns"].transform("max").where(spans, frame["begin_ns"])
    return frame[["row", "wait_row", "begin_ns", "pipeline_ns", "last_ns"]]


def _entries(events: pd.DataFrame) -> pd.DataFrame:
    """Blocking collectives and the waits right before them: a rank enters with the wait, if there
    is one. @returns step, flow, name, phase, rank, row, wait_row, begin_ns"""
    name = events["name"]
    meets = (events["category"] == "collective").to_numpy() & (events["peer"] < 0).to_numpy()
    meets &= ~events["non_blocking"].to_numpy(bool) & ~name.isin(TENSOR_COLLECTIVES).to_numpy()
    waits = (name == WAIT_FOR_RANKS).to_numpy()
    rows = np.flatnonzero(meets | waits)
    rank, begin, end = (events[c].to_numpy()[rows] for c in ("rank", "begin_ns", "end_ns"))
    order = np.lexsort((end, begin, rank))
    rows, rank, begin = rows[order], rank[order], begin[order]
    here = np.flatnonzero(meets[rows])
    before = np.maximum(here - 1, 0)
    waited = (here > 0) & waits[rows[before]] & (rank[before] == rank[here])
    frame = events.iloc[rows[here]][["step", "flow", "name", "phase", "rank"]]
    return frame.reset_index(drop=True).assign(
        row=rows[here],
        wait_row=np.where(waited, rows[before], -1),
        begin_ns=np.where(waited, begin[before], begin[here]),
    )


def ready_times(events: pd.DataFrame, start: np.ndarray) -> pd.Series:
    """Of waits for messages: when the last message a wait was for began to move.

    @param start  transfer_begin(events)
    @returns indexed by the wait's position in `events`; waits without known messages are left out
    """
    return pd.concat([_stage_ready(events, start), _attention_ready(events, start)])


def _stage_ready(events: pd.DataFrame, start: np.ndarray) -> pd.Series:
    """Streams are received one after the other: the n-th wait is for the n-th message."""
    found = []
    for rows in (
        np.flatnonzero((events["name"] == WAIT_FOR_STAGE).to_numpy()),
        np.flatnonzero((events["category"] == "p2p_receive").to_numpy()
                       & events["non_blocking"].to_numpy(bool)),
    ):  # fmt: skip
        part = events.iloc[rows][["rank", "step", "end_ns"]].assign(row=rows)
        part = part.sort_values("end_ns", kind="stable")
        part["number"] = part.groupby(["rank", "step"]).cumcount()
        found.append(part)
    both = found[0].merge(found[1], on=["rank", "step", "number"], suffixes=("", "_message"))
    return pd.Series(start[both["row_message"].to_numpy(np.int64)], index=both["row"], dtype="i8")


def _attention_ready(events: pd.DataFrame, start: np.ndarray) -> pd.Series:
    """A wait in a run ends before its messages are noted as complete; a simulated message is
    noted when it arrives, and the wait lasts at least as long."""
    wait_rows = np.flatnonzero((events["name"] == WAIT_FOR_ATTENTION).to_numpy())
    message = events["category"].isin(["attention_dispatch", "attention_return"]).to_numpy()
    message = message & events["non_blocking"].to_numpy(bool)
    if "sends" in events:
        message = message & ~events["sends"].to_numpy(bool)
    rows = np.concatenate([wait_rows, np.flatnonzero(message)])
    if len(wait_rows) == 0 or len(rows) == len(wait_rows):
        return pd.Series(dtype="i8")
    is_wait = np.arange(len(rows)) < len(wait_rows)
    end, begin = events["end_ns"].to_numpy()[rows], events["begin_ns"].to_numpy()[rows]
    simulated = "simulated" in events and bool(events["simulated"].iloc[rows[-1]])
    # Simulated: the first wait that ends no earlier; else the last one that ended no later.
    wait = _latest(is_wait, -end if simulated else end, _place_key(events.iloc[rows], _PLACE))
    known = ~is_wait & (wait >= 0) & (begin <= end[wait])  # else it was posted later
    ready = _packed(events, rows[known], start)
    return pd.Series(ready, index=rows[wait[known]], dtype="i8").groupby(level=0).max()


def _packed(events: pd.DataFrame, rows: np.ndarray, start: np.ndarray) -> np.ndarray:
    """When the senders of messages `rows` had packed them: what is left until a simulated message
    takes the wire is its turn at a port, which is part of the transfer."""
    packs = np.flatnonzero((events["name"] == PACK).to_numpy())
    both = events.iloc[np.concatenate([packs, rows])]
    is_pack = np.arange(len(both)) < len(packs)
    sender = np.where(is_pack, both["rank"], both["peer"])
    when = np.concatenate([events["end_ns"].to_numpy()[packs], start[rows]])
    pack = _latest(is_pack, when, _place_key(both.assign(rank=sender), _EXCHANGE))
    return np.where(pack >= 0, when[pack], when)[len(packs) :]


def _latest(marks: np.ndarray, when: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Per row the last of the `marks` with its key that is not later; -1: there is none."""
    order = np.lexsort((~marks, when, key))
    found = np.maximum.accumulate(np.where(marks[order], np.arange(len(order)), -1))
    mark = order[np.maximum(found, 0)]
    latest = np.empty(len(order), np.int64)
    latest[order] = np.where((found >= 0) & (key[mark] == key[order]), mark, -1)
    return latest


def _place_key(part: pd.DataFrame, names: tuple[str, ...]) -> np.ndarray:
    """One number per place in the step's program (a hash: collisions do not happen in practice)."""
    key = np.zeros(len(part), np.uint64)
    for name in names:
        if name in part:
            column = part[name]
            values = column.cat.codes if isinstance(column.dtype, pd.CategoricalDtype) else column
            key = key * np.uint64(0x9E3779B97F4A7C15) + values.to_numpy(np.int64).view(np.uint64)
    return key
