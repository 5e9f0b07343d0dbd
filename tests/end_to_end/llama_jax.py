# SPDX-License-Identifier: Apache-2.0
"""The model and its training in JAX, float64, with Hugging Face Llama's names and conventions.

Written from docs/experiment.md and differentiated by jax.grad: it shares nothing with the program.
"""

import json
from functools import lru_cache, partial

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402  (the precision is chosen before anything is made)
import numpy as np  # noqa: E402


def rms_norm(x, gain, eps):
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * gain


def frequencies(head_dim, rope):
    """Radians per token of each pair, and what rotated vectors are multiplied by."""
    theta, scaling = rope.get("theta", 10000.0), rope.get("scaling", {})
    half = head_dim // 2
    f = theta ** (-np.arange(half) / half)
    kind, factor = scaling.get("kind", "none"), scaling.get("factor", 1.0)
    if kind == "linear":
        return f / factor, 1.0
    turns = scaling.get("original_context", 0) * f / (2 * np.pi)
    if kind == "llama3":
        smooth = np.clip((turns - 1) / (4 - 1), 0, 1)
        return (1 - smooth) * f / factor + smooth * f, 1.0
    if kind == "yarn":
        # The pairs, as numbers between pairs, that turn 32 times and once.
        fast, slow = (
            np.log(scaling["original_context"] / (2 * np.pi * n)) / np.log(theta) * half
            for n in (32, 1)
        )
        if scaling.get("truncate", True):
            fast, slow = np.floor(fast), np.ceil(slow)
        low, high = max(fast, 0), min(slow, head_dim - 1)
        share = np.clip((np.arange(half) - low) / (high - low), 0, 1)
        magnitude = scaling.get("attention_factor", 0) or 0.1 * np.log(factor) + 1
        return f / factor * share + f * (1 - share), magnitude
    return f, 1.0


def rotate(x, positions, rope):
    """x [tokens, heads, head_dim]: (d, d + head_dim/2) turns by position times frequency."""
    half = x.shape[-1] // 2
    f, magnitude = frequencies(x.shape[-1], rope)
    angle = positions[:, None] * f[None, :]
    cos, sin = (magnitude * part(angle)[:, None, :] for part in (jnp.cos, jnp.sin))
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def kind_of(kind, layer):
    """The attention of a layer: kinds in turns, of which `full` is not that of the experiment."""
    words = kind.get("layers", [kind["kind"]])
    return {"kind": "full"} if words[layer % len(words)] == "full" else kind


def allowed(kind, i, j):
    """Whether query i of a document sees its key j."""
    causal = j <= i
    if kind["kind"] == "window":
        return causal & ((i - j < kind["window"]) | (j < kind.get("sinks", 0)))
    if kind["kind"] == "prefix":
        return causal | ((i < kind["prefix"]) & (j < kind["prefix"]))
    return causal


def score_paths(kind, i, j):
    """[(pairs, positions of queries)] and the positions of keys; i and j count a document."""
    if kind["kind"] != "dual_chunk":
        return [(jnp.ones((i.size, j.size), dtype=bool), i[:, 0])], j[0]
    stride, chunk = kind["chunk"] - kind["local"], kind["chunk"]
    apart = i // stride - j // stride
    inside = i[:, 0] % stride
    older = jnp.full_like(inside, min(2 * stride - 1, chunk))
    return [
        (apart == 0, inside),
        (apart == 1, jnp.minimum(stride + inside, chunk)),
        (apart > 1, older),
    ], j[0] % stride


