# SPDX-License-Identifier: Apache-2.0
"""Slow links that are planted in simulated runs are named, alone or as one of a group's, with what
they cost: the simulation without them says what that is. So is a slow rank that nothing in the run
can be compared with."""

import numpy as np
import pandas as pd
import pytest

import harness
from test_causes import FAST, cadenza, graph_of, seconds_of, simulate

from cadenza.links.times import group_times, pair_times
from cadenza.links.slow import slow_links
from cadenza.report.headlines import headlines  # noqa: E402

NETWORK = (2e-6, 5e7)  # on which messages matter
EVEN = {"model": {"layers": 4, "kv_heads": 4}}
CAD = {"placement": "cad"}
LAYOUTS = {  # changes, slow links among which one is drawn
    "data 2": ({"parallel": {"data": 2}}, ["0-1"]),
    "data 4": ({"parallel": {"data": 4}}, ["0-1", "1-2", "2-3", "0-3"]),
    "tensor 4": ({"parallel": {"tensor": 4}}, ["0-1", "1-2", "2-3", "0-3"]),
    "data 2 x tensor 2": ({"parallel": {"data": 2, "tensor": 2}}, ["2-3", "0-1", "0-2", "1-3"]),
    "pipeline 4": ({"parallel": {"pipeline": 4}}, ["0-1", "1-2", "2-3"]),
    "2 x pipeline 2": ({"parallel": {"data": 2, "pipeline": 2}}, ["0-1", "2-3"]),
    "ring 4": ({"parallel": {"context": 4}, "attention": {"placement": "ring"}},
               ["0-1", "1-2", "2-3", "0-3"]),
    "cad 4": ({"parallel": {"data": 4}, "attention": CAD}, ["0-1", "1-2", "0-2"]),
    "servers": ({"parallel": {"data": 2}, "attention": {**CAD, "servers": 2}},
                ["0-2", "0-3", "1-2", "1-3"]),
    "ping-pong": ({"parallel": {"data": 4}, "attention": {**CAD, "overlap": "ping_pong"}},
                  ["0-1", "1-2", "0-2"]),
}
GROUPS = ("data 4", "tensor 4")  # of four, and no messages between them


def simulated_pair(folder, changes, fault, steps=2):
    """The run with the fault and without it."""
    runs = {"late": harness.merged(changes, {"cluster": fault}), "even": changes}
    return [simulate(folder / name, one, NETWORK, steps) for name, one in runs.items()]


def link_of(random, links):
    low, high = random.choice(links).split("-")
    return int(low), int(high)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_slow_link_is_named_with_its_cost(layout, tmp_path):
    changes, links = LAYOUTS[layout]
    seed = list(LAYOUTS).index(layout)
    random = np.random.default_rng(seed)
    link, share = link_of(random, links), float(random.choice([0.1, 0.25, 0.5]))
    changes = harness.merged(EVEN, changes) | {"seed": seed + 1}
    late, even = simulated_pair(tmp_path, changes, {"slow_links": [[*link, share]]})
    study = cadenza.Study(late)
    (found,) = study.slow_links
    assert link in found.pairs and found.known == (layout not in GROUPS), found
    assert found.share == pytest.approx(share, rel=0.05)
    frame = study.what_if(1).set_index("scenario")
    replayed = frame.loc["slow links at the usual rate", "seconds"]
    # In a plain ring the keys of later ranks wait for those of earlier ones, in another order then.
    within = 0.04 if layout.startswith("ring") else 0.03
    assert replayed == pytest.approx(seconds_of(even), abs=within * seconds_of(late))
    assert set(study.verdicts["cause"]) <= {"link", "work"}, study.verdicts  # no rank is blamed
    assert cadenza.Study(even).slow_links == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_clean_steps_with_jitter_raise_no_alarm(layout, tmp_path):
    changes = harness.merged(EVEN, LAYOUTS[layout][0]) | {"seed": 11}
    changes = harness.merged(changes, {"cluster": {"jitter": 0.05}})
    run = simulate(tmp_path / "run", changes, NETWORK, 10)
    graphs = [graph_of(run, step) for step in range(10)]
    pairs, groups = (pd.concat([times(graph, run.machine) for graph in graphs])
                     for times in (pair_times, group_times))
    assert slow_links(pairs, groups, True, 1.0) == []
    assert len(pairs) + len(groups) >= 10  # there was something to judge


def test_links_between_nodes_are_compared_with_links_between_nodes(tmp_path):
    changes = harness.merged(EVEN, LAYOUTS["cad 4"][0])
    changes = harness.merged(changes, {"cluster": {"ranks_per_node": 2, "bandwidth": 0.2}})
    late, even = simulated_pair(tmp_path, changes, {"slow_links": [[1, 2, 0.5]]})
    assert cadenza.Study(even).slow_links == []
    (found,) = cadenza.Study(late).slow_links
    assert found.pairs == ((1, 2),) and found.usual == pytest.approx(1e7, rel=0.1)


def test_the_headline_names_a_link_that_costs_most(tmp_path):
    changes = harness.merged(EVEN, LAYOUTS["ring 4"][0])
    late, _ = simulated_pair(tmp_path, changes, {"slow_links": [[1, 2, 0.1]]})
    (line,) = headlines([cadenza.Study(late)], ["ring"], [])
    assert line.kind == "late" and line.text.startswith("Repairing link 1-2 saves ")
    assert "of a step: it reaches 10% of the usual rate, in all steps." in line.text


LONE = {
    "one rank": ({"parallel": {"data": 1}}, 0),
    "one server": ({"parallel": {"data": 2}, "attention": {**CAD, "servers": 1}}, 2),
}


@pytest.mark.parametrize("layout", LONE)
def test_a_slow_rank_without_peers_is_named_with_its_cost(layout, tmp_path):
    changes, victim = LONE[layout]
    changes = harness.merged(EVEN, changes)
    slow = harness.merged(changes, {"cluster": {"slow_ranks": [[victim, 0.7]]}})
    late, even = (simulate(tmp_path / name, one, FAST, 3)
                  for name, one in (("late", slow), ("even", changes)))
    study = cadenza.Study(late)
    frame = study.what_if(1).set_index("rank")
    text = f"rank {victim} computes at 0.70 x its machine's rate"
    assert frame.loc[victim, "explanation"] == text
    assert frame.loc[victim, "seconds"] == pytest.approx(seconds_of(even), rel=0.01)
    (said,) = study.verdicts.to_dict("records")
    assert (said["members"], said["cause"]) == ([victim], "slow")
    assert cadenza.Study(even).verdicts.empty
    (line,) = headlines([study], ["run"], [])
    assert f"Repairing rank {victim} " in line.text


def test_of_a_real_run_of_one_rank_constant_slowness_is_not_told(corpus, tmp_path):
    changes = {"data": harness.tokens_data(corpus), "batch": {"tokens": 4 * 128},
               "trace": {"events": True}, "run": {"steps": 12}}
    study = cadenza.Study(cadenza.open(harness.train(tmp_path, changes).folder))
    (line,) = headlines([study], ["run"], [])
    assert "the trace cannot show whether it is always slow" in line.text
    assert study.slow_links == []
