# SPDX-License-Identifier: Apache-2.0
"""Who is named together, since when, and what their repair saves, from frames made by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from step_frames import Cluster, events_frame, graph_of, ranks_frame, steps_frame

from cadenza.causes.patterns import patterns
from cadenza.causes.repair import (
    LATE_START, NO_CORE, SLOW, Trouble, first_and_last, gains, in_order, replayed,
)
from cadenza.causes.slowness import cells, lowest_mode
from cadenza.causes.troubles import Facts, find
from cadenza.causes.verdicts import verdicts
from cadenza.graph.graph import build
from cadenza.graph.loads import PHASES_OF_WORK
from cadenza.graph.pauses import stood_between_steps
from cadenza.time.between import outside_steps

NOISE = 0.005


def noisy(level, seed=1):
    random = np.random.default_rng(seed)
    return np.asarray(level, float) + NOISE * random.standard_normal(len(level))


@pytest.mark.parametrize("level, trend, active", [
    ([0.3] * 8, "steady", range(8)),
    ([0, 0, 0, 0.3, 0.3, 0.3, 0.3, 0.3], "steady", range(3, 8)),
    ([0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35], "rising", range(1, 8)),
    ([0, 0, 0, 0, 0.4, 0, 0, 0], "once", [4]),
    ([0, 0.3, 0, 0.3, 0, 0.3, 0, 0.3], "periodic", [1, 3, 5, 7]),
    ([0.3, 0, 0, 0.3, 0, 0, 0.3, 0], "periodic", [0, 3, 6]),
    ([0, 0.3, 0.3, 0, 0, 0.3, 0, 0], "intermittent", [1, 2, 5]),
    ([0.3, 0.3, 0.3, 0, 0, 0, 0, 0], "intermittent", [0, 1, 2]),
    ([0.3], "steady", [0]),
])
def test_in_which_steps(level, trend, active):
    (found,) = patterns(noisy(level), NOISE)
    assert (found.trend, list(np.flatnonzero(found.active))) == (trend, list(active))
    assert found.level[found.active] == pytest.approx(np.asarray(level)[found.active], abs=0.05)


def test_one_step_beside_a_lasting_level_is_found_as_well():
    found = patterns(noisy([0.2, 0.2, 0.2, 0.9, 0.2, 0.2, 0.2, 0.2]), NOISE)
    assert [one.trend for one in found] == ["steady", "once"]


def test_a_level_that_is_raised_once_does_not_rise():
    level = np.array([0.14, 0.2, 0.23, 0.23, 0.2, 0.56, 0.56, 0.6, 0.46])
    found = patterns(level, 0.06)
    assert [(one.trend, list(np.flatnonzero(one.active))) for one in found] == [
        ("steady", [5, 6, 7, 8]), ("steady", list(range(9)))]


def test_noise_is_nothing():
    alarms = [bool(patterns(noisy([0.0] * steps, seed), NOISE))
              for seed in range(500) for steps in (4, 24)]
    assert sum(alarms) == 0


def test_what_is_usual_is_the_pace_of_the_fastest_group():
    level = np.array([0.01, -0.01, 0.0, 0.35, 0.36, 0.35, 0.36, 0.35, 0.36])
    assert lowest_mode(level).tolist() == [True] * 3 + [False] * 6
    alone = np.append(level, -0.5)  # one that is faster than all others is no group
    assert lowest_mode(alone).tolist() == [True] * 3 + [False] * 7


def facts(slow, ranks, steps=8, flops=None, begins=None, machine=0.0, still=None):
    """Of a run in which each rank computes 3 operations a step. @param slow  (ranks, steps) factors

    @param flops   (ranks,) of an operation
    @param begins  (ranks, steps) s that a rank begins late
    @param still   (ranks, steps) of the time, for which a rank has no core: it takes longer by that
    """
    random = np.random.default_rng(3)
    work = np.ones(len(ranks)) if flops is None else np.asarray(flops)
    lacks = np.zeros(slow.shape) if still is None else np.asarray(still)
    rows = [
        {"step": step, "phase": phase, "category": f"compute_{what}", "name": what, "rank": rank,
         "peers": 0, "count": 1, "variance": 0.0, "flops": work[rank],
         "seconds": slow[rank, step] * work[rank] * (1 + 0.002 * random.standard_normal())}
        for rank in range(len(ranks)) for step in range(steps)
        for phase, what in (("forward", "attention"), ("backward", "dense"), ("optimizer", "other"))
    ]
    for row in rows:
        share = lacks[row["rank"], row["step"]]
        row["seconds"] /= 1 - share
        row["still"] = row["seconds"] * share
    paused = pd.DataFrame(columns=["step", "phase", "rank", "category", "name", "seconds"])
    late = np.zeros(slow.shape) if begins is None else begins
    windows = pd.DataFrame([
        {"rank": rank, "step": step, "begin_ns": int(1e9 * (10 * step + late[rank, step])),
         "end_ns": int(1e9 * (10 * step + 9))}
        for rank in range(len(ranks)) for step in range(steps)])
    given = windows.assign(seconds=machine).set_index(["step", "rank"])["seconds"]
    loads = pd.DataFrame(rows)
    of_ranks = cells(np.arange(len(ranks)), np.arange(steps), loads, paused, given)
    seconds = pd.Series(10.0, index=pd.RangeIndex(steps, name="step"))
    gaps = pd.DataFrame(columns=["step", "phase", "rank", "name", "seconds"])
    return Facts(of_ranks, loads, paused, windows, seconds, ranks, [], pd.DataFrame(), gaps)


def named(of):
    """kind, members, trend, since_step of the verdicts, with a replay that saves 1 s each."""
    def replay(troubles, cases):
        return 80.0 - cases.sum(axis=1)

    frame = verdicts(find(of), gaps_of(0.0), replay, of)
    return [(row["kind"], row["members"], row["trend"], row["since_step"])
            for row in frame.to_dict("records")]


HOSTS = ranks_frame(8, host=[f"n{r // 4}" for r in range(8)], data=[r // 2 for r in range(8)],
                    tensor=[r % 2 for r in range(8)])


def speeds(ranks, factor=1.4, steps=range(8)):
    slow = np.ones((8, 8))
    slow[np.ix_(list(ranks), list(steps))] = factor
    return slow


@pytest.mark.parametrize("slow, expected", [
    (speeds([]), []),
    (speeds([5]), [("rank", [5], "steady", 0)]),
    (speeds([2, 5]), [("ranks", [2, 5], "steady", 0)]),
    (speeds([4, 5, 6, 7]), [("node", [4, 5, 6, 7], "steady", 0)]),
    (speeds([2, 3]), [("group", [2, 3], "steady", 0)]),
    (speeds([1, 3, 5, 7]), [("group", [1, 3, 5, 7], "steady", 0)]),
    (speeds(range(8), steps=range(3, 8)), [("all", list(range(8)), "steady", 3)]),
    (speeds(range(8), steps=[4]), [("all", list(range(8)), "once", 4)]),
    (speeds([0, 1, 2, 4, 6, 7]), [("ranks", [0, 1, 2, 4, 6, 7], "steady", 0)]),
], ids=["clean", "one", "two", "node", "replica", "tensor rank", "all", "one step of all", "most"])
def test_who_is_named_together(slow, expected):
    assert named(facts(slow, HOSTS)) == expected


@pytest.mark.parametrize("device, place", [("host", "n1"), ("NVIDIA H100", "n1, GPU 1")])
def test_one_rank_is_said_with_its_host_and_gpu(device, place):
    of = facts(speeds([5]), HOSTS.assign(device=device, local_rank=HOSTS["rank"] % 4))
    frame = verdicts(find(of), gaps_of(0.0), lambda _, cases: 80.0 - cases.sum(axis=1), of)
    assert frame["sentence"].iloc[0].startswith(f"Repairing rank 5 ({place}) saves ")
    assert frame["sentence"].str.endswith("or neighbours of a virtual machine.").all() == (
        device == "host")  # a core has neighbours, a GPU does not
    given = facts(speeds([5]), HOSTS.assign(device=device), machine=3.0)
    frame = verdicts(find(given), gaps_of(0.0), lambda _, cases: 80.0 - cases.sum(axis=1), given)
    assert not frame["sentence"].str.contains("virtual").any()


def test_those_that_take_turns_are_one():
    slow = np.ones((8, 8))
    for step in range(8):
        slow[step * 3 % 8, step] = 1.5
    assert named(facts(slow, HOSTS)) == [("all", list(range(8)), "in turn", 0)]


def test_what_a_rank_alone_does_is_as_slow_as_the_rest_of_its_phase():
    """Rank 7, which alone has the loss, is slow in the forward pass."""
    of = facts(np.ones((8, 8)), HOSTS)
    slow = (of.loads["rank"] == 7) & (of.loads["phase"] == "forward")
    loads = of.loads.assign(seconds=of.loads["seconds"].where(~slow, 1.5 * of.loads["seconds"]))
    loss = loads[(loads["rank"] == 7) & (loads["phase"] == "backward")].assign(name="loss")
    loads = pd.concat([loads, loss], ignore_index=True)
    nothing = pd.Series(0.0, index=pd.MultiIndex.from_product([range(8), range(8)]))
    found = cells(np.arange(8), np.arange(8), loads, of.paused, nothing)
    level = (found.run / found.fair)[:, 7].mean(axis=1)
    assert level == pytest.approx([1.5, 1.0, 1.0], abs=0.01)


def test_a_machine_file_tells_when_all_are_slow():
    slow = speeds(range(8))
    assert named(facts(slow, HOSTS)) == []
    assert named(facts(slow, HOSTS, machine=3.0)) == [("all", list(range(8)), "steady", 0)]


@pytest.mark.parametrize("device, machine, factor, named_", [
    ("host", 0.0, 1.12, False), ("OpenMP", 0.0, 1.12, False), ("host", 0.0, 1.3, True),
    ("host", 3.0, 1.12, True), ("NVIDIA H100", 0.0, 1.12, True)])
@pytest.mark.parametrize("steps", [range(8), [2, 3], [1, 2, 5]])
def test_what_cores_of_a_host_differ_by_on_their_own_is_no_fault(
        device, machine, factor, named_, steps):
    """But it is where a machine file gives their pace, and of GPUs."""
    slow = np.ones((4, 8))
    slow[1, list(steps)] = factor
    ranks = ranks_frame(4, host="n0", device=device)
    found = [one.members for one in find(facts(slow, ranks, machine=machine))]
    assert found == ([(1,)] if named_ else [])


def without_core(still, **options):
    ranks = ranks_frame(len(still), host="n0")
    return [(one.members, one.steps, one.trend, round(float(np.mean(list(one.excess.values()))), 1))
            for one in find(facts(np.ones(np.shape(still)), ranks, still=still, **options))
            if one.cause == NO_CORE]


def test_one_rank_lacks_its_core_for_longer_than_all_do():
    still = np.full((2, 8), 0.1)
    still[1, 3:] = 0.6
    every, late, both = tuple(range(8)), tuple(range(3, 8)), (1, 2, 3, 5, 6, 7)
    assert without_core(still) == [((1,), late, "steady", 0.5), ((0, 1), every, "steady", 0.1)]
    still[1] = 0.6
    still[0, [0, 4]] = 0.02
    assert without_core(still) == [((1,), every, "steady", 0.5),
                                   ((0, 1), both, "intermittent", 0.1)]


@pytest.mark.parametrize("lack, trend", [
    ({3: 0.4}, "once"), ({2: 0.2, 3: 0.2}, "intermittent"),
    ({3: 0.2, 4: 0.2, 5: 0.2}, "intermittent"), ({3: 0.5, 4: 0.5, 5: 0.5}, "intermittent"),
    ({1: 0.2, 2: 0.2, 3: 0.2, 4: 0.2}, "intermittent")])
def test_a_lack_of_a_core_that_ends_is_told_to_its_end(lack, trend):
    """Of seven steps; what varies because of the lack is no noise."""
    still = np.zeros((8, 8))
    still[5, list(lack)] = list(lack.values())
    (found,) = without_core(still[:, 1:], steps=7)
    steps = tuple(step - 1 for step in lack)
    assert found == ((5,), steps, trend, round(max(lack.values()), 1))


def test_who_has_less_of_its_core_by_chance_is_not_named():
    random = np.random.default_rng(5)
    found = [without_core(random.uniform(0.1, 0.3, (2, 8))) for _ in range(50)]
    assert all(one[-1][0] == (0, 1) for one in found)
    assert sum(len(one) > 1 for one in found) <= 2


def test_cold_caches_after_turns_of_others_are_not_slow():
    still, slow = np.full((2, 8), 0.3), np.ones((2, 8))
    slow[1, 4:6] = 1.1
    ranks = ranks_frame(2, host="n0")
    assert {one.cause for one in find(facts(slow, ranks, still=still))} == {NO_CORE}
    slow[1, 4:6] = 1.5
    assert {one.cause for one in find(facts(slow, ranks, still=still))} == {NO_CORE, SLOW}


def test_more_work_than_the_other_replicas_have():
    flops = [1, 1, 1.5, 1.5, 1, 1, 1, 1]
    of = facts(np.ones((8, 8)), HOSTS, flops=flops)
    assert [(one.cause, one.members) for one in find(of)] == [("work", (2, 3))]
    stages = HOSTS.assign(pipeline=[r // 2 for r in range(8)], data=0)
    assert find(facts(np.ones((8, 8)), stages, flops=flops)) == []  # the placement's doing


def test_who_begins_late():
    begins = np.zeros((8, 8))
    begins[3, 2:] = 0.5
    (one,) = find(facts(np.ones((8, 8)), HOSTS, begins=begins))
    assert (one.cause, one.members, one.steps) == (LATE_START, (3,), (2, 3, 4, 5, 6, 7))
    assert set(one.excess.values()) == {0.5}


def gaps_of(seconds, **still):
    """@param still  r2=[...]: seconds that rank 2 stood still for, by gap"""
    return pd.DataFrame({"seconds": seconds, **{int(r[1:]): s for r, s in still.items()}},
                        index=range(1, 8))


def test_a_pause_of_all_between_two_steps():
    of = facts(np.ones((8, 8)), HOSTS)
    gaps = gaps_of([0.1, 0.1, 0.1, 3.1, 0.1, 0.1, 0.1])
    (row,) = verdicts([], gaps, None, of).to_dict("records")
    assert (row["kind"], row["phase"], row["steps"]) == ("all", "between steps", [4])
    assert row["saves"] == pytest.approx(3.0 / (80 + 3.7))
    assert row["sentence"] == ("Lost to all ranks: 3.6% of a step; they stood still for 3.000 s, "
                               "before step 4.")


def test_who_stood_still_between_two_steps():
    of = facts(np.ones((8, 8)), HOSTS)
    gaps = gaps_of([0.1, 3.1, 0.1, 3.1, 0.1, 2.1, 0.1], r2=[0, 3, 0, 0, 0, 2, 0],
                   r5=[0, 0.2, 0, 0, 0, 2, 0])
    found = verdicts([], gaps, None, of)
    assert list(zip(found["members"], found["steps"], strict=True)) == [
        ([2], [2]), (list(range(8)), [4]), ([2, 5], [6])]


def test_what_ranks_do_between_two_steps_is_no_pause():
    def does(rank, name, begin, end, still=0.0):
        return {"rank": rank, "name": name, "begin": begin, "end": end, "lane": "host", "step": 4,
                "category": "checkpoint", "still_ns": int(still * 1e6)}

    events = events_frame([
        does(0, "write_step", 0, 1), does(1, "write_step", 0, 401, still=400),
        does(0, "save_checkpoint", 401, 901), does(1, "save_checkpoint", 402, 902, still=300),
        does(0, "measure_clock", 902, 1202), does(1, "measure_clock", 1182, 1202),
        does(0, "progress", 1210, 1300, still=80),  # in the step
    ])
    steps = pd.DataFrame({"rank": [0, 1], "step": 4, "begin_ns": 1_203_000_000})
    found = stood_between_steps(outside_steps(events, steps)).set_index("rank")
    assert found["still"].to_dict() == {0: 0.0, 1: 0.4}
    assert found["known"].tolist() == pytest.approx([0.001 + 0.5 + 0.02] * 2)


def of_phases(*slow):
    """facts() with ranks slow in phases. @param slow  rank, phase or "", factor"""
    of = facts(np.ones((8, 8)), HOSTS)
    loads = of.loads
    for rank, phase, factor in slow:
        where = (loads["rank"] == rank) & ((loads["phase"] == phase) | (phase == ""))
        loads = loads.assign(seconds=loads["seconds"].where(~where, factor * loads["seconds"]))
    nothing = pd.Series(0.0, index=pd.MultiIndex.from_product([range(8), range(8)]))
    return replace(of, loads=loads,
                   cells=cells(np.arange(8), np.arange(8), loads, of.paused, nothing))


@pytest.mark.parametrize("slow, expected", [
    ([(1, "forward", 1.4), (4, "", 1.4)], {(1,): ("forward",), (4,): PHASES_OF_WORK}),
    ([(1, "forward", 1.4), (4, "backward", 1.4)], {(1,): ("forward",), (4,): ("backward",)}),
    ([(1, "", 1.7), (6, "", 1.18)], {(1,): PHASES_OF_WORK, (6,): PHASES_OF_WORK}),
    ([(1, "", 1.5), (6, "", 1.4)], {(1, 6): PHASES_OF_WORK}),
], ids=["one phase and all", "two phases", "unequal", "about equal"])
def test_ranks_that_are_slow_in_other_phases_or_by_more_are_told_apart(slow, expected):
    assert {one.members: one.phases for one in find(of_phases(*slow))} == expected


def test_slowness_is_of_the_time_with_a_core():
    still = np.zeros((8, 8))
    still[5] = 0.4
    of = facts(speeds([5], factor=1.25), HOSTS, still=still, machine=3.0)
    found = {one.cause: one for one in find(of)}
    assert found.keys() == {SLOW, NO_CORE}
    assert list(found[SLOW].excess.values()) == pytest.approx([0.2] * 8, abs=0.01)
    assert list(found[SLOW].with_core.values()) == pytest.approx([0.6] * 8, abs=0.01)


def test_ranks_of_a_node_that_are_unequally_slow_are_a_node():
    of = of_phases(*((rank, "", factor) for rank, factor in
                     ((4, 1 / 0.6), (5, 1 / 0.7), (6, 1 / 0.78), (7, 1 / 0.85))))
    assert named(of) == [("node", [4, 5, 6, 7], "steady", 0)]


def test_who_rides_along_is_not_named():
    """Of ranks 2 and 5 the repair of 5 saves nothing, alone or last."""
    saved = {(): 80.0, (0,): 60.0, (1,): 80.0, (0, 1): 59.9}
    one = replace(in_steps(range(8), 2), members=(2, 5), excess={
        (rank, step): 0.3 for rank in (2, 5) for step in range(8)})
    frame = verdicts([one], gaps_of(0.0), lambda parts, cases: np.array(
        [saved[tuple(np.flatnonzero(case))] for case in cases]), facts(speeds([2, 5]), HOSTS))
    assert frame["members"].tolist() == [[2]]


@pytest.mark.parametrize("steps, in_turn", [
    ({2: [2], 4: [3], 6: [8]}, False), ({0: [2, 3, 4, 5], 4: [6, 7]}, False),
    ({1: [0, 3], 5: [1, 4], 6: [2, 5]}, True), ({1: [1, 5], 5: [3, 7]}, True)])
def test_turns_are_taken_at_equal_times(steps, in_turn):
    slow = np.ones((8, 9))
    for rank, mine in steps.items():
        slow[rank, mine] = 1.5
    found = named(facts(slow, HOSTS, steps=9))
    assert (len(found) == 1 and found[0][2] == "in turn") == in_turn


def test_of_two_peers_the_slower_is_named_in_a_phase_that_takes_little():
    ranks = ranks_frame(2, host="n0", device="NVIDIA H100")
    of = facts(np.ones((2, 8)), ranks)
    last = of.loads["phase"] == "optimizer"
    factor = np.where(last, np.where(of.loads["rank"] == 1, 0.04, 0.01), 1.0)
    loads = of.loads.assign(seconds=of.loads["seconds"] * factor)
    nothing = pd.Series(0.0, index=pd.MultiIndex.from_product([range(8), range(2)]))
    of = replace(of, loads=loads,
                 cells=cells(np.arange(2), np.arange(8), loads, of.paused, nothing))
    (one,) = find(of)
    assert (one.members, one.phases) == ((1,), ("optimizer",))
    assert list(one.excess.values()) == pytest.approx([0.75] * 8, abs=0.01)


def test_amounts_that_differ_are_told_from_the_least_to_the_largest():
    of = of_phases((1, "", 2.0), (6, "", 1.5))
    frame = verdicts(find(of), gaps_of(0.0), lambda _, cases: 80.0 - cases.sum(axis=1), of)
    assert "they compute at 0.50 to 0.67 x the usual rate" in frame["sentence"].iloc[0]


def test_a_lack_of_a_core_in_one_phase_is_a_share_of_that_phase():
    of = facts(np.ones((8, 8)), HOSTS)
    forward = (of.loads["rank"] == 3) & (of.loads["phase"] == "forward")
    loads = of.loads.assign(still=of.loads["still"].where(~forward, 0.2 * of.loads["seconds"]))
    nothing = pd.Series(0.0, index=pd.MultiIndex.from_product([range(8), range(8)]))
    of = replace(of, cells=cells(np.arange(8), np.arange(8), loads, of.paused, nothing))
    (one,) = [one for one in find(of) if one.cause == NO_CORE]
    assert (one.members, one.phases) == ((3,), ("forward",))
    assert list(one.excess.values()) == pytest.approx([0.2] * 8, abs=0.005)


def said_of(seconds, *troubles):
    """Sentences of troubles, and the shares that they save.

    @param seconds  of which 80 are the steps': by which of them are repaired
    """
    of = facts(speeds([2, 5]), HOSTS.assign(device="NVIDIA H100", local_rank=HOSTS["rank"] % 4))
    frame = verdicts(troubles, gaps_of(0.0), lambda _, cases: np.array(
        [seconds[tuple(np.flatnonzero(case))] for case in cases]), of)
    return frame["sentence"].tolist(), frame["saves"].tolist()


def in_steps(steps, rank, cause=SLOW, excess=0.3, trend="steady"):
    return Trouble(cause, (rank,), tuple(steps), trend, PHASES_OF_WORK,
                   {(rank, step): excess for step in steps})


def test_of_two_that_hide_one_another_both_are_told():
    """Neither repair alone saves half a percent; both save 30 %."""
    tie = {(): 80.0, (0,): 79.9, (1,): 79.84, (0, 1): 56.0}
    sentences, saves = said_of(tie, in_steps(range(8), 2, NO_CORE), in_steps(range(8), 5))
    assert saves == pytest.approx([0.16 / 80, 23.84 / 80])
    assert sentences[0] == (
        "Repairing rank 5 (n1, GPU 1) saves 30.0% of a step together with rank 2 (n0, GPU 2), 0.2% "
        "without: the first computes at 0.70 x the usual rate, in all steps.")
    assert sentences[1].startswith(
        "Repairing rank 2 (n0, GPU 2) as well saves 29.8% of a step (alone 0.1%): it has no core")
    usual = {(): 80.0, (0,): 70.0, (1,): 79.8, (0, 1): 69.9}  # the second saves nothing either way
    sentences, _ = said_of(usual, in_steps(range(8), 2), in_steps(range(8), 5))
    assert len(sentences) == 1 and "together" not in sentences[0]


@pytest.mark.parametrize("steps, trend, verb, when", [
    ([0, 1, 2, 3], "intermittent", "computed", ", in steps 0–3 and not since."),
    ([3], "once", "computed", ", in step 3 and not since."),
    ([2, 3, 4, 5], "intermittent", "computes", ", in 4 of 8 steps (2, 3, 4, 5)."),
    ([6], "once", "computes", ", in step 6."),
])
def test_what_is_over_is_told_as_lost(steps, trend, verb, when):
    (said,), _ = said_of({(): 80.0, (0,): 70.0}, in_steps(steps, 2, trend=trend))
    saves = ("Lost to rank 2 (n0, GPU 2): 12.5% of a step; it" if verb == "computed"
             else "Repairing rank 2 (n0, GPU 2) saves 12.5% of a step: it")
    assert said == f"{saves} {verb} at 0.70 x the usual rate{when}"


def late_ranks():
    """Ranks 1 and 2 take 14 and 13 ms where the others take 10: neither alone is worth much."""
    programs = [[("work", "layer", t, {"flops": 1.0}), ("meet", "sum", 1.0)]
                for t in (10.0, 14.0, 13.0, 10.0)]
    return graph_of(Cluster(programs, travel=0.0).rows)


def slow_rank(rank, factor):
    return Trouble(SLOW, (rank,), (0,), "steady", ("forward",), {(rank, 0): 1 - 1 / factor})


def test_causes_that_hide_one_another_are_repaired_together():
    troubles = [slow_rank(1, 1.4), slow_rank(2, 1.3)]
    cases = first_and_last(2)
    seconds = replayed(late_ranks(), troubles, cases, None)
    assert seconds == pytest.approx([0.015, 0.014, 0.015, 0.011, 0.015, 0.014])
    found = gains(seconds, cases)
    assert found == pytest.approx([2.5e-3, 1.5e-3])
    order = np.argsort(-found)
    assert -np.diff(replayed(late_ranks(), troubles, in_order(order), None)) == pytest.approx(
        [1e-3, 3e-3])


def test_a_trouble_of_another_step_saves_nothing():
    other = Trouble(SLOW, (1,), (5,), "once", ("forward",), {(1, 5): 0.5})
    assert replayed(late_ranks(), [other], first_and_last(1), None) == pytest.approx([0.015] * 4)


def test_a_late_start_is_replayed_without_it():
    rows = Cluster([[("work", "layer", 10.0), ("meet", "sum", 1.0)] for _ in range(3)], 0.0).rows
    for row in rows:  # rank 2 begins 5 ms late
        if row["name"] == "sum" or row["rank"] == 2:
            row["begin"] += 5
            row["end"] += 5
        elif row["name"] == "wait_for_ranks":
            row["end"] += 5
    events = events_frame(rows)
    steps = steps_frame(events)
    steps.loc[steps["rank"] == 2, "begin_ns"] += 5_000_000
    graph = build(events, steps, ranks_frame(3), 0)
    assert graph.replayed_seconds() == pytest.approx([0.016])
    late = Trouble(LATE_START, (2,), (0,), "once", (), {(2, 0): 0.005})
    assert replayed(graph, [late], first_and_last(1)[:2], None) == pytest.approx([0.016, 0.011])


def test_who_waits_for_the_plan_waits_for_the_last_to_begin():
    rows = [{"rank": rank, "name": "wait_for_plan", "category": "plan", "phase": "other",
             "begin": begin, "end": 6.0} for rank, begin in ((0, 0.0), (1, 5.0), (2, 2.0))]
    rows += [{"rank": rank, "begin": 6.0, "end": 16.0} for rank in range(3)]
    events = events_frame(rows)
    steps = steps_frame(events)
    steps.loc[steps["rank"] == 1, "begin_ns"] += 5_000_000
    steps.loc[steps["rank"] == 2, "begin_ns"] += 2_000_000
    graph = build(events, steps, ranks_frame(3), 0)
    late = [Trouble(LATE_START, (1,), (0,), "once", (), {(1, 0): 0.005}),
            Trouble(LATE_START, (1, 2), (0,), "once", (), {(1, 0): 0.005, (2, 0): 0.002})]
    for one, saved in zip(late, (0.003, 0.005), strict=True):
        assert replayed(graph, [one], first_and_last(1)[:2], None) == pytest.approx(
            [0.016, 0.016 - saved])
