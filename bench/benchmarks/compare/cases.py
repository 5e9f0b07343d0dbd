# SPDX-License-Identifier: Apache-2.0
"""What is measured: cases, each some programs on one shape with one number of threads."""

import itertools
import random
from dataclasses import dataclass, field

HEAD_DIMS = (64, 128)
OURS = ("bench_attention", "bench_step")
PASSES = ("forward", "backward")
CUTS = (128, 256, 512)
DTYPES = ("float32", "bfloat16")
MODELS = {
    "A": {"layers": 4, "d_model": 512, "heads": 8, "kv_heads": 4, "ffn": 1408, "vocab": 8192,
          "documents": [4096, 2048, 1024, 512, 512]},
    "B": {"layers": 2, "d_model": 512, "heads": 8, "kv_heads": 2, "ffn": 1408, "vocab": 8192,
          "documents": [16384]},
}
# A GPT-2 shape and the Llama-style one whose matrices are nearest to it.
GPT2 = {"layers": 4, "channels": 512, "heads": 8, "tokens": 1024, "batch": 4, "vocab": 8192}
LIKE_GPT2 = {"layers": 4, "d_model": 512, "heads": 8, "kv_heads": 8, "ffn": 1408, "vocab": 8192,
             "documents": [1024] * 4}


@dataclass(frozen=True)
class Extent:
    """How far a run goes."""

    limit_lengths: tuple = (4096, 8192, 16384, 32768, 65536)  # tokens
    peer_lengths: tuple = (1024, 2048, 4096, 8192, 16384)  # tokens
    bfloat16_shapes: tuple = ((4096, 1), (4096, 4), (8192, 4))  # tokens, groups
    longest_packed: int = 16384  # tokens
    cut_width: int = 256  # heads × head_dim
    models: tuple = ("A", "B")
    kinds: tuple = ("eager", "compiled")  # of PyTorch's step
    most_seconds: float = 60.0  # that a case repeats


FULL = Extent()
QUICK = Extent(limit_lengths=(4096,), peer_lengths=(1024, 4096), longest_packed=4096,
               bfloat16_shapes=((4096, 1), (4096, 4)), cut_width=128, models=("A",),
               kinds=("eager",), most_seconds=3.0)


@dataclass
class Side:
    program: str
    work: dict
    own_process: bool = False  # its memory is measured, or it runs only once


@dataclass
class Case:
    name: str
    threads: int
    sides: dict  # name -> Side
    rivals: tuple = ()
    cold: tuple = ()  # sides that are not warmed up
    budget: float = 5.0  # s
    most: int = 15  # rounds
    shape: dict = field(default_factory=dict)  # said with the result

    @property
    def key(self):
        return f"{self.name}/t{self.threads}"


def limit(dtype):
    return Side("bench_attention", {"kind": "limit", "dtype": dtype})


def heads_of(head_dim, tokens):
    """A width of 512; one head where a repetition would take minutes."""
    return 512 // head_dim if tokens <= 16384 else 1


def cold_when_long(sides, tokens):
    """A repetition of seconds needs no warm-up: memory was touched when it was prepared."""
    return tuple(sides) if tokens >= 16384 else ()


def attention(direction, head_dim, documents, groups, dtype="float32", task=0, heads=None):
    heads = heads or heads_of(head_dim, max(documents))
    return {"heads": heads, "kv_heads": heads // groups, "head_dim": head_dim, "pass": direction,
            "documents": list(documents), "dtype": dtype, "task": task}


