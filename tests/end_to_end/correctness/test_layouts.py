# SPDX-License-Identifier: Apache-2.0
"""Ranks and placements change who computes what, never what is computed."""

import numpy as np
import pytest

import harness

STEPS = 10
LAYOUTS = {
    "colocated-2": {"parallel": {"data": 2}},
    "cad-1": {"attention": {"placement": "cad"}},
    "cad-2": {"parallel": {"data": 2}, "attention": {"placement": "cad"}},
    "cad-3": {"parallel": {"data": 3}, "attention": {"placement": "cad"}},
    "cad-4": {"parallel": {"data": 4}, "attention": {"placement": "cad"}},
    "cad-2-and-1-server": {
        "parallel": {"data": 2},
        "attention": {"placement": "cad", "servers": 1},
    },
    "cad-1-and-2-servers": {"attention": {"placement": "cad", "servers": 2}},
    "cad-2-and-2-servers": {
        "parallel": {"data": 2},
        "attention": {"placement": "cad", "servers": 2},
    },
    "colocated-2-and-1-server": {"parallel": {"data": 2}, "attention": {"servers": 1}},
    "all_gather-2-predicted": {
        "parallel": {"context": 2},
        "attention": {"placement": "all_gather", "shard_unit": "predicted"},
    },
    "ring-3": {"parallel": {"context": 3}, "attention": {"placement": "ring"}},
    "zigzag-2-ping_pong": {
        "parallel": {"context": 2},
        "attention": {"placement": "zigzag", "overlap": "ping_pong"},
        "run": {"recompute": "layer"},
    },
    "striped-2-by-2": {
        "parallel": {"context": 2, "data": 2},
        "attention": {"placement": "striped"},
    },
    "block_striped-4": {
        "parallel": {"context": 4},
        "attention": {"placement": "block_striped", "inner_ring": 2},
    },
    "ulysses-2-tensor-2": {
        "parallel": {"context": 2, "tensor": 2},
        "attention": {"placement": "ulysses"},
    },
    "ulysses_ring-4": {
        "parallel": {"context": 4},
        "attention": {"placement": "ulysses_ring", "head_parallel": 2},
    },
    "double_ring-4": {
        "parallel": {"context": 4},
        "attention": {"placement": "double_ring", "inner_ring": 2},
    },
    "tensor-2": {"parallel": {"tensor": 2}, "run": {"recompute": "layer"}},
    "pipeline-2": {"parallel": {"pipeline": 2}, "run": {"recompute": "mlp"}},
    "pipeline-2-pools-attention": {
        "parallel": {"pipeline": 2},
        "attention": {"placement": "cad", "servers": 1, "mixed": True},
        "run": {"recompute": "attention"},
    },
    "cad-2-ping_pong-keeps": {
        "parallel": {"data": 2},
        "attention": {"placement": "cad", "overlap": "ping_pong", "inputs": "keep"},
    },
    "all-four-axes-but-data": {
        "parallel": {"pipeline": 2, "tensor": 2, "context": 2},
        "attention": {"placement": "zigzag"},
    },
    "cad-2-2-2-sharded": {
        "parallel": {"data": 2, "pipeline": 2, "tensor": 2, "shard": "optimizer"},
        "attention": {"placement": "cad"},
    },
}


def experiment_of(layout, corpus):
    return harness.merged(
        {
            "data": harness.tokens_data(corpus),
            "batch": {
                "tokens": 12 * 96,
                "microbatch": 96,
            },  # microbatches for 1, 2, 3 and 4 trainers
            "optimizer": {"lr": 3e-3, "warmup": 4},
            "run": {"steps": STEPS, "checkpoint": {"every": STEPS}},
        },
        layout,
    )


@pytest.fixture(scope="module")
def single(corpus, tmp_path_factory):
    return harness.train(tmp_path_factory.mktemp("single"), experiment_of({}, corpus))


def moves_rows(layout):
    """Rows of attention that other ranks compute, or residual streams between stages."""
    parallel, attention = layout.get("parallel", {}), layout.get("attention", {})
    shared = attention.get("placement", "colocated") != "colocated" and "parallel" in layout
    return shared or "servers" in attention or "pipeline" in parallel


