# SPDX-License-Identifier: Apache-2.0
"""What is compared: placements and layouts of two ranks, on mixes of document lengths."""

import random

RANKS = 2
MICROBATCH = 16384  # tokens
MODEL = {"layers": 2, "d_model": 256, "heads": 4, "kv_heads": 2, "ffn": 704, "vocab": 259}


def long_tail():
    """Lengths of two microbatches, each a draw from a Pareto distribution and what is left."""
    draw = random.Random(3)
    lengths = []
    for _ in range(RANKS):
        room = MICROBATCH
        while room > 0:
            length = min(room, int(256 * draw.paretovariate(0.9)))
            lengths.append(length)
            room -= length
    return lengths


# Documents of a step; the first MICROBATCH tokens are one rank's, the others the other one's.
MIXES = {
    "16K / 16 × 1K": [16384] + [1024] * 16,
    "16K / 4 × 4K": [16384] + [4096] * 4,
    "12K, 4 × 1K / 16 × 1K": [12288] + [1024] * 20,
    "2 × 8K / 16 × 1K": [8192] * 2 + [1024] * 16,
    "long tail": long_tail(),
    "32 × 1K": [1024] * 32,
}

TOLERANCE = 0.02  # of CAD: messages inside one machine are cheap
DATA = {"parallel.data": 2}
CONTEXT = {"parallel.context": 2}
SERVED = {"parallel.data": 1}


def placed(placement, layout, **keys):
    return {**layout, "attention.placement": placement,
            **{f"attention.{key}": value for key, value in keys.items()}}


PLACEMENTS = {
    "colocated": placed("colocated", DATA),
    "colocated, balanced packing": {**placed("colocated", DATA), "batch.packing": "balanced"},
    "colocated, pooled packing": {**placed("colocated", DATA), "batch.packing": "pooled"},
    "colocated, tensor 2": placed("colocated", {"parallel.tensor": 2}),
    "colocated, pipeline 2": placed("colocated", {"parallel.pipeline": 2}),
    "all-gather, contiguous": placed("all_gather", CONTEXT, sharding="contiguous"),
    "all-gather, zigzag": placed("all_gather", CONTEXT),
    "all-gather, zigzag by sequence": placed("all_gather", CONTEXT, shard_unit="sequence"),
    "all-gather, predicted": placed("all_gather", CONTEXT, shard_unit="predicted"),
    "ring": placed("ring", CONTEXT),
    "zigzag ring": placed("zigzag", CONTEXT),
    "striped": placed("striped", CONTEXT),
    "block-striped": placed("block_striped", CONTEXT),
    "Ulysses": placed("ulysses", CONTEXT),
    "Ulysses × ring": placed("ulysses_ring", CONTEXT, head_parallel=2),
    "double ring": placed("double_ring", CONTEXT, inner_ring=2),
    "CAD": placed("cad", DATA, tolerance=TOLERANCE, overlap="none"),
    "CAD, ping-pong": placed("cad", DATA, tolerance=TOLERANCE, overlap="ping_pong"),
    "CAD, context 2": placed("cad", CONTEXT, tolerance=TOLERANCE, overlap="none"),
    "CAD, pipeline 2": placed("cad", {"parallel.pipeline": 2}, tolerance=TOLERANCE,
                              overlap="none"),
    # One of the two ranks trains, with two microbatches; the other one is an attention server.
    "CAD, dedicated": placed("cad", SERVED, servers=1, overlap="none"),
    "CAD, dedicated, ping-pong": placed("cad", SERVED, servers=1, overlap="ping_pong"),
    "CAD, mixed": placed("cad", SERVED, servers=1, mixed="true", tolerance=TOLERANCE,
                         overlap="none"),
    "CAD, mixed, ping-pong": placed("cad", SERVED, servers=1, mixed="true", tolerance=TOLERANCE,
                                    overlap="ping_pong"),
}
CAD = "CAD"  # the row that targets speak of
REFERENCE = "colocated"
BASELINES = [name for name in PLACEMENTS if not name.startswith("CAD")]


def flow(value):
    """A list or a word as YAML on the command line takes it."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def settings(mix, placement, steps):
    """The keys of the experiment, KEY=VALUE each."""
    lengths = MIXES[mix]
    tokens = MICROBATCH
    keys = {**{f"model.{key}": value for key, value in MODEL.items()},
            "data.source": "synthetic", "data.documents": len(lengths),
            "data.max_document": tokens, "data.lengths.distribution": "list",
            "data.lengths.values": lengths, "batch.tokens": RANKS * tokens,
            "batch.microbatch": tokens, "run.steps": steps, "run.dtype": "float32",
            **PLACEMENTS[placement]}
    return [f"{key}={flow(value)}" for key, value in keys.items()]
