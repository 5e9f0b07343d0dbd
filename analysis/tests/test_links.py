# SPDX-License-Identifier: Apache-2.0
"""Slow links from measured times alone, turns at ports, a machine's collectives."""

import numpy as np
import pandas as pd
import pytest

from cadenza.links.slow import slow_links
from cadenza.links.times import usual_of_groups
from cadenza.read.machine import Machine, machine_of
from cadenza.links.wires import Ports

RATE, STEPS, RANKS = 1e9, 10, 4
NO_GROUPS = pd.DataFrame(
    columns=["step", "tensor", "members", "bytes", "collectives", "seconds", "usual_seconds"]
)


def measured(random, slow=(), by=1.0):
    """pair_times() of a real run: transfers between all ranks that differ by a fifth from step to
    step; those of the links in `slow` take `by` x as long."""
    rows = []
    for step in range(STEPS):
        for sender in range(RANKS):
            for receiver in set(range(RANKS)) - {sender}:
                usual = 1e-3
                taken = usual * np.exp(0.2 * random.standard_normal())
                taken *= by if (min(sender, receiver), max(sender, receiver)) in slow else 1.0
                rows.append((step, sender, receiver, 1e6, 10, 1e6, taken, usual, True))
    return pd.DataFrame(rows, columns=["step", "sender", "receiver", "bytes", "messages",
                                       "timed_bytes", "seconds", "usual_seconds",
                                       "one_node"])


def named(pairs, exact=False):
    return [one.pairs for one in slow_links(pairs, NO_GROUPS, exact, 0.1 * STEPS)]


@pytest.mark.parametrize("seed", range(20))
def test_a_slow_link_among_noisy_ones_is_named(seed):
    random = np.random.default_rng(seed)
    pairs = measured(random, {(1, 3)}, 3.0)
    (found,) = slow_links(pairs, NO_GROUPS, False, 0.1 * STEPS)
    assert found.pairs == ((1, 3),) and found.share == pytest.approx(1 / 3, rel=0.3)
    assert "link 1-3 reaches 3" in found.explanation
    assert "MB/s; usual rate 1 GB/s" in found.explanation


def test_noise_is_not_named():
    random = np.random.default_rng(1)
    assert [named(measured(random)) for _ in range(100)] == [[]] * 100


def test_a_rank_without_its_processor_makes_no_link_slow():
    """All of its links are as slow: no link of its ranks stands out."""
    random = np.random.default_rng(2)
    of_rank = {(0, 2), (1, 2), (2, 3)}
    assert [named(measured(random, of_rank, 3.0)) for _ in range(20)] == [[]] * 20


def test_what_costs_little_or_has_nothing_to_compare_with_is_not_named():
    random = np.random.default_rng(3)
    pairs = measured(random, {(1, 3)}, 3.0)
    assert slow_links(pairs, NO_GROUPS, False, 100.0 * STEPS) == []
    assert named(pairs.assign(usual_seconds=np.nan)) == []


def of_group(members, seconds):
    return [(step, False, members, 1e6, 1, seconds, 1e-3) for step in range(STEPS)]


def test_a_group_is_put_down_to_the_link_that_its_messages_leave():
    """Of a ring of four, three links are known to be fine."""
    random = np.random.default_rng(4)
    pairs = measured(random).assign(seconds=1e-3)
    pairs = pairs[~(pairs["sender"].isin([0, 3]) & pairs["receiver"].isin([0, 3]))]
    late = pd.DataFrame(of_group((0, 1, 2, 3), 4e-3), columns=NO_GROUPS.columns)
    (found,) = slow_links(pairs, late, True, STEPS)
    assert found.pairs == ((0, 3),) and found.share == pytest.approx(0.25)
    (found,) = slow_links(pairs[:0], late, True, STEPS)
    assert len(found.pairs) == 4 and found.name == "one of the links 0-1, 0-3, 1-2, 2-3"
    known = measured(random, {(1, 2)}, 4.0)
    (found,) = slow_links(known, late, False, 0.1 * STEPS)
    assert found.pairs == ((1, 2),) and found.groups == ((False, (0, 1, 2, 3)),)


@pytest.mark.parametrize("seed", range(5))
def test_turns_at_ports_are_taken_off_and_put_on_again(seed):
    random = np.random.default_rng(seed)
    count = 200
    sender = random.integers(0, 4, count)
    frame = pd.DataFrame({"sender": sender,
                          "receiver": (sender + random.integers(1, 4, count)) % 4,
                          "ready_ns": np.sort(random.integers(0, 50_000, count))})
    ports = Ports(frame, Machine(ranks_per_node=2))
    alone = random.integers(1, 2_000, count).astype(float)
    there = ports.there(alone)
    assert (there - frame["ready_ns"] > alone + 1_000).any()  # some waited for their turn
    np.testing.assert_allclose(ports.alone(there), alone, atol=1e-6)


def test_a_machines_collectives_are_those_of_its_rings():
    """2 nodes of 4 ranks with 2 adapters; by hand from docs/simulation.md."""
    links = {"inside": {"latency_seconds": 1e-6, "bytes_per_second": 4e9},
             "between": {"latency_seconds": 1e-5, "bytes_per_second": 1e9},
             "adapters": 2}
    config = {"cluster": {"bandwidth": 0.5, "slow_links": [[0, 1, 0.1]]}}
    machine = machine_of({"links": links, "ranks_per_node": 4}, config)
    inside = 3 * (1e-6 + 1e6 / 4 / 4e9)
    assert machine.collective_seconds("tensor_all_gather", 1e6, (0, 1, 2, 3)) == inside
    between = 7 * (1e-5 + 1e6 / 8 / 1e9)  # 2 adapters of half the rate
    found = machine.collective_seconds("tensor_reduce_scatter", 1e6, tuple(range(8)))
    assert found == pytest.approx(between)
    sums = machine.collective_seconds("reduce_gradients_message", 1e6, (0, 1, 2, 3))
    assert sums == pytest.approx(min(2 * inside, 4 * (1e-6 + 1e6 / 4e9)))
    assert machine_of({}, config) is None


def test_what_products_hide_of_collectives_is_compared_with_other_groups():
    """The machine would take three seconds, of which products hide two; one group is slower."""
    links = {"inside": {"latency_seconds": 0.0, "bytes_per_second": 1e6}}
    frame = pd.DataFrame({"name": "tensor_all_gather", "bytes": 6e6, "tensor": True,
                          "members": [(0, 1), (2, 3), (4, 5)], "seconds": [1.0, 1.0, 2.0]})
    exact = machine_of({"links": links}, {})
    assert usual_of_groups(frame, exact).tolist() == [3.0, 3.0, 3.0]
    hides = machine_of({"links": links | {"compute_share": 0.5}}, {})
    assert usual_of_groups(frame, hides).tolist() == [1.0, 1.0, 1.0]
    others = usual_of_groups(frame.assign(tensor=False), hides)
    assert others.tolist() == [3.0, 3.0, 3.0]


def test_messages_take_turns_at_ports():
    """Ready at once: two leave rank 0, then one arrives at rank 1, where the first did; another is
    alone."""
    frame = pd.DataFrame({"ready_ns": 0, "sender": [0, 0, 3, 4], "receiver": [1, 2, 1, 5]})
    ports = Ports(frame, None)
    assert ports.there(np.array([10.0, 5.0, 7.0, 2.0])).tolist() == [10, 15, 17, 2]
    assert ports.alone(np.array([10.0, 15.0, 17.0, 2.0])).tolist() == [10, 5, 7, 2]