def assert_same_training(run, single):
    np.testing.assert_allclose(run.losses, single.losses, rtol=1e-5)
    np.testing.assert_allclose(
        run.column("gradient_norm"), single.column("gradient_norm"), rtol=1e-4
    )
    np.testing.assert_array_equal(run.column("learning_rate"), single.column("learning_rate"))
    start, expected_start = run.checkpoint(0), single.checkpoint(0)
    end, expected_end = run.checkpoint(STEPS), single.checkpoint(STEPS)
    for name, value in expected_end.items():
        np.testing.assert_array_equal(start[name], expected_start[name], err_msg=name)
        assert np.linalg.norm(end[name] - value) <= 2e-3 * np.linalg.norm(value), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_trains_like_one_rank(layout, single, corpus, tmp_path):
    run = harness.train(tmp_path, experiment_of(LAYOUTS[layout], corpus))
    assert single.losses[-1] < single.losses[0] - 0.2
    assert_same_training(run, single)
    # Attention that is placed elsewhere moves bytes; attention that stays does not.
    moved = run.column("bytes_moved")
    assert np.all(moved > 0) if moves_rows(LAYOUTS[layout]) else np.all(moved == 0)


def test_comparison_notices_another_experiment(single, corpus, tmp_path):
    changes = harness.merged(experiment_of({}, corpus), {"model": {"rope": {"theta": 9000}}})
    run = harness.train(tmp_path, changes)
    with pytest.raises(AssertionError):
        assert_same_training(run, single)


def test_float64_layouts_agree_closely(corpus, tmp_path):
    changes = harness.merged(experiment_of({}, corpus), {"run": {"dtype": "float64", "steps": 4}})
    one = harness.train(tmp_path / "one", changes)
    layout = LAYOUTS["cad-2-and-1-server"]
    three = harness.train(tmp_path / "three", harness.merged(changes, layout))
    np.testing.assert_allclose(three.losses, one.losses, rtol=1e-12)
    np.testing.assert_allclose(
        three.column("gradient_norm"), one.column("gradient_norm"), rtol=1e-10
    )


KINDS = {
    "window": {"kind": "window", "window": 20, "sinks": 3, "layers": ["window", "full"]},
    "prefix": {"kind": "prefix", "prefix": 20},
    "dual_chunk": {"kind": "dual_chunk", "chunk": 24, "local": 8},
    "vertical_slash": {
        "kind": "vertical_slash",
        "sparse": {
            "block": 8,
            "columns": 6,
            "slashes": 3,
            "sinks": 1,
            "window": 1,
            "dense_below": 20,
        },
    },
    "xattention": {
        "kind": "xattention",
        "sparse": {"block": 8, "stride": 2, "threshold": 0.6, "dense_below": 20},
    },
}
SPARSE = ("vertical_slash", "xattention")


@pytest.fixture(scope="module")
def single_of_kind(corpus, tmp_path_factory):
    runs = {}

    def run(kind):
        if kind not in runs:
            changes = kind_experiment({}, kind, corpus)
            runs[kind] = harness.train(tmp_path_factory.mktemp(kind), changes)
        return runs[kind]

    return run


def kind_experiment(layout, kind, corpus):
    changes = {"attention": KINDS[kind], "run": {"dtype": "float64", "checkpoint": {"every": 0}}}
    return harness.merged(experiment_of(layout, corpus), changes)


def kinds_of_layouts():
    """Every layout with one kind, in turn; tests/mpi/test_layouts.cpp draws all of both. What a
    document sees is chosen from all of it with sparse kinds: they refuse ping_pong."""
    for place, layout in enumerate(LAYOUTS):
        kinds = [kind for kind in KINDS if kind not in SPARSE or "ping_pong" not in layout]
        yield layout, kinds[place % len(kinds)]


@pytest.mark.parametrize("layout, kind", kinds_of_layouts())
def test_every_kind_trains_like_one_rank(layout, kind, single_of_kind, corpus, tmp_path):
    run = harness.train(tmp_path, kind_experiment(LAYOUTS[layout], kind, corpus))
    np.testing.assert_allclose(run.losses, single_of_kind(kind).losses, rtol=1e-11)
    norms = single_of_kind(kind).column("gradient_norm")
    np.testing.assert_allclose(run.column("gradient_norm"), norms, rtol=1e-9)
    if kind in SPARSE:
        assert run.column("sparsity")[-1] == single_of_kind(kind).column("sparsity")[-1] > 0.1


@pytest.mark.parametrize("layout", ["cad-2", "pipeline-2-pools-attention", "cad-2-2-2-sharded"])
def test_a_run_is_repeated_bit_by_bit(layout, corpus, tmp_path):
    changes = harness.merged(experiment_of(LAYOUTS[layout], corpus), {"run": {"steps": 3}})
    first = harness.train(tmp_path / "first", changes)
    second = harness.train(tmp_path / "second", changes)
    np.testing.assert_array_equal(first.losses, second.losses)
    np.testing.assert_array_equal(first.column("gradient_norm"), second.column("gradient_norm"))
