# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import pytest
from step_frames import Cluster, events_frame, graph_of, ranks_frame

from cadenza.graph.loads import operation_loads, scores
from cadenza.causes.stragglers import stragglers, wait_causes


def one_operation_each(times, flops=None, step=0, **fields):
    work = flops or [1.0] * len(times)
    return [
        {"rank": r, "begin": 0.0, "end": t, "flops": f, "step": step, **fields}
        for r, (t, f) in enumerate(zip(times, work, strict=True))
    ]


def test_scores_by_hand():
    """10, 10.1, 9.9, 10 and 15: median 10, median deviation 0.1, z 33.7, score 0.67."""
    events = events_frame(one_operation_each([10, 10.1, 9.9, 10, 15]))
    frame = scores(events, ranks_frame(5)).set_index("rank")
    assert frame.loc[4, "robust_z"] == pytest.approx(33.725)
    assert frame.loc[4, "score"] == pytest.approx(10 / 15)
    assert frame.index[frame["slow"]].tolist() == [4]


def test_only_peers_are_compared():
    """A stage or a role with more to do is no straggler."""
    events = events_frame(one_operation_each([10, 10, 15, 15]))
    assert not scores(events, ranks_frame(4, pipeline=[0, 0, 1, 1]))["slow"].any()
    assert not scores(events, ranks_frame(4, role=["trainer"] * 2 + ["both"] * 2))["slow"].any()
    assert scores(events, ranks_frame(4, pipeline=[0, 0, 0, 1]))["slow"].tolist() == [
        True, False, False, False
    ]


def test_late_by_rate():
    events = events_frame(one_operation_each([10, 10, 10, 14]))
    row = stragglers(events, ranks_frame(4)).iloc[0]
    assert (row["rank"], row["why"], row["phase"]) == (3, "rate", "forward")
    assert row["late_seconds"] == pytest.approx(4e-3) and row["score"] == pytest.approx(10 / 14)
    assert row["explanation"] == "rank 3: its dense operations run at 0.71 x the median rate"
    assert np.isnan(row["delay_caused_seconds"])


def test_stages_are_compared_by_rate():
    """Each rank is a stage of its own: with its own work, but at the others' pace."""
    events = events_frame(one_operation_each([10, 5, 20, 15], [2.0, 1.0, 2.8, 3.0]))
    row = stragglers(events, ranks_frame(4, pipeline=[0, 1, 2, 3])).iloc[0]
    assert (row["rank"], row["why"], row["work"]) == (2, "rate", 1.0)
    assert row["late_seconds"] == pytest.approx(6e-3)
    assert row["explanation"] == "rank 2: its dense operations run at 0.70 x the median rate"


def test_of_two_ranks_the_faster_is_the_measure():
    row = stragglers(events_frame(one_operation_each([10, 14])), ranks_frame(2)).iloc[0]
    assert (row["rank"], row["why"]) == (1, "rate")
    assert row["late_seconds"] == pytest.approx(4e-3)
    assert row["explanation"] == "rank 1: its dense operations run at 0.71 x the other rank's rate"


def test_late_by_cost():
    rows = one_operation_each([10, 10, 10, 18], [5, 5, 5, 9.0], category="compute_attention")
    row = stragglers(events_frame(rows), ranks_frame(4)).iloc[0]
    assert (row["rank"], row["why"], row["work"]) == (3, "cost", pytest.approx(1.8))
    assert row["explanation"] == "rank 3: its attention tasks have 1.80 x the median FLOPs"


def test_what_may_be_chance_makes_nobody_slow():
    """Rank 2 takes 8 % longer, but its operations differ by more than that among themselves."""
    times = {0: [10] * 4, 1: [10] * 4, 2: [8, 14, 9, 12]}
    rows = [{"rank": rank, "begin": sum(mine[:i]), "end": sum(mine[: i + 1]), "flops": 1.0}
            for rank, mine in times.items() for i in range(4)]
    assert stragglers(events_frame(rows), ranks_frame(3))["why"].tolist() == ["none"]
    steady = [{**row, "begin": 10.8 * i, "end": 10.8 * (i + 1)} if row["rank"] == 2 else row
              for row, i in zip(rows, 3 * list(range(4)), strict=True)]
    assert stragglers(events_frame(steady), ranks_frame(3))["why"].tolist() == ["rate"]


