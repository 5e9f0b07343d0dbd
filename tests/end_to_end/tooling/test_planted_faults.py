# SPDX-License-Identifier: Apache-2.0
"""Faults that are planted in simulated runs are named, with phase, cause, time and what they cost;
the simulation without them says what that is. `bench/faults` does the same on many seeds."""

import dataclasses
import sys

import numpy as np
import pytest

import harness

pytest.importorskip(
    "cadenza", reason="the package analysis/ is not installed here", exc_type=ImportError
)
sys.path.insert(0, str(harness.ROOT / "bench"))
from benchmarks.faults.__main__ import Runs  # noqa: E402
from benchmarks.faults.layouts import LAYOUTS, groups, names_of, nodes  # noqa: E402
from benchmarks.faults.plant import FIRST, KINDS, Fault, fits  # noqa: E402
from benchmarks.faults.score import (  # noqa: E402
    score, seconds_of, trends_of, verdicts_of,
)

SEED = 4000  # of runs that no tuning has seen
CASES = [("slow", layout) for layout in ("data 4", "tensor 2", "pipeline 4", "cad 2 + 2 servers")]
CASES += [(kind, "ping-pong 4") for kind in ("phase", "intermittent", "pause", "clean", "link")]
CASES += [("data", "data 2 x tensor 2 x pipeline 2"), ("clean", "data 8 on 4 nodes")]
CASES += [(kind, next(layout for layout in reversed(LAYOUTS) if fits(kind, layout)))
          for kind in KINDS if kind not in FIRST]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("planted"), harness.PROGRAM)


@pytest.mark.parametrize(("kind", "layout"), CASES)
def test_a_planted_fault_is_named(kind, layout, runs):
    right, fault, said, lost = runs.judge(kind, layout, SEED)
    assert all(right.values()), (right, fault, lost, said)


WITHOUT, STEPS = np.ones(8), range(8)
NODE = "data 4 x tensor 2 on 4 nodes"  # each node is a replica


def verdict(members, kind, saves=0.2, **other):
    return {"kind": kind, "members": sorted(members), "hosts": [], "phase": "", "cause": "slow",
            "since_step": 0, "steps": list(STEPS), "trend": "steady", "saves": saves, **other}


def scored(fault, *verdicts, lost=0.2, steps=STEPS, layout=NODE):
    """With a loss over the run that comes from these steps alone."""
    seconds = WITHOUT.copy()
    seconds[list(steps)] += lost / (1 - lost) * len(WITHOUT) / len(steps)
    return score([fault], layout, verdicts, seconds, WITHOUT, [WITHOUT], [seconds])


def scored_together(faults, *verdicts, layout=NODE):
    """Of faults of which each makes its steps longer by a quarter."""
    longer = [np.isin(STEPS, fault.steps) / 4 for fault in faults]
    seconds = WITHOUT + sum(longer)
    return score(faults, layout, verdicts, seconds, WITHOUT, [seconds - one for one in longer],
                 [WITHOUT + one for one in longer])


def test_the_right_verdict_is_scored_right_and_no_other():
    fault = Fault("phase", {2, 3}, phase="backward")
    right = {"who": True, "cause": True, "phase": True, "gain": True}
    for kind in ("node", "group"):
        assert scored(fault, verdict({2, 3}, kind, phase="backward")) == right
    wrong = [("who", verdict({2, 3}, "ranks", phase="backward")),
             ("who", verdict({2}, "rank", phase="backward")),
             ("who", verdict({2, 3, 4}, "ranks", phase="backward")),
             ("phase", verdict({2, 3}, "node", phase="forward")),
             ("cause", verdict({2, 3}, "node", phase="backward", cause="paused")),
             ("gain", verdict({2, 3}, "node", 0.24, phase="backward"))]
    for check, one in wrong:
        assert scored(fault, one) == right | {check: False}, (check, one)
    assert not any(scored(fault).values())
    two = scored(fault, verdict({2, 3}, "node", 0.19, phase="backward"), verdict({0}, "rank", 0.01))
    assert two == right | {"who": False}


def test_of_a_run_without_a_fault_nothing_is_to_be_said():
    assert score([], NODE, [], WITHOUT, WITHOUT, [], []) == {"who": True}
    assert score([], NODE, [verdict({0}, "rank")], WITHOUT, WITHOUT, [], []) == {"who": False}
    hidden = Fault("slow", {1})
    assert scored(hidden, lost=0.005) == {"who": True}
    assert scored(hidden, verdict({1}, "rank", 0.005), lost=0.005) == {"who": True}
    assert scored(hidden, verdict({0}, "rank", 0.005), lost=0.005) == {"who": False}


