# SPDX-License-Identifier: Apache-2.0
"""Ten steps of training against an independent implementation that differentiates for itself."""

from functools import lru_cache

import numpy as np
import pytest

import harness
import llama_jax
from packing import pack

STEPS = 10
# Gradient norms are around 0.23: some steps are clipped, others not.
OPTIMIZER = {"lr": 3e-3, "warmup": 4, "weight_decay": 0.1, "clip": 0.23, "eps": 1e-8}

CASES = {
    "untied": {},
    "tied, wide heads": {
        "model": {"tie_embeddings": True, "layers": 1, "kv_heads": 1, "head_dim": 10}
    },
    "biases": {"model": {"qkv_bias": True, "tie_embeddings": True}},
    "norms of wide heads": {"model": {"qk_norm": True, "head_dim": 10}},
    "biases and norms": {"model": {"qkv_bias": True, "qk_norm": True}},
    "options": {
        "model": {"kv_heads": 4, "d_model": 24, "norm_eps": 1e-3, "rope": {"theta": 50.0}},
        "data": {"max_document": 50},
        "optimizer": {
            "clip": 0.0,
            "schedule": "constant",
            "betas": [0.8, 0.99],
            "eps": 1e-6,
            "weight_decay": 0.5,
        },
    },
    "window, llama3": {
        "attention": {"kind": "window", "window": 11, "sinks": 2},
        "model": {
            "rope": {
                "theta": 500.0,
                "scaling": {"kind": "llama3", "factor": 4.0, "original_context": 64},
            }
        },
    },
    "prefix, linear": {
        "attention": {"kind": "prefix", "prefix": 20, "layers": ["full", "prefix"]},
        "model": {"rope": {"scaling": {"kind": "linear", "factor": 2.0}}},
    },
    "dual chunk, yarn": {
        "attention": {"kind": "dual_chunk", "chunk": 24, "local": 8},
        "model": {
            "rope": {"scaling": {"kind": "yarn", "factor": 4.0, "original_context": 500}},
        },
    },
    "yarn between pairs": {
        "model": {
            "rope": {
                "theta": 500.0,
                "scaling": {
                    "kind": "yarn",
                    "factor": 4.0,
                    "original_context": 500,
                    "truncate": False,
                    "attention_factor": 1.2,
                },
            }
        },
    },
}


def experiment_of(case, corpus, dtype):
    changes = {
        "data": harness.tokens_data(corpus),
        "optimizer": OPTIMIZER,
        "run": {"steps": STEPS, "dtype": dtype, "checkpoint": {"every": 1}},
    }
    return harness.merged(changes, CASES[case])


def model_of(full):
    """The model and what it attends to."""
    keys = ("kind", "layers", "window", "sinks", "prefix", "chunk", "local")
    kind = {"kind": "full", **{key: v for key, v in full["attention"].items() if key in keys}}
    return {**full["model"], "attention": kind}


def reference(experiment, start, documents):
    """The reference's losses, gradient norms and trainer after STEPS updates from `start`."""
    full = harness.merged(harness.DEFAULTS, experiment)
    batches = pack(
        documents,
        full["batch"]["tokens"],
        full["batch"]["microbatch"],
        STEPS,
        full["data"].get("max_document"),
    )
    trainer = llama_jax.Trainer(start, model_of(full), full["optimizer"], STEPS)
    losses, norms = zip(*(trainer.update(batch) for batch in batches), strict=True)
    return np.array(losses), np.array(norms), trainer.parameters


def largest_difference(found, expected):
    """Over all parameters, the L2 norm of the difference relative to that of what was expected."""
    assert found.keys() == expected.keys()
    return max(
        np.linalg.norm(found[name] - expected[name]) / np.linalg.norm(expected[name])
        for name in expected
    )


TOLERANCES = {
    # Adam divides by the root of the second moment: a gradient near zero, which rounding alone
    # decides, still moves its parameter by a rate, so that weights agree less than losses.
    "float32": {"loss": 1e-5, "norm": 1e-4, "weights": 2e-3},
    "float64": {"loss": 1e-10, "norm": 1e-9, "weights": 1e-8},
}


