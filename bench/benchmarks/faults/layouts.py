# SPDX-License-Identifier: Apache-2.0
"""Experiments of random sizes, by layout and seed."""

import numpy as np

LAYOUTS = {
    "data 2": {"data": 2},
    "data 4": {"data": 4},
    "tensor 2": {"tensor": 2},
    "tensor 4": {"tensor": 4},
    "pipeline 2": {"pipeline": 2},
    "pipeline 4": {"pipeline": 4},
    "data 2 x pipeline 2": {"data": 2, "pipeline": 2},
    "data 4 x pipeline 2": {"data": 4, "pipeline": 2},
    "data 2 x tensor 2 x pipeline 2": {"data": 2, "tensor": 2, "pipeline": 2},
    "ring 4": {"context": 4},
    "zigzag 4": {"context": 4},
    "cad 4": {"data": 4},
    "ping-pong 4": {"data": 4},
    "cad 2 + 2 servers": {"data": 2},
}
ATTENTION = {
    "ring 4": {"placement": "ring"},
    "zigzag 4": {"placement": "zigzag"},
    "cad 4": {"placement": "cad"},
    "ping-pong 4": {"placement": "cad", "overlap": "ping_pong"},
    "cad 2 + 2 servers": {"placement": "cad", "servers": 2},
}
STEPS = 4
_MICROBATCHES = 8  # of a step, over all ranks
_ROUND = {  # a machine of round numbers
    "name": "round",
    "source": "made up",
    "attention": {"flops_per_second": 5e8},
    "products": {"flops_per_second": 1e9},
    "element_wise": {"bytes_per_second": 1e9},
}


def ranks_of(layout: str) -> int:
    servers = ATTENTION.get(layout, {}).get("servers", 0)
    return int(np.prod(list(LAYOUTS[layout].values()))) + servers


def machine(latency: float, rate: float) -> dict:
    link = {"latency_seconds": latency, "bytes_per_second": rate}
    return {**_ROUND, "links": {"inside": link, "between": link}}


def experiment(layout: str, seed: int, machine_file: str) -> dict:
    """Without a fault: sizes, documents and jitter are given by the seed."""
    random = np.random.default_rng([seed, len(layout), *map(ord, layout)])
    heads = int(random.choice([4, 8]))
    microbatch = int(random.choice([96, 128]))
    return {
        "name": "planted",
        "seed": seed + 1,
        "model": {
            "layers": 4,
            "d_model": 8 * heads,
            "heads": heads,
            "kv_heads": 4,
            "ffn": int(random.choice([48, 64, 96])),
            "vocab": 256,
        },
        "data": {"source": "synthetic",
                 "lengths": {"distribution": "list", "values": _documents(random, microbatch)}},
        "batch": {"tokens": _MICROBATCHES * microbatch, "microbatch": microbatch},
        "parallel": dict(LAYOUTS[layout]),
        "attention": {"placement": "colocated", "block": 16, "tolerance": 0.05, "overlap": "none",
                      **ATTENTION.get(layout, {})},
        "run": {"steps": STEPS},
        "cluster": {"machine": machine_file, "jitter": float(random.choice([0.01, 0.02, 0.05]))},
    }


def _documents(random: np.random.Generator, microbatch: int) -> list[int]:
    """Lengths whose sum is not a multiple of the microbatch: ranks get others in every step."""
    return [int(n) for n in random.integers(8, microbatch + 1, size=13)]
