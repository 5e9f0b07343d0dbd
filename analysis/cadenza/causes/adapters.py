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
_SAME_SHARE = 0.9  # of the highest: shares of adapters that are alike


@dataclass(frozen=True)
class _Node:
    members: set[int]
    links: list[SlowLink]  # the slow ones to other nodes
    share: float  # of the usual rate, mean of these


def slow_links(
    slow: Sequence[SlowLink], ranks: pd.DataFrame, pairs: pd.DataFrame, steps: tuple[int, ...]
) -> list[Trouble]:
    """One trouble for the links of each adapter, for those between two nodes (either adapter, or
    what is between, may be to blame), for each other link, and for those of which it is not known
    which they are.

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
        found.append(Trouble(LINK, tuple(sorted(members)), steps, STEADY, (), links=tuple(mine)))
        left = [link for link in left if link not in mine]
        told = {link.pairs[0] for link in mine if link.known}
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
    most = max(len(node.links) for node in nodes)
    if len(own) < 2 or most < 2:
        return set(), []
    tied = sorted((node for node in nodes if len(node.links) == most), key=lambda node: node.share)
    first = tied[0]
    blamed = [node for node in tied if node.links == first.links]
    all_alike = len(tied) == len(nodes) and first.share > _SAME_SHARE * tied[-1].share
    if len(blamed) < 2 and all_alike:
        blamed = nodes
    members = set().union(*(node.members for node in blamed))
    return members, [link for link in slow if any(
        len(node.members & set(pair)) == 1 for node in blamed for pair in link.pairs)]


def _node(members: set[int], known: np.ndarray, slow: list[SlowLink]) -> _Node:
    """With no links where most of its links are fast."""
    mine = [link for link in slow if link.known and len(members & set(link.pairs[0])) == 1]
    inside = np.isin(known, list(members))
    whole = int((inside[:, 0] != inside[:, 1]).sum())
    if len(mine) < _MOST * whole:
        mine = []
    return _Node(members, mine, float(np.mean([link.share for link in mine])) if mine else 1.0)
