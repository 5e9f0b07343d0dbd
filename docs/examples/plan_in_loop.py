#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Core attention of a PyTorch training loop by Cadenza's plan: docs/plan_in_your_loop.md.

Four processes hold the tokens of their own documents. The data loader's worker plans each batch.
Every rank sends the rows of Q, K and V that the plan names, computes its tasks, returns O and LSE,
and merges what comes home. The result equals attention computed where the documents live.

    python plan_in_loop.py          # needs torch and cadenza-planner; no GPU, no MPI
"""

import functools
import os
import socket

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset

import cadenza_planner
from cadenza_planner import Plan

RANKS, STEPS = 4, 3
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
LAYOUT = {"data": RANKS, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM,
          "dtype": "float64", "block": 48, "tolerance": 0.05}
HEADS_OF = {Plan.Q: HEADS, Plan.K: KV_HEADS, Plan.V: KV_HEADS, Plan.O: HEADS, Plan.LSE: HEADS}


class Batches(Dataset):
    """Document lengths of every rank, as a packing of your own makes them, and their plan."""

    def __len__(self):
        return STEPS

    def __getitem__(self, step):
        random = np.random.default_rng(step)
        lengths = [random.integers(1, 100, size=6).tolist() for _ in range(RANKS - 1)]
        lengths.insert(step % RANKS, [1200, 70])  # the straggler
        return lengths, cadenza_planner.plan(lengths, LAYOUT)


class Rows:
    """Rows of all tensors that a rank holds, by document; of results, partial ones."""

    def __init__(self, plan):
        self.lengths = dict(zip(plan.documents["document"], plan.documents["length"], strict=True))
        self.of = {}

    def __call__(self, what, document):
        if (what, document) not in self.of:
            shape = (self.lengths[document], HEADS_OF[what], 1 if what == Plan.LSE else HEAD_DIM)
            empty = float("-inf") if what == Plan.LSE else 0.0
            self.of[what, document] = torch.full(shape, empty, dtype=torch.float64)
        return self.of[what, document]

    def part(self, move):
        return self(move["what"], move["document"])[
            move["token_begin"]:move["token_end"], move["head_begin"]:move["head_end"]]


def merge(out, lse, more_out, more_lse):
    """Adds a partial result, in place: softmax over both sets of keys."""
    both = torch.logaddexp(lse, more_lse)
    seen = torch.where(both == float("-inf"), 0.0, both)  # a row that has seen no key yet stays 0
    out.mul_(torch.exp(lse - seen)).add_(torch.exp(more_lse - seen) * more_out)
    lse.copy_(both)


def attend(q, k, v, visible):
    """(O [queries, heads, dim], LSE [queries, heads, 1]) of some keys."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / HEAD_DIM**0.5
    scores = scores.masked_fill(~visible, float("-inf"))
    lse = torch.logsumexp(scores, -1, keepdim=True)
    weights = torch.exp(scores - torch.where(lse == float("-inf"), 0.0, lse))
    return torch.einsum("hqk,khd->qhd", weights, v), lse.transpose(0, 1)


def compute(task, rows, results):
    """One task of the plan: its queries against its keys."""
    document = task["document"]
    queries = slice(task["q_begin"], task["q_end"])
    keys = slice(task["k_begin"], task["k_end"])
    heads = slice(task["head_begin"], task["head_end"])
    i = torch.arange(queries.start, queries.stop)[:, None]
    j = torch.arange(keys.start, keys.stop)[None, :]
    visible = (i + task["low"] <= j) & (j <= i + task["high"])
    out, lse = attend(rows(Plan.Q, document)[queries], rows(Plan.K, document)[keys],
                      rows(Plan.V, document)[keys], visible)
    merge(results(Plan.O, document)[queries, heads], results(Plan.LSE, document)[queries, heads],
          out[:, heads], lse[:, heads])