def mix(longest):
    """Heavy-tailed lengths from 64 tokens on: half as many documents for every doubling."""
    lengths, length = [longest], 64
    while length < longest:
        lengths += [length] * max(1, longest // 2 // length)
        length *= 2
    random.Random(1).shuffle(lengths)
    return lengths


def packed_name(dtype, direction, head_dim):
    return f"packed/{dtype}/{direction}/d{head_dim}"


def cut_name(dtype, direction, head_dim):
    return f"cut/{dtype}/{direction}/d{head_dim}"


def bfloat16_name(direction, head_dim, tokens, groups):
    return f"bfloat16/{direction}/d{head_dim}/s{tokens}/g{groups}"


def attention_name(direction, head_dim, tokens, groups):
    return f"attention/{direction}/d{head_dim}/s{tokens}/g{groups}"


def plain(rows, threads, extent):
    """Rows forward, backward, growth (against the limit) and sdpa (against PyTorch) share these."""
    wanted = {}  # (pass, head_dim, tokens, groups) -> sides beside ours
    for direction in PASSES:
        for head_dim in HEAD_DIMS:
            if rows & {direction, "growth"}:
                for tokens in extent.limit_lengths:
                    wanted.setdefault((direction, head_dim, tokens, 1), set()).add("limit")
            if "sdpa" in rows:
                for tokens in extent.peer_lengths:
                    for groups in (1, 4):
                        wanted.setdefault((direction, head_dim, tokens, groups), set()).add("torch")
    for (direction, head_dim, tokens, groups), beside in wanted.items():
        work = attention(direction, head_dim, [tokens], groups)
        sides = {"ours": Side("bench_attention", work)}
        if "limit" in beside:
            sides["limit"] = limit("float32")
        if "torch" in beside:
            sides["torch"] = Side("torch_attention", work)
        yield Case(attention_name(direction, head_dim, tokens, groups), threads, sides,
                   cold=cold_when_long(sides, tokens), shape=work)


def packed(threads, extent):
    documents = mix(extent.longest_packed)
    for dtype, direction, head_dim in itertools.product(DTYPES, PASSES, HEAD_DIMS):
        work = attention(direction, head_dim, documents, 4, dtype)
        sides = {"ours": Side("bench_attention", work), "torch": Side("torch_attention", work)}
        yield Case(packed_name(dtype, direction, head_dim), threads, sides,
                   cold=cold_when_long(sides, max(documents)), shape=work)


def cut(threads, extent):
    for dtype, direction, head_dim in itertools.product(DTYPES, PASSES, HEAD_DIMS):
        heads = extent.cut_width // head_dim
        work = attention(direction, head_dim, [16384], 1, dtype, heads=heads)
        sides = {"whole": Side("bench_attention", work)}
        for task in CUTS:
            sides[f"task {task}"] = Side("bench_attention", {**work, "task": task})
        yield Case(cut_name(dtype, direction, head_dim), threads, sides,
                   cold=cold_when_long(sides, 16384), shape=work)


def bfloat16(threads, extent):
    for (tokens, groups), direction, head_dim in itertools.product(
            extent.bfloat16_shapes, PASSES, HEAD_DIMS):
        work = attention(direction, head_dim, [tokens], groups, "bfloat16")
        single = {**work, "dtype": "float32"}
        sides = {"ours": Side("bench_attention", work),
                 "ours float32": Side("bench_attention", single),
                 "torch": Side("torch_attention", work),
                 "limit": limit("bfloat16")}
        yield Case(bfloat16_name(direction, head_dim, tokens, groups), threads, sides, shape=work)


def step(threads, extent):
    for model in extent.models:
        for dtype in DTYPES:
            work = {**MODELS[model], "dtype": dtype}
            sides = {"ours": Side("bench_step", work, own_process=True)}
            for kind in extent.kinds:
                sides[kind] = Side("torch_step", {**work, "compiled": kind == "compiled"},
                                   own_process=True)
            sides["limit"] = limit(dtype)
            yield Case(f"step/{model}/{dtype}", threads, sides, rivals=extent.kinds,
                       cold=extent.kinds[:-1], most=3, budget=60.0, shape=work)


def llm_c(threads, _extent):
    work = {**LIKE_GPT2, "dtype": "float32"}
    sides = {"ours": Side("bench_step", work, own_process=True),
             "llm.c": Side("llm_c", GPT2, own_process=True),
             "limit": limit("float32")}
    yield Case("llm.c", threads, sides, most=3, cold=("ours", "llm.c"), shape=work)


FAMILIES = [(packed, {"packed"}), (cut, {"cut"}), (bfloat16, {"bfloat16"}),
            (step, {"step", "memory"}), (llm_c, {"llm.c"})]


def use_kernel(case, kernel):
    """Our attention in a case is computed by this kernel."""
    for side in case.sides.values():
        if side.program in OURS and side.work.get("kind") != "limit":
            side.work = {**side.work, "kernel": kernel}


def cases(rows, threads, extent, kernel="auto"):
    """Every case that the rows (a set of names) need, for each number of threads."""
    for count in threads:
        found = list(plain(rows, count, extent))
        for family, serves in FAMILIES:
            if rows & serves:
                found += family(count, extent)
        for case in found:
            use_kernel(case, kernel)
            case.budget = min(case.budget, extent.most_seconds)
            yield case
