# SPDX-License-Identifier: Apache-2.0
"""The trace that Perfetto reads: what is drawn where, and what it costs."""

import gzip
import json
import time
from itertools import pairwise

import numpy as np
import pytest
from conftest import two_ranks
from trace_files import (
    ATTENTION,
    COLLECTIVE,
    DENSE,
    DISPATCH,
    HOST_LANE,
    NON_BLOCKING,
    RECEIVE,
    SEND,
    SENDS,
    SIMULATED,
    WAIT,
    Rank,
    write_run,
)

import cadenza
from cadenza.colours import PART_NAMES
from cadenza.formats.export import export
from cadenza.formats.lines import compact
from cadenza.formats.threads import Thread
from cadenza.time.waits import WAITS


def parsed(folder, output, **chosen):
    run = cadenza.open(folder)
    assert export(run, "perfetto", output, **chosen) == [output]
    content = output.read_bytes()
    if output.suffix == ".gz":
        content = gzip.decompress(content)
    return json.loads(content)["traceEvents"]


def of(events, phase):
    return [event for event in events if event["ph"] == phase]


def slices_of(events, category=None):
    """Of a category, or of what was recorded."""
    return [e for e in of(events, "X")
            if (e["cat"] == category if category else e["cat"] not in ("step", "wait_cause"))]


def named(events, what):
    """By process, or process and thread."""
    return {(e["pid"], e["tid"]) if "tid" in e else e["pid"]: e["args"]["name"]
            for e in of(events, "M") if e["name"] == what}


def span(event):
    """[begin, end) in ns."""
    begin = round(event["ts"] * 1000)
    return begin, begin + round(event["dur"] * 1000)


def assert_nested(slices):
    """On every thread two events are apart, or one holds the other."""
    threads = {}
    for event in slices:
        threads.setdefault((event["pid"], event["tid"]), []).append(span(event))
    for members in threads.values():
        open_ = []
        for begin, end in sorted(members, key=lambda pair: (pair[0], -pair[1])):
            while open_ and open_[-1] <= begin:
                open_.pop()
            assert not open_ or end <= open_[-1], members
            open_.append(end)


