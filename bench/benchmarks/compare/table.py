# SPDX-License-Identifier: Apache-2.0
"""The performance table: for every target what was measured, and whether it is met."""

import itertools
from dataclasses import dataclass

from benchmarks.compare import cases
from lib import tables
from lib.sampling import geometric_mean, median, quartiles, ratio


class Missing(Exception):
    """A case that a value needs was not measured; says why."""


class Records:
    """The records of one number of threads, of a run of this extent."""

    def __init__(self, records, threads, extent):
        self.extent = extent
        self.records = {record["name"]: record for record in records.values()
                        if record["threads"] == threads}

    def find(self, name, *sides):
        record = self.records.get(name)
        if record is None:
            raise Missing("not run")
        if "error" in record:
            raise Missing(f"not run: {record['error']}")
        if not set(sides) <= record["sides"].keys():
            raise Missing("not run")
        return record["sides"]


def rate_ratio(sides, side, other):
    """How many times the FLOP/s of `other` the side reaches."""
    work = sides[side]["flops"] / sides[other]["flops"]
    return work * ratio(sides[other]["seconds"], sides[side]["seconds"])


def shares(records, direction, head_dim, lengths):
    names = [cases.attention_name(direction, head_dim, tokens, 1) for tokens in lengths]
    return [rate_ratio(records.find(name, "ours", "limit"), "ours", "limit") for name in names]


def share(direction, head_dim):
    return lambda records: min(shares(records, direction, head_dim, records.extent.limit_lengths))


def growth(direction, head_dim):
    """Time per FLOP at the longest over that at the shortest, in units of the limit's."""
    def value(records):
        ends = cases.FULL.limit_lengths[0], cases.FULL.limit_lengths[-1]
        first, last = shares(records, direction, head_dim, ends)
        return first / last
    return value


def against_sdpa(records, directions):
    names = [cases.attention_name(direction, head_dim, tokens, groups)
             for direction in directions for head_dim in cases.HEAD_DIMS
             for tokens in records.extent.peer_lengths for groups in (1, 4)]
    return [rate_ratio(records.find(name, "ours", "torch"), "ours", "torch") for name in names]


def both_passes(records, names, side, other):
    """Time of the named cases (forward and backward) together, of `other` over `side`."""
    total = {side: 0.0, other: 0.0}
    for name in names:
        sides = records.find(name, side, other)
        total[side] += median(sides[side]["seconds"])
        total[other] += median(sides[side]["seconds"]) * rate_ratio(sides, side, other)
    return total[other] / total[side]


def packed(dtype, head_dim):
    names = [cases.packed_name(dtype, direction, head_dim) for direction in cases.PASSES]
    return lambda records: both_passes(records, names, "ours", "torch")


def cut(dtype, task):
    def value(records):
        found = [records.find(cases.cut_name(dtype, direction, head_dim), "whole", f"task {task}")
                 for direction in cases.PASSES for head_dim in cases.HEAD_DIMS]
        return min(rate_ratio(sides, f"task {task}", "whole") for sides in found)
    return value


def bfloat16(other, summary=geometric_mean):
    """Both passes of every shape, one number of them all."""
    def value(records):
        return summary([both_passes(records, [cases.bfloat16_name(direction, head_dim, *shape)
                                              for direction in cases.PASSES], "ours", other)
                        for head_dim in cases.HEAD_DIMS
                        for shape in records.extent.bfloat16_shapes])
    return value


def bfloat16_share(direction, head_dim):
    def value(records):
        found = [records.find(cases.bfloat16_name(direction, head_dim, *shape), "ours", "limit")
                 for shape in records.extent.bfloat16_shapes]
        return min(rate_ratio(sides, "ours", "limit") for sides in found)
    return value


def best_peer(sides):
    return min((kind for kind in ("eager", "compiled") if kind in sides),
               key=lambda kind: median(sides[kind]["seconds"]))


def step(model, dtype):
    def value(records):
        sides = records.find(f"step/{model}/{dtype}", "ours", *records.extent.kinds)
        return ratio(sides[best_peer(sides)]["seconds"], sides["ours"]["seconds"])
    return value


def memory(model, dtype):
    def value(records):
        kinds = records.extent.kinds
        sides = records.find(f"step/{model}/{dtype}", "ours", *kinds)
        peak = {name: sides[name]["report"]["peak_rss_bytes"] for name in ("ours", *kinds)}
        return peak["ours"] / min(peak[kind] for kind in kinds)
    return value


def llm_c(records):
    return rate_ratio(records.find("llm.c", "ours", "llm.c"), "ours", "llm.c")


@dataclass
class Line:
    row: str  # what --rows calls it
    what: str
    target: float
    value: object  # Records -> number
    at_most: bool = False

    def met(self, value):
        return value <= self.target if self.at_most else value >= self.target