def exchange(moves, rank, rows, results):
    """Sends and receives the rows of a stage. Returns the results that arrived: [(move, rows)].

    Both ends go through the same list, so messages need no header.
    """
    calls, arriving = [], []
    for move in moves:
        source = results if move["what"] in (Plan.O, Plan.LSE) else rows
        if move["from"] == rank:
            calls.append(dist.P2POp(dist.isend, source.part(move).contiguous(), int(move["to"])))
        elif move["to"] == rank:
            buffer = torch.empty_like(source.part(move)).contiguous()
            calls.append(dist.P2POp(dist.irecv, buffer, int(move["from"])))
            arriving.append((move, buffer))
    for request in dist.batch_isend_irecv(calls) if calls else []:
        request.wait()
    for move, buffer in arriving:
        if move["what"] in (Plan.Q, Plan.K, Plan.V):
            rows.part(move).copy_(buffer)
    return [(move, buffer) for move, buffer in arriving if move["what"] in (Plan.O, Plan.LSE)]


def merge_returned(returned, results):
    """Merges what servers computed: O and LSE of the same rows come from the same rank."""
    key = ["from", "document", "token_begin", "token_end", "head_begin", "head_end"]
    lse = {tuple(move[key]): rows for move, rows in returned if move["what"] == Plan.LSE}
    for move, out in returned:
        if move["what"] == Plan.O:
            place = move.copy()
            place["what"] = Plan.LSE
            merge(results.part(move), results.part(place), out, lse[tuple(move[key])])


def attention(plan, rank, rows):
    """The rank's outputs by document, from the rows of Q, K and V of its own documents."""
    results = Rows(plan)
    for stage in range(1 + max(plan.tasks["stage"].max(), plan.moves["stage"].max(initial=0))):
        moves = plan.moves[plan.moves["stage"] == stage]
        merge_returned(exchange(moves, rank, rows, results), results)
        mine = (plan.tasks["stage"] == stage) & (plan.tasks["server"] == rank)
        for task in plan.tasks[mine]:
            compute(task, rows, results)
    homes = plan.homes[plan.homes["rank"] == rank]
    return {home["document"]: results(Plan.O, home["document"]) for home in homes}


def describe(plan, rank):
    work = np.bincount(plan.tasks["server"], plan.tasks["flops"], RANKS)
    mine = plan.merges[plan.merges["owner"] == rank]
    _, computed_by = np.unique(mine[["document", "token_begin", "head_begin"]], return_counts=True)
    return (f"{work[rank] / work.mean():.2f} of the mean attention, "
            f"{np.count_nonzero(computed_by > 1)} ranges from several ranks")


def run(rank, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    loader = DataLoader(Batches(), batch_size=None, num_workers=1)
    for step, (lengths, plan) in enumerate(loader):
        generator = torch.Generator().manual_seed(100 * step + rank)
        draw = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
        rows = Rows(plan)
        for home in plan.homes[plan.homes["rank"] == rank]:
            for what in (Plan.Q, Plan.K, Plan.V):
                at_home = rows(what, home["document"])
                at_home.copy_(draw(at_home.shape))
        own = [home["document"] for home in plan.homes[plan.homes["rank"] == rank]]
        expected = {}
        for document in own:
            n = rows.lengths[document]
            causal = torch.ones(n, n, dtype=torch.bool).tril()
            expected[document] = attend(*(rows(w, document) for w in (Plan.Q, Plan.K, Plan.V)),
                                        causal)[0]
        out = attention(plan, rank, rows)
        error = max(float((out[d] - expected[d]).abs().max()) for d in own)
        assert error < 1e-10, f"rank {rank}: attention differs by {error}"
        print(f"step {step} rank {rank}: {sum(lengths[rank])} tokens, {describe(plan, rank)}, "
              f"largest difference {error:.1e}", flush=True)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    torch.multiprocessing.spawn(run, args=(free_port(),), nprocs=RANKS)
    print("equal")