def test_unequal_documents_may_be_told_of():
    fault, work = Fault("slow", {1}, work=True), verdict({0}, "rank", 0.3, cause="work")
    right = {"who": True, "cause": True, "gain": True}
    assert scored(fault, verdict({1}, "rank", 0.21), {**work, "saves": 0.1}) == right
    del right["gain"]  # which is of a run whose work is equal
    assert scored(fault, work, verdict({1}, "rank", 0.05)) == right
    fault.work = False
    assert scored(fault, work, verdict({1}, "rank", 0.05))["who"] is False


def test_the_steps_of_a_fault_are_to_be_said():
    fault = Fault("step change", {1}, steps=[4, 5, 6, 7], timed=True)
    dated = {"steps": [5, 6, 7], "since_step": 5}
    late = scored(fault, verdict({1}, "rank", **dated), steps=[5, 6, 7])  # in 4 it is not felt
    assert late == {"who": True, "cause": True, "time": True, "gain": True}
    for other in ({"trend": "intermittent"}, {"since_step": 6}, {"steps": [5, 7]},
                  {"steps": [3, 5, 6, 7], "since_step": 3}):
        one = verdict({1}, "rank", **{**dated, **other})
        assert scored(fault, one, steps=[5, 6, 7])["time"] is False, other
    turns = Fault("in turn", {0, 3}, steps=[0, 1, 2, 3], timed=True, trend="in turn",
                  turns={0: 0, 1: 3, 2: 0, 3: 3})
    said = verdict({0, 3}, "ranks", trend="in turn", steps=[0, 1, 2, 3])
    assert all(scored(turns, said, steps=[0, 1, 2, 3]).values())
    assert scored(turns, {**said, "members": [3], "kind": "rank"}, steps=[1, 3])["who"]
    assert not scored(turns, {**said, "members": [3], "kind": "rank"}, steps=[0, 1])["who"]


def test_steps_have_the_names_of_their_trend():
    named = {(0, 1, 2, 3): "steady", (2, 3): "steady", (1,): "once", (0, 1): "intermittent",
             (0, 2): "intermittent", (0, 1, 3): "intermittent"}
    assert all(trends_of(steps, 4) == {name} for steps, name in named.items())
    assert trends_of([3], 4) == {"once", "steady"}
    assert trends_of([1, 4, 7], 9) == {"periodic"}


def test_of_several_faults_each_is_to_be_named():
    early, late = list(STEPS)[:4], list(STEPS)[4:]
    faults = [Fault("mixed", {1}, phase="forward", steps=early, timed=True, share=0.6),
              Fault("mixed", {4}, ("no core",), steps=late, timed=True, share=0.7)]
    slow = verdict({1}, "rank", 0.1, phase="forward", steps=early, trend="intermittent")
    cores = verdict({4}, "rank", 0.1, cause="no core", steps=late, since_step=4)
    right = dict.fromkeys(("who", "cause", "phase", "time", "gain"), True)
    assert scored_together(faults, slow, cores) == right
    wrong = [({"who", "gain", "cause", "time"}, [slow]),
             ({"who", "gain"}, [slow, cores, {**cores, "members": [5]}]),
             ({"who"}, [slow, {**cores, "saves": 0.05}, {**cores, "saves": 0.05}]),
             ({"who"}, [slow, {**cores, "members": [4, 5], "kind": "group"}]),
             ({"gain"}, [slow, {**cores, "saves": 0.06}]),
             ({"cause"}, [slow, {**cores, "cause": "slow"}]),
             ({"phase"}, [{**slow, "phase": ""}, cores]),
             ({"time"}, [{**slow, "steps": list(STEPS)}, cores]),
             ({"who", "cause", "phase", "time"},
              [{**cores, "members": [1, 4], "kind": "ranks", "saves": 0.2}])]
    for checks, said in wrong:
        assert scored_together(faults, *said) == right | dict.fromkeys(checks, False), said


def test_of_several_faults_those_that_cost_nothing_alone_need_not_be_named():
    faults = [Fault("mixed", {1}, share=0.5),
              Fault("mixed", {4}, ("paused",), steps=list(STEPS), timed=True)]
    seconds = WITHOUT * 1.25
    said = [verdict({1}, "rank"), verdict({4}, "rank", 0, cause="paused")]
    for verdicts in (said[:1], said):
        assert all(score(faults, NODE, verdicts, seconds, WITHOUT, [WITHOUT, seconds],
                         [seconds, WITHOUT]).values())
    hiding = [seconds, seconds]  # of two ranks that are late alike, repairing one saves nothing
    right = {"who": True, "cause": True, "time": True, "gain": True}
    assert score(faults, NODE, said, seconds, WITHOUT, hiding, hiding) == right
    assert not score(faults, NODE, said[:1], seconds, WITHOUT, hiding, hiding)["who"]
    assert not any(score(faults, NODE, [], seconds, WITHOUT, hiding, hiding).values())


