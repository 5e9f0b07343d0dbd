# SPDX-License-Identifier: Apache-2.0
"""What a rank waited for: the part of a wait before its partner came, and the transfer."""

import pytest
from conftest import by_rank
from trace_files import (
    ATTENTION,
    COLLECTIVE,
    DENSE,
    DISPATCH,
    NON_BLOCKING,
    OTHER,
    RECEIVE,
    SEND,
    SENDS,
    SIMULATED,
    WAIT,
)


def test_receiver_of_a_stream_waits_until_the_sender_comes(tmp_path):
    sender = [(DENSE, 0, 40), (SEND, 40, 50, {"flow": 3, "peer": 1})]
    parts = by_rank(tmp_path, sender, [(RECEIVE, 10, 52, {"flow": 3, "peer": 0})])
    assert parts.loc[0, "communication"] == 10
    assert parts.loc[1, ["pipeline_bubble", "communication", "other"]].tolist() == [30, 12, 58]


def test_explicit_wait_for_a_stream(tmp_path):
    """As runs write it: a non-blocking message that is noted right after the wait for it. The
    second one was on its way before it was asked for."""
    sender = [
        (SEND, 40, 41, {"peer": 1, "flow": 3, "flags": NON_BLOCKING}),
        (SEND, 60, 61, {"peer": 1, "flow": 4, "flags": NON_BLOCKING}),
    ]
    receiver = [
        (WAIT, 10, 50, {"name": "wait_for_stage"}),
        (RECEIVE, 9, 51, {"peer": 0, "flow": 3, "flags": NON_BLOCKING}),
        (WAIT, 70, 75, {"name": "wait_for_stage"}),
        (RECEIVE, 69, 76, {"peer": 0, "flow": 4, "flags": NON_BLOCKING}),
    ]
    parts = by_rank(tmp_path, sender, receiver)
    assert parts.loc[1, "pipeline_bubble"] == 30 and parts.loc[1, "communication"] == 10 + 5


@pytest.mark.parametrize("simulated", [False, True])
def test_wait_for_attention_ends_when_the_last_message_is_sent(tmp_path, simulated):
    """Ranks 1 and 2 send at 30 and 60; what is left of the wait is the transfer. A simulated
    message begins on the wire and ends at its arrival, a real one spans from post to its note."""
    flags = NON_BLOCKING | (SIMULATED if simulated else 0)
    place = {"layer": 2, "microbatch": 0}

    def message(begin, end, peer, flow, more=0):
        return DISPATCH, begin, end, {"flags": flags | more, "peer": peer, "flow": flow, **place}

    noted = ((30, 40), (60, 80)) if simulated else ((4, 82), (4, 82))
    home = [
        message(*noted[0], 1, 7),
        message(*noted[1], 2, 8),
        (WAIT, 5, 80, {"name": "wait", **place}),
    ]
    ends = (40, 80) if simulated else (31, 61)
    servers = [[message(b, e, 0, f, SENDS)] for b, e, f in zip((30, 60), ends, (7, 8), strict=True)]
    parts = by_rank(tmp_path, home, *servers)
    assert parts.loc[0, ["attention_wait", "communication"]].tolist() == [55, 20]


def test_a_wait_is_not_for_what_was_posted_later(tmp_path):
    """Right after the wait for its inputs a server posts the next ones, in the same place of the
    step."""
    message = {"flags": NON_BLOCKING, "peer": 1}
    server = [
        (WAIT, 10, 30, {"name": "wait"}),
        (DISPATCH, 9, 31, {"flow": 3, **message}),
        (DISPATCH, 40, 41, {"flow": 4, **message}),
    ]
    sends = {"flags": NON_BLOCKING | SENDS, "peer": 0}
    home = [(DISPATCH, 20, 21, {"flow": 3, **sends}), (DISPATCH, 5, 60, {"flow": 4, **sends})]
    parts = by_rank(tmp_path, server, home)
    assert parts.loc[0, ["attention_wait", "communication"]].tolist() == [10, 10]


def test_a_simulated_message_belongs_to_the_wait_after_it(tmp_path):
    """It came while the rank computed: of the second wait, which is for something else by then,
    nothing was spent waiting for the sender."""
    flags = NON_BLOCKING | SIMULATED
    home = [
        (WAIT, 10, 30, {"name": "wait"}),
        (ATTENTION, 30, 60),
        (DISPATCH, 50, 55, {"flow": 3, "flags": flags, "peer": 1}),
        (WAIT, 60, 64, {"name": "wait"}),
    ]
    sender = [(DISPATCH, 50, 55, {"flow": 3, "flags": flags | SENDS, "peer": 0})]
    parts = by_rank(tmp_path, home, sender)
    assert parts.loc[0, ["attention_wait", "communication"]].tolist() == [20, 4]


