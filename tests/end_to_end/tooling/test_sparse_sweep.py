# SPDX-License-Identifier: Apache-2.0
"""inputs/sparse: every point is simulated, on fewer ranks and layers, and the order of the systems
is the one that docs/results/sparse_clusters.md explains."""

import csv

import pytest

import harness

FEWER = {"shape.ranks": 8, "parallel.context": 8, "model.layers": 2}


@pytest.fixture(scope="module")
def seconds(tmp_path_factory):
    """Of a step, by (cluster, length, attention, system)."""
    folder = tmp_path_factory.mktemp("sparse") / "rings"
    words = ["sweep", "inputs/sparse/rings.yaml", "--output", folder]
    for key, value in FEWER.items():
        words += ["--set", f"{key}={value}"]
    harness.run_well(1, words, cwd=harness.ROOT)
    with (folder / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["status"] for row in rows} <= {"ok", "out_of_memory"}
    axes = ("cluster", "length", "attention", "system")
    return {tuple(row[axis] for axis in axes): float(row["seconds"]) for row in rows}


def points(seconds, **labels):
    """Those with these labels, by the rest of theirs."""
    axes = ("cluster", "length", "attention", "system")
    chosen = {axes.index(axis): label for axis, label in labels.items()}
    return {
        tuple(label for i, label in enumerate(point) if i not in chosen): of
        for point, of in seconds.items()
        if all(point[i] == label for i, label in chosen.items())
    }


def test_all_points_are_there(seconds):
    assert len(seconds) == 2 * 4 * 2 * 7 - 2 * 4 * 2


def test_the_gain_grows_with_the_length(seconds):
    dense = points(seconds, attention="dense", system="CAD")
    sparse = points(seconds, attention="sparse", system="CAD")
    for cluster in ("32 A100", "256 H200"):
        gains = [dense[cluster, n] / sparse[cluster, n] for n in ("64K", "256K", "512K", "1M")]
        assert gains == sorted(gains) and gains[-1] > 2


def test_stripes_of_tokens_are_for_dense_attention(seconds):
    for attention, slower in (("dense", False), ("sparse", True)):
        tokens = points(seconds, attention=attention, system="striped ring")
        blocks = points(seconds, attention=attention, system="balanced sparse ring")
        for point, of in tokens.items():
            assert (of > 1.5 * blocks[point]) == slower, point
