# SPDX-License-Identifier: Apache-2.0
"""The two that are measured, and attention by its definition, in float64.

cadenza attend from file to file beside PyTorch's flash attention or, of kinds that PyTorch has not,
the definition in float32, with factors in the type."""

import math

import h5py
import torch
from benchmarks.accuracy.kinds import KINDS, rotated
from lib.command import call, mpirun, words_of

RESULTS = ("out", "lse", "dq", "dk", "dv")
FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
MOST = 1 << 24  # pairs of a chunk of queries: 128 MiB of scores


def errors(case, chosen, folder):
    """Of cadenza and of its peer, by result."""
    dtype, head_dim, factor, tokens = case
    inputs = make_inputs(tokens, head_dim, factor, dtype)
    kind = KINDS[chosen.kind]()
    found = cadenza(inputs, dtype, chosen, folder, kind)
    expected = by_definition(inputs, kind, torch.float64)
    peer = pytorch(inputs) if chosen.kind == "full" else {
        name: rows.double() for name, rows in
        by_definition(inputs, kind, torch.float32, getattr(torch, dtype)).items()}
    return [{name: ((side[name] - expected[name]).norm() / expected[name].norm()).item()
             for name in RESULTS} for side in (found, peer)]


def make_inputs(tokens, head_dim, factor, dtype):
    """The same document for both sides, exact in its format: q, k, v and dout as [tokens,
    head_dim]."""
    random = torch.Generator().manual_seed(tokens + head_dim)
    inputs = {name: torch.randn(tokens, head_dim, generator=random)
              for name in ("q", "k", "v", "dout")}
    inputs["q"] *= factor
    return {name: rows.to(getattr(torch, dtype)) for name, rows in inputs.items()}


def by_definition(inputs, kind, precision, storage=torch.float64):
    """Whole rows of scores at a time, so that nothing is merged.

    @param storage  to which factors of products are rounded
    """
    def stored(rows):
        return rows.to(storage).to(precision)

    q, k, v, dout = (inputs[name].to(precision) for name in ("q", "k", "v", "dout"))
    tokens, head_dim = q.shape
    scale = 1 / math.sqrt(head_dim)
    paths = kind.paths(tokens)
    queries = [stored(rotated(q, positions)) for positions, _ in paths]
    keys = stored(rotated(k, kind.key_positions(tokens)))
    result = {"out": torch.empty_like(q), "lse": q.new_empty(tokens), "dq": torch.zeros_like(q),
              "dk": torch.zeros_like(k), "dv": torch.zeros_like(v)}
    step = max(1, min(tokens, MOST // tokens))
    for begin in range(0, tokens, step):
        end = min(tokens, begin + step)
        rows = slice(begin, end)
        scores = q.new_full((end - begin, end), -math.inf)
        causal = torch.ones(end - begin, end, dtype=torch.bool).tril(begin)
        masks = [pairs(begin, end) & causal for _, pairs in paths]
        for turned, mask in zip(queries, masks, strict=True):
            scores = torch.where(mask, (turned[rows] @ keys[:end].T).mul_(scale), scores)
        lse = torch.logsumexp(scores, 1)
        p = scores.sub_(lse[:, None]).exp_()
        out = stored(p) @ v[:end]
        result["out"][rows], result["lse"][rows] = out, lse
        result["dv"][:end] += stored(p).T @ dout[rows]
        ds = dout[rows] @ v[:end].T
        ds.sub_((dout[rows] * out).sum(1)[:, None]).mul_(p).mul_(scale)
        for (positions, _), turned, mask in zip(paths, queries, masks, strict=True):
            part = stored(ds * mask)
            of_rows = None if positions is None else positions[rows]
            result["dq"][rows] += rotated(part @ keys[:end], of_rows, back=True)
            result["dk"][:end] += part.T @ turned[rows]
    result["dk"] = rotated(result["dk"], kind.key_positions(tokens), back=True)
    return result


def pytorch(inputs):
    """The operator behind scaled_dot_product_attention, which also says its lse."""
    q, k, v, dout = (inputs[name][None, None] for name in ("q", "k", "v", "dout"))
    out, lse = FLASH(q, k, v, 0.0, True)
    gradients = FLASH_BACKWARD(dout, q, k, v, out, lse, 0.0, True)
    return {name: value[0, 0].double() for name, value in zip(RESULTS, (out, lse, *gradients))}


def cadenza(inputs, dtype, chosen, folder, kind):
    """The same from the program, on chosen.ranks ranks; tells `kind` the index that it chose."""
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
        f"attention: {{placement: {chosen.placement}, {kind.settings}}}\n"
        f"run: {{steps: 1, dtype: {dtype}}}\n"
        "optimizer: {lr: 1.0e-3, warmup: 1}\n", encoding="utf-8")
    words = words_of(chosen.program, ["attend", experiment, "--input", folder / "input.h5",
                                      "--output", folder / "output.h5"])
    if chosen.ranks > 1:
        call([*mpirun(chosen.ranks), *words], timeout=None)
    else:
        call(words, threads=None, timeout=None)
    with h5py.File(folder / "output.h5", "r") as file:
        kind.read_index(file, tokens)
        return {name: torch.from_numpy(file[name][...]).double().reshape(tokens, -1).squeeze(1)
                for name in RESULTS}
