# SPDX-License-Identifier: Apache-2.0
"""Slow ranks that are planted in simulated runs are named, with their rate and what they cost: the
simulation without them says what that is."""

import numpy as np
import pytest

import harness
from test_causes import FAST, graph_of, seconds_of, simulate

from cadenza.stragglers import persistent, stragglers, wait_causes
from cadenza.what_if import what_if

EVEN = {"model": {"layers": 4, "kv_heads": 4}}
LAYOUTS = {
    "data 2": {"parallel": {"data": 2}},
    "data 4": {"parallel": {"data": 4}},
    "tensor 2": {"parallel": {"tensor": 2}},
    "tensor 4": {"parallel": {"tensor": 4}},
    "pipeline 2": {"parallel": {"pipeline": 2}},
    "pipeline 4": {"parallel": {"pipeline": 4}},
    "2 x pipeline 2": {"parallel": {"data": 2, "pipeline": 2}},
    "data 2 x tensor 2": {"parallel": {"data": 2, "tensor": 2}},
    "ring 4": {"parallel": {"context": 4}, "attention": {"placement": "ring"}},
    "cad 4": {"parallel": {"data": 4}, "attention": {"placement": "cad"}},
    "servers": {"parallel": {"data": 2}, "attention": {"placement": "cad", "servers": 2}},
}


def costs(run):
    """What each rank that is slower than usual costs, most first; of the run's second step."""
    graph = graph_of(run)
    frame = what_if(graph)
    frame = frame[frame["rank"] >= 0].sort_values("saved_seconds", ascending=False)
    return frame.set_index("rank"), graph.seconds


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_slow_rank_is_named_with_its_cost(layout, seed, tmp_path):
    changes = harness.merged(EVEN, LAYOUTS[layout]) | {"seed": seed + 1}
    ranks = harness.ranks_of(harness.merged(harness.DEFAULTS, changes))
    random = np.random.default_rng([seed, ranks])
    victim, share = int(random.integers(ranks)), float(random.choice([0.5, 0.7, 0.85]))
    slow = harness.merged(changes, {"cluster": {"slow_ranks": [[victim, share]]}})
    late = simulate(tmp_path / "late", slow, FAST, 3)
    even = simulate(tmp_path / "even", changes, FAST, 3)
    frame, measured = costs(late)
    assert frame.index[0] == victim, frame
    assert f"rank {victim} computes at {share:.2f} x" in frame.loc[victim, "explanation"]
    assert frame.loc[victim, "seconds"] == pytest.approx(seconds_of(even), abs=0.03 * measured)
    found = stragglers(late.events(), late.ranks(), wait_causes(graph_of(late)))
    classes = persistent(found, late.ranks()).set_index("rank")["persistence"]
    # A rank that is later by its data may stand before it; none is called slow but the victim.
    assert not set(classes[classes.index != victim]) & {"persistent", "intermittent"}, classes