def attention(q, k, v, segments, positions, rope, kind):
    """Inside each document; key head h serves query heads [h group, (h + 1) group)."""
    group = q.shape[1] // k.shape[1]
    i, j = positions[:, None], positions[None, :]
    paths, key_positions = score_paths(kind, i, j)
    k = jnp.repeat(rotate(k, key_positions, rope), group, axis=1)
    v = jnp.repeat(v, group, axis=1)
    scores = 0.0
    for pairs, at in paths:
        some = jnp.einsum("ihd,jhd->hij", rotate(q, at, rope), k) / jnp.sqrt(q.shape[-1])
        scores = scores + jnp.where(pairs[None], some, 0.0)
    seen = (segments[:, None] == segments[None, :]) & allowed(kind, i, j)
    weights = jax.nn.softmax(jnp.where(seen[None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("hij,jhd->ihd", weights, v)


def loss_sum(parameters, tokens, segments, positions, targets, model):
    """Sum of the cross-entropies of the targets of one microbatch; a target of -1 is none."""
    eps, rope = model.get("norm_eps", 1e-5), model.get("rope", {})
    kind = model.get("attention", {"kind": "full"})
    heads, kv_heads = model["heads"], model.get("kv_heads", model["heads"])
    embedding = parameters["model.embed_tokens.weight"]
    x = embedding[tokens]
    for layer in range(model["layers"]):

        def weight(name, layer=layer):
            return parameters[f"model.layers.{layer}.{name}.weight"]

        def project(h, name, heads, layer=layer):
            y = h @ weight(name).T
            if model.get("qkv_bias"):
                y = y + parameters[f"model.layers.{layer}.{name}.bias"]
            y = y.reshape(len(tokens), heads, -1)
            norm = name.replace("proj", "norm")
            if model.get("qk_norm") and norm != "self_attn.v_norm":
                y = rms_norm(y, weight(norm), eps)
            return y

        h = rms_norm(x, weight("input_layernorm"), eps)
        q = project(h, "self_attn.q_proj", heads)
        k = project(h, "self_attn.k_proj", kv_heads)
        v = project(h, "self_attn.v_proj", kv_heads)
        o = attention(q, k, v, segments, positions, rope, kind_of(kind, layer))
        x = x + o.reshape(len(tokens), -1) @ weight("self_attn.o_proj").T
        h = rms_norm(x, weight("post_attention_layernorm"), eps)
        x = (
            x
            + (jax.nn.silu(h @ weight("mlp.gate_proj").T) * (h @ weight("mlp.up_proj").T))
            @ weight("mlp.down_proj").T
        )
    x = rms_norm(x, parameters["model.norm.weight"], eps)
    head = embedding if model.get("tie_embeddings") else parameters["lm_head.weight"]
    log_p = jax.nn.log_softmax(x @ head.T, axis=-1)
    chosen = jnp.take_along_axis(log_p, jnp.maximum(targets, 0)[:, None], axis=1)[:, 0]
    return -jnp.sum(jnp.where(targets >= 0, chosen, 0.0))


@lru_cache
def compiled_gradient(model_json):
    """Loss and gradient as one compiled function, shared by all tests of a model."""
    return jax.jit(jax.value_and_grad(partial(loss_sum, model=json.loads(model_json))))


def arrays(microbatch):
    """tokens, segments, positions, targets of documents packed one after another."""
    return (
        np.concatenate(microbatch),
        np.concatenate([np.full(len(d), i) for i, d in enumerate(microbatch)]),
        np.concatenate([np.arange(len(d)) for d in microbatch]),
        np.concatenate([np.append(d[1:], -1) for d in microbatch]),
    )


def learning_rate(optimizer, step, steps):
    if step < optimizer["warmup"]:
        return optimizer["lr"] * (step + 1) / optimizer["warmup"]
    if optimizer.get("schedule", "cosine") == "constant":
        return optimizer["lr"]
    progress = (step - optimizer["warmup"]) / (steps - optimizer["warmup"])
    return optimizer["lr"] * 0.5 * (1 + np.cos(np.pi * progress))


class Trainer:
    """AdamW with decoupled decay on matrices, after clipping by the global norm."""

    def __init__(self, parameters, model, optimizer, steps):
        self.parameters = dict(parameters)
        self.first = {name: np.zeros_like(p) for name, p in parameters.items()}
        self.second = {name: np.zeros_like(p) for name, p in parameters.items()}
        self.optimizer = {
            "betas": [0.9, 0.95],
            "eps": 1e-8,
            "weight_decay": 0.1,
            "clip": 1.0,
            **optimizer,
        }
        self.steps = steps
        self.step = 0
        self.gradient = compiled_gradient(json.dumps(model, sort_keys=True))

    def batch_gradient(self, microbatches):
        """Loss and gradient of a whole batch: every target weighs the same."""
        loss, targets, gradients = 0.0, 0, dict.fromkeys(self.parameters, 0.0)
        for microbatch in microbatches:
            value, gradient = self.gradient(self.parameters, *arrays(microbatch))
            loss += float(value)
            targets += sum(len(document) - 1 for document in microbatch)
            for name in gradients:
                gradients[name] = gradients[name] + np.asarray(gradient[name])
        return loss / targets, {name: g / targets for name, g in gradients.items()}

    def update(self, microbatches):
        """One step. Returns the loss before the update and the norm of its gradient."""
        options = self.optimizer
        loss, gradients = self.batch_gradient(microbatches)
        norm = np.sqrt(sum(np.sum(g * g) for g in gradients.values()))
        scale = min(1.0, options["clip"] / norm) if options["clip"] > 0 else 1.0
        rate = learning_rate(options, self.step, self.steps)
        beta1, beta2 = options["betas"]
        self.step += 1
        for name, value in self.parameters.items():
            g = gradients[name] * scale
            self.first[name] = beta1 * self.first[name] + (1 - beta1) * g
            self.second[name] = beta2 * self.second[name] + (1 - beta2) * g * g
            m = self.first[name] / (1 - beta1**self.step)
            v = self.second[name] / (1 - beta2**self.step)
            decay = options["weight_decay"] if value.ndim == 2 else 0.0
            self.parameters[name] = value - rate * (
                m / (np.sqrt(v) + options["eps"]) + decay * value
            )
        return loss, float(norm)
