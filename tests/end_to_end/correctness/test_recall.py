# SPDX-License-Identifier: Apache-2.0
"""What sparse attention keeps of random queries' attention, by distance: the same for every layout,
in metrics.jsonl, in the trace and in cadenza-analyze positions."""

import json

import h5py
import pandas as pd
import pytest

import harness

BASE = {
    "model": {"layers": 2, "d_model": 32, "heads": 4, "kv_heads": 2, "ffn": 64, "vocab": 66},
    "data": {"source": "synthetic",
             "lengths": {"distribution": "list", "values": [3000, 60, 1480, 1580]}},
    "batch": {"tokens": 6120, "microbatch": 3060},
    "run": {"dtype": "float64", "steps": 2},
}
KINDS = {
    "vertical_slash": {"block": 16, "columns": 20, "slashes": 8, "sinks": 2, "window": 2,
                       "dense_below": 100},
    "xattention": {"block": 16, "stride": 4, "threshold": 0.5, "dense_below": 100},
}
LAYOUTS = {
    "data": {"parallel": {"data": 2}, "attention": {"placement": "cad", "block": 16}},
    "zigzag": {"parallel": {"context": 2}, "attention": {"placement": "zigzag"}},
    "block_striped": {"parallel": {"context": 2}, "attention": {"placement": "block_striped"}},
    "pipeline": {"parallel": {"pipeline": 2}},
    "tensor": {"parallel": {"tensor": 2}},
    "server": {"attention": {"placement": "cad", "block": 16, "servers": 1}},
}


def train(folder, kind, changes):
    keys = harness.merged(BASE, {"attention": {"kind": kind, "sparse": KINDS[kind]}})
    keys = harness.merged(keys, changes)
    run = harness.train(folder, keys)
    return run.folder, run.metrics


@pytest.fixture(scope="module", params=KINDS)
def alone(request, tmp_path_factory):
    return request.param, *train(tmp_path_factory.mktemp("alone"), request.param, {})


def test_what_one_rank_keeps(alone):
    _, folder, metrics = alone
    for step, line in enumerate(metrics):
        assert line["recall_layer"] == step
        near, far = line["recall_by_distance"]
        assert (near["distance"], far["distance"]) == (0, 1024)
        # Three documents are sparse: 16 queries each, by 4 heads.
        assert near["attention"] + far["attention"] == pytest.approx(16 * 3 * 4, abs=1e-6)
        kept = near["kept"] + far["kept"]
        assert line["recall"] == pytest.approx(kept / (16 * 3 * 4), abs=1e-9)
        assert 0.1 < line["recall"] < 0.95
        assert near["keys"] == 4 * (3000 + 1480 + 1580) and near["unseen"] == 0
        assert far["keys"] == 4 * (3000 + 1480 + 1580 - 3 * 1024)
        assert 0 < far["unseen"] < far["keys"]
    with h5py.File(folder / "trace/rank-00000.h5") as file:
        rows = pd.DataFrame(file["recall"][:])
    assert rows[["step", "layer", "distance"]].to_numpy().tolist() == [
        [0, 0, 0], [0, 0, 1024], [1, 1, 0], [1, 1, 1024]]
    told = [row for line in metrics for row in line["recall_by_distance"]]
    assert rows[list(told[0])].to_dict("records") == told


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_keeps_the_same(alone, name, tmp_path):
    kind, _, metrics = alone
    _, found = train(tmp_path, kind, LAYOUTS[name])
    for line, expected in zip(found, metrics, strict=True):
        assert line["recall"] == pytest.approx(expected["recall"], abs=1e-9)
        pairs = zip(line["recall_by_distance"], expected["recall_by_distance"], strict=True)
        for mine, other in pairs:
            assert mine == pytest.approx(other, abs=1e-6)


def test_positions_shows_it(alone):
    _, folder, metrics = alone
    told = harness.analyze("positions", folder, "--steps", "0-1", "--json").stdout
    rows = json.loads(told)["recall"]
    assert [row["distance"] for row in rows] == [0, 1024]
    assert sum(row["attention"] for row in rows) == pytest.approx(1)
    kept = sum(line["recall_by_distance"][1]["kept"] for line in metrics)
    whole = sum(line["recall_by_distance"][1]["attention"] for line in metrics)
    assert rows[1]["recall"] == pytest.approx(kept / whole)
    assert "what sparse attention keeps, by distance" in harness.analyze("positions", folder).stdout
