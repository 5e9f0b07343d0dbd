# SPDX-License-Identifier: Apache-2.0
"""Layouts, placements and options that do not fit together are refused: one line that names the
key, what was found and what would be valid, on every rank."""

import pytest

import harness
from test_attend import layout, random_input, write_input
from harness import USAGE
from test_bad_input import assert_refused, good, refuse

# Blocks that do not fit together: words of the complaint and what is changed of a good experiment
# on 2 ranks (2 layers, 4 heads, 2 key-value heads, ffn 48, 768 tokens in microbatches of 128).
COMBINATIONS = {
    "name with a slash": (["name", "a/b"], {"name": "a/b"}),
    "width that heads do not divide": (["model.heads", "32"], {"model": {"heads": 5}}),
    "odd head_dim": (["model.heads", "even"], {"model": {"d_model": 12, "heads": 4}}),
    "tensor and heads": (["parallel.tensor", "1, 2 or 4"], {"parallel": {"tensor": 3}}),
    "tensor and key-value heads": (
        ["parallel.tensor", "model.kv_heads", "1 or 2"],
        {"parallel": {"tensor": 4}},
    ),
    "tensor and ffn": (
        ["parallel.tensor", "model.ffn"],
        {"parallel": {"tensor": 2}, "model": {"ffn": 47}},
    ),
    "tensor and vocabulary": (
        ["parallel.tensor", "model.vocab"],
        {
            "parallel": {"tensor": 4},
            "model": {"kv_heads": 4, "vocab": 3},
            "data": {"document_end": 2},
        },
    ),
    "pipeline and layers": (["parallel.pipeline", "1 or 2"], {"parallel": {"pipeline": 3}}),
    "chunks and layers": (
        ["parallel.chunks", "valid: 1"],
        {"parallel": {"pipeline": 2, "chunks": 2}},
    ),
    "chunks without a pipeline": (
        ["parallel.chunks", "interleaved"],
        {"parallel": {"chunks": 2}},
    ),
    "chunks and another schedule": (
        ["parallel.chunks", "1f1b", "interleaved"],
        {"parallel": {"pipeline": 2, "chunks": 2, "schedule": "1f1b"}, "model": {"layers": 4}},
    ),
    "interleaved microbatches": (
        ["parallel.chunks", "3 microbatches", "batch.tokens"],
        {
            "parallel": {"pipeline": 2, "chunks": 2},
            "model": {"layers": 4},
            "batch": {"tokens": 3 * 128},
        },
    ),
    "tied embeddings over stages": (
        ["model.tie_embeddings", "parallel.pipeline"],
        {"model": {"tie_embeddings": True}, "parallel": {"pipeline": 2}},
    ),
    "servers and a schedule": (
        ["parallel.schedule", "1f1b", "phase_aligned"],
        {
            "parallel": {"pipeline": 2, "schedule": "1f1b"},
            "attention": {"placement": "cad", "servers": 1},
        },
    ),
    "colocated over a context group": (
        ["attention.placement", "colocated", "ring"],
        {"parallel": {"context": 2}},
    ),
    "ulysses and heads": (
        ["parallel.context", "ulysses", "1, 2 or 4"],
        {"parallel": {"context": 3}, "attention": {"placement": "ulysses"}},
    ),
    "head_parallel and context": (
        ["attention.head_parallel", "parallel.context"],
        {
            "parallel": {"context": 2},
            "attention": {"placement": "ulysses_ring", "head_parallel": 4},
        },
    ),
    "head_parallel and heads": (
        ["attention.head_parallel", "model.heads"],
        {
            "parallel": {"context": 3},
            "attention": {"placement": "ulysses_ring", "head_parallel": 3},
        },
    ),
    "inner_ring and context": (
        ["attention.inner_ring", "parallel.context", "1 or 2"],
        {"parallel": {"context": 2}, "attention": {"placement": "double_ring", "inner_ring": 3}},
    ),
    "servers for a ring": (
        ["attention.servers", "ring", "in_place"],
        {"parallel": {"context": 2}, "attention": {"placement": "ring", "servers": 1}},
    ),
    "servers and tensor": (
        ["attention.servers", "parallel.tensor"],
        {"parallel": {"tensor": 2}, "attention": {"placement": "cad", "servers": 3}},
    ),
    "mixed without servers": (
        ["attention.mixed", "attention.servers"],
        {"attention": {"placement": "cad", "mixed": True}},
    ),
    "kept inputs of aligned stages": (
        ["attention.inputs", "phase_aligned", "resend"],
        {"parallel": {"pipeline": 2}, "attention": {"placement": "cad", "inputs": "keep"}},
    ),
    "kept inputs made again": (
        ["attention.inputs", "run.recompute", "layer"],
        {"attention": {"inputs": "keep"}, "run": {"recompute": "layer"}},
    ),
    "halves made again": (
        ["attention.overlap", "run.recompute", "attention"],
        {"attention": {"overlap": "ping_pong"}, "run": {"recompute": "attention"}},
    ),
    "halves of stripes": (
        ["attention.overlap", "striped", "none"],
        {
            "parallel": {"context": 2},
            "attention": {"placement": "striped", "overlap": "ping_pong"},
        },
    ),
    "outliers that descend": (
        ["batch.outliers", "ascending"],
        {"batch": {"packing": "balanced", "outliers": [200, 100]}},
    ),
    "outliers of fixed packing": (
        ["batch.outliers", "balanced"],
        {"batch": {"outliers": [100]}},
    ),
    "memory that is not enough": (
        ["run.memory", "most of it", "run.recompute", "parallel.shard"],
        {"run": {"memory": 100000}},
    ),
    "memory that is not enough for messages": (  # 1.02 MiB without them, 1.11 with them
        ["run.memory", "most of it", "run.recompute", "parallel.shard"],
        {"run": {"memory": 1100000}, "attention": {"placement": "cad"}},
    ),
    "documents without an end": (
        ["data.document_end", "vocab"],
        {"data": {"document_end": None}},
    ),
    "an end outside the vocabulary": (
        ["data.document_end", "300"],
        {"data": {"document_end": 300}},
    ),
    "documents of one token at most": (["data.max_document"], {"data": {"max_document": 1}}),
    "lengths without a length": (
        ["data.lengths.values"],
        {"data": {"source": "synthetic", "lengths": {"distribution": "list"}}},
    ),
    "shortest above longest": (
        ["data.lengths.min", "500"],
        {"data": {"source": "synthetic", "lengths": {"min": 500}}},
    ),
    "a length of half a token": (
        ["data.lengths.median", "integer"],
        {"data": {"source": "synthetic", "lengths": {"distribution": "constant", "median": 1.5}}},
    ),
    "three betas": (["optimizer.betas"], {"optimizer": {"betas": [0.9, 0.9, 0.9]}}),
}


