# SPDX-License-Identifier: Apache-2.0
"""Run folders, a sweep's folder, a plan and documents in which nothing is wrong and everything
occurs once."""

import json
import re

import conftest  # of analysis/tests
import corpora
import kineto_files
import nsight_files
import numpy as np
import straggler_traces
import test_neutral_files
import test_plan
import test_sweep
import trace_files as t
import yaml

from cadenza.sources.neutral_files import write

MS = 1_000_000
STEPS, STEP = 4, 100 * MS
# (rank, place in data, pipeline, tensor): two pipelines of two stages
PLACES = {0: (0, 0, 0), 1: (1, 0, 0), 2: (0, 1, 0), 3: (1, 1, 0)}
MACHINE = {
    "ranks_per_node": 2, "memory": 2**34,
    "links": {"adapters": 1,
              "inside": {"latency_seconds": 2e-6, "bytes_per_second": 5e9},
              "between": {"latency_seconds": 5e-6, "bytes_per_second": 1e9,
                          "reduce_bytes_per_second": 5e8}},
}
EXPERIMENT = {
    "parallel": {"data": 2, "pipeline": 2, "schedule": "1f1b"},
    "batch": {"tokens": 4096, "microbatch": 1024}, "cluster": {"ranks_per_node": 2},
    "run": {"memory": 0},
}


def two_ranks(folder):
    """A run that is worked out by hand."""
    t.write_run(folder, conftest.two_ranks(shift=5))


def real(folder):
    """Four ranks with messages, a pause, a slow rank, plans, losses and answers."""
    _four_ranks(folder, {})


def simulated(folder):
    """The same of a simulated run, which has its machine."""
    _four_ranks(folder, {"producer": "simulator", "machine": yaml.safe_dump(MACHINE)})


def sweep(folder):
    """The folder of test_sweep.py, with a view of each form."""
    config = {**test_sweep.CONFIG, "report": list(test_sweep.CONFIG["report"])}
    for form, of in (("relative_to", {"column": "seconds", "where": {"size": "8"}}),
                     ("ratio", ["seconds", "tokens"])):
        config["report"].append({"title": form, "value": {form: of}, "x": "system",
                                 "panels": ["size"], "checks": [{"lowest": ["a"]}]})
    test_sweep.write_sweep(folder, config, test_sweep.ROWS)


def plan(folder):
    """The plan of docs/plan.md on one line, with what the picture of a sparse document needs."""
    step = json.loads(re.search(r"```json\n(.*?)```", test_plan.PAGE.read_text(), re.DOTALL)[1])
    step["plans"][0]["density"] = [[0.5] * 32, None]
    step["patterns"] = [None, {"block": 8, "rows": [[[0, 8]]], "columns": [1]}]
    (folder / "step.json").write_text(json.dumps(step))


def straggler_analysis(folder):
    """A trace of two replicas of two stages, one of whose workers is slow."""
    workers = {(0, 0): (2.0, 4.0), (0, 1): (1.0, 2.0), (1, 0): (1.0, 2.0), (1, 1): (1.0, 2.0)}
    rows = straggler_traces.two_microbatches(workers, steps=(7, 9))
    straggler_traces.write(folder / "trace-x.parquet", rows)


def documents(folder):
    """Twenty documents in every kind of file, and a tokenizer."""
    texts = corpora.random_texts(20)
    corpora.write_tokenizer(folder / "tokenizer", begin=True)
    for kind in (".jsonl", ".jsonl.gz", ".parquet"):
        corpora.write_kind(folder, kind, texts)
    (folder / "d.txt.zst").write_bytes(corpora.compressed(".zst", " ".join(texts).encode()))


def kineto(folder):
    """Steps with kernels and collectives of a device; messages and collectives of gloo."""
    made = kineto_files.training()
    kineto_files.write(folder / "rank0_trace.json", kineto_files.document(made.events))
    said = {"Input Dims": [[[4, 8]], [], [], []], "Input type": ["float", "", "Scalar", ""],
            "Concrete Inputs": ["", "", "1", "0"], "Sequence number": 1, "Fwd thread id": 0}
    made = kineto_files.Recording()
    made.range("ProfilerStep#1", 0, 900)
    for at, name in enumerate(("send", "recv_", "allreduce_", "barrier")):
        made.host(f"c10d::{name}", 100 * at, 10, **said)
        made.host(f"gloo:{name.strip('_')}", 100 * at + 5, 50, 200 + at, "user_annotation", **said)
    made.host("aten::mm", 600, 50)
    # Attention on three packed documents of 4 heads: their lengths are in a file.
    made.host("flash_attn::_flash_attn_varlen_forward", 660, 20, **{
        "Input Dims": [[12, 4, 8]] * 3 + [[4], [4]] + [[]] * 6,
        "Concrete Inputs": [""] * 5 + ["6", "6", "0.", "0.3", "True", "-1"]})
    (folder / "lengths.txt").write_text("1 0 7 5  # step, rank, lengths\n1 1 6 2 4\n")
    made.host("Optimizer.step#AdamW.step", 700, 50, kind="user_annotation")
    kineto_files.write(folder / "rank1_trace.json.gz", kineto_files.document(made.events, rank=1))


