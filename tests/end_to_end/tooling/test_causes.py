# SPDX-License-Identifier: Apache-2.0
"""Who was late, why, and what would get it back: on real runs, and on simulated ones, where a
second simulation says what really would have been."""

import json
import time

import numpy as np
import pandas as pd
import pytest
import yaml

import harness

cadenza = pytest.importorskip(
    "cadenza", reason="the package analysis/ is not installed here", exc_type=ImportError
)
from cadenza.graph.critical_path import critical_path, slack  # noqa: E402
from cadenza.graph.graph import build  # noqa: E402
from cadenza.graph.lanes import MEETING  # noqa: E402
from cadenza.graph.loads import scores  # noqa: E402
from cadenza.causes.stragglers import stragglers, wait_causes  # noqa: E402
from cadenza.causes.what_if import network_free, what_if  # noqa: E402
from cadenza.report.headlines import headlines  # noqa: E402
from cadenza.summary import summarize  # noqa: E402

SLOW, FREE = (1e-4, 2e6), (0.0, 1e30)  # networks: latency in s, bytes per second
FAST = (1e-7, 1e10)
LENGTHS = [100, 20, 60, 8, 68, 128, 30, 90]
PHASE_ALIGNED = {
    "parallel": {"pipeline": 2, "data": 2, "schedule": "phase_aligned"},
    "attention": {"placement": "cad"},
}
LAYOUTS = {
    "colocated": {"parallel": {"data": 2}},
    "cad": {"parallel": {"data": 2}, "attention": {"placement": "cad"}},
    "ping_pong": {
        "parallel": {"data": 2},
        "attention": {"placement": "cad", "overlap": "ping_pong"},
    },
    "servers": {"parallel": {"data": 2}, "attention": {"placement": "cad", "servers": 1}},
    "ring": {"parallel": {"context": 2}, "attention": {"placement": "ring"}},
    "ulysses": {"parallel": {"context": 2}, "attention": {"placement": "ulysses"}},
    "1f1b": {"parallel": {"pipeline": 4}, "model": {"layers": 4}},
    "interleaved": {"parallel": {"pipeline": 2, "chunks": 2}, "model": {"layers": 4}},
    "phase_aligned": PHASE_ALIGNED,
    "recompute": {"parallel": {"data": 2}, "run": {"recompute": "layer"}},
}


def simulate(folder, changes, network, steps=2):
    """A simulated run on a machine of round numbers."""
    folder.mkdir(parents=True)
    latency, rate = network
    link = {"latency_seconds": latency, "bytes_per_second": rate}
    machine = {
        "name": "round",
        "source": "made up",
        "attention": {"flops_per_second": 5e8},
        "products": {"flops_per_second": 1e9},
        "element_wise": {"bytes_per_second": 1e9},
        "links": {"inside": link, "between": link},
    }
    (folder / "machine.yaml").write_text(yaml.safe_dump(machine))
    common = {
        "cluster": {"machine": str(folder / "machine.yaml")},
        "run": {"steps": steps},
        "batch": {"tokens": 8 * 128},
        "data": {"source": "synthetic",
                 "lengths": {"distribution": "list", "values": LENGTHS}},
    }
    experiment = harness.write_experiment(folder / "e.yaml", harness.merged(common, changes))
    harness.run_well(1, ["simulate", experiment, "--trace", "full", "--output", folder / "run"])
    return cadenza.open(folder / "run")


def graph_of(run, step=1):
    return build(run.events(steps=[step]), run.steps(), run.ranks(), step)


def seconds_of(run, step=1):
    steps = run.steps()
    steps = steps[steps["step"] == step]
    return (steps["end_ns"].max() - steps["begin_ns"].min()) / 1e9


