# SPDX-License-Identifier: Apache-2.0
import pytest
from step_frames import Cluster, graph_of, pipeline

from cadenza.causes.what_if import what_if


def scenarios(graph):
    frame = what_if(graph)
    alone = frame[frame["rank"] < 0].set_index("scenario")["seconds"]
    single = frame[frame["rank"] >= 0].set_index("rank")["seconds"]
    return alone.to_dict(), single.to_dict()


def data_parallel(times, flops=1.0):
    work = {"flops": flops, "name": "layer"}
    return [[("work", "layer", t, {"flops": flops}), ("meet", "sum", 2.0)] for t in times if work]


def test_late_rank_of_four():
    """10, 10, 10 and 14 ms, then a sum of 2: 16; balanced 11 + 2; POP's T0 14."""
    graph = graph_of(Cluster(data_parallel([10.0, 10.0, 10.0, 14.0]), travel=0.0).rows)
    alone, single = scenarios(graph)
    assert alone["as recorded"] == pytest.approx(16e-3)
    assert alone["all ranks balanced"] == pytest.approx(13e-3)
    assert alone["communication free"] == pytest.approx(14e-3)
    assert alone["no attention imbalance"] == pytest.approx(16e-3)
    assert single == {3: pytest.approx(12e-3)}
    row = what_if(graph).set_index("rank").loc[3]
    assert row["saved_seconds"] == pytest.approx(4e-3)
    assert "rank 3 computes at 0.71 x the median rate" in row["explanation"]


def test_more_work_is_not_blamed():
    """Rank 3 has 1.4 times the FLOPs: it is as fast as the others."""
    programs = data_parallel([10.0, 10.0, 10.0, 14.0])
    programs[3][0] = ("work", "layer", 14.0, {"flops": 1.4})
    _, single = scenarios(graph_of(Cluster(programs, travel=0.0).rows))
    assert single == {}


def test_slow_in_the_optimizer():
    """Which has no FLOPs: a fault planted in the simulator was named, but its cost was not."""
    programs = data_parallel([10.0, 10.0, 10.0, 10.0])
    for rank, program in enumerate(programs):
        fields = {"category": "optimizer", "phase": "optimizer"}
        program += [("work", "optimizer", 5.0 if rank == 3 else 1.0, fields), ("meet", "sum", 0.0)]
    alone, single = scenarios(graph_of(Cluster(programs, travel=0.0).rows))
    assert alone["as recorded"] == pytest.approx(17e-3)
    assert single == {3: pytest.approx(13e-3)}


def test_slow_last_stage():
    """1F1B, p = 4, m = 8, t_f = 1, t_b = 2, last stage x 1.5: 45; all x 1.125 37.125."""
    slow = [1.0, 1.0, 1.0, 1.5]
    graph = graph_of(Cluster(pipeline(slow, [2 * t for t in slow], 8), travel=0.0).rows,
                     pipeline=range(4))
    alone, single = scenarios(graph)
    assert alone["as recorded"] == pytest.approx(45e-3)
    assert alone["all ranks balanced"] == pytest.approx(37.125e-3)
    assert single == {}  # stages are not one another's peers


def attention_programs(times):
    """Per tick times of both ranks; between ticks they meet."""
    programs = [[], []]
    for tick, pair in enumerate(times):
        for rank, time in enumerate(pair):
            fields = {"category": "compute_attention", "flops": time, "tick": tick, "layer": 0}
            programs[rank] += [("work", "attend", time, fields), ("meet", "round", 0.0)]
    return programs


def test_attention_is_balanced_within_a_tick():
    """A long tick stays long: its work is not given to a short one."""
    graph = graph_of(Cluster(attention_programs([(9.0, 1.0), (1.0, 2.0)]), travel=0.0).rows)
    alone, _ = scenarios(graph)
    assert alone["as recorded"] == pytest.approx(11e-3)
    assert alone["no attention imbalance"] == pytest.approx(6.5e-3)
    assert alone["all ranks balanced"] == pytest.approx(6.5e-3)


def test_attention_is_shared_out_by_rate():
    """Equal FLOPs at half the rate on rank 1: 4 + 4 FLOPs at rates 1 and 0.5 take 16 / 3."""
    programs = [[("work", "attend", time, {"category": "compute_attention", "flops": 4.0,
                                           "tick": 0}), ("meet", "round", 0.0)]
                for time in (4.0, 8.0)]
    alone, single = scenarios(graph_of(Cluster(programs, travel=0.0).rows))
    assert alone["no attention imbalance"] == pytest.approx(16e-3 / 3)
    assert single == {1: pytest.approx(4e-3)}  # of two, the faster is the measure
