# SPDX-License-Identifier: Apache-2.0
"""Causal attention of one document and its gradients by definition, in float64."""

import math

import torch

MOST = 1 << 24  # pairs of a chunk of queries: 128 MiB of scores


def exact(inputs):
    """`inputs`: q, k, v, dout as [tokens, head_dim], of one head. Whole rows of scores at a time,
    so that nothing is merged."""
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
