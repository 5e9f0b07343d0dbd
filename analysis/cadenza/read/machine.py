# SPDX-License-Identifier: Apache-2.0
"""What the links of the machine that a run was simulated on give, were none of them slow: the
rules of the simulator (docs/simulation.md, "The machine file")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cadenza.read.experiment import is_number

_SLOWEST = 1e-3  # bytes per second of a link


@dataclass(frozen=True)
class Link:
    """Rates are bytes per second of a rank (inside a node) or of an adapter (between nodes)."""

    latency_seconds: float = 2e-6
    bytes_per_second: float = 5e9
    gather_bytes_per_second: float = 0.0  # of rings that gather; 0: as bytes_per_second
    reduce_bytes_per_second: float = 0.0  # of rings that sum

    def ring_rate(self, kind: str) -> float:
        own = self.gather_bytes_per_second if kind == "gather" else self.reduce_bytes_per_second
        return own or self.bytes_per_second


@dataclass(frozen=True)
class Machine:
    """Of `sums`: which collective the sums of gradients are."""

    inside: Link = field(default_factory=Link)
    between: Link = field(default_factory=Link)
    adapters: int = 0  # of a node; 0: one for each rank
    ranks_per_node: int = 0  # 0: all ranks are on one
    sums: str = "all_reduce"
    memory: int = 0  # bytes of a rank; 0: not known
    hides: bool = False  # products hide a part of the collectives of tensor groups

    def node_of(self, rank: np.ndarray | int) -> np.ndarray:
        rank = np.asarray(rank)
        return rank // self.ranks_per_node if self.ranks_per_node else np.zeros_like(rank)

    def adapter_of(self, rank: np.ndarray) -> np.ndarray:
        """The port of messages between nodes."""
        rank = np.asarray(rank)
        if self.adapters == 0:
            return rank
        if self.ranks_per_node == 0:
            return rank % self.adapters
        own = rank % self.ranks_per_node * self.adapters // self.ranks_per_node
        return self.node_of(rank) * self.adapters + own

    def way(self, sender: np.ndarray, receiver: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Latency in seconds and bytes per second between ranks."""
        far = self.node_of(sender) != self.node_of(receiver)
        latency = np.where(far, self.between.latency_seconds, self.inside.latency_seconds)
        rate = np.where(far, self.between.bytes_per_second, self.inside.bytes_per_second)
        return latency, rate

    def collective_seconds(self, name: str, size: float, group: Sequence[int]) -> float:
        """Of a collective as events name it, of `size` bytes."""
        what = self.sums if "gradients" in name else name.removeprefix("tensor_")
        if what == "all_gather":
            return self._round("gather", size, group)
        reduced = self._round("reduce", size, group)
        if what == "reduce_scatter":
            return reduced
        latency, rate = self._ring("reduce", group)
        hops = 2.0 * (len(group) - 1).bit_length()  # up and down a tree
        around = reduced + self._round("gather", size, group)
        return min(around, hops * (latency + size / rate))

    def _round(self, kind: str, size: float, group: Sequence[int]) -> float:
        """Once round the ring: each rank has sent all but one part."""
        latency, rate = self._ring(kind, group)
        return (len(group) - 1) * (latency + size / len(group) / rate)

    def _ring(self, kind: str, group: Sequence[int]) -> tuple[float, float]:
        """What each rank of a ring has to the next one, at the narrowest place."""
        inside, between = self.inside.ring_rate(kind), self.between.ring_rate(kind)
        nodes = self.node_of(np.array(list(group)))
        if nodes[0] == nodes[-1]:
            return self.inside.latency_seconds, inside
        fewest = int(np.unique(nodes, return_counts=True)[1].min())
        adapters = self.adapters * fewest / self.ranks_per_node if self.adapters else fewest
        rate = adapters * between
        return self.between.latency_seconds, min(rate, inside) if fewest > 1 else rate


def machine_of(description: dict, config: dict) -> Machine | None:
    """The machine of a simulated run, with what the experiment says of its cluster; of slow links
    and ranks nothing is taken: they are what is to be found.

    @param description  /meta/machine_yaml as a map; empty: not simulated
    @param config       Run.config
    @throws ValueError for what no machine file has
    """
    links = _map(description, "links")
    if not links:
        return None
    cluster, parallel = config.get("cluster", {}), config.get("parallel", {})
    bandwidth = cluster.get("bandwidth", 1.0)
    made = {where: _link(links, where) for where in ("inside", "between")}
    for key in made["between"]:
        made["between"][key] *= bandwidth if key.endswith("bytes_per_second") else 1.0
    sharded = parallel.get("shard", "none") != "none"
    return Machine(
        Link(**made["inside"]),
        Link(**made["between"]),
        _count(links, "adapters"),
        int(cluster.get("ranks_per_node", 0)) or _count(description, "ranks_per_node"),
        "reduce_scatter" if sharded else "all_reduce",
        int(config.get("run", {}).get("memory", 0)) or _count(description, "memory"),
        _number({"compute_share": 1.0, **links}, "compute_share", 0.0) < 1,
    )


def _link(links: dict, where: str) -> dict[str, float]:
    """Arguments of Link."""
    found = _map(links, where)
    rates = ("gather_bytes_per_second", "reduce_bytes_per_second")
    least = {"latency_seconds": 0.0, "bytes_per_second": _SLOWEST, **dict.fromkeys(rates, 0.0)}
    return {key: _number(found, key, least[key]) for key in least if key in found}


def _map(block: dict, key: str) -> dict:
    found = block.get(key)
    if not isinstance(found, dict | None):
        raise ValueError(f"{key}: found {found!r}; valid: a map of keys")
    return found or {}


def _number(block: dict, key: str, least: float) -> float:
    if not is_number(block[key], least):
        raise ValueError(f"{key}: found {block[key]!r}; valid: a number of at least {least:g}")
    return float(block[key])


def _count(block: dict, key: str) -> int:
    return int(_number({key: 0, **block}, key, 0))