def test_a_message_that_waits_for_its_port_is_communication(tmp_path):
    """Simulated: packed at 20, on the wire from 35 to 40. Another exchange's rows, packed at 30,
    do not matter, nor does which microbatch is whose."""
    flags, place = NON_BLOCKING | SIMULATED, {"tick": 2, "layer": 1, "stage": 0}
    home = [
        (WAIT, 10, 40, {"name": "wait", "microbatch": 3, **place}),
        (DISPATCH, 35, 40, {"flow": 3, "flags": flags, "peer": 1, "microbatch": 3, **place}),
    ]
    sender = [
        (OTHER, 18, 20, {"name": "pack", "microbatch": 4, **place}),
        (OTHER, 28, 30, {"name": "pack", "microbatch": 4, **place, "stage": 1}),
        (DISPATCH, 35, 40,
         {"flow": 3, "flags": flags | SENDS, "peer": 0, "microbatch": 4, **place}),
    ]
    parts = by_rank(tmp_path, home, sender)
    assert parts.loc[0, ["attention_wait", "communication"]].tolist() == [10, 20]


def test_wait_for_a_layer_is_for_the_last_rank_to_ask_and_then_for_the_data(tmp_path):
    """Asked for at 5 and 20, there at 40; the second time at 60 and 50, there at 70, which is
    before rank 1 needs it."""

    def rank(*layers):
        for posted, there, begin, end in layers:
            yield COLLECTIVE, posted, there, {"name": "gather_layer_message", "flow": 3,
                                              "flags": NON_BLOCKING | SIMULATED}
            yield WAIT, begin, end, {"name": "wait_layer"}

    parts = by_rank(tmp_path, [*rank((5, 40, 10, 40), (60, 70, 65, 70))],
                    [*rank((20, 40, 30, 40), (50, 70, 80, 80))])
    assert parts["data_parallel_wait"].tolist() == [10, 0]
    assert parts["communication"].tolist() == [20 + 5, 10]


def test_wait_of_a_rank_without_microbatch_is_a_bubble(tmp_path):
    """While the pipeline fills, a later stage may help with attention: waiting meanwhile is the
    bubble's. Without a pipeline it is a wait for attention."""
    wait = [(WAIT, 10, 40, {"name": "wait", "microbatch": -1}), (DENSE, 50, 90, {"microbatch": 0})]
    own = [(DENSE, 0, 90, {"microbatch": 0})]
    parts = by_rank(tmp_path, own, wait, places=[(0, 0, 0), (0, 1, 0)])
    assert parts.loc[1, ["pipeline_bubble", "attention_wait"]].tolist() == [30, 0]
    (tmp_path / "flat").mkdir()
    parts = by_rank(tmp_path / "flat", own, wait, places=[(0, 0, 0), (1, 0, 0)])
    assert parts.loc[1, ["pipeline_bubble", "attention_wait"]].tolist() == [0, 30]


def test_collective_waits_for_its_own_pipeline_and_then_for_the_others(tmp_path):
    """The gradient's norm over two pipelines of two stages: rank 0 and 1 are one, 2 and 3 the
    other. They come at 20, 50, 30 and 70; the collective itself takes until 76."""
    arrivals = [20, 50, 30, 70]
    events = [
        [
            (WAIT, arrival, 71, {"name": "wait_for_ranks", "phase": 3}),
            (COLLECTIVE, 71, 76, {"name": "agree_on_norm", "flow": 5, "lane": 0, "phase": 3}),
        ]
        for arrival in arrivals
    ]
    places = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
    parts = by_rank(tmp_path, *events, places=places)
    assert parts["pipeline_bubble"].tolist() == [30, 0, 40, 0]
    assert parts["data_parallel_wait"].tolist() == [20, 20, 0, 0]
    assert parts["communication"].tolist() == [6] * 4


def test_collective_inside_a_dense_operation_is_communication(tmp_path):
    inside = {"name": "tensor_all_gather", "flags": NON_BLOCKING}
    parts = by_rank(tmp_path, [(DENSE, 10, 60), (COLLECTIVE, 20, 35, inside)])
    assert parts.loc[0, ["compute_dense", "communication"]].tolist() == [35, 15]


def test_waiting_for_a_tensor_group_is_not_dense_work(tmp_path):
    """Rank 1 computes until 40, rank 0 until 20: then it waits for rank 1 in their sum."""
    meet = {"name": "tensor_all_gather", "flags": NON_BLOCKING, "flow": 4}
    parts = by_rank(
        tmp_path,
        [(DENSE, 0, 60), (COLLECTIVE, 20, 50, meet)],
        [(DENSE, 0, 60), (COLLECTIVE, 40, 50, meet)],
        places=[(0, 0, 0), (0, 0, 1)],
    )
    columns = ["compute_dense", "tensor_parallel_wait", "communication", "other"]
    assert parts[columns].values.tolist() == [[30, 20, 10, 40], [50, 0, 10, 40]]


def test_a_message_of_an_unknown_rank_is_not_guessed_about(tmp_path):
    parts = by_rank(tmp_path, [(RECEIVE, 0, 10, {"flow": 3}), (RECEIVE, 20, 30, {"flow": 3})])
    assert parts.loc[0, ["pipeline_bubble", "communication"]].tolist() == [0, 20]
