# SPDX-License-Identifier: Apache-2.0
"""attention.sparse.refresh: patterns that a step chose serve later ones, alike in every layout."""


import h5py
import pytest

import harness

# Steps of two documents each; step 3 has a length that step 0, which chooses, has not.
LENGTHS = [300, 100, 300, 100, 100, 300, 250, 150]
BASE = {
    "model": {"layers": 2, "d_model": 32, "heads": 4, "kv_heads": 2, "ffn": 64, "vocab": 66},
    "data": {"source": "synthetic", "lengths": {"distribution": "list", "values": LENGTHS}},
    "batch": {"tokens": 400, "microbatch": 400},
    "optimizer": {"lr": 0.01},
    "run": {"dtype": "float64", "steps": 6},
}
KINDS = {
    "vertical_slash": {"block": 16, "columns": 12, "slashes": 4, "sinks": 1, "window": 1,
                       "dense_below": 80},
    "xattention": {"block": 16, "stride": 4, "threshold": 0.4, "dense_below": 80},
}
LAYOUTS = {
    "one rank": {},
    "zigzag": {"parallel": {"context": 2}, "attention": {"placement": "zigzag"}},
    "cad": {"parallel": {"context": 2}, "attention": {"placement": "cad", "block": 16}},
    "pipeline": {"parallel": {"pipeline": 2}},
    "tensor": {"parallel": {"tensor": 2}},
    "server": {"attention": {"placement": "cad", "block": 16, "servers": 1}},
    "recompute": {"run": {"recompute": "layer"}},
    "full layer": {},
}


def train(folder, kind, refresh, changes=(), words=()):
    sparse = {**KINDS[kind], "refresh": refresh}
    keys = harness.merged(BASE, {"attention": {"kind": kind, "sparse": sparse}})
    keys = harness.merged(keys, dict(changes))
    run = harness.train(folder, keys, words)
    return run.folder, run.metrics


def losses(metrics):
    return [line["loss"] for line in metrics]


def estimates(folder):
    """By step, how often a pattern was chosen."""
    with h5py.File(folder / "trace/rank-00000.h5") as file:
        names = [name.decode() for name in file["meta/strings"][:]]
        events = file["events"][:]
    chosen = events[events["name_id"] == names.index("estimate")]
    return [int((chosen["step"] == step).sum()) for step in range(BASE["run"]["steps"])]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_reuses_the_same(kind, name, tmp_path):
    full = {"attention": {"layers": ["full", kind]}} if name == "full layer" else {}
    _, alone = train(tmp_path / "alone", kind, 4, full)
    _, found = train(tmp_path / "other", kind, 4, harness.merged(LAYOUTS[name], full))
    assert losses(found) == pytest.approx(losses(alone), abs=1e-11)
    assert [line["sparsity"] for line in found] == [line["sparsity"] for line in alone]
    for line, expected in zip(found, alone, strict=True):
        assert line["recall"] == pytest.approx(expected["recall"], abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_between_chooses_only_for_new_lengths(kind, tmp_path):
    always, every = train(tmp_path / "always", kind, 1)
    folder, metrics = train(tmp_path / "four", kind, 4)
    chosen = estimates(folder)
    # Step 3 has 250 and 150 tokens; step 4 chooses again.
    assert all(chosen[step] for step in (0, 3, 4)) and not any(chosen[s] for s in (1, 2, 5))
    assert all(estimates(always))
    # The first step is the same; the patterns of the next are those of other documents.
    assert losses(metrics)[0] == losses(every)[0]
    assert losses(metrics)[2:] != losses(every)[2:]
    assert metrics[1]["sparsity"] == metrics[2]["sparsity"] == metrics[0]["sparsity"]
    assert metrics[1]["recall"] < every[1]["recall"] + 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_once_is_in_the_first_sparse_step(kind, tmp_path):
    folder, _ = train(tmp_path, kind, 0, {"attention": {"sparse": {"dense_steps": 1}}})
    chosen = estimates(folder)
    assert not chosen[0] and chosen[1] and not chosen[2] and chosen[3] and not chosen[4]


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_between_choices_changes_no_bit(kind, tmp_path):
    every = {"run": {"checkpoint": {"every": 2}}}
    first, whole = train(tmp_path / "whole", kind, 2, every)
    checkpoint = first / "checkpoints/step-00000004.h5"
    _, rest = train(tmp_path / "rest", kind, 2, every, ["--from", checkpoint])
    assert losses(rest) == losses(whole)[4:]


def test_phase_aligned_servers_cannot(tmp_path):
    keys = harness.merged(BASE, {
        "attention": {"kind": "xattention", "placement": "cad",
                      "sparse": {**KINDS["xattention"], "refresh": 2}},
        "parallel": {"pipeline": 2, "schedule": "phase_aligned"}})
    path = harness.write_experiment(tmp_path / "e.yaml", keys)
    result = harness.run(2, ["train", path, "--output", tmp_path / "run"])
    assert result.code == harness.USAGE and "attention.sparse.refresh: found 2" in str(result)
