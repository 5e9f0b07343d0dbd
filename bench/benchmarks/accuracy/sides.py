# SPDX-License-Identifier: Apache-2.0
"""The two that are measured, cadenza attend from file to file and PyTorch's flash attention, and
attention by its definition, in float64."""

import math

import h5py
import torch

from lib.command import call, mpirun, words_of

RESULTS = ("out", "lse", "dq", "dk", "dv")
FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
MOST = 1 << 24  # pairs of a chunk of queries: 128 MiB of scores


def errors(case, chosen, folder):
    """Of cadenza and of PyTorch, by result."""
    dtype, head_dim, factor, tokens = case
    inputs = make_inputs(tokens, head_dim, factor, dtype)
    expected = exact(inputs)
    return [{name: ((found[name] - expected[name]).norm() / expected[name].norm()).item()
             for name in RESULTS} for found in (cadenza(inputs, dtype, chosen, folder),
                                                pytorch(inputs))]


def make_inputs(tokens, head_dim, factor, dtype):
    """The same document for both sides, exact in its format: q, k, v and dout as [tokens,
    head_dim]."""
    random = torch.Generator().manual_seed(tokens + head_dim)
    inputs = {name: torch.randn(tokens, head_dim, generator=random)
              for name in ("q", "k", "v", "dout")}
    inputs["q"] *= factor
    return {name: rows.to(getattr(torch, dtype)) for name, rows in inputs.items()}


def exact(inputs):
    """By definition: whole rows of scores at a time, so that nothing is merged."""
    q, k, v, dout = (inputs[name].double() for name in ("q", "k", "v", "dout"))
    tokens, head_dim = q.shape
    scale = 1 / math.sqrt(head_dim)
    result = {"out": torch.empty_like(q), "lse": q.new_empty(tokens), "dq": torch.empty_like(q),
              "dk": torch.zeros_like(k), "dv": torch.zeros_like(v)}
    step = max(1, min(tokens, MOST // tokens))
    for begin in range(0, tokens, step):
        end = min(tokens, begin + step)
        rows = slice(begin, end)
        scores = (q[rows] @ k[:end].T).mul_(scale)
        hidden = torch.ones(end - begin, end - begin, dtype=torch.bool).triu(1)
        scores[:, begin:].masked_fill_(hidden, -math.inf)
        lse = torch.logsumexp(scores, 1)
        p = scores.sub_(lse[:, None]).exp_()
        out = p @ v[:end]
        result["out"][rows], result["lse"][rows] = out, lse
        result["dv"][:end] += p.T @ dout[rows]
        ds = dout[rows] @ v[:end].T
        ds.sub_((dout[rows] * out).sum(1)[:, None]).mul_(p).mul_(scale)
        result["dq"][rows] = ds @ k[:end]
        result["dk"][:end] += ds.T @ q[rows]
    return result


def pytorch(inputs):
    """The operator behind scaled_dot_product_attention, which also says its lse."""
    q, k, v, dout = (inputs[name][None, None] for name in ("q", "k", "v", "dout"))
    out, lse = FLASH(q, k, v, 0.0, True)
    gradients = FLASH_BACKWARD(dout, q, k, v, out, lse, 0.0, True)
    return {name: value[0, 0].double() for name, value in zip(RESULTS, (out, lse, *gradients))}


def cadenza(inputs, dtype, chosen, folder):
    """The same from the program, on chosen.ranks ranks."""
    tokens, head_dim = inputs["q"].shape
    with h5py.File(folder / "input.h5", "w") as file:
        for name, rows in inputs.items():
            file[name] = rows.float().numpy().reshape(tokens, 1, head_dim)
        file["document_lengths"] = [tokens]
    axis = "data" if chosen.placement in ("cad", "colocated") else "context"
    experiment = folder / "experiment.yaml"
    experiment.write_text(
        "name: accuracy\n"
        "model: {layers: 1, d_model: 64, heads: 1, kv_heads: 1, ffn: 64, vocab: 256}\n"
        "data: {source: synthetic}\n"
        f"batch: {{tokens: {128 * chosen.ranks}, microbatch: 128}}\n"
        f"parallel: {{{axis}: {chosen.ranks}}}\n"
        f"attention: {{placement: {chosen.placement}}}\n"
        f"run: {{steps: 1, dtype: {dtype}}}\n"
        "optimizer: {lr: 1.0e-3, warmup: 1}\n", encoding="utf-8")
    words = words_of(chosen.program, ["attend", experiment, "--input", folder / "input.h5",
                                      "--output", folder / "output.h5"])
    if chosen.ranks > 1:
        call([*mpirun(chosen.ranks), *words], timeout=None)
    else:
        call(words, threads=None, timeout=None)
    with h5py.File(folder / "output.h5", "r") as file:
        return {name: torch.from_numpy(file[name][...]).double().reshape(tokens, -1).squeeze(1)
                for name in RESULTS}