def attention_lines():
    for direction, targets in (("forward", {128: 0.85, 64: 0.80}),
                               ("backward", {128: 0.82, 64: 0.77})):
        for head_dim, target in targets.items():
            yield Line(direction, f"{direction} float32 / limit, head_dim {head_dim}, worst of "
                       "S = 4K–64K", target, share(direction, head_dim))
    everything = "head_dim 64, 128 × S 1K–16K × groups 1, 4"
    for direction in cases.PASSES:
        yield Line("sdpa", f"{direction} float32 / PyTorch SDPA, geometric mean over {everything}",
                   1.15, lambda records, only=direction: geometric_mean(
                       against_sdpa(records, [only])))
    yield Line("sdpa", "the same, worst shape of both passes", 1.0,
               lambda records: min(against_sdpa(records, cases.PASSES)))
    for dtype, target in zip(cases.DTYPES, (1.3, 1.5)):
        for head_dim in cases.HEAD_DIMS:
            yield Line("packed", f"packed documents 64–16K, {dtype}, groups 4, both passes / "
                       f"PyTorch SDPA per document, head_dim {head_dim}", target,
                       packed(dtype, head_dim))
    for dtype, targets in zip(cases.DTYPES, ((0.90, 0.95, 0.97), (0.85, 0.90, 0.95))):
        for task, target in zip(cases.CUTS, targets):
            yield Line("cut", f"16K document in tasks of {task} queries / uncut, {dtype}, worst of "
                       "passes and head_dims", target, cut(dtype, task))
    for other, what, target in (("ours float32", "our float32", 1.6),
                                ("torch", "PyTorch SDPA bfloat16", 1.5)):
        yield Line("bfloat16", f"bfloat16 / {what}, both passes, geometric mean", target,
                   bfloat16(other))
        yield Line("bfloat16", "the same, worst shape", 1.0, bfloat16(other, min))
    for direction, head_dim in itertools.product(cases.PASSES, cases.HEAD_DIMS):
        yield Line("bfloat16", f"{direction} bfloat16 / limit, head_dim {head_dim}, worst shape",
                   0.5, bfloat16_share(direction, head_dim))


def step_lines():
    for model in cases.MODELS:
        for dtype in cases.DTYPES:
            yield Line("step", f"training step {model} {dtype}, tokens/s / PyTorch's better of "
                       "eager and compiled", 1.15, step(model, dtype))
    yield Line("llm.c", "training step float32, FLOP/s / llm.c's on the nearest GPT-2", 6.0, llm_c)
    for model in cases.MODELS:
        for dtype in cases.DTYPES:
            yield Line("memory", f"peak memory of step {model} {dtype} / PyTorch's lower of eager "
                       "and compiled", 0.6, memory(model, dtype), at_most=True)
    for direction in cases.PASSES:
        for head_dim in cases.HEAD_DIMS:
            yield Line("growth", f"{direction} time per FLOP, 64K / 4K tokens, head_dim {head_dim}",
                       1.10, growth(direction, head_dim), at_most=True)


LINES = [*attention_lines(), *step_lines()]
ROWS = list(dict.fromkeys(line.row for line in LINES))


def verdict(line, values):
    """met, not met, or why it is not known."""
    if any(isinstance(value, float) and not line.met(value) for value in values):
        return "not met"
    reasons = [str(value) for value in values if isinstance(value, Missing)]
    return reasons[0] if reasons else "met"


def make(records, threads, extent):
    """The table as lines of Markdown. `records`: key -> record of measure()."""
    heads = [f"{count} thread{'s' if count > 1 else ''}" for count in threads]
    lines = tables.head(["what", "target", *heads, ""])
    for line in LINES:
        values = []
        for count in threads:
            try:
                values.append(line.value(Records(records, count, extent)))
            except Missing as missing:
                values.append(missing)
        shown = [f"{value:.3f}" if isinstance(value, float) else "–" for value in values]
        target = f"{'≤' if line.at_most else '≥'} {line.target:.2f}"
        lines.append(tables.row([line.what, target, *shown, verdict(line, values)]))
    return lines


def details(records):
    """Every side of every case: median and quartiles of its seconds, rate, share, memory."""
    lines = tables.head(["case", "threads", "side", "median s (quartiles)", "GFLOP/s", "of limit",
                         "peak MiB"])
    for record in records.values():
        for name, side in record.get("sides", {}).items():
            middle = median(side["seconds"])
            low, high = quartiles(side["seconds"])
            of_limit = "–"
            if "limit" in record["sides"]:
                of_limit = f"{rate_ratio(record['sides'], name, 'limit'):.2f}"
            peak = side["report"].get("peak_rss_bytes", 0) / 2**20
            lines.append(tables.row([
                record["name"], record["threads"], name, f"{middle:.4g} ({low:.4g}–{high:.4g})",
                f"{side['flops'] / middle * 1e-9:.1f}", of_limit, f"{peak:.0f}"]))
    return lines