def scenario(graph, name):
    return what_if(graph).set_index("scenario").loc[name, "seconds"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_network_it_takes_what_the_simulation_says(layout, tmp_path):
    """The replay is the record; without communication it is a simulation on a free network."""
    changes = LAYOUTS[layout]
    run = simulate(tmp_path / "slow", changes, SLOW)
    graph = graph_of(run)
    np.testing.assert_allclose(graph.replay(), graph.lanes.end, atol=1)
    assert graph.seconds == pytest.approx(seconds_of(run), abs=1e-9)
    free = seconds_of(simulate(tmp_path / "free", changes, FREE))
    assert network_free(graph) == pytest.approx(free, rel=1e-3)
    assert free < 0.8 * graph.seconds  # the network did matter
    waits = (graph.lanes.kind == MEETING) & (graph.lanes.end > graph.lanes.begin)
    waits[graph.meetings.end_node] = False
    assert not waits.any()  # for every wait it is known what it was for


@pytest.fixture(scope="module")
def slow_rank(tmp_path_factory):
    """Four ranks that share attention; rank 2 computes at half of the others' speed."""
    folder = tmp_path_factory.mktemp("slow_rank")
    even = {"parallel": {"data": 4}, "attention": {"placement": "cad"}}
    late = harness.merged(even, {"cluster": {"slow_ranks": [[2, 0.5]]}})
    return simulate(folder / "late", late, FAST, 3), simulate(folder / "even", even, FAST, 3)


def test_planted_slow_rank_is_found(slow_rank):
    run, even = slow_rank
    delays = wait_causes(graph_of(run))
    assert set(delays["cause"]) >= {2} and delays.groupby("cause")["seconds"].sum().idxmax() == 2
    found = stragglers(run.events(), run.ranks(), delays)
    passes = found[found["phase"].isin(["forward", "backward"])]
    assert set(passes["rank"]) == {2} and set(passes["why"]) == {"rate"}
    said = r"run at 0\.50 x the median rate"
    assert passes["explanation"].str.contains(said).all()
    (said,) = cadenza.Study(run).verdicts.to_dict("records")
    assert (said["members"], said["cause"], said["trend"]) == ([2], "slow", "steady")
    seconds = [cadenza.Study(one).seconds for one in (run, even)]
    assert said["saves"] == pytest.approx(1 - seconds[1] / seconds[0], abs=0.01)
    flagged = scores(run.events(), run.ranks())
    assert set(flagged[flagged["slow"]]["rank"]) == {2}
    assert cadenza.Study(even).verdicts.empty


@pytest.mark.parametrize("clock", [0.5, -2.5])
def test_a_clock_that_is_off_changes_nothing(slow_rank, clock, tmp_path):
    """Beside the slow rank a clock is wrong, or its own is: once it is corrected, all is as it was,
    to the nanosecond."""
    run, _ = slow_rank
    faults = [{"rank": 2, "speed": 0.5}, {"rank": 1 if clock > 0 else 2, "clock": clock}]
    even = {"parallel": {"data": 4}, "attention": {"placement": "cad"}}
    other = simulate(tmp_path / "late", harness.merged(even, {"cluster": {"faults": faults}}), FAST,
                     3)
    assert [one.ahead_ns for one in other.wrong_clocks] == [round(clock * 1e9)]
    assert run.wrong_clocks == []
    studies = [cadenza.Study(one) for one in (run, other)]
    for name in ("steps", "events", "parts", "stragglers", "verdicts", "between"):
        pd.testing.assert_frame_equal(*(getattr(study, name) for study in studies))
    pd.testing.assert_frame_equal(*(study.what_if() for study in studies))
    pd.testing.assert_frame_equal(*(study.critical_path() for study in studies))
    (finding,) = studies[1].findings
    assert finding.what.endswith("corrected") and studies[0].findings == []


def test_making_the_slow_rank_fast_takes_what_the_simulation_says(slow_rank):
    run, even = slow_rank
    frame = what_if(graph_of(run)).set_index("rank")
    assert frame.loc[2, "seconds"] == pytest.approx(seconds_of(even), rel=0.01)
    assert frame.loc[2, "saved_seconds"] > 0.2 * seconds_of(run)


@pytest.mark.parametrize("seed", [1, 3])
def test_two_pauses_are_repaired_beside_overlapped_sums(seed, tmp_path):
    """Sums of gradients take the wire when the last rank has come; the others had posted before."""
    even = {"seed": seed, "parallel": {"data": 8}, "batch": {"tokens": 1024, "microbatch": 128},
            "data": {"source": "synthetic",
                     "lengths": {"distribution": "list", "values": [32]}}}
    random = np.random.default_rng(seed)
    first, other = (int(rank) for rank in random.choice(8, 2, replace=False))
    faults = [{"rank": first, "pause": 0.2, "phase": "backward"},
              {"rank": other, "pause": 0.15, "phase": str(random.choice(["forward", "backward"]))}]
    late = harness.merged(even, {"cluster": {"faults": faults}})
    graph = graph_of(simulate(tmp_path / "late", late, FAST, 1), 0)
    frame = what_if(graph).set_index("scenario")
    clean = seconds_of(simulate(tmp_path / "even", even, FAST, 1), 0)
    assert frame.loc["no rank stands still", "seconds"] == pytest.approx(clean, rel=1e-3)


LARGE = {
    "model": {"layers": 4, "d_model": 2048, "heads": 16, "kv_heads": 8, "ffn": 5632},
    "data": {"source": "synthetic",
             "lengths": {"distribution": "list", "values": [32768, 4096, 8192, 1024, 65536]}},
    "batch": {"tokens": 256 * 65536, "microbatch": 65536},
    "parallel": {"data": 128, "pipeline": 4, "schedule": "phase_aligned"},
    "attention": {"placement": "cad", "block": 1024, "tolerance": 0.1},
    "run": {"steps": 1, "dtype": "bfloat16"},
    "cluster": {"machine": str(harness.ROOT / "inputs/machines/h200.yaml")},
}


def test_one_slow_rank_of_512(tmp_path):
    """Found, and what it costs is what a simulation without it saves; in seconds."""
    runs = {}
    for name, slow in (("late", [[37, 0.2]]), ("even", [])):
        changes = harness.merged(LARGE, {"cluster": {"slow_ranks": slow}})
        experiment = harness.write_experiment(tmp_path / f"{name}.yaml", changes)
        words = ["simulate", experiment, "--trace", "full", "--output", tmp_path / name]
        harness.run_well(1, words)
        runs[name] = cadenza.open(tmp_path / name)
    run = runs["late"]
    begin = time.process_time()
    graph = graph_of(run, 0)
    frame = what_if(graph).set_index("rank")
    path = critical_path(graph)
    found = stragglers(graph.lanes.events, run.ranks(), wait_causes(graph))
    assert time.process_time() - begin < 100  # 5 were measured on a busy machine
    assert (path["end_ns"] - path["begin_ns"]).sum() == pytest.approx(graph.seconds * 1e9, abs=1)
    assert found.loc[found["late_seconds"].idxmax(), "rank"] == 37
    assert frame.loc[37, "seconds"] == pytest.approx(seconds_of(runs["even"], 0), rel=0.02)
    assert frame.loc[37, "saved_seconds"] > 0.1 * graph.seconds


@pytest.mark.parametrize("overlap", ["none", "ping_pong"])
def test_balancing_a_pipeline_does_not_lengthen_it(overlap, tmp_path):
    """Stages run different microbatches in a tick, and some none: work stays in its tick and half.

    Where it was given to the same microbatch of other stages, this step took 5 % longer.
    """
    experiment = harness.ROOT / "inputs/layouts/pipeline_phase_aligned.yaml"
    words = ["--trace", "full", "--steps", "2", "--set", f"attention.overlap={overlap}"]
    harness.run_well(1, ["simulate", experiment, *words, "--output", tmp_path / "run"])
    graph = graph_of(cadenza.open(tmp_path / "run"))
    for name in ("all ranks balanced", "no attention imbalance"):
        assert scenario(graph, name) < graph.seconds, name


@pytest.fixture(scope="module", params=["cad", "phase_aligned"])
def real(request, corpus, tmp_path_factory):
    changes = {
        "data": harness.tokens_data(corpus),
        "batch": {"tokens": 8 * 128},
        "trace": {"events": True},
    }
    changes = harness.merged(changes, LAYOUTS[request.param])
    folder = harness.train(tmp_path_factory.mktemp(request.param), changes).folder
    return cadenza.open(folder)


def test_real_run_replays_and_its_path_sums_up(real):
    graph = graph_of(real)
    error = np.abs(graph.replay() - graph.lanes.end).max() / 1e9
    assert error <= 1e-3 * graph.seconds
    path = critical_path(graph)
    assert (path["begin_ns"].to_numpy()[1:] == path["end_ns"].to_numpy()[:-1]).all()
    assert (path["end_ns"] - path["begin_ns"]).sum() == pytest.approx(graph.seconds * 1e9, abs=1)
    assert network_free(graph) <= graph.seconds
    assert (slack(graph)["slack_ns"] >= -1).all()
    messages = graph.lanes.where("name", "wait", "wait_for_stage")
    messages &= graph.lanes.end - graph.lanes.begin > 1_000_000
    messages[graph.meetings.end_node] = False
    assert not messages.any()  # every long wait has a message


def test_every_message_of_a_real_run_has_an_arrow(real, tmp_path):
    from cadenza.formats.export import export

    (path,) = export(real, "perfetto", tmp_path / "t.json", steps=[1])
    events = json.loads(path.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    recorded = real.events(steps=[1])
    assert sum("phase" in event["args"] for event in slices) == len(recorded)
    kinds = ("p2p_send", "p2p_receive", "attention_dispatch", "attention_return")
    bound = [event for event in slices if "bind_id" in event]
    flows = {event["bind_id"]: [] for event in bound if event["cat"] in kinds}
    for event in bound:
        if event["bind_id"] in flows:
            flows[event["bind_id"]].append(event)
    assert len(flows) == recorded["category"].isin(kinds).sum() / 2 > 0
    for first, last in flows.values():
        assert first["tid"] // 100_000 != last["tid"] // 100_000 and first["ts"] <= last["ts"]
        assert first["flow_out"] and last["flow_in"]
    threads = {}
    for event in slices:
        span = (round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3))
        threads.setdefault((event["pid"], event["tid"]), []).append(span)
    for members in threads.values():
        open_ = []
        for begin, end in sorted(members, key=lambda span: (span[0], -span[1])):
            while open_ and open_[-1] <= begin:
                open_.pop()
            assert not open_ or end <= open_[-1]
            open_.append(end)


def test_a_run_that_does_not_fit_says_so(tmp_path):
    """`run.memory` is the limit of a simulated run, which the simulation itself only reports."""
    small, large = (simulate(tmp_path / str(limit), {"run": {"memory": limit}}, FAST, 1)
                    for limit in (100_000, 1 << 30))
    said = summarize(cadenza.Study(small))
    assert said["memory"]["limit_bytes"] == 100_000 and said["memory"]["ranks_beyond"] > 0
    assert "does not fit in memory" in said["warnings"][-1]
    (line,) = headlines([cadenza.Study(small)], ["run"], [])
    assert line.text.startswith("The run does not fit in memory: ")
    fits = summarize(cadenza.Study(large))
    assert fits["memory"]["ranks_beyond"] == 0 and not fits["warnings"]
