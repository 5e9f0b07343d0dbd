# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention, one call a document or task: a peer of bench_attention.

Q, K and V of a document are contiguous [1, heads, tokens, head_dim]. Grouped heads can be given to
it in two ways; the faster one on a shorter document of the same kind is taken. "device": "cpu" or
"cuda"; there "backend" ("flash", "cudnn") and "deterministic" say what is to compute.
"""

import contextlib
import os
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

import protocol

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TRIAL_TOKENS = 2048
TRIALS = 5


BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def native(q, k, v):
    queries, keys = q.shape[2], k.shape[2]
    mask = {"is_causal": True} if queries == keys else {
        "attn_mask": causal_lower_right(queries, keys)}
    return scaled_dot_product_attention(q, k, v, enable_gqa=k.shape[1] < q.shape[1], **mask)


def repeated(q, k, v):
    group = q.shape[1] // k.shape[1]
    return native(q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1))


def cut(inputs, task):
    """The tasks of a document: some of its queries, and the keys up to the last of them."""
    q, k, v = inputs
    for begin in range(0, q.shape[2], task or q.shape[2]):
        end = min(q.shape[2], begin + (task or q.shape[2]))
        yield q[:, :, begin:end], k[:, :, :end], v[:, :, :end]


class Attention:
    """Causal attention of documents of these lengths, forward or backward."""

    def __init__(self, request, attend, documents):
        self.attend = attend
        self.task = request.get("task", 0)
        self.computing = lambda: sdpa_kernel(
            BACKENDS[request["backend"]]) if "backend" in request else contextlib.nullcontext()
        torch.use_deterministic_algorithms(request.get("deterministic", False))
        dtype = DTYPES[request["dtype"]]
        backward = request["pass"] == "backward"
        torch.manual_seed(1)

        def random(heads, length):
            shape = 1, heads, length, request["head_dim"]
            values = torch.randn(shape, dtype=dtype, device=request.get("device", "cpu"))
            return values.requires_grad_(backward)

        self.inputs = [
            tuple(random(request[heads], length) for heads in ("heads", "kv_heads", "kv_heads"))
            for length in documents
        ]
        if backward:
            self.outputs = self.forward()
            self.douts = [torch.randn_like(out) for out in self.outputs]
            self.repeat = self.backward
        else:
            self.repeat = self.forward

    def forward(self):
        with self.computing():
            return [self.attend(*task) for inputs in self.inputs for task in cut(inputs, self.task)]

    def backward(self):
        inputs = [tensor for tensors in self.inputs for tensor in tensors]
        return torch.autograd.grad(self.outputs, inputs, self.douts, retain_graph=True)


def fastest(request):
    """The way to hand over grouped heads."""
    if request["heads"] == request["kv_heads"]:
        return native
    trial = [min(TRIAL_TOKENS, max(request["documents"]))]
    ways = {attend: Attention(request, attend, trial) for attend in (native, repeated)}
    times = {attend: [] for attend in ways}
    for attention in ways.values():
        attention.repeat()
    finish()
    for _ in range(TRIALS):  # alternately: on a shared machine only neighbouring times compare
        for attend, attention in ways.items():
            begin = time.perf_counter()
            attention.repeat()
            finish()
            times[attend].append(time.perf_counter() - begin)
    return min(times, key=lambda attend: min(times[attend]))


def flops(request):
    pairs = sum(length**2 for length in request["documents"])
    ratio = 2.5 if request["pass"] == "backward" else 1.0
    return 2.0 * pairs * request["head_dim"] * request["heads"] * ratio


def finish():
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def make_work(request):
    attend = fastest(request)
    attention = Attention(request, attend, request["documents"])
    about = {"grouped_heads": attend.__name__, "torch": torch.__version__}
    return attention.repeat, flops(request), lambda: about


if __name__ == "__main__":
    protocol.keep_big_blocks()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    protocol.serve(make_work, finish)
