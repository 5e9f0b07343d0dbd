# SPDX-License-Identifier: Apache-2.0
"""Losses by place and answers to questions, in the trace: the same for every layout."""

import json

import h5py
import numpy as np
import pandas as pd
import pytest

import harness

STEPS = 2
BASE = {
    "model": {"layers": 2, "d_model": 32, "heads": 4, "kv_heads": 2, "ffn": 64, "vocab": 66},
    "data": {
        "source": "retrieval",
        "lengths": {"distribution": "list", "values": [100, 40, 52, 64]},
        "retrieval": {"facts": 4, "questions": 3},
    },
    "batch": {"tokens": 512, "microbatch": 128},
    "run": {"dtype": "float64", "steps": STEPS},
}
LAYOUTS = {
    "data": {"parallel": {"data": 2}, "attention": {"placement": "cad", "block": 16}},
    "context": {"parallel": {"context": 2}, "attention": {"placement": "striped"}},
    "pipeline": {"parallel": {"pipeline": 2}},
    "tensor": {"parallel": {"tensor": 2}},
    "halves": {"attention": {"placement": "cad", "block": 16, "overlap": "ping_pong"},
               "parallel": {"data": 2}},
    "server": {"attention": {"placement": "cad", "block": 16, "servers": 1}},
}


def tables(folder):
    """positions and answers of all ranks."""
    found = {"positions": [], "answers": []}
    for path in sorted((folder / "trace").glob("rank-*.h5")):
        with h5py.File(path) as file:
            for name, frames in found.items():
                frames.append(pd.DataFrame(file[name][:]))
    return {name: pd.concat(frames, ignore_index=True) for name, frames in found.items()}


def train(tmp_path, changes):
    tmp_path.mkdir(parents=True, exist_ok=True)
    keys = harness.merged(BASE, changes)
    path = harness.write_experiment(tmp_path / "e.yaml", keys)
    ranks = harness.ranks_of(harness.merged(harness.DEFAULTS, keys))
    result = harness.run_well(ranks, ["train", path, "--output", tmp_path / "run"])
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    return tables(tmp_path / "run"), [json.loads(line) for line in lines], result


def by_place(positions):
    return positions.groupby(["step", "position"])[["targets", "hits", "loss"]].sum()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train(tmp_path_factory.mktemp("alone"), {})


def test_they_sum_to_the_loss(alone):
    found, metrics, _ = alone
    sums = found["positions"].groupby("step")[["targets", "loss"]].sum()
    for step in range(STEPS):
        mean = sums["loss"][step] / sums["targets"][step]
        assert mean == pytest.approx(metrics[step]["loss"], rel=1e-12)
    assert found["positions"]["position"].min() == 0 and found["positions"]["position"].max() == 96


def test_answers_are_told_before_they_are_asked_for(alone):
    found, metrics, result = alone
    answers = found["answers"]
    assert (answers["fact"] < answers["position"]).all()
    assert set(answers["length"]) <= {100, 40, 52, 64, 128, 28, 12, 24}  # cut by microbatches
    asked = answers["position"] - answers["length"]
    whole = answers["length"].isin([100, 40, 52, 64])
    assert set(asked[whole]) == {-7, -4, -1}
    for step in range(STEPS):
        of_step = answers[answers["step"] == step]
        assert metrics[step]["answers"] == len(of_step) > 0
        assert metrics[step]["hits"] == of_step["hit"].sum()
    assert f"answers {metrics[-1]['hits']}/{metrics[-1]['answers']}" in result.err + result.out


@pytest.mark.parametrize("kind", [{}, {"kind": "dual_chunk", "chunk": 32, "local": 8}])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same(alone, tmp_path, layout, kind):
    whole = alone[0] if not kind else train(tmp_path / "whole", {"attention": kind})[0]
    found, metrics, _ = train(tmp_path, harness.merged(LAYOUTS[layout], {"attention": kind}))
    expected, got = by_place(whole["positions"]), by_place(found["positions"])
    assert expected.index.equals(got.index)
    assert expected["targets"].equals(got["targets"]) and expected["hits"].equals(got["hits"])
    np.testing.assert_allclose(got["loss"], expected["loss"], rtol=1e-10)
    order = ["step", "length", "fact", "position", "loss"]
    one = whole["answers"].sort_values(order, ignore_index=True)
    other = found["answers"].sort_values(order, ignore_index=True)
    assert one[order[:-1]].equals(other[order[:-1]]) and len(one) > 0
    np.testing.assert_allclose(other["loss"], one["loss"], rtol=1e-10)
    assert sum(step["answers"] for step in metrics) == len(other)


def test_other_sources_ask_nothing(tmp_path):
    plain = {"data": {"source": "synthetic", "retrieval": {}}}
    found, metrics, _ = train(tmp_path, plain)
    assert len(found["positions"]) > 0 and found["answers"].empty
    assert "answers" not in metrics[0]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("data.retrieval.facts=17", "valid: an integer in [1, 16], a quarter of model.vocab"),
        ("data.retrieval.questions=5", "more than data.retrieval.facts = 4"),
        ("data.retrieval.depth_min=1.5", "data.retrieval.depth_min"),
        ("data.retrieval.depth_max=-0.1", "data.retrieval.depth_max"),
        ("data.retrieval={depth_min: 0.6, depth_max: 0.4}", "more than data.retrieval.depth_max"),
        ("data.retrieval.phrase=0", "data.retrieval.phrase"),
        ("model.vocab=7", "valid: an integer >= 8"),
    ],
)
def test_settings_that_make_no_sense(tmp_path, setting, says):
    path = harness.write_experiment(tmp_path / "e.yaml", BASE)
    result = harness.run(1, ["train", path, "--set", setting, "--dry-run"])
    assert result.code == 2 and says in result.err


def test_a_document_too_short_for_its_facts(tmp_path):
    path = harness.write_experiment(tmp_path / "e.yaml", BASE)
    words = ["plan", path, "--set", "data.lengths.values=[64, 20]"]
    result = harness.run(1, words)
    assert result.code == 3 and "found a document of 20 tokens; valid: 21 or more" in result.err
