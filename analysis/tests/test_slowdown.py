# SPDX-License-Identifier: Apache-2.0
"""What unequal operations cost, beside values worked out by hand."""

import json
import math

import pandas as pd
import pytest
from conftest import steps_of
from step_frames import Cluster, events_frame, pipeline, ranks_frame, steps_frame
from trace_files import DENSE, DISPATCH, HOST, NON_BLOCKING, Rank, write_run

from cadenza.causes.slowdown import divided
from cadenza.errors import DataError
from cadenza.graph.operations import operations

MEET = 2.0  # ms


def made(rows):
    events = events_frame(rows)
    return pd.concat([operations(mine.reset_index(drop=True), steps_frame(mine),
                                 ranks_frame(int(events["rank"].max()) + 1))
                      for _, mine in events.groupby("step")], ignore_index=True)


def divided_ms(rows, **places):
    """With times in ms."""
    found = made(rows)
    return divided(found, ranks_frame(int(found["rank"].max()) + 1, **places))


def by(frame, name):
    return frame.set_index(name)["slowdown"].to_dict()


def data_parallel(times):
    return [[("work", "layer", t, {"microbatch": 0}), ("meet", "sum", MEET)] for t in times]


def test_late_replica_of_four():
    """10, 10, 10 and 14 ms, then a sum of 2: 16; ideal 11 + 2."""
    found = divided_ms(Cluster(data_parallel([10.0, 10.0, 10.0, 14.0]), travel=0.0).rows)
    assert found.seconds == pytest.approx(16e-3) and found.ideal_seconds == pytest.approx(13e-3)
    assert found.total == pytest.approx(16 / 13) and found.waste == pytest.approx(3 / 16)
    assert by(found.types, "type") == pytest.approx({"forward compute": 16 / 13, "sum": 1.0})
    assert by(found.replicas, "data") == pytest.approx({3: 16 / 13, 0: 1.0, 1: 1.0, 2: 1.0})
    assert by(found.workers, "ranks") == pytest.approx(
        {(3,): 16 / 13, (0,): 1.0, (1,): 1.0, (2,): 1.0})
    assert found.worst == (3,) and found.of_worst == pytest.approx(1.0)
    assert math.isnan(found.of_last_stage)


def test_slow_last_stage():
    """1F1B, p = 4, m = 8, t_f = 1, t_b = 2, last stage x 1.5: 9 + 8 x 4.5 = 45. All x 1.125 33 x
    1.125. The last stage x 1.125 and the others as recorded: 9 + 8 x 3.375; the last as recorded
    and the others x 1.125: 9 x 1.125 + 36."""
    slow = [1.0, 1.0, 1.0, 1.5]
    rows = Cluster(pipeline(slow, [2 * t for t in slow], 8), travel=0.0).rows
    found = divided_ms(rows, data=0, pipeline=range(4))
    ideal = 33 * 1.125
    assert found.seconds == pytest.approx(45e-3)
    assert found.ideal_seconds == pytest.approx(ideal * 1e-3)
    assert by(found.stages, "pipeline")[3] == pytest.approx((9 * 1.125 + 36) / ideal)
    assert found.of_last_stage == pytest.approx(9 / (45 - ideal))
    assert by(found.replicas, "data") == pytest.approx({0: 45 / ideal})
    assert found.workers["ranks"].iloc[0] == (3,)
    assert by(found.workers, "ranks")[3,] == pytest.approx(45 / ideal)  # the lesser one
    assert found.worst == (3,) and found.of_worst == pytest.approx(found.of_last_stage)
    assert set(found.types["type"]) == {"forward compute", "backward compute", "forward messages",
                                        "backward messages"}


def test_messages_take_their_time():
    """1F1B, p = 2, m = 1: each message takes 0.5 ms from when both ends have posted it, whatever
    the receiver waited before."""
    found = made(Cluster(pipeline([1.0, 1.0], [2.0, 2.0], 1), travel=0.5).rows)
    received = found[(found["kind"] == "message") & ~found["sends"].astype(bool)]
    assert received["seconds"].tolist() == pytest.approx([0.5e-3, 0.5e-3])
    assert divided(found, ranks_frame(2, data=0, pipeline=range(2))).seconds == pytest.approx(7e-3)


