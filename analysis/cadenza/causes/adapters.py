# SPDX-License-Identifier: Apache-2.0
"""Which slow links one cause explains: the adapter of a node, or the way between two nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cadenza.causes.patterns import STEADY
from cadenza.causes.repair import LINK, Trouble
from cadenza.links.slow import SlowLink, least_share

_MOST = 0.75  # of a node's ways out, or in, what must be slow for its adapter to be
_ALL = 0.9
_LIMIT = 0.75  # of the share that an adapter gives its ways
_SAME_SHARE = 0.9  # of the highest: shares of adapters that are alike
_ENDS = {"source": "sends", "target": "receives"}


@dataclass(frozen=True)
class _Port:
    """Where messages leave a node, or where they come in."""

    node: str
    end: str  # "sends" or "receives"
    ways: frozenset[int]  # rows: the slow ones
    all_slow: bool
    share: float  # of the usual rate, the highest of the slow ones

    @property
    def explains(self) -> tuple[bool, int]:
        """Who is slow to all is to blame before who is slow to some."""
        return self.all_slow, len(self.ways)


def slow_links(
    slow: Sequence[SlowLink], ranks: pd.DataFrame, pairs: pd.DataFrame, exact: bool,
    steps: tuple[int, ...],
) -> list[Trouble]:
    """One trouble for the links of each adapter (those between two are both's), for those between
    two nodes (either adapter, or what is between, may be to blame) or between all, for each other
    link, and for those of which it is not known which they are.

    @param slow   slow.slow_links() of these steps
    @param ranks  Run.ranks()
    @param pairs  times.pair_times()
    @param exact  whether usual is what the machine gives
    """
    own = ranks_of_hosts(ranks)
    left, found = list(slow), []

    def told(links: list[SlowLink], members: set[int], ports: Sequence[_Port] = ()) -> None:
        found.append(Trouble(LINK, tuple(sorted(members)), steps, STEADY, (), links=tuple(links),
                             ends=tuple(sorted({port.end for port in ports}, reverse=True)),
                             share=min((port.share for port in ports), default=1.0)))
        left[:] = [link for link in left if link not in links]

    for nodes, ports in _blamed(_ways(slow, own, pairs, exact), list(own)).items():
        members = set().union(*(own[node] for node in nodes))
        if len(nodes) == 1:
            told([link for link in slow if _leaves(members, link)], members, ports)
        else:
            told([link for link in left if _joins(own, nodes, link)], members)
    while left:
        mine = left[:1] if left[0].known else [link for link in left if not link.known]
        told(mine, {rank for link in mine for pair in link.pairs for rank in pair})
    return found


def ranks_of_hosts(ranks: pd.DataFrame) -> dict[str, set[int]]:
    """@param ranks  Run.ranks()"""
    return {str(host): set(mine) for host, mine in ranks.groupby("host", sort=False)["rank"]}


def _leaves(members: set[int], link: SlowLink) -> bool:
    return any(len(members & set(pair)) == 1 for pair in link.pairs)


def _joins(own: dict[str, set[int]], nodes: Sequence[str], link: SlowLink) -> bool:
    """Whether it is between two of the nodes."""
    return any(sum(bool(own[node] & set(pair)) for node in nodes) == 2 for pair in link.pairs)


def _ways(
    slow: Sequence[SlowLink], own: dict[str, set[int]], pairs: pd.DataFrame, exact: bool
) -> pd.DataFrame:
    """source, target (nodes), share and whether it is slow, of each way of messages from a rank to
    one of another node. An adapter may be slow in one direction alone."""
    known = pairs[pairs["usual_seconds"].notna() & (pairs["seconds"] > 0)]
    sums = known.groupby(["sender", "receiver"])[["usual_seconds", "seconds"]].sum().reset_index()
    node = {rank: name for name, members in own.items() for rank in members}
    ways = pd.DataFrame({"source": sums["sender"].map(node), "target": sums["receiver"].map(node),
                         "share": sums["usual_seconds"] / sums["seconds"]})
    named = {link.pairs[0] for link in slow if link.known}
    ends = zip(sums[["sender", "receiver"]].min(axis=1), sums[["sender", "receiver"]].max(axis=1),
               strict=True)
    told = np.array([pair in named for pair in ends], bool)
    ways["slow"] = told & (ways["share"] < least_share(exact)).to_numpy()
    return ways[ways["source"] != ways["target"]]


def _blamed(ways: pd.DataFrame, nodes: list[str]) -> dict[tuple[str, ...], list[_Port]]:
    """The nodes whose adapters explain the slow ways, and by which ports, those that explain most
    first. Where two explain the same, both; where all explain as many, all: the network between
    them."""
    found: dict[tuple[str, ...], list[_Port]] = {}
    while len(ports := _ports(ways)):
        most = max(port.explains for port in ports)
        tied = sorted((port for port in ports if port.explains == most), key=lambda one: one.share)
        first, every = tied[0], {port.node for port in tied}
        names = sorted(port.node for port in tied if port.ways == first.ways)
        ways = ways.drop(list(first.ways))
        alike = first.share > _SAME_SHARE * tied[-1].share
        if len(names) < 2 and len(every) == len(nodes) and alike:
            return {tuple(nodes): []}
        found.setdefault(tuple(names), []).append(first)
    alone = {names: ports for names, ports in found.items() if len(names) == 1}
    certain = {name for names in alone for name in names}
    return alone | {names: ports for names, ports in found.items() if not certain & set(names)}


def _ports(ways: pd.DataFrame) -> list[_Port]:
    """Those of which most ways are slow, and two or more."""
    found = []
    for end in _ENDS:
        for node, mine in ways.groupby(end):
            slow = mine[mine["slow"]]
            # The slowest part limits a way: one that is slower than most has another cause.
            slow = slow[slow["share"] >= _LIMIT * slow["share"].quantile(_MOST)]
            if len(slow) >= max(_MOST * len(mine), 2):
                all_slow = len(slow) >= _ALL * len(mine)
                found.append(_Port(str(node), _ENDS[end], frozenset(slow.index), all_slow,
                                   float(slow["share"].max())))
    return found
