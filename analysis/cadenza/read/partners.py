# SPDX-License-Identifier: Apache-2.0
"""Which events of several ranks belong together: ends of a message, members of a collective.

They carry the same flow (docs/trace.md, "Flows"). A flow may come again within a step, then in the
same order on all of its ranks.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.read.columns import one_of, rows_of
from cadenza.read.schema import MESSAGES, TENSOR_COLLECTIVES


def message_ends(events: pd.DataFrame) -> pd.DataFrame:
    """Ends of messages between two ranks, also those whose other end is not in the frame.

    @returns event (position in `events`), sends, message (a number, equal on both ends)
    """
    rows = np.flatnonzero(
        one_of(events["category"], *MESSAGES)
        & (events["flow"].to_numpy() > 0)
        & (events["peer"].to_numpy() >= 0)
    )
    part = rows_of(events, rows, ["rank", "peer", "sends", "step", "flow"])
    own, peer = part["rank"].to_numpy(np.int64), part["peer"].to_numpy(np.int64)
    sends = part["sends"].to_numpy(bool)
    sender, receiver = np.where(sends, own, peer), np.where(sends, peer, own)
    number = _numbers(part, sender, receiver)
    return pd.DataFrame({"event": rows, "sends": sends, "message": number})


def both_ends(ends: pd.DataFrame) -> pd.DataFrame:
    """Of message_ends() the messages whose both ends are there, numbered from 0."""
    number = ends["message"].to_numpy(np.int64)
    found = ends[np.bincount(number)[number] == 2]
    return found.assign(message=pd.factorize(found["message"])[0])


def collective_members(events: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """Members of collectives.

    @param ranks  Run.ranks(). Millions of collectives of tensor groups share 32 bits of flows, so
                  the place of the group counts too
    @returns event (position in `events`), collective (a number, equal on all members)
    """
    collective = one_of(events["category"], "collective")
    rows = np.flatnonzero(collective & (events["flow"].to_numpy() > 0))
    part = rows_of(events, rows, ["rank", "name", "step", "flow"])
    inside = one_of(part["name"], *TENSOR_COLLECTIVES)
    place = ranks.set_index("rank")[["data", "pipeline", "context"]].reindex(part["rank"])
    group = [np.where(inside, place[name].fillna(-1).to_numpy(np.int64), -1) for name in place]
    return pd.DataFrame({"event": rows, "collective": _numbers(part, *group)})


def _numbers(part: pd.DataFrame, *of_group: np.ndarray) -> np.ndarray:
    """A number from 0 per flow, step, group and, where a rank uses it again, turn."""
    key = alike(part["step"], part["flow"], *of_group)
    mine = alike(key, part["rank"])
    first = pd.Series(mine)
    if first.duplicated().any():
        key = alike(key, first.groupby(mine, sort=False).cumcount())
    return pd.factorize(key)[0]


def alike(*columns: pd.Series | np.ndarray) -> np.ndarray:
    """One number per row, the same for rows with the same values: a hash of 64 bits, whose
    collisions do not happen in practice. Categories are told apart by their codes."""
    key = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        categorical = isinstance(column.dtype, pd.CategoricalDtype)
        values = column.array.codes if categorical else np.asarray(column)
        values = values if values.dtype == np.uint64 else values.astype(np.int64).view(np.uint64)
        key = (key ^ (key >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15) + values
    return key