def test_faults_that_are_alike_may_be_one_verdict():
    steps = list(STEPS)
    faults = [Fault("mixed", {rank}, steps=steps, timed=True, share=share)
              for rank, share in ((1, 0.6), (4, 0.7))]
    both = verdict({1, 4}, "ranks", 1 / 3)
    each = [verdict({1}, "rank"), verdict({4}, "rank", 2 / 15)]
    assert all(scored_together(faults, both).values())
    assert all(scored_together(faults, *each).values())
    assert not scored_together(faults, both, each[0])["who"]
    for other in ({"share": 0.85}, {"steps": steps[1:]}, {"phase": "forward"},
                  {"causes": ("no core",)}):
        unlike = [faults[0], dataclasses.replace(faults[1], **other)]
        assert not scored_together(unlike, both)["who"], other


def test_links_and_adapters_are_scored_by_their_ends():
    said = verdict({2, 3}, "adapter", cause="link")
    fault = Fault("adapter", {2, 3}, ("link",), link="adapter")
    assert all(scored(fault, said).values())
    assert scored(fault, {**said, "kind": "link"})["who"] is False
    other = dataclasses.replace(fault, ranks={0, 1})
    assert scored(other, said)["who"] is False
    other.alike = [{0, 1, 2, 3}]
    assert scored(other, said)["who"] is False
    assert scored(other, verdict({0, 1, 2, 3}, "link", cause="link"))["who"] is True
    other.alike, other.vague = [], True
    group = {**said, "kind": "group", "members": [0, 2, 4, 6]}
    assert scored(other, group)["who"] is True
    faults = [dataclasses.replace(fault, ranks=ranks, steps=list(STEPS))
              for ranks in ({0, 1}, {2, 3})]
    first = {**said, "members": [0, 1]}
    assert scored_together(faults, said, first)["who"] and not scored_together(faults, said)["who"]
    assert not scored_together(faults, group)["who"]
    for one in faults:
        one.vague = True
    assert scored_together(faults, group)["who"]


def test_ranks_have_the_names_of_their_layout():
    layout = "data 2 x tensor 2 x pipeline 4 on 4 nodes"
    assert nodes(layout)[1] == {4, 5, 6, 7} == groups(layout, "pipeline")[1]
    assert names_of({4, 5, 6, 7}, layout) == {"node", "group"}
    assert groups(layout, "data")[1] == {2, 3, 6, 7, 10, 11, 14, 15}
    assert groups(layout, "tensor")[1] == {2, 3}
    assert names_of({2, 3}, layout) == {"group"}
    assert names_of({1, 2}, layout) == {"ranks"}
    assert names_of(set(range(16)), layout) == {"all"}
    assert names_of({6, 7}, "cad 6 + 2 servers on 4 nodes") == {"node", "group"}


def test_messages_that_come_earlier_meet_others_at_the_ports(runs):
    """Of this adapter 20.8 % were told where 15.8 % are true: messages kept their turns."""
    _, _, said, lost = runs.judge("adapter", "cad 6 + 2 servers on 4 nodes", 30001)
    assert [one["saves"] for one in said] == [pytest.approx(lost[0], abs=0.005)]


@pytest.mark.parametrize("placement", ["ring", "zigzag"])
def test_what_a_slow_rank_of_a_ring_costs_is_told(placement, tmp_path):
    """27.7 % were told where 35.8 % are true: results were taken for inputs that had come late, and
    messages kept the turns at ports that they had as one rank was slow."""
    words = [
        "model={layers: 2, d_model: 2048, heads: 16, kv_heads: 8, ffn: 5632, vocab: 32000}",
        "data={source: synthetic, max_document: 32768, documents: 500, "
        "lengths: {distribution: lognormal, median: 4096, sigma: 1.3}}",
        "batch={tokens: 65536, microbatch: 32768}", "parallel={data: 2, context: 8}",
        f"attention={{placement: {placement}}}", "run={steps: 2, dtype: bfloat16}"]
    cluster = f"machine: {harness.ROOT}/inputs/machines/h100.yaml, ranks_per_node: 4, jitter: 0.02"
    seconds = {}
    for name, fault in (("slow", "[{rank: 12, speed: 0.5}]"), ("clean", "[]")):
        made = [*words, f"cluster={{{cluster}, faults: {fault}}}"]
        harness.run_well(1, ["simulate", harness.ROOT / "inputs/quickstart.yaml",
                             *(part for one in made for part in ("--set", one)),
                             "--trace", "full", "--output", tmp_path / name])
        seconds[name] = seconds_of(tmp_path / name).sum()
    (said,) = verdicts_of(tmp_path / "slow")
    assert said["members"] == [12]
    assert said["saves"] == pytest.approx(1 - seconds["clean"] / seconds["slow"], abs=0.01)
