# SPDX-License-Identifier: Apache-2.0
"""A training step of a plain PyTorch Llama as a peer of bench_step: RMSNorm, rotary embedding,
grouped-query attention by one scaled_dot_product_attention call a document, SwiGLU, cross-entropy,
fused AdamW; eager or compiled, float32 or under bfloat16 autocast. "device": "cpu" or "cuda";
"recompute": whether the backward pass computes every layer again."""

import contextlib
import os

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import protocol

NO_TARGET = -100


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads, self.kv_heads = shape["heads"], shape["kv_heads"]
        self.width = shape["d_model"] // self.heads
        self.documents = shape["documents"]
        self.q = nn.Linear(shape["d_model"], self.heads * self.width, bias=False)
        self.k = nn.Linear(shape["d_model"], self.kv_heads * self.width, bias=False)
        self.v = nn.Linear(shape["d_model"], self.kv_heads * self.width, bias=False)
        self.o = nn.Linear(self.heads * self.width, shape["d_model"], bias=False)

    @staticmethod
    def rotate(x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)

    def forward(self, x, cos, sin):
        tokens = x.shape[0]
        q = self.rotate(self.q(x).view(tokens, self.heads, self.width), cos, sin)
        k = self.rotate(self.k(x).view(tokens, self.kv_heads, self.width), cos, sin)
        v = self.v(x).view(tokens, self.kv_heads, self.width)
        parts = []
        for rows in zip(*(tensor.split(self.documents) for tensor in (q, k, v))):
            q_rows, k_rows, v_rows = (part.transpose(0, 1).contiguous()[None] for part in rows)
            out = functional.scaled_dot_product_attention(
                q_rows, k_rows, v_rows, is_causal=True, enable_gqa=self.kv_heads < self.heads
            )
            parts.append(out[0].transpose(0, 1))
        return self.o(torch.cat(parts).reshape(tokens, -1))


class FeedForward(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate = nn.Linear(shape["d_model"], shape["ffn"], bias=False)
        self.up = nn.Linear(shape["d_model"], shape["ffn"], bias=False)
        self.down = nn.Linear(shape["ffn"], shape["d_model"], bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm1 = nn.RMSNorm(shape["d_model"], eps=1e-5)
        self.attention = Attention(shape)
        self.norm2 = nn.RMSNorm(shape["d_model"], eps=1e-5)
        self.feed_forward = FeedForward(shape)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.feed_forward(self.norm2(x))


class Llama(nn.Module):
    """Tokens of packed documents to the mean loss."""

    def __init__(self, shape):
        super().__init__()
        self.recompute = shape.get("recompute", False)
        self.embedding = nn.Embedding(shape["vocab"], shape["d_model"])
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape["layers"]))
        self.norm = nn.RMSNorm(shape["d_model"], eps=1e-5)
        self.head = nn.Linear(shape["d_model"], shape["vocab"], bias=False)
        half = shape["d_model"] // shape["heads"] // 2
        rates = 10000.0 ** (-torch.arange(half) / half)
        positions = torch.cat([torch.arange(length) for length in shape["documents"]])
        angles = positions[:, None, None] * rates
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, self.cos, self.sin, use_reentrant=False)
            else:
                x = layer(x, self.cos, self.sin)
        return functional.cross_entropy(self.head(self.norm(x)), targets, ignore_index=NO_TARGET)


class Step:
    def __init__(self, request):
        torch.manual_seed(1)
        device = request.get("device", "cpu")
        with torch.device(device):
            self.model = Llama(request)
        for parameter in self.model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        self.run_model = torch.compile(self.model) if request["compiled"] else self.model
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        self.autocast = contextlib.nullcontext
        if request["dtype"] == "bfloat16":
            self.autocast = lambda: torch.autocast(device, dtype=torch.bfloat16)
        documents = request["documents"]
        self.tokens = torch.randint(request["vocab"], (sum(documents),), device=device)
        self.targets = torch.cat(
            [functional.pad(part[1:], (0, 1), value=NO_TARGET)
             for part in self.tokens.split(documents)]
        )
        self.loss = float("nan")

    def repeat(self):
        with self.autocast():
            loss = self.run_model(self.tokens, self.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = loss.item()


def flops(shape):
    """6 per token and element of a matrix that multiplies, 3.5 x the causal forward attention."""
    width = shape["d_model"] // shape["heads"]
    projections = 2 * shape["heads"] + 2 * shape["kv_heads"]
    layer = shape["d_model"] * (projections * width + 3 * shape["ffn"])
    matrices = shape["layers"] * layer + shape["vocab"] * shape["d_model"]
    pairs = sum(length**2 for length in shape["documents"])
    attention = 3.5 * shape["layers"] * 2.0 * pairs * shape["d_model"]
    return 6.0 * matrices * sum(shape["documents"]) + attention


def make_work(request):
    step = Step(request)
    about = {"tokens": sum(request["documents"]), "torch": torch.__version__}
    return step.repeat, flops(request), lambda: {"loss": step.loss, **about}


if __name__ == "__main__":
    protocol.keep_big_blocks()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    protocol.serve(make_work)
