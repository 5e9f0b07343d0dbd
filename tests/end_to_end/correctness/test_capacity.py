# SPDX-License-Identifier: Apache-2.0
"""attention.capacity: a rank that is planned for as slow gets less, and training stays the same."""

import json

import pytest

import harness

LENGTHS = [512, 64, 128, 320, 256, 256, 448, 64]  # of eight microbatches of 256 tokens
COMMON = {
    "data": {"source": "synthetic", "lengths": {"distribution": "list", "values": LENGTHS}},
    "batch": {"tokens": 2048, "microbatch": 1024},
    "parallel": {"data": 2},
    "run": {"dtype": "float64", "steps": 2},
}


def experiment(tmp_path, capacity, **cluster):
    attention = {"placement": "cad", "block": 16, "tolerance": 0, "capacity": capacity}
    keys = {**COMMON, "attention": attention, "cluster": cluster}
    return harness.write_experiment(tmp_path / f"e{len(capacity)}.yaml", keys)


def planned(path):
    return json.loads(harness.run_well(1, ["plan", path, "--format", "json"]).out)


def test_half_the_capacity_gets_half_the_work(tmp_path):
    alike = planned(experiment(tmp_path, []))
    half = planned(experiment(tmp_path, [[1, 50]]))
    assert "capacities" not in alike and half["capacities"] == [100, 50]
    first, second = half["summary"]["cost_per_rank"]
    assert first / second == pytest.approx(2, rel=0.05)
    assert half["summary"]["imbalance"] == pytest.approx(1, abs=0.05)
    assert sum(alike["summary"]["cost_per_rank"]) == pytest.approx(first + second)


def test_a_slow_rank_costs_less_where_plans_know_of_it(tmp_path):
    """The simulated attention of both ranks takes the same time again."""
    slow = {"slow_ranks": [[1, 0.5]]}
    found = {}
    for capacity in ([], [[1, 50]]):
        path = experiment(tmp_path, capacity, **slow)
        told = harness.run_well(1, ["simulate", path, "--steps", "2", "--format", "json"])
        found[len(capacity)] = json.loads(told.out)
    assert found[0]["attention_imbalance"] == pytest.approx(4 / 3, abs=0.05)
    assert found[1]["attention_imbalance"] == pytest.approx(1, abs=0.05)
    attention = [found[n]["parts"]["compute_attention"]["most_seconds"] for n in (0, 1)]
    assert attention[1] / attention[0] == pytest.approx(2 / 3, rel=0.05)
    assert found[1]["seconds"] < found[0]["seconds"]


# Ways to give a rank less: what each sets beside `attention.capacity`.
WAYS = {
    "cad": [],
    "zigzag": ["attention.placement=zigzag", "parallel.data=1", "parallel.context=2"],
    "all_gather": ["attention.placement=all_gather", "parallel.data=1", "parallel.context=2"],
    "packing": ["attention.placement=colocated", "batch.packing=pooled", "batch.longest=2"],
}


def overrides(way):
    return [word for key in WAYS[way] for word in ("--set", key)]


@pytest.mark.parametrize("way", ["zigzag", "all_gather", "packing"])
def test_sharding_and_packing_know_capacities(tmp_path, way):
    path = experiment(tmp_path, [[1, 50]])
    told = harness.run_well(1, ["plan", path, "--format", "json", *overrides(way)])
    summary = json.loads(told.out)["summary"]
    first, second = summary["cost_per_rank"]
    assert first / second == pytest.approx(2, rel=0.15 if way == "packing" else 0.02)
    assert summary["imbalance"] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("way", WAYS)
def test_losses_do_not_depend_on_capacities(tmp_path, way):
    losses = []
    for capacity in ([], [[1, 30]]):
        folder = tmp_path / f"run{len(capacity)}"
        path = experiment(tmp_path, capacity)
        harness.run_well(2, ["train", path, "--output", folder, *overrides(way)])
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        losses.append([step["loss"] for step in map(json.loads, lines) if "loss" in step])
    assert len(losses[0]) == 2
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
