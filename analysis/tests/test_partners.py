# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from step_frames import events_frame, ranks_frame

from cadenza.read.partners import alike, both_ends, collective_members, message_ends


def message(rank, peer, begin, flow, sends, category="attention_dispatch", **more):
    return {"rank": rank, "begin": begin, "end": begin + 1, "peer": peer, "flow": flow,
            "category": category, "sends": sends, **more}


def paired(events):
    """(sender's begin, receiver's begin) in ms of every message whose both ends are there."""
    ends = both_ends(message_ends(events)).sort_values(["message", "sends"])
    begin = events["begin_ns"].to_numpy()[ends["event"]] // 1_000_000
    return sorted(zip(begin[1::2].tolist(), begin[::2].tolist(), strict=True))


def test_ends_of_messages():
    """Both ways between two ranks, a stream, and one whose other end is not there."""
    events = events_frame([
        message(0, 1, 10, 5, True), message(1, 0, 20, 5, False),
        message(1, 0, 30, 5, True), message(0, 1, 40, 5, False),
        message(0, 2, 50, 5, True, "p2p_send"), message(2, 0, 60, 5, False, "p2p_receive"),
        message(2, 1, 70, 6, True),
    ])
    assert paired(events) == [(10, 20), (30, 40), (50, 60)]
    assert len(message_ends(events)) == 7


def test_a_flow_that_comes_again_is_in_the_same_order():
    events = events_frame(
        [message(0, 1, begin, 5, True) for begin in (10, 30)]
        + [message(1, 0, begin, 5, False) for begin in (20, 40)]
        + [message(1, 0, 15, 5, False, step=1)]
    )
    assert paired(events) == [(10, 20), (30, 40)]


def test_two_senders_are_no_message():
    assert paired(events_frame([message(0, 1, 10, 5, True), message(1, 0, 20, 5, True)])) == []


@pytest.mark.parametrize("name", ["tensor_all_gather", "reduce_gradients"])
def test_tensor_groups_may_share_a_flow(name):
    """Ranks 0 and 1 are one tensor group, 2 and 3 another; of other collectives the flow alone
    tells who meets."""
    events = events_frame(
        [{"rank": r, "begin": 0, "end": 1, "category": "collective", "name": name, "flow": 8}
         for r in range(4)]
    )
    members = collective_members(events, ranks_frame(4, data=[0, 0, 1, 1], tensor=[0, 1, 0, 1]))
    groups = members["collective"].to_numpy()[np.argsort(members["event"])]
    assert len(set(groups)) == (2 if name == "tensor_all_gather" else 1)
    assert groups[0] == groups[1] and groups[2] == groups[3]


def test_alike_tells_rows_apart():
    rng = np.random.default_rng(3)
    rows = rng.integers(-4, 5, (20000, 5))
    assert len(np.unique(alike(*rows.T))) == len(np.unique(rows, axis=0))
