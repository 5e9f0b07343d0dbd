# SPDX-License-Identifier: Apache-2.0
"""Which slow links one cause explains: the adapter of a node, or the way between two nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cadenza.causes.patterns import STEADY
from cadenza.causes.repair import LINK, Trouble
from cadenza.links.slow import SlowLink

_MOST = 0.5  # of a node's links, what must be slow for its adapter to be
_ALL = 0.9
_SAME_SHARE = 0.9  # of the highest: shares of adapters that are alike


@dataclass(frozen=True)
class _Node:
    members: set[int]
    links: list[SlowLink]  # the slow ones to other nodes
    all_slow: bool
    share: float  # of the usual rate, mean of the slow ones

    @property
    def explains(self) -> tuple[bool, int]:
        """Who is slow to all is to blame before who is slow to some."""
        return self.all_slow, len(self.links)


def slow_links(
    slow: Sequence[SlowLink], ranks: pd.DataFrame, pairs: pd.DataFrame, steps: tuple[int, ...]
) -> list[Trouble]:
    """One trouble for the links of each adapter (those between two are both's), for those between
    two nodes (either adapter, or what is between, may be to blame), for each other link, and for
    those of which it is not known which they are.

    @param slow   slow.slow_links() of these steps
    @param ranks  Run.ranks()
    @param pairs  slow.links()
    """
    own = ranks_of_hosts(ranks)
    known = pairs.loc[pairs["share"].notna(), ["low", "high"]].to_numpy()
    left, found = list(slow), []
    while left:
        members, mine = _of_nodes(own, known, left)
        if not mine:
            mine = left[:1] if left[0].known else [link for link in left if not link.known]
            members = {rank for link in mine for pair in link.pairs for rank in pair}
        left = [link for link in left if link not in mine]
        if members in own.values():  # with those that another adapter explains, too
            mine = [link for link in slow if _leaves(members, link)]
        found.append(Trouble(LINK, tuple(sorted(members)), steps, STEADY, (), links=tuple(mine)))
        told = {link.pairs[0] for one in found for link in one.links if link.known}
        known = np.array([pair for pair in known if tuple(pair) not in told]).reshape(-1, 2)
    return found


def ranks_of_hosts(ranks: pd.DataFrame) -> dict[str, set[int]]:
    """@param ranks  Run.ranks()"""
    return {str(host): set(mine) for host, mine in ranks.groupby("host", sort=False)["rank"]}


def _of_nodes(
    own: dict[str, set[int]], known: np.ndarray, slow: list[SlowLink]
) -> tuple[set[int], list[SlowLink]]:
    """The node whose adapter explains most of the slow links, and these. Where two nodes explain
    the same, both; where all explain as many, all: the network between them. None: no node explains
    two."""
    nodes = [_node(members, known, slow) for members in own.values()]
    most = max(node.explains for node in nodes)
    if len(own) < 2 or most[1] < 2:
        return set(), []
    tied = sorted((node for node in nodes if node.explains == most), key=lambda node: node.share)
    first = tied[0]
    blamed = [node for node in tied if node.links == first.links]
    all_alike = len(tied) == len(nodes) and first.share > _SAME_SHARE * tied[-1].share
    if len(blamed) < 2 and all_alike:
        blamed = nodes
    members = set().union(*(node.members for node in blamed))
    return members, [link for link in slow if any(_leaves(node.members, link) for node in blamed)]


def _leaves(members: set[int], link: SlowLink) -> bool:
    return any(len(members & set(pair)) == 1 for pair in link.pairs)


def _node(members: set[int], known: np.ndarray, slow: list[SlowLink]) -> _Node:
    """With no links where most of its links are fast."""
    mine = [link for link in slow if link.known and _leaves(members, link)]
    inside = np.isin(known, list(members))
    whole = int((inside[:, 0] != inside[:, 1]).sum())
    if len(mine) < _MOST * whole:
        mine = []
    share = float(np.mean([link.share for link in mine])) if mine else 1.0
    return _Node(members, mine, len(mine) >= max(_ALL * whole, 2), share)
