# SPDX-License-Identifier: Apache-2.0
"""When a communication really moved data: a rank that came early waited for its partner.

The writer never guesses this, as it cannot know the partner's clock. Here the last to arrive of
both ends of a message, or of all members of a collective, marks the start.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.read.columns import one_of, rows_of
from cadenza.read.partners import alike, message_ends
from cadenza.read.schema import (
    COMMUNICATION,
    GATHER_OF_LAYER,
    PACK,
    TENSOR_COLLECTIVES,
    WAIT_FOR_ATTENTION,
    WAIT_FOR_LAYER,
    WAIT_FOR_RANKS,
    WAIT_FOR_STAGE,
    WAITS_FOR_GROUPS,
)

_EXCHANGE = ("rank", "step", "phase", "layer", "tick", "half", "stage")
_PLACE = (*_EXCHANGE, "microbatch")  # which differs between the ranks of an exchange


def transfer_begin(events: pd.DataFrame, members: pd.DataFrame) -> np.ndarray:
    """Per event: the time from which its data could move, within [begin_ns, end_ns].

    It is begin_ns for everything but communication, and where no partner is in the frame.

    @param members  collective_members(events, ranks)
    """
    start = events["begin_ns"].to_numpy(np.int64, copy=True)
    end = events["end_ns"].to_numpy(np.int64)
    for together, name in ((message_ends(events), "message"), (members, "collective")):
        rows, number = (together[column].to_numpy(np.int64) for column in ("event", name))
        last = np.full(len(rows), np.iinfo(np.int64).min)
        np.maximum.at(last, number, start[rows])
        start[rows] = np.minimum(last[number], end[rows])
    return start


def collective_arrivals(
    events: pd.DataFrame, ranks: pd.DataFrame, members: pd.DataFrame
) -> pd.DataFrame:
    """Who came when to each blocking collective.

    @param members  collective_members(events, ranks)
    @returns one row per collective and rank: row, wait_row (positions in `events`; -1: no wait
             before it), begin_ns (the rank's arrival), pipeline_ns (the last arrival of the
             rank's own pipeline, where the collective spans stages and ends the backward pass;
             else begin_ns), last_ns (the last arrival of all)
    """
    frame = _entries(events)
    place = ranks.set_index("rank")[["data", "pipeline"]].reindex(frame["rank"])
    for column in place:
        frame[column] = place[column].fillna(-1).to_numpy(np.int64)
    # Without a flow nobody knows who met: each is alone.
    frame["group"] = members.set_index("event")["collective"].reindex(frame["row"]).to_numpy()
    frame["group"] = frame["group"].fillna(-1 - frame["row"])
    frame["last_ns"] = frame.groupby("group", sort=False)["begin_ns"].transform("max")
    own = frame.groupby(["group", "data"], sort=False)
    spans = (own["pipeline"].transform("nunique") > 1) & (frame["phase"] == "optimizer")
    frame["pipeline_ns"] = own["begin_ns"].transform("max").where(spans, frame["begin_ns"])
    return frame[["row", "wait_row", "begin_ns", "pipeline_ns", "last_ns"]]


def _entries(events: pd.DataFrame) -> pd.DataFrame:
    """Blocking collectives and the waits right before them: a rank enters with the wait, if there
    is one. @returns phase, rank, row, wait_row, begin_ns"""
    name = events["name"]
    meets = one_of(events["category"], "collective") & (events["peer"].to_numpy() < 0)
    meets &= ~events["non_blocking"].to_numpy(bool) & ~one_of(name, *TENSOR_COLLECTIVES)
    waits = one_of(name, WAIT_FOR_RANKS)
    rows = np.flatnonzero(meets | waits)
    rank, begin, end = (events[c].to_numpy()[rows] for c in ("rank", "begin_ns", "end_ns"))
    order = np.lexsort((end, begin, rank))
    rows, rank, begin = rows[order], rank[order], begin[order]
    here = np.flatnonzero(meets[rows])
    before = np.maximum(here - 1, 0)
    waited = (here > 0) & waits[rows[before]] & (rank[before] == rank[here])
    return rows_of(events, rows[here], ["phase", "rank"]).assign(
        row=rows[here],
        wait_row=np.where(waited, rows[before], -1),
        begin_ns=np.where(waited, begin[before], begin[here]),
    )


def ready_times(events: pd.DataFrame, start: np.ndarray) -> pd.Series:
    """Of waits for messages: when the last message a wait was for began to move.

    @param start  transfer_begin(events, members)
    @returns indexed by the wait's position in `events`; waits without known messages are left out
    """
    stream = one_of(events["category"], "p2p_receive") & events["non_blocking"].to_numpy(bool)
    layer = one_of(events["name"], GATHER_OF_LAYER)
    return pd.concat([_ready_in_turn(events, start, WAIT_FOR_STAGE, stream),
                      _ready_in_turn(events, start, WAIT_FOR_LAYER, layer),
                      _ready_together(events, start),
                      _attention_ready(events, start)])


def _ready_in_turn(
    events: pd.DataFrame, start: np.ndarray, wait: str, messages: np.ndarray
) -> pd.Series:
    """Streams and layers come one after the other: the n-th wait is for the n-th message.

    @param wait      name of the waits
    @param messages  bool, by event
    """
    found = []
    for rows in (np.flatnonzero(one_of(events["name"], wait)), np.flatnonzero(messages)):
        part = rows_of(events, rows, ["rank", "step", "end_ns"]).assign(row=rows)
        part = part.sort_values("end_ns", kind="stable")
        part["number"] = part.groupby(["rank", "step"]).cumcount()
        found.append(part)
    both = found[0].merge(found[1], on=["rank", "step", "number"], suffixes=("", "_message"))
    return pd.Series(start[both["row_message"].to_numpy(np.int64)], index=both["row"], dtype="i8")


def _ready_together(events: pd.DataFrame, start: np.ndarray) -> pd.Series:
    """Waits of imported runs end with the communication that they are for."""
    waits = np.flatnonzero(one_of(events["name"], *WAITS_FOR_GROUPS.values()))
    beside = one_of(events["category"], *COMMUNICATION) & events["non_blocking"].to_numpy(bool)
    rows = np.flatnonzero(beside) if len(waits) else waits
    keys = ["rank", "step", "end_ns"]
    part = rows_of(events, rows, keys).assign(start=start[rows])
    part = part.groupby(keys, as_index=False)["start"].max()
    both = rows_of(events, waits, keys).assign(row=waits).merge(part, on=keys)
    return pd.Series(both["start"].to_numpy(np.int64), index=both["row"], dtype="i8")


def _attention_ready(events: pd.DataFrame, start: np.ndarray) -> pd.Series:
    """A wait in a run ends before its messages are noted as complete; a simulated message is
    noted when it arrives, and the wait lasts at least as long."""
    wait_rows = np.flatnonzero(one_of(events["name"], WAIT_FOR_ATTENTION))
    message = one_of(events["category"], "attention_dispatch", "attention_return")
    message = message & events["non_blocking"].to_numpy(bool) & ~events["sends"].to_numpy(bool)
    rows = np.concatenate([wait_rows, np.flatnonzero(message)])
    if len(wait_rows) == 0 or len(rows) == len(wait_rows):
        return pd.Series(dtype="i8")
    is_wait = np.arange(len(rows)) < len(wait_rows)
    end, begin = events["end_ns"].to_numpy()[rows], events["begin_ns"].to_numpy()[rows]
    simulated = bool(events["simulated"].iloc[rows[-1]])
    # Simulated: the first wait that ends no earlier; else the last one that ended no later.
    places = _places(rows_of(events, rows, _PLACE), _PLACE)
    wait = _latest(is_wait, -end if simulated else end, places)
    known = ~is_wait & (wait >= 0) & (begin <= end[wait])  # else it was posted later
    ready = _packed(events, rows[known], start)
    return pd.Series(ready, index=rows[wait[known]], dtype="i8").groupby(level=0).max()


def _packed(events: pd.DataFrame, rows: np.ndarray, start: np.ndarray) -> np.ndarray:
    """When the senders of messages `rows` had packed them: what is left until a simulated message
    takes the wire is its turn at a port, which is part of the transfer."""
    packs = np.flatnonzero(one_of(events["name"], PACK))
    both = rows_of(events, np.concatenate([packs, rows]), ["peer", *_EXCHANGE])
    is_pack = np.arange(len(both)) < len(packs)
    sender = np.where(is_pack, both["rank"], both["peer"])
    when = np.concatenate([events["end_ns"].to_numpy()[packs], start[rows]])
    pack = _latest(is_pack, when, _places(both.assign(rank=sender), _EXCHANGE))
    return np.where(pack >= 0, when[pack], when)[len(packs) :]


def _latest(marks: np.ndarray, when: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Per row the last of the `marks` with its key that is not later; -1: there is none."""
    order = np.lexsort((~marks, when, key))
    found = np.maximum.accumulate(np.where(marks[order], np.arange(len(order)), -1))
    mark = order[np.maximum(found, 0)]
    latest = np.empty(len(order), np.int64)
    latest[order] = np.where((found >= 0) & (key[mark] == key[order]), mark, -1)
    return latest


def _places(part: pd.DataFrame, names: tuple[str, ...]) -> np.ndarray:
    """One number per place in the step's program."""
    return alike(*(part[name] for name in names))
