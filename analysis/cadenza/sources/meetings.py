# SPDX-License-Identifier: Apache-2.0
"""Which communications of several ranks are one: members of a collective, ends of a message."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.sources.neutral import COLLECTIVE, SEND, began

COLUMNS = ["rank", "kind", "group", "members", "sequence", "peer", "bytes", "name", "phase",
           "begin_ns", "end_ns", "enqueued_ns", "stream"]


def matched(rows: pd.DataFrame, step: np.ndarray) -> np.ndarray:
    """A number for each communication, the same for all that are one; -1 where a rank was alone.

    A collective is known by its group, members and sequence number, a message by its two ends, the
    direction and the number. Where a source has no numbers, they are the turns of those of equal
    name and bytes within the step, which all ranks take in the same order.

    @param rows  COLUMNS of all ranks
    @param step  in which each was begun
    """
    collective = (rows["kind"] == COLLECTIVE).to_numpy()
    rank, peer = rows["rank"].to_numpy(np.int64), rows["peer"].to_numpy(np.int64)
    sends = (rows["kind"] == SEND).to_numpy()
    sender = np.where(collective, -1, np.where(sends, rank, peer))
    receiver = np.where(collective, -1, np.where(sends, peer, rank))
    known = rows["sequence"].to_numpy(np.int64)
    numbered = known >= 0
    group = np.where(collective, _codes(rows["group"]), _codes(rows["group"]) * numbered)
    members = np.where(collective, _codes(rows["members"]), 0)
    place = pd.DataFrame({"group": group, "members": members, "sender": sender,
                          "receiver": receiver, "step": np.where(numbered, -1, step),
                          "name": np.where(numbered | ~collective, 0, _codes(rows["name"])),
                          "bytes": np.where(numbered, -1, rows["bytes"])})
    mine = place.assign(rank=rank, kind=rows["kind"].astype(object).to_numpy())
    order = np.argsort(began(rows), kind="stable")
    turn = np.empty(len(rows), np.int64)
    turn[order] = mine.iloc[order].groupby(list(mine)).cumcount().to_numpy()
    place = place.assign(number=np.where(numbered, known, turn))
    # A rank that has a number twice counts again from some point on.
    again = place.assign(rank=rank, kind=mine["kind"]).iloc[order].groupby(
        [*place, "rank", "kind"], sort=False).cumcount()
    place["again"] = again.sort_index().to_numpy()
    number = place.groupby(list(place), sort=False).ngroup().to_numpy()
    ranks = pd.Series(rank).groupby(number).transform("nunique").to_numpy()
    complete = np.where(collective, ranks > 1, (ranks == 2) & (peer >= 0))
    return np.where(complete, number, -1)


def _codes(texts: pd.Series) -> np.ndarray:
    return pd.factorize(texts.astype(object))[0].astype(np.int64)
