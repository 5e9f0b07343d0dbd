# SPDX-License-Identifier: Apache-2.0
"""Which events a flow joins: both ends of a message, the members of a collective.

A flow leads through them in the order of their begins. Perfetto turns arrows that would go back in
time, so a receiver that was ready first comes first. A rank enters a collective with its wait for
the others, if it has one, so the flow ends at the rank that came last: the one the others waited
for. Arrows from that one to each of hundreds would hide the rest.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.read.partners import both_ends, collective_members, message_ends
from cadenza.time.transfers import collective_arrivals


def flow_numbers(events: pd.DataFrame, ranks: pd.DataFrame) -> np.ndarray:
    """The number of each event's flow, from 0; -1: nothing to join it with.

    @param events  of one step
    @param ranks   Run.ranks()
    """
    number = np.full(len(events), -1)
    ends = both_ends(message_ends(events))
    number[ends["event"]] = ends["message"]
    members = collective_members(events, ranks)
    arrivals = collective_arrivals(events, ranks, members)
    waits = arrivals[arrivals["wait_row"] >= 0].set_index("row")["wait_row"]
    enters = members["event"].map(waits).fillna(members["event"]).astype(np.int64)
    number[enters] = members["collective"] + len(ends)  # apart from those of messages
    together = np.bincount(number + 1, minlength=1) > 1
    together[0] = False
    return np.where(together[number + 1], number, -1)


def bindings(number: np.ndarray, step: int, steps: int) -> np.ndarray:
    """What ties each slice to its flow, "" where it has none.

    @param number  flow_numbers() of slices in the order of their begins
    @param step    which of `steps` exported ones it is: flows of two have different ids
    """
    found = np.full(len(number), "", object)
    order = np.argsort(number, kind="stable")
    order = order[np.searchsorted(number[order], 0) :]
    flow = number[order]
    begins = np.diff(flow, prepend=-1) != 0
    ends = np.append(begins[1:], True)[: len(flow)]
    way = np.select([begins, ends], ['"flow_out":true', '"flow_in":true'],
                    '"flow_in":true,"flow_out":true').tolist()
    found[order] = [f',"bind_id":{id_},{inout}'
                    for id_, inout in zip((flow * steps + step).tolist(), way, strict=True)]
    return found
