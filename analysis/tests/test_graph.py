# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import pytest
from step_frames import MS, Cluster, graph_of, pipeline

from cadenza.graph.critical_path import (
    critical_path,
    longest_operations,
    mean_shares,
    path_shares,
    rank_switches,
    slack,
)
from cadenza.errors import DataError
from cadenza.graph.graph import build
from cadenza.graph.lanes import OPERATION
from cadenza.graph.levels import levels, split_places
from cadenza.causes.what_if import network_free, scaled

TWO_RANKS = [  # A 5, message 1 to the other rank, B 4, message 1 back, D 2; E 5 and C 3 beside them
    [("post", 1), ("work", "A", 5.0), ("send", 1), ("work", "E", 5.0), ("receive", 1),
     ("work", "D", 2.0)],
    [("post", 0), ("work", "C", 3.0), ("receive", 0), ("work", "B", 4.0), ("send", 0)],
]


def operations(graph):
    """Name and duration in ms of what the path works on and carries."""
    path = critical_path(graph)
    return [
        (row.name if row.kind == "operation" else row.kind, (row.end_ns - row.begin_ns) / MS)
        for row in path.itertuples(index=False)
    ]


def random_programs(rng, ranks=4, turns=25):
    """Programs that can end: who sends and who receives is decided turn by turn."""
    programs = [[] for _ in range(ranks)]
    for turn in range(turns):
        for rank in rng.permutation(ranks):
            duration = float(np.round(rng.exponential(2.0), 3))
            programs[rank].append(("work", "abc"[rng.integers(3)], duration))
        one, other = (int(r) for r in rng.permutation(ranks)[:2])
        programs[one].append(("send", other))
        programs[other].append(("receive", one))
        if turn % 8 == 7:
            for program in programs:
                program.append(("meet", f"sum{turn}", 0.5))
    return programs


@pytest.mark.parametrize("seed", range(5))
def test_replay_is_the_record_and_follows_other_durations(seed):
    """Against another run of the same programs, in which some operations took other times."""
    rng = np.random.default_rng(seed)
    programs = random_programs(rng)
    graph = graph_of(Cluster(programs, travel=0.25).rows)
    np.testing.assert_allclose(graph.replay(), graph.lanes.end, atol=1)
    for factor in (0.5, 3.0):
        others = [
            [(k, n, d * factor) if (k, n) == ("work", "b") else (k, n, d) for k, n, d in full]
            for full in [[(*word, None)[:3] for word in p] for p in programs]
        ]
        others = [[w if w[0] != "send" and w[0] != "receive" else w[:2] for w in p] for p in others]
        wanted = max(Cluster(others, travel=0.25).now) / 1e3
        assert scaled(graph, factor, name="b") == pytest.approx(wanted, abs=1e-8)


def test_a_layer_is_there_some_time_after_the_last_rank_asked_for_it():
    """Rank 1 asks at 6, after an operation, and rank 0 at 1; it takes 3. Were the operation
    shorter, all would be earlier; rank 0 still computes until 4."""

    def layer(rank, posted, begin):
        return [
            {"rank": rank, "begin": posted, "end": 9, "name": "gather_layer_message", "flow": 7,
             "category": "collective", "lane": "communication", "non_blocking": True,
             "bytes": 1000},
            {"rank": rank, "begin": begin, "end": 9, "name": "wait_layer", "category": "wait"},
        ]

    rows = [{"rank": 0, "begin": 0, "end": 1}, {"rank": 0, "begin": 1, "end": 4}, *layer(0, 1, 4),
            {"rank": 0, "begin": 9, "end": 11},
            {"rank": 1, "begin": 0, "end": 6, "name": "long"}, *layer(1, 6, 6),
            {"rank": 1, "begin": 9, "end": 10}]
    graph = graph_of(rows)
    np.testing.assert_allclose(graph.replay(), graph.lanes.end, atol=1)
    assert scaled(graph, 0.5, name="long") == pytest.approx((3 + 3 + 2) / 1e3)
    assert scaled(graph, 0.0, name="long") == pytest.approx((1 + 3 + 2) / 1e3)


def test_many_cases_at_once_are_those_cases():
    graph = graph_of(Cluster(random_programs(np.random.default_rng(9)), travel=0.25).rows)
    cases = np.stack([graph.own, graph.own * 2, graph.own * 0.5], axis=1)
    together = graph.replay(own=cases)
    for case in range(3):
        np.testing.assert_array_equal(together[:, case], graph.replay(own=cases[:, case]))


