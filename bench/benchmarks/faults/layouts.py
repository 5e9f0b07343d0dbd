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
    "data 8 on 2 nodes": {"data": 8},
    "data 8 on 4 nodes": {"data": 8},
    "data 4 x tensor 2 on 2 nodes": {"data": 4, "tensor": 2},
    "data 4 x tensor 2 on 4 nodes": {"data": 4, "tensor": 2},
    "data 2 x pipeline 4 on 4 nodes": {"data": 2, "pipeline": 4},
    "cad 8 on 2 nodes": {"data": 8},
    "cad 8 on 4 nodes": {"data": 8},
    "cad 6 + 2 servers on 4 nodes": {"data": 6},
    "data 4 x pipeline 4 on 4 nodes": {"data": 4, "pipeline": 4},
    "data 4 x tensor 4 on 4 nodes": {"data": 4, "tensor": 4},
    "data 2 x tensor 2 x pipeline 4 on 4 nodes": {"data": 2, "tensor": 2, "pipeline": 4},
    "ring 8 on 2 nodes": {"context": 8},
    "zigzag 8 on 4 nodes": {"context": 8},
    "cad 16 on 4 nodes": {"data": 16},
}
NODES = {layout: int(layout.split()[-2]) for layout in LAYOUTS if layout.endswith("nodes")}
ATTENTION = {
    "ring 4": {"placement": "ring"},
    "zigzag 4": {"placement": "zigzag"},
    "cad 4": {"placement": "cad"},
    "ping-pong 4": {"placement": "cad", "overlap": "ping_pong"},
    "cad 2 + 2 servers": {"placement": "cad", "servers": 2},
    "cad 8 on 2 nodes": {"placement": "cad"},
    "cad 8 on 4 nodes": {"placement": "cad"},
    "cad 6 + 2 servers on 4 nodes": {"placement": "cad", "servers": 2},
    "ring 8 on 2 nodes": {"placement": "ring"},
    "zigzag 8 on 4 nodes": {"placement": "zigzag"},
    "cad 16 on 4 nodes": {"placement": "cad"},
}
STEPS = 4
_AXES = ("pipeline", "data", "context", "tensor")  # of a rank's place; the last is the fastest
_MICROBATCHES = 8  # of a step, over all ranks, or as many as there are ranks
_BETWEEN = 0.5  # bandwidth between nodes, of that inside
_ROUND = {  # a machine of round numbers
    "name": "round",
    "source": "made up",
    "attention": {"flops_per_second": 5e8},
    "products": {"flops_per_second": 1e9},
    "element_wise": {"bytes_per_second": 1e9},
}


def ranks_of(layout: str) -> int:
    return _trainers(layout) + servers_of(layout)


def servers_of(layout: str) -> int:
    return ATTENTION.get(layout, {}).get("servers", 0)


def _trainers(layout: str) -> int:
    return int(np.prod(list(LAYOUTS[layout].values())))


def nodes(layout: str) -> list[set[int]]:
    """The ranks of each; where there is one node, none."""
    if layout not in NODES:
        return []
    ranks, each = ranks_of(layout), ranks_of(layout) // NODES[layout]
    return [set(range(first, first + each)) for first in range(0, ranks, each)]


def groups(layout: str, axis: str) -> list[set[int]]:
    """The ranks of each pipeline stage (axis pipeline), data replica (data), tensor or context
    group (those that differ in this coordinate alone)."""
    sizes = {name: LAYOUTS[layout].get(name, 1) for name in _AXES}
    grid = np.arange(_trainers(layout)).reshape(list(sizes.values()))
    place = _AXES.index(axis)
    if axis in ("pipeline", "data"):
        rows = np.moveaxis(grid, place, 0).reshape(sizes[axis], -1)
    else:
        rows = np.moveaxis(grid, place, -1).reshape(-1, sizes[axis])
    return [{int(rank) for rank in row} for row in rows]


def names_of(ranks: set[int], layout: str) -> set[str]:
    """The kinds of verdicts that say these ranks."""
    every = ranks_of(layout)
    if len(ranks) == every:
        return {"all"}
    if len(ranks) == 1:
        return {"rank"}
    found = {"node"} if ranks in nodes(layout) else set()
    parts = [part for axis in _AXES for part in groups(layout, axis)]
    roles = [set(range(_trainers(layout))), set(range(_trainers(layout), every))]
    if ranks in parts + roles:
        found.add("group")
    return found or {"ranks"}


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
        "batch": {"tokens": _microbatches(layout) * microbatch, "microbatch": microbatch},
        "parallel": dict(LAYOUTS[layout]),
        "attention": {"placement": "colocated", "block": 16, "tolerance": 0.05, "overlap": "none",
                      **ATTENTION.get(layout, {})},
        "run": {"steps": STEPS},
        "cluster": {"machine": machine_file, "jitter": float(random.choice([0.01, 0.02, 0.05])),
                    **_cluster(layout)},
    }


def _microbatches(layout: str) -> int:
    """Each data-parallel rank has as many."""
    data = LAYOUTS[layout].get("data", 1)
    return -(-max(_MICROBATCHES, ranks_of(layout)) // data) * data


def _cluster(layout: str) -> dict:
    if layout not in NODES:
        return {}
    return {"ranks_per_node": ranks_of(layout) // NODES[layout], "bandwidth": _BETWEEN}


def _documents(random: np.random.Generator, microbatch: int) -> list[int]:
    """Lengths whose sum is not a multiple of the microbatch: ranks get others in every step."""
    return [int(n) for n in random.integers(8, microbatch + 1, size=13)]
