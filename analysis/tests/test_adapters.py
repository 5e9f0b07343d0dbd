# SPDX-License-Identifier: Apache-2.0
"""Which slow links are put down to a node's adapter, and which to none."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from step_frames import ranks_frame

from cadenza.causes.adapters import slow_links
from cadenza.causes.sentences import kind_and_name
from cadenza.links.slow import SlowLink


def run_of(nodes, shares, each=2, between=lambda one, other: True):
    """Its ranks, what they sent each other, and slow links.

    @param shares   of the bandwidth of nodes' adapters: of both directions, or out and in
    @param between  whether two nodes send each other messages
    """
    ranks = ranks_frame(nodes * each, host=[f"n{r // each}" for r in range(nodes * each)])
    out, into = ({node: of if isinstance(of, float) else of[way] for node, of in shares.items()}
                 for way in (0, 1))
    ways = [(one, other, min(out.get(one // each, 1.0), into.get(other // each, 1.0)))
            for one, other in permutations(range(len(ranks)), 2)
            if one // each != other // each and between(one // each, other // each)]
    pairs = pd.DataFrame(ways, columns=["sender", "receiver", "share"])
    pairs = pairs.assign(usual_seconds=1.0, seconds=1 / pairs["share"])
    share = {way[:2]: way[2] for way in ways}
    both = {(one, other): 2 / (1 / share[one, other] + 1 / share[other, one])
            for one, other in share if one < other}
    slow = [SlowLink(f"link {pair}", (pair,), (), of, np.nan, np.nan, 1.0, "")
            for pair, of in both.items() if of < 0.9]
    return ranks, pairs, slow


def named(*run, **options):
    """Kind, name and members of what is found in run_of()."""
    ranks, pairs, slow = run_of(*run, **options)
    found = slow_links(slow, ranks, pairs, True, (0, 1))
    assert {link for one in found for link in one.links} == set(slow)
    return [(*kind_and_name(one, ranks), set(one.members)) for one in found]


def test_an_adapter_is_said_with_its_direction_and_rate():
    ranks, pairs, slow = run_of(4, {2: (0.15, 1.0), 0: (0.3, 0.2)})
    found = slow_links(slow, ranks, pairs, True, (0,))
    said = {one.members: (one.ends, one.share) for one in found}
    assert said == {(4, 5): (("sends",), pytest.approx(0.15)),
                    (0, 1): (("sends", "receives"), pytest.approx(0.2))}


def in_a_row(one, other):
    return abs(one - other) == 1


@pytest.mark.parametrize("each", [2, 4])
@pytest.mark.parametrize("shares", [
    {2: 0.2}, {2: (0.2, 1.0)}, {2: (1.0, 0.2)}, {0: (0.1, 1.0), 3: (1.0, 0.3)},
    {1: 0.2, 3: 0.3}, {1: 0.2, 3: 0.2},
    {0: 0.1, 1: 0.5}])
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
    def to_the_last(one, other):
        return 3 in (one, other)

    found = named(4, {0: 0.1, 2: 0.1}, between=to_the_last)
    assert [members for *_, members in found] == [{0, 1}, {4, 5}]
    assert [members for *_, members in named(4, {3: 0.1}, between=to_the_last)] == [{6, 7}]


def test_directions_tell_who_is_slow_in_a_row_of_nodes():
    assert [members for *_, members in named(4, {0: (0.1, 1.0), 1: (0.1, 1.0)},
                                             between=in_a_row)] == [{2, 3}, {0, 1}]
    first, second = named(4, {2: (1.0, 0.1), 0: (1.0, 0.3)}, between=in_a_row)
    assert first[2] == {4, 5}
    assert second[1:] == ("the links between n0 and n1 (ranks 0–3)", {0, 1, 2, 3})


def test_of_two_nodes_nobody_can_tell():
    assert named(2, {1: 0.2}) == [("link", "the links between n0 and n1 (ranks 0–3)", {0, 1, 2, 3})]


def test_where_all_links_between_nodes_are_as_slow_no_node_is_blamed():
    shares = dict.fromkeys(range(4), 0.25)
    assert named(4, shares) == [("link", "the links between 4 nodes (ranks 0–7)", set(range(8)))]


def test_a_node_of_one_rank_has_an_adapter_too():
    assert named(4, {2: 0.2}, each=1) == [("adapter", "the adapter of n2 (ranks 2)", {2})]