def test_critical_path_by_hand():
    graph = graph_of(Cluster(TWO_RANKS, travel=1.0).rows)
    assert graph.seconds == pytest.approx(0.013)
    assert operations(graph) == [
        ("A", 5.0), ("message", 1.0), ("B", 4.0), ("message", 1.0), ("D", 2.0)
    ]
    path = critical_path(graph)
    assert path["rank"].tolist() == [0, 1, 1, 0, 0] and rank_switches(path) == 2
    shares = path_shares(path).set_index("kind")["share"]
    assert shares["operation"] == pytest.approx(11 / 13)
    assert longest_operations(path, 1)["name"].tolist() == ["A"]
    left = slack(graph).set_index("name")["slack_ns"] / MS
    assert left.to_dict() == {"A": 0.0, "B": 0.0, "C": 3.0, "D": 0.0, "E": 1.0}


def test_a_shorter_operation_gives_way_to_the_next_path():
    """B halved saves 1 ms, not 2: then A, E and D are the path."""
    graph = graph_of(Cluster(TWO_RANKS, travel=1.0).rows)
    assert scaled(graph, 0.5, name="B") == pytest.approx(0.012)
    assert scaled(graph, 0.5, rank=0, name="B") == pytest.approx(0.013)
    assert network_free(graph) == pytest.approx(0.012)


def test_path_names_gaps():
    """Rank 0 sends 1 ms after its operation, of which nothing is recorded; rank 1 begins late."""
    programs = [
        [("work", "A", 4.0), ("rest", 1.0), ("send", 1)],
        [("rest", 0.5), ("work", "C", 1.0), ("receive", 0), ("work", "B", 2.0)],
    ]
    graph = graph_of(Cluster(programs, travel=1.0).rows)
    assert operations(graph) == [("A", 4.0), ("gap", 1.0), ("message", 1.0), ("B", 2.0)]
    shares = path_shares(critical_path(graph)).set_index("kind")["seconds"]
    assert shares["gap"] == pytest.approx(1e-3)


def test_path_names_what_the_host_did_between_operations():
    """Of 3 ms between A and B the host plans 1 and, within it, writes half of one."""
    rows = [
        {"rank": 0, "begin": 0.0, "end": 4.0, "name": "A"},
        {"rank": 0, "begin": 5.0, "end": 6.0, "name": "plan", "category": "host", "lane": "host"},
        {"rank": 0, "begin": 5.2, "end": 5.7, "name": "write", "category": "host", "lane": "host"},
        {"rank": 0, "begin": 7.0, "end": 9.0, "name": "B"},
        {"rank": 0, "begin": 7.5, "end": 8.0, "name": "post", "category": "host", "lane": "host"},
    ]
    path = critical_path(graph_of(rows))
    found = list(zip(path["kind"], path["name"], (path["end_ns"] - path["begin_ns"]) / MS,
                     strict=True))
    assert found == [
        ("operation", "A", 4.0), ("gap", "", 1.0), ("host", "plan", 0.2), ("host", "write", 0.5),
        ("host", "plan", 0.3), ("gap", "", 1.0), ("operation", "B", 2.0)
    ]


