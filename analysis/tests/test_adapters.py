# SPDX-License-Identifier: Apache-2.0
"""Which slow links are put down to a node's adapter, and which to none."""

import numpy as np
import pandas as pd
import pytest
from step_frames import ranks_frame

from cadenza.causes.adapters import slow_links
from cadenza.causes.sentences import kind_and_name
from cadenza.links.slow import SlowLink


def named(nodes, shares, each=2, only=None):
    """Kind, name and members of what is found where adapters of nodes have these shares.

    @param only  the node to or from which all messages go
    """
    ranks = ranks_frame(nodes * each, host=[f"n{r // each}" for r in range(nodes * each)])
    ends = [(low, high, {low // each, high // each})
            for low in range(len(ranks)) for high in range(low + 1, len(ranks))]
    pairs = pd.DataFrame([(low, high, min(shares.get(node, 1.0) for node in own))
                          for low, high, own in ends
                          if len(own) == 2 and (only is None or only in own)],
                         columns=["low", "high", "share"])
    slow = [SlowLink(f"link {row.low}-{row.high}", ((row.low, row.high),), (), row.share, np.nan,
                     np.nan, 1.0, "") for row in pairs.itertuples() if row.share < 0.9]
    found = slow_links(slow, ranks, pairs, (0, 1))
    assert {link for one in found for link in one.links} == set(slow)
    both = [link for link in slow if {rank // each for rank in link.pairs[0]} <= set(shares)]
    adapters = [one for one in found if len({r // each for r in one.members}) == 1]
    assert len(adapters) < len(shares) or all(
        sum(link in one.links for one in adapters) == 2 for link in both)
    return [(*kind_and_name(one, ranks), set(one.members)) for one in found]


@pytest.mark.parametrize("each", [2, 4])
@pytest.mark.parametrize("shares", [{2: 0.2}, {1: 0.2, 3: 0.3}, {1: 0.2, 3: 0.2}, {0: 0.1, 1: 0.5}])
def test_each_slow_adapter_is_named_once(shares, each):
    found = named(4, shares, each)
    assert {(kind, name.split()[3], *members) for kind, name, members in found} == {
        ("adapter", f"n{node}", *range(node * each, node * each + each)) for node in shares}


def test_of_three_nodes_with_two_slow_adapters_the_other_may_be_either():
    first, second = named(3, {0: 0.2, 1: 0.3})
    assert first == ("adapter", "the adapter of n0 (ranks 0, 1)", {0, 1})
    assert second == ("link", "the links between n1 and n2 (ranks 2–5)", {2, 3, 4, 5})


def test_a_node_that_is_slow_to_some_is_not_blamed_for_those_that_are_slow_to_all():
    """Two of three trainers' nodes, which have links to the servers' node alone."""
    found = named(4, {0: 0.1, 2: 0.1}, only=3)
    assert [members for *_, members in found] == [{0, 1}, {4, 5}]
    assert [members for *_, members in named(4, {3: 0.1}, only=3)] == [{6, 7}]


def test_of_two_nodes_nobody_can_tell():
    assert named(2, {1: 0.2}) == [("link", "the links between n0 and n1 (ranks 0–3)", {0, 1, 2, 3})]


def test_where_all_links_between_nodes_are_as_slow_no_node_is_blamed():
    shares = dict.fromkeys(range(4), 0.25)
    assert named(4, shares) == [("link", "the links between 4 nodes (ranks 0–7)", set(range(8)))]


def test_a_node_of_one_rank_has_an_adapter_too():
    assert named(4, {2: 0.2}, each=1) == [("adapter", "the adapter of n2 (ranks 2)", {2})]