@pytest.mark.parametrize("case", COMBINATIONS)
def test_combination(case, corpus, tmp_path):
    words, values = COMBINATIONS[case]
    base = good(corpus, 1 if "parallel" in values else 2)
    harness.write_experiment(tmp_path / "e.yaml", harness.merged(base, values))
    if case.endswith("for messages"):  # found in the plan, when the run's folder is there
        result = harness.run(2, ["train", tmp_path / "e.yaml", "--output", tmp_path / "run"])
        assert_refused(result, USAGE, words)
        assert (tmp_path / "run/metrics.jsonl").read_text() == ""
        return
    refuse(tmp_path, 2, [], USAGE, words)


OF_ATTENTION_ALONE = {  # what attention alone cannot do with the input's heads, or at all
    "ulysses that cannot split the heads": (
        layout("ulysses", context=4),
        {"heads": 6, "kv_heads": 3},
        ["ulysses", "6 heads"],
    ),
    "tensor ranks": (
        {"parallel": {"tensor": 2}},
        {"heads": 4, "kv_heads": 2},
        ["parallel.tensor", "2", "1"],
    ),
    "pipeline ranks": (
        {"parallel": {"pipeline": 2}},
        {"heads": 4, "kv_heads": 2},
        ["parallel.pipeline", "2", "1"],
    ),
}


@pytest.mark.parametrize("case", OF_ATTENTION_ALONE)
def test_attention_alone(case, tmp_path):
    changes, heads, words = OF_ATTENTION_ALONE[case]
    changes = harness.merged({"data": {"source": "synthetic"}}, changes)
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    arrays = random_input(1, heads["heads"], heads["kv_heads"], 8, lengths=[30, 20])
    source = write_input(tmp_path / "in.h5", arrays)
    output = tmp_path / "out.h5"
    result = harness.run(
        harness.ranks_of(harness.merged(harness.DEFAULTS, changes)),
        ["attend", experiment, "--input", source, "--output", output],
    )
    assert result.code == 2, str(result)
    assert len(result.complaints) == 1, str(result)
    for word in words:
        assert word in result.complaints[0], str(result)
    assert not output.exists()