def test_shares_of_several_paths_are_means():
    both = [path_shares(critical_path(graph_of(Cluster(TWO_RANKS, travel=travel).rows)))
            for travel in (1.0, 3.0)]
    found = pd.concat([frame.assign(step=step) for step, frame in enumerate(both)])
    shares = mean_shares(found)
    assert shares["share"].sum() == pytest.approx(1)
    assert shares.set_index("kind")["seconds"]["message"] == pytest.approx((2 + 6) / 2 * 1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_path_is_as_long_as_the_step(seed):
    programs = random_programs(np.random.default_rng(seed + 50))
    graph = graph_of(Cluster(programs, travel=0.25).rows)
    path = critical_path(graph)
    assert (path["begin_ns"].to_numpy()[1:] == path["end_ns"].to_numpy()[:-1]).all()
    assert (path["end_ns"] - path["begin_ns"]).sum() == pytest.approx(graph.seconds * 1e9, abs=1)
    assert (path["kind"] != "gap").all()


@pytest.mark.parametrize("seed", range(3))
def test_slack_is_what_an_operation_can_grow_by(seed):
    programs = random_programs(np.random.default_rng(seed + 90), turns=10)
    graph = graph_of(Cluster(programs, travel=0.25).rows)
    left = slack(graph)["slack_ns"].to_numpy()
    assert (left == 0).any() and (left >= 0).all()
    nodes = np.flatnonzero(graph.lanes.kind == OPERATION)
    for grow, wanted in ((0, 0), (2 * MS, 2 * MS)):  # within the slack, and 2 ms beyond it
        cases = np.repeat(graph.own[:, None], len(nodes), axis=1)
        cases[nodes, np.arange(len(nodes))] += left + grow
        ends = graph.replay(own=cases).max(axis=0)
        np.testing.assert_allclose(ends, graph.seconds * 1e9 + wanted, atol=2)


def test_pipeline_takes_what_its_formula_says():
    """1F1B: (m + p - 1) (t_f + t_b)."""
    graph = graph_of(Cluster(pipeline([1.0] * 4, [2.0] * 4, 8), travel=0.0).rows)
    assert graph.seconds == pytest.approx(33e-3)
    assert graph.replay().max() == pytest.approx(33 * MS)


def test_events_that_wait_for_one_another_are_an_error():
    """Two receives, each before the send that the other waits for."""
    rows = []
    for rank, other in ((0, 1), (1, 0)):
        rows += [
            {"rank": rank, "begin": 0, "end": 5, "category": "wait", "name": "wait_for_stage"},
            {"rank": rank, "begin": 0, "end": 5, "category": "p2p_receive", "lane": "communication",
             "peer": other, "non_blocking": True, "flow": 1, "name": "receive"},
            {"rank": rank, "begin": 5.5, "end": 5.5, "category": "p2p_send",
             "lane": "communication", "peer": other, "non_blocking": True, "sends": True,
             "flow": 1, "name": "send"},
            {"rank": rank, "begin": 6, "end": 7},
        ]
    with pytest.raises(DataError, match="circle"):
        graph_of(rows).replay()


def test_a_message_behind_computation_takes_what_the_others_take():
    """The first one is seen 9 ms after it was sent, but was there after 1, like the second."""
    programs = [
        [("post", 1), ("work", "A", 10.0), ("receive", 1), ("work", "C", 20.0), ("receive", 1)],
        [("work", "B", 1.0), ("send", 0), ("work", "B", 14.0), ("send", 0)],
    ]
    graph = graph_of(Cluster(programs, travel=1.0).rows)
    assert graph.seconds == pytest.approx(31e-3)
    assert scaled(graph, 0.1, name="A") == pytest.approx(23e-3)


def test_a_wait_of_no_length_comes_after_what_was_posted_then():
    """Both send at 5 ms and then find the other's message there: no circle."""
    programs = [
        [("post", other), ("work", "A", 5.0), ("send", other), ("receive", other),
         ("work", "B", 1.0)]
        for other in (1, 0)
    ]
    graph = graph_of(Cluster(programs, travel=0.0).rows)
    assert len(graph.meetings.end_node) == 2
    assert graph.replay().max() == pytest.approx(6 * MS)
    assert scaled(graph, 2.0, rank=0, name="A") == pytest.approx(11e-3)


@pytest.mark.parametrize("seed", range(6))
def test_any_part_of_a_trace_may_be_missing(seed):
    """Dropped events, a rank that is not there: the rest replays, and the path is whole."""
    rng = np.random.default_rng(seed)
    rows = Cluster(random_programs(rng), travel=0.25).rows
    kept = [row for row in rows if rng.random() > 0.3 and (seed % 2 or row["rank"] != 2)]
    graph = graph_of(kept)
    np.testing.assert_allclose(graph.replay(), graph.lanes.end, atol=1)
    path = critical_path(graph)
    assert (path["end_ns"] - path["begin_ns"]).sum() == pytest.approx(graph.seconds * 1e9, abs=1)
    assert network_free(graph) <= graph.seconds + 1e-9


def test_a_step_without_events_is_an_error():
    rows = Cluster(TWO_RANKS, travel=1.0).rows
    graph = graph_of(rows)
    with pytest.raises(DataError, match="step 4 has no events"):
        build(graph.lanes.events, graph.lanes.events.assign(end_ns=0), graph.ranks, 4)


def test_collectives_of_a_tensor_group_split_the_computation():
    """Both compute 4 ms around a sum; rank 1 comes 2 ms late to it."""
    rows = []
    for rank, begin in ((0, 0.0), (1, 2.0)):
        rows += [
            {"rank": rank, "begin": 0.0, "end": begin, "name": "before"},
            {"rank": rank, "begin": begin, "end": 6.0},
            {"rank": rank, "begin": begin + 2, "end": 5.0, "lane": "communication",
             "category": "collective", "name": "tensor_all_reduce", "non_blocking": True,
             "flow": 4},
        ]
    graph = graph_of([row for row in rows if row["end"] > row["begin"]], data=0)
    assert graph.replay().max() == pytest.approx(6 * MS)
    assert scaled(graph, 0.0, rank=1, name="before") == pytest.approx(4e-3)


def test_levels_of_a_graph():
    """0 → 1 → 3, 0 → 2 → 3, 4 alone; places count each kind of vertex from 0."""
    found, whole = levels(5, np.array([0, 0, 1, 2]), np.array([1, 2, 3, 3]))
    assert whole and [level.tolist() for level in found] == [[0, 4], [1, 2], [3]]
    first, rest = split_places(found, 2)
    assert first.vertex.tolist() == [0, 1] and first.bounds.tolist() == [0, 1, 2, 2]
    assert rest.vertex.tolist() == [2, 0, 1] and rest.place.tolist() == [1, 2, 0]
    assert rest.bounds.tolist() == [0, 1, 2, 3]
    assert not levels(2, np.array([0, 1]), np.array([1, 0]))[1]