def disagreements(run, losses, norms, parameters, tolerances):
    """What of a run is not as the reference says."""
    found = {
        "loss": np.max(np.abs(run.losses / losses - 1)),
        "norm": np.max(np.abs(run.column("gradient_norm") / norms - 1)),
        "weights": largest_difference(run.checkpoint(STEPS), parameters),
    }
    return {name: value for name, value in found.items() if not value <= tolerances[name]}


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """Trains a case once. Returns its experiment and run."""

    @lru_cache
    def train(case, dtype):
        experiment = experiment_of(case, corpus, dtype)
        return experiment, harness.train(tmp_path_factory.mktemp("trained"), experiment)

    return train


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("case", CASES)
def test_training_equals_the_reference(case, dtype, trained, documents):
    experiment, run = trained(case, dtype)
    losses, norms, parameters = reference(experiment, run.checkpoint(0), documents)
    assert [line["step"] for line in run.metrics] == list(range(STEPS))
    assert losses[-1] < losses[0] - 0.1, (
        "the reference itself must learn, or the comparison says little"
    )
    assert disagreements(run, losses, norms, parameters, TOLERANCES[dtype]) == {}


OTHERS = {
    "theta": {"model": {"rope": {"theta": 10001.0}}},
    "norm_eps": {"model": {"norm_eps": 1.01e-5}},
    "decay": {"optimizer": {"weight_decay": 0.1001}},
    "clip": {"optimizer": {"clip": 0.2301}},
    "eps": {"optimizer": {"eps": 1.01e-8}},
    "betas": {"optimizer": {"betas": [0.9, 0.9501]}},
    "warmup": {"optimizer": {"warmup": 5}},
    "max_document": {"data": {"max_document": 127}},
}


@pytest.mark.parametrize("other", OTHERS)
def test_comparison_notices_a_small_change(other, trained, documents):
    experiment, run = trained("untied", "float64")
    changed = reference(harness.merged(experiment, OTHERS[other]), run.checkpoint(0), documents)
    assert disagreements(run, *changed, TOLERANCES["float64"]) != {}


def test_checkpoint_k_is_after_k_updates(trained, documents):
    experiment, run = trained("untied", "float64")
    full = harness.merged(harness.DEFAULTS, experiment)
    batches = pack(documents, full["batch"]["tokens"], full["batch"]["microbatch"], 3)
    trainer = llama_jax.Trainer(run.checkpoint(0), model_of(full), full["optimizer"], STEPS)
    for updates, batch in enumerate(batches):
        assert largest_difference(run.checkpoint(updates), trainer.parameters) <= 1e-10
        trainer.update(batch)
        assert largest_difference(run.checkpoint(updates), trainer.parameters) > 1e-4


def test_parameters_start_as_documented(corpus, tmp_path):
    run = harness.train(
        tmp_path,
        {"data": harness.tokens_data(corpus), "run": {"steps": 0, "checkpoint": {"every": 1}}},
    )
    parameters = run.checkpoint(0)
    model = harness.DEFAULTS["model"]
    width, kv_width = model["d_model"], model["d_model"] // model["heads"] * model["kv_heads"]
    shapes = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (kv_width, width),
        "self_attn.v_proj": (kv_width, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (model["ffn"], width),
        "mlp.up_proj": (model["ffn"], width),
        "mlp.down_proj": (width, model["ffn"]),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
    }
    expected = {
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(model["layers"])
        for name, shape in shapes.items()
    }
    expected |= {
        "model.embed_tokens.weight": (model["vocab"], width),
        "model.norm.weight": (width,),
        "lm_head.weight": (model["vocab"], width),
    }
    assert {name: value.shape for name, value in parameters.items()} == expected
    for name, value in parameters.items():
        if value.ndim == 1:
            assert np.all(value == 1), name
        else:
            assert abs(value.mean()) < 0.002, name
            assert abs(value.std() - 0.02) < 0.002, name