def test_a_slow_rank_is_named_beside_the_one_with_more_work():
    """Rank 2 is latest by its work; rank 1, with less than the others, runs at half their rate."""
    times, work = [10, 14, 30, 10], [5, 3.5, 15, 5.0]
    found = stragglers(events_frame(one_operation_each(times, work)), ranks_frame(4))
    assert found[["rank", "why"]].to_numpy().tolist() == [[2, "cost"], [1, "rate"]]
    assert found["late_seconds"].tolist() == pytest.approx([20e-3, 7e-3])


def test_operations_without_flops():
    row = stragglers(events_frame(one_operation_each([5, 5, 9], [0, 0, 0])), ranks_frame(3)).iloc[0]
    assert row["explanation"] == "rank 2: its dense operations take longer"


def test_equal_ranks_have_no_straggler():
    row = stragglers(events_frame(one_operation_each([10, 10, 10.01])), ranks_frame(3)).iloc[0]
    assert (row["why"], row["explanation"]) == ("none", "all ranks computed for the same time")


def test_a_phase_that_takes_no_time_is_not_worth_a_word():
    rows = one_operation_each([10, 10, 10.05])
    rows += [{"rank": r, "begin": 11, "end": 11 + t, "phase": "optimizer", "category": "optimizer"}
             for r, t in enumerate((0.001, 0.001, 0.003))]
    found = stragglers(events_frame(rows), ranks_frame(3))
    assert found["phase"].tolist() == ["forward", "optimizer"]
    assert found["why"].tolist() == ["none", "none"]


def test_collectives_within_an_operation_are_not_its_work():
    """Rank 1 computes 4 of its 6 ms and waits 2 for the tensor group's sum."""
    inner = {"category": "collective", "name": "tensor_all_reduce", "lane": "communication"}
    rows = [*one_operation_each([4, 6]), {"rank": 1, "begin": 1, "end": 3, **inner}]
    loads = operation_loads(events_frame(rows), ranks_frame(2))
    assert loads["seconds"].tolist() == pytest.approx([4e-3, 4e-3])


def test_recomputation_is_part_of_the_backward_pass():
    rows = one_operation_each([1, 1], phase="recompute")
    assert set(operation_loads(events_frame(rows), ranks_frame(2))["phase"]) == {"backward"}


def late_and_waiting():
    """Rank 3 comes 4 ms late to a sum of 2; before, rank 0 waits for rank 1's message."""
    programs = [[("work", "layer", t, {"flops": 1.0}), ("meet", "sum", 2.0)]
                for t in (10.0, 10.0, 10.0, 14.0)]
    return graph_of(Cluster(programs, travel=0.0).rows)


def test_delay_is_caused_by_who_comes_last():
    graph = late_and_waiting()
    causes = wait_causes(graph)
    assert causes[["rank", "cause"]].values.tolist() == [[0, 3], [1, 3], [2, 3]]
    assert causes["seconds"].tolist() == pytest.approx([4e-3] * 3)
    found = stragglers(graph.lanes.events, graph.ranks, causes.assign(phase="forward"))
    assert found.loc[0, "delay_caused_seconds"] == pytest.approx(12e-3)


def test_late_by_waiting():
    """All compute 10 ms; rank 1 waits for a message that rank 0 sends after its computation."""
    programs = [
        [("work", "a", 10.0), ("send", 1)],
        [("receive", 0), ("work", "a", 10.0)],
    ]
    graph = graph_of(Cluster(programs, travel=0.5).rows)
    row = stragglers(graph.lanes.events, graph.ranks, wait_causes(graph)).iloc[0]
    assert (row["rank"], row["why"]) == (1, "waiting")
    assert row["explanation"] == "rank 1: waited 0.01 s for rank 0"


def test_nothing_recorded_gives_empty_frames():
    events = events_frame(one_operation_each([1, 1])).iloc[:0]
    found = stragglers(events, ranks_frame(2))
    assert found.empty and "explanation" in found
    assert isinstance(scores(events, ranks_frame(2)), pd.DataFrame)


def test_a_rank_that_copies_more_is_late_for_its_work():
    """A server that gets more rows packs more: faults planted in the simulator were told beside
    an alarm about such a server."""
    rows = []
    for rank, copied in enumerate((1000, 1000, 1000, 1500)):
        rows += [
            {"rank": rank, "begin": 0, "end": 10, "flops": 1e9},
            {"rank": rank, "begin": 10, "end": 10 + copied / 500, "name": "pack",
             "category": "compute_other", "bytes": copied},
        ]
    row = stragglers(events_frame(rows), ranks_frame(4)).iloc[0]
    assert (row["rank"], row["why"]) == (3, "cost")
    assert row["explanation"].endswith("small operations move 1.50 x the median bytes")