def neutral(folder):
    """Rows of a rank, of every kind of column."""
    for ending in (".parquet", ".arrow"):
        write(test_neutral_files.some_trace(), folder / f"rank{ending}")


def nsight(folder):
    """Two processes with kernels, launches, ranges and calls of NCCL, in both formats."""
    nsight_files.write_sqlite(folder / "report.sqlite", nsight_files.tables())
    nsight_files.write_folder(folder / "export", nsight_files.tables(steps=1))


def _four_ranks(folder, options):
    rng = np.random.default_rng(1)
    ranks = [_rank(rank, rng, options) for rank in PLACES]
    t.write_run(folder, ranks, config=EXPERIMENT)


def _rank(rank, rng, options):
    events, steps = [], []
    flags = t.SIMULATED if options else 0
    for step in range(STEPS):
        begin = 1000 * MS + step * STEP
        mine = _step(rank, step, rng)
        events += [(step, category, begin + int(b * MS), begin + int(e * MS),
                    {**more, "flags": more.get("flags", 0) | flags})
                   for category, b, e, more in mine]
        steps.append((step, begin, begin + STEP))
    tasks = [(step, rank, 3.0) for step in range(STEPS)]
    summary = [(step, 0, -1, phase, 0, rank, 1, 2, 3.0, 64, 64, 0.01, 0.001)
               for step in range(STEPS) for phase in (0, 1)]
    places = [(step, place, 10, 3, 20.0) for step in range(STEPS) for place in (0, 64, 128)]
    answers = [(step, step % 2, 0, 0, 100, 30, 90, 0.5) for step in range(STEPS)]
    done = {"tokens": 4096, "model_flops": 1e9, "executed_flops": 1.2e9, "bytes_sent": 3 << 20,
            "bytes_received": 3 << 20, "machine_seconds": 0.04,
            "dense_attention_flops": 2e8}
    return t.Rank(rank, events, steps, place=PLACES[rank], plan=tasks, summary=summary,
                  positions=places, answers=answers, flops=done, **options)


def _step(rank, step, rng):
    """(category, begin, end, fields): compute, messages to the other rank of the stage, the passage
    between stages, a collective of all."""
    slow = 1.5 if rank == 1 else 1.0
    peer, below = rank ^ 1, rank ^ 2
    message = {"flags": t.NON_BLOCKING, "bytes": 1 << 20}
    dense = 20 * slow + rng.random()
    work = {"flops": 1e8, "microbatch": 0, "layer": rank // 2, "tick": 0}
    passes = t.SEND if rank < 2 else t.RECEIVE
    yield from (
        (t.PLANNING, 1, 3, {"lane": t.HOST_LANE}),
        (t.DENSE, 0, dense, {**work, "name": "q_proj", "still_ns": 0}),
        (t.DISPATCH, 10, 31, {**message, "peer": peer, "flow": 10 + rank, "flags":
                              t.NON_BLOCKING | t.SENDS}),
        (t.DISPATCH, 10, 32, {**message, "peer": peer, "flow": 10 + peer}),
        (t.WAIT, dense, 33, {"name": "wait", "still_ns": 0}),
        (t.ATTENTION, 33, 40 + 5 * slow, {**work, "name": "attend", "stage": 0, "still_ns": 0}),
        (t.COLLECTIVE, 42, 49, {**message, "name": "gather_layer_message", "flow": 30 + rank // 2}),
        (t.WAIT, 48, 49, {"name": "wait_layer"}),
        (passes, 50, 55, {"peer": below, "flow": 20 + rank % 2, "bytes": 1 << 20}),
        (t.WAIT, 50, 55, {"name": "wait_for_stage", "microbatch": 0}),
        (t.ATTENTION, 56, 60, {**work, "name": "attend", "stage": 0, "phase": 1}),
        (t.WAIT, 61, 68, {"name": "wait_for_ranks",
                          "still_ns": 6 * MS if rank == 2 and step == 2 else 0}),
        (t.COLLECTIVE, 68, 75, {"name": "reduce_gradients", "flow": 7, "lane": 0,
                                "bytes": 1 << 20}),
        (t.OPTIMIZER, 76, 90, {"phase": 3, "still_ns": 0}),
    )