def test_ideal_transfers_are_medians():
    """Sums of 2, 2 and 11 ms in three steps after 10 ms: 45; each ideally 12. Computing takes the
    mean: 10, 10 and 13 ms would be 11."""
    rows = [{**row, "step": step} for step, took in enumerate((2.0, 2.0, 11.0))
            for row in Cluster([[("work", "layer", 10.0, {"microbatch": 0}), ("meet", "sum", took)]
                                for _ in range(2)], travel=0.0).rows]
    found = divided_ms(rows)
    assert found.steps == 3 and found.seconds == pytest.approx(15e-3)
    assert found.ideal_seconds == pytest.approx(12e-3)
    assert by(found.types, "type") == pytest.approx({"sum": 15 / 12, "forward compute": 1.0})


def test_what_is_recomputed_and_what_lies_between():
    """A forward pass of 4 and 2 ms in layers, 3 ms of nothing, and a backward pass of 1 + 5 ms: the
    operations take 12 ms of 15."""
    program = [("work", "a", 4.0, {"microbatch": 0}), ("work", "b", 2.0, {"microbatch": 0}),
               ("rest", 3.0), ("work", "a", 1.0, {"microbatch": 0, "phase": "recompute"}),
               ("work", "b", 5.0, {"microbatch": 0, "phase": "backward"})]
    found = made(Cluster([program], travel=0.0).rows)
    assert found[["type", "seconds"]].to_numpy().tolist() == [
        ["forward compute", pytest.approx(6e-3)], ["backward compute", pytest.approx(6e-3)]]
    replayed = divided(found, ranks_frame(1))
    assert replayed.seconds == pytest.approx(12e-3)
    assert replayed.total == 1 and replayed.types.empty and math.isnan(replayed.of_worst)


def test_a_tensor_group_is_one_worker():
    """Two ranks of a group, which wait for each other within an operation, are late together."""
    rows = Cluster(data_parallel([10.0, 10.0, 14.0, 14.0]), travel=0.0).rows
    found = divided_ms(rows, data=[0, 0, 1, 1], tensor=[0, 1, 0, 1])
    assert found.workers["ranks"].tolist() == [(2, 3), (0, 1)] and found.worst == (2, 3)
    assert found.of_worst == pytest.approx((16 - 14) / (16 - 14))  # 10 and 12 ms, ideal 12


def beside(rank, begin, end, name, flow, **fields):
    return {"rank": rank, "begin": begin, "end": end, "name": name, "flow": flow,
            "category": "collective", "lane": "communication", "non_blocking": True, **fields}


def test_sums_beside_a_backward_pass():
    """Layers of 2 ms on one rank and 3 on the other, after each of which a sum of 1 ms is begun,
    and an optimizer of 1: 9 + 1 + 1. Ideally 7.5 + 1 + 1."""
    rows = []
    for rank, took in enumerate((2.0, 3.0)):
        for layer in range(3):
            place = {"phase": "backward", "microbatch": 0, "layer": layer}
            rows.append({"rank": rank, "begin": took * layer, "end": took * (layer + 1), **place})
            rows.append(beside(rank, took * (layer + 1), 3.0 * (layer + 1) + 1.0, "sum", layer + 1))
        rows.append({"rank": rank, "begin": 10, "end": 11, "phase": "optimizer",
                     "category": "optimizer"})
    found = divided_ms(rows)
    assert found.seconds == pytest.approx(11e-3) and found.ideal_seconds == pytest.approx(9.5e-3)
    assert by(found.types, "type") == pytest.approx(
        {"backward compute": 11 / 9.5, "sum": 1.0, "optimizer": 1.0})


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_pass_waits_for_its_parameters(phase):
    """Those of the second layer arrive at 4 ms, those of the first at 1; each takes 2."""
    rows = []
    for rank in range(2):
        rows += [beside(rank, 0.0, 1.0, "gather", 1), beside(rank, 1.0, 4.0, "gather", 2)]
        rows += [{"rank": rank, "begin": begin, "end": begin + 2.0, "phase": phase,
                  "microbatch": 0} for begin in (1.0, 4.0)]
    assert divided_ms(rows).seconds == pytest.approx(6e-3)