def random_run(folder, seed, hosts=1):
    """Four ranks and three steps of events that overlap, meet and wait as they like."""
    random = np.random.default_rng(seed)
    ranks = []
    for number in range(4):
        events = []
        for step in range(3):
            for _ in range(40):
                begin = 1000 * step + int(random.integers(0, 900))
                end = begin + int(random.integers(0, 150))
                kind = random.choice([DENSE, WAIT, COLLECTIVE, DISPATCH])
                more = {"lane": HOST_LANE} if random.random() < 0.2 else {}
                more |= {"microbatch": int(random.integers(-1, 2)), "still_ns": 20}
                if kind == WAIT:
                    more["name"] = random.choice(["wait", "wait_for_stage", "wait_for_ranks"])
                if kind == COLLECTIVE:
                    more |= {"flow": int(random.integers(1, 9)), "name": "reduce_gradients"}
                if kind == DISPATCH:
                    more |= {"peer": int(random.integers(0, 4)), "flow": int(random.integers(1, 9)),
                             "flags": NON_BLOCKING}
                events.append((step, int(kind), begin, end, more))
        steps = [(step, 1000 * step, 1000 * (step + 1)) for step in range(3)]
        ranks.append(Rank(number, events, steps, place=(number // 2, number % 2, 0),
                          host=f"n{number * hosts // 4}"))
    return write_run(folder, ranks)


def test_times_are_exact(tmp_path):
    events = [(0, DENSE, 1_000_000, 1_000_001, {}), (0, DENSE, 2_500_000, 2_502_250, {"layer": 3})]
    folder = write_run(tmp_path / "r", [Rank(0, events, [(0, 1_000_000, 3_000_000)])])
    slices = slices_of(parsed(folder, tmp_path / "t.json"))
    assert [(s["ts"], s["dur"]) for s in slices] == [(0.0, 0.001), (1500.0, 2.25)]
    assert slices[1]["args"]["layer"] == 3 and "layer" not in slices[0]["args"]
    assert slices[1]["cat"] == "compute_dense"


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_everything_is_there(run_folder, tmp_path, name):
    events = parsed(run_folder, tmp_path / name)
    slices = slices_of(events)
    assert len(slices) == len(cadenza.open(run_folder).events()) == 28
    assert len(slices_of(events, "step")) == 4
    assert named(events, "process_name") == {1: "node"}
    threads = named(events, "thread_name")
    assert {(s["pid"], s["tid"]) for s in of(events, "X")} == set(threads)
    assert threads[1, Thread(1, 1).id] == "rank 1 dp1 · compute"
    assert threads[1, Thread(0, 3).id] == "rank 0 dp0 · host"
    counters = of(events, "C")
    assert {c["name"] for c in counters} == {f"rank {rank} {what}" for rank in (0, 1)
                                             for what in ("memory", "resident")}
    assert counters[0]["args"]["activations"] == 1 and counters[1]["args"] == {"bytes": 9}


@pytest.mark.parametrize("seed", range(5))
def test_slices_of_a_thread_nest(tmp_path, seed):
    events = parsed(random_run(tmp_path / "r", seed), tmp_path / "t.json")
    assert len(slices_of(events)) == 4 * 3 * 40
    assert_nested(of(events, "X"))


def test_threads_differ_from_one_another_and_from_processes():
    """Perfetto takes thread 0, and one that has the number of a process, for that process's."""
    ids = [Thread(rank, lane, number).id
           for rank in (0, 1, 2, 9, 4095) for lane in range(5) for number in (0, 1, 999)]
    assert len(set(ids)) == len(ids)
    assert min(ids) > 4096 and max(ids) < 2**32  # the most hosts; what Perfetto's numbers hold


def test_hosts_are_processes(tmp_path):
    events = parsed(random_run(tmp_path / "r", 1, hosts=2), tmp_path / "t.json")
    assert named(events, "process_name") == {1: "n0", 2: "n1"}
    assert {e["pid"]: e["args"]["sort_index"] for e in of(events, "M")
            if e["name"] == "process_sort_index"} == {1: 1, 2: 2}
    ranks = {(e["pid"], int(name.split()[1])) for e, name in
             ((e, e["args"]["name"]) for e in of(events, "M") if e["name"] == "thread_name")}
    assert ranks == {(1, 0), (1, 1), (2, 2), (2, 3)}
    threads = [e["tid"] for e in of(events, "M") if e["name"] == "thread_name"]
    assert len(threads) == len(set(threads)) and not {0, 1, 2} & set(threads)


def test_a_step_covers_its_events(run_folder, tmp_path):
    events = parsed(run_folder, tmp_path / "t.json")
    steps = {(e["tid"] // 100_000, e["args"]["step"]): e for e in slices_of(events, "step")}
    assert {e["name"] for e in steps.values()} == {"step 0", "step 1"} and len(steps) == 2 * 2
    for event in slices_of(events):
        begin, end = span(steps[event["tid"] // 100_000, event["args"]["step"]])
        assert begin <= span(event)[0] and span(event)[1] <= end


@pytest.mark.parametrize("seed", range(5))
def test_waits_by_cause_add_up(tmp_path, seed):
    """To what the frames say, to the nanosecond, also of a part of the run."""
    folder = random_run(tmp_path / "r", seed)
    sums = {}
    for event in slices_of(parsed(folder, tmp_path / "t.json"), "wait_cause"):
        key = (event["tid"] // 100_000 - 1, event["args"]["step"], event["name"])
        sums[key] = sums.get(key, 0) + span(event)[1] - span(event)[0]
    parts = cadenza.Study(cadenza.open(folder)).parts.set_index(["rank", "step"])
    wanted = {(*place, PART_NAMES[part]): row[part] for place, row in parts.iterrows()
              for part in WAITS if row[part]}
    assert sums == wanted and len({name for *_, name in sums}) >= 3


@pytest.mark.parametrize(
    "chosen", [{"ranks": [1, 2]}, {"steps": [1]}, {"ranks": [3], "steps": [2]}]
)
def test_a_part_is_part_of_the_whole(tmp_path, chosen):
    """Its times and waits too: those depend on ranks that are left out."""
    folder = random_run(tmp_path / "r", 3, hosts=2)

    def drawn(events):
        return sorted((e["tid"] // 10_000, e["ts"], e["dur"], e["name"], compact(e["args"]))
                      for e in of(events, "X"))

    whole = parsed(folder, tmp_path / "t.json")
    part = parsed(folder, tmp_path / "p.json", **chosen)
    ranks, steps = chosen.get("ranks", range(4)), chosen.get("steps", range(3))
    kept = [e for e in of(whole, "X")
            if e["tid"] // 100_000 - 1 in ranks and e["args"]["step"] in steps]
    assert drawn(part) == drawn(kept) and 0 < len(kept) < len(of(whole, "X"))
    names = named(whole, "process_name")
    assert named(part, "process_name").items() <= names.items()


def test_messages_side_by_side_have_threads_of_their_own(tmp_path):
    options = {"flags": NON_BLOCKING, "flow": 3, "peer": 1}
    events = [(0, DISPATCH, b, e, options) for b, e in ((0, 50), (10, 60), (20, 30), (60, 70))]
    folder = write_run(tmp_path / "r", [Rank(0, events, [(0, 0, 100)])])
    slices = slices_of(parsed(folder, tmp_path / "t.json"))
    assert_nested(slices)
    assert len({s["tid"] for s in slices}) == 2


def joined(events):
    """The slices of each flow, in its order."""
    flows = {}
    for event in of(events, "X"):
        if "bind_id" in event:
            flows.setdefault(event["bind_id"], []).append(event)
    for members in flows.values():
        assert "flow_in" not in members[0] and "flow_out" not in members[-1]
        assert all(e["flow_out"] for e in members[:-1]) and all(e["flow_in"] for e in members[1:])
        assert [e["ts"] for e in members] == sorted(e["ts"] for e in members)
    return list(flows.values())


def test_flows_lead_from_senders_to_receivers(tmp_path):
    option = {"flags": NON_BLOCKING, "flow": 3}
    sends = [(0, SEND, 40, 52, {"peer": 0, **option})]  # simulated: both ends have the same times
    receives = [(0, RECEIVE, 40, 52, {"peer": 1, **option})]
    ranks = [Rank(0, receives, [(0, 0, 60)]), Rank(1, sends, [(0, 0, 60)])]
    ((start, finish),) = joined(parsed(write_run(tmp_path / "r", ranks), tmp_path / "t.json"))
    assert start["tid"] // 100_000 == 2 and finish["tid"] // 100_000 == 1


def test_flows_join_the_members_of_a_collective(tmp_path):
    """In the order in which they came, some to wait; beside messages of the same number."""
    ranks = []
    for rank, came in enumerate((30, 10, 20)):
        events = []
        for step in (0, 1):
            at = 100 * step
            events += [(step, WAIT, at + came, at + 31, {"name": "wait_for_ranks"}),
                       (step, COLLECTIVE, at + 31, at + 40, {"flow": 9, "lane": 0}),
                       (step, COLLECTIVE, at + 60 + rank, at + 70, {"flow": 9, "lane": 0}),
                       (step, COLLECTIVE, at + 80, at + 90, {"flow": rank + 1, "lane": 0})]
            if rank < 2:
                more = {"flow": 9, "peer": 1 - rank, "flags": NON_BLOCKING}
                events.append((step, (SEND, RECEIVE)[rank], at + 50, at + 52, more))
        ranks.append(Rank(rank, events, [(0, 0, 100), (1, 100, 200)]))
    flows = joined(parsed(write_run(tmp_path / "r", ranks), tmp_path / "t.json"))
    came = sorted((members[0]["args"]["step"], members[0]["ts"],
                   [e["tid"] // 100_000 - 1 for e in members]) for members in flows)
    assert came == [(0, 0.01, [1, 2, 0]), (0, 0.05, [0, 1]), (0, 0.06, [0, 1, 2]),
                    (1, 0.11, [1, 2, 0]), (1, 0.15, [0, 1]), (1, 0.16, [0, 1, 2])]


def tensor_groups(folder, late=(), producer="simulator"):
    """Two of three ranks each; each rank sends to the same place of the other. `late` ranks compute
    for longer."""
    ranks = []
    for rank in range(6):
        end = 40 + (rank in late)
        peer = {"peer": (rank + 3) % 6, "flow": 1 + rank % 3, "flags": NON_BLOCKING}
        peer["flags"] |= SENDS if rank < 3 else 0
        events = [(0, DENSE, 0, end), (0, DISPATCH, 50, 60, peer),
                  (0, COLLECTIVE, 60, 70, {"flow": 7, "flags": NON_BLOCKING,
                                           "name": "tensor_all_gather"})]
        ranks.append(Rank(rank, events, [(0, 0, 100)], place=(rank // 3, 0, rank % 3),
                          producer=producer))
    return write_run(folder, ranks)


@pytest.mark.parametrize(("late", "producer", "drawn"), [
    ((), "simulator", ["ranks 0–2 dp0", "ranks 3–5 dp1"]),
    ((4,), "simulator", ["ranks 0–2 dp0", "ranks 3, 5 dp1", "rank 4 dp1 tp1"]),
    ((), "trainer", [f"rank {rank} dp{rank // 3} tp{rank % 3}" for rank in range(6)]),
])
def test_ranks_that_did_the_same_are_drawn_once(tmp_path, late, producer, drawn):
    folder = tensor_groups(tmp_path / "r", late, producer)
    events = parsed(folder, tmp_path / "t.json")
    names = named(events, "thread_name").values()
    assert list(dict.fromkeys(name.split(" · ")[0] for name in names)) == drawn
    assert len(slices_of(events)) == 3 * len(drawn) and len(slices_of(events, "step")) == len(drawn)
    messages = [flow for flow in joined(events) if flow[0]["cat"] == "attention_dispatch"]
    assert len(messages) == (3 if producer == "trainer" else 1)
    alone = parsed(folder, tmp_path / "one.json", ranks=[1])
    assert {name.split(" · ")[0] for name in named(alone, "thread_name").values()} == {
        "rank 1 dp0 tp1"}


def test_runs_without_events_have_steps_alone(tmp_path):
    ranks = two_ranks()
    for rank in ranks:
        rank.events = []
    events = parsed(write_run(tmp_path / "r", ranks), tmp_path / "t.json")
    assert {e["cat"] for e in of(events, "X")} == {"step"} and of(events, "M")


def busy_run(folder):
    """Eight simulated ranks that compute and, every third time, send to their neighbour."""
    random = np.random.default_rng(7)
    edges = [10**9 * step + np.cumsum(random.integers(1, 250_000, 4000)) for step in (0, 1)]
    ranks = []
    for number in range(8):
        events = []
        for step in (0, 1):
            for count, (begin, end) in enumerate(pairwise(edges[step].tolist())):
                more = {"layer": count % 40, "flags": SIMULATED, "tick": count // 40}
                if count % 3 < 2:
                    events.append((step, (DENSE, ATTENTION)[count % 3], begin, end, more))
                    continue
                more |= {"peer": number ^ 1, "flow": hash((number // 2, count)) % 2**32}
                more["flags"] |= NON_BLOCKING | (SENDS if number % 2 else 0)
                events.append((step, DISPATCH, begin, end, more))
        steps = [(step, 10**9 * step, 10**9 * (step + 1)) for step in (0, 1)]
        ranks.append(Rank(number, events, steps))
    return write_run(folder, ranks)


def test_what_an_event_costs(tmp_path):
    """Not much more time than to encode each line on its own, though the run is read, its waits are
    found and the file is compressed; and few bytes."""
    run, path = cadenza.open(busy_run(tmp_path / "r")), tmp_path / "t.json.gz"

    def seconds(action):
        """Of the processor, the least of three times."""
        times = []
        for _ in range(3):
            begin = time.process_time()
            action()
            times.append(time.process_time() - begin)
        return min(times)

    exporting = seconds(lambda: export(run, "perfetto", path))
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    encoding = seconds(lambda: [compact(event) for event in events])
    assert exporting < 3 * encoding
    assert path.stat().st_size < 10 * len(run.events())
