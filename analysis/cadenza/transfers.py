# SPDX-License-Identifier: Apache-2.0
"""When a communication really moved data: a rank that came early waited for its partner.

The writer never guesses this, as it cannot know the partner's clock. Both ends of a message and all
members of a collective carry the same flow, so here the last of them to arrive marks the start.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.schema import COMMUNICATION


def transfer_begin(events: pd.DataFrame) -> np.ndarray:
    """Per event: the time from which its data could move, within [begin_ns, end_ns].

    It is begin_ns for everything but communication, and where the partner is not in the frame or a
    rank uses a flow twice in a step, so that who belongs to whom is not known.
    """
    start = events["begin_ns"].to_numpy(np.int64, copy=True)
    paired = events["category"].isin(COMMUNICATION).to_numpy() & (events["flow"] > 0).to_numpy()
    if not paired.any():
        return start
    part = events.loc[paired, ["rank", "step", "flow", "peer", "begin_ns", "end_ns"]]
    alone = part["peer"] < 0
    key = pd.DataFrame(
        {
            "step": part["step"],
            "flow": part["flow"],
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
    start[paired] = np.where(unclear, own, np.minimum(last, part["end_ns"].to_numpy()))
    return start