def crossing(order):
    """Rank 0 sends 1 and then 2; rank 1 takes them in an order."""
    rows = [{"rank": 0, "begin": n, "end": 10, "sends": True, "flow": n, "category": "p2p_send",
             "peer": 1, "lane": "communication", "non_blocking": True} for n in (1, 2)]
    return rows + [{"rank": 1, "begin": turn, "end": 10, "flow": n, "category": "p2p_receive",
                    "peer": 0, "lane": "communication", "non_blocking": True}
                   for turn, n in enumerate(order, 1)]


def test_circles_are_refused():
    divided_ms(crossing([1, 2]))
    with pytest.raises(DataError, match="circle"):
        divided_ms(crossing([2, 1]))


def test_nothing_that_takes_time():
    rows = [{"rank": 0, "begin": 0, "end": 0}, {"rank": 1, "begin": 0, "end": 0}]
    with pytest.raises(DataError, match="takes time"):
        divided_ms(rows)


@pytest.fixture
def folder(tmp_path):
    """Two ranks with 100 and 50 ns of a step of 100."""
    ranks = [Rank(r, *steps_of([(DENSE, 0, took)])) for r, took in enumerate((100, 50))]
    return write_run(tmp_path / "uneven", ranks)


def test_command(folder, inside):
    done = inside("slowdown", folder)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    for part in ("S = T / T* = 1.333", "wastes 25.0%", "100.0% of the loss: rank 0\n",
                 "forward compute", "data-parallel replica", "worker is as recorded"):
        assert part in done.stdout, part
    assert "last stage" not in done.stdout
    found = json.loads(inside("slowdown", folder, "--json").stdout)
    assert found["slowdown"] == pytest.approx(4 / 3) and found["waste"] == pytest.approx(0.25)
    assert found["steps"] == 2 and found["recorded_seconds"] == pytest.approx(100e-9)
    assert found["seconds"] == pytest.approx(100e-9)
    assert found["ideal_seconds"] == pytest.approx(75e-9)
    assert found["types"] == [{"type": "forward compute", "slowdown": pytest.approx(4 / 3)}]
    assert found["workers"][0]["ranks"] == [0]
    assert found["worst_workers"] == {"ranks": [0], "share": pytest.approx(1.0)}
    assert found["last_stage"] == {"share": None}


def test_equal_ranks(tmp_path, inside):
    ranks = [Rank(r, *steps_of([(DENSE, 0, 60)])) for r in range(2)]
    folder = write_run(tmp_path / "even", ranks)
    said = inside("slowdown", folder).stdout
    assert "Too little" in said and "40.0% of a step: what lies between operations" in said
    found = json.loads(inside("slowdown", folder, "--json").stdout)
    assert found["slowdown"] == 1 and found["types"] == [] and found["workers"] == []
    assert found["worst_workers"] == {"ranks": [], "share": None}


def test_attention_between_ranks_is_refused(tmp_path, inside):
    events = [(DENSE, 0, 50), (DISPATCH, 20, 60, {"flow": 5, "flags": NON_BLOCKING})]
    folder = write_run(tmp_path / "pooled", [Rank(r, *steps_of(events)) for r in range(2)])
    done = inside("slowdown", folder)
    assert done.returncode == 3 and done.stderr.count("\n") == 1
    assert "exchange attention" in done.stderr


def test_no_operation(tmp_path, inside):
    folder = write_run(tmp_path / "idle", [Rank(r, *steps_of([(HOST, 0, 50)])) for r in range(2)])
    done = inside("slowdown", folder)
    assert done.returncode == 3 and "takes time" in done.stderr
