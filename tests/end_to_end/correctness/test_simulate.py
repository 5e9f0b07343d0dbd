# SPDX-License-Identifier: Apache-2.0
"""cadenza simulate: the same operations as a run, in the same traces, without ranks."""

import json
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pytest

import harness
import trace_reader
from harness import DATA, USAGE

STEPS = 2
MESSAGES = ("p2p_send", "p2p_receive", "attention_dispatch", "attention_return")
PLAN = "plan"  # waiting for the planner, which is no operation of a program
OF_THE_MODEL = slice(0, 4)  # kinds of memory: parameters, gradients, optimizer, activations

# By experiment: what is changed of the defaults. 2 ranks where nothing else is said.
EXPERIMENTS = {
    "colocated": {"parallel": {"data": 2}},
    "cad": {"parallel": {"data": 2}, "attention": {"placement": "cad"}},
    "cad-recompute-attention": {
        "parallel": {"data": 2},
        "attention": {"placement": "cad"},
        "run": {"recompute": "attention"},
    },
    "cad-ping_pong-recompute-layer": {
        "parallel": {"data": 2},
        "attention": {"placement": "cad", "overlap": "ping_pong"},
        "run": {"recompute": "layer"},
    },
    "cad-ping_pong-keeps": {
        "parallel": {"data": 2},
        "attention": {"placement": "cad", "overlap": "ping_pong", "inputs": "keep"},
    },
    "servers": {"parallel": {"data": 2}, "attention": {"placement": "cad", "servers": 1}},
    "ring-float64": {
        "parallel": {"context": 2},
        "attention": {"placement": "ring"},
        "run": {"dtype": "float64"},
    },
    "zigzag-ping_pong": {
        "parallel": {"context": 2},
        "attention": {"placement": "zigzag", "overlap": "ping_pong"},
    },
    "cad-wide": {  # rows of which most travel in place
        "parallel": {"data": 2, "context": 2},
        "attention": {"placement": "cad"},
        "model": {"d_model": 512, "heads": 4, "kv_heads": 4},
        "run": {"dtype": "float64"},
    },
    "ulysses": {"parallel": {"context": 2}, "attention": {"placement": "ulysses"}},
    "tensor-recompute-layer": {"parallel": {"tensor": 2}, "run": {"recompute": "layer"}},
    "pipeline-recompute-mlp": {"parallel": {"pipeline": 2}, "run": {"recompute": "mlp"}},
    "pipeline-pools-attention": {
        "parallel": {"pipeline": 2},
        "attention": {"placement": "cad", "servers": 1, "mixed": True},
        "run": {"recompute": "attention"},
    },
    "interleaved": {
        "parallel": {"pipeline": 2, "chunks": 2},
        "model": {"layers": 4},
        "batch": {"tokens": 4 * 128},
    },
    "tensor-pipeline-recompute-mlp": {  # a vocabulary whose logits are made in pieces
        "parallel": {"tensor": 2, "pipeline": 2},
        "model": {"vocab": 65536},
        "run": {"recompute": "mlp"},
    },
    "tensor-recompute-attention-float64": {
        "parallel": {"tensor": 2},
        "attention": {"placement": "cad"},
        "run": {"recompute": "attention", "dtype": "float64"},
    },
    "tensor-context": {
        "parallel": {"tensor": 2, "context": 2},
        "attention": {"placement": "striped"},
    },
    "empty-microbatches": {
        "parallel": {"data": 2},
        "attention": {"placement": "cad"},
        "data": {"max_document": 512},
        "batch": {"packing": "pooled", "microbatch": 32, "tokens": 512, "longest": 20.0},
    },
    "ulysses_ring-4": {
        "parallel": {"context": 4},
        "attention": {"placement": "ulysses_ring", "head_parallel": 2},
    },
    "sharded-4": {
        "parallel": {"data": 2, "tensor": 2, "shard": "optimizer"},
        "attention": {"placement": "cad"},
    },
}


def simulate(experiment, *arguments, **options):
    return harness.run_well(1, ["simulate", experiment, *arguments], **options)


@pytest.fixture(scope="module", params=EXPERIMENTS, ids=str)
def both(request, corpus, tmp_path_factory):
    """The folders of a run and of its simulation."""
    folder = tmp_path_factory.mktemp(request.param)
    changes = harness.merged(
        {"data": harness.tokens_data(corpus), "run": {"steps": STEPS}}, EXPERIMENTS[request.param]
    )
    run = harness.train(folder, changes).folder
    simulated = folder / "simulated"
    simulate(folder / "experiment.yaml", "--trace", "full", "--output", simulated)
    return run, simulated


def traces(folder):
    return sorted((folder / "trace").glob("rank-*.h5"))


def named(path):
    """Events of a rank's trace, each with its name: by field, with the file's names for numbers."""
    with h5py.File(path, "r") as file:
        names = [name.decode() for name in file["/meta/strings"][:]]
        table = file["/events"]
        fields = ("category", "phase", "lane")
        meanings = {field: harness.names_of(table, field) for field in fields}
        bits = harness.names_of(table, "flags")
        found = []
        for row in table[:]:
            event = {field: row[field].item() for field in row.dtype.names}
            event |= {field: meaning[event[field]] for field, meaning in meanings.items()}
            event["flags"] = {name for bit, name in bits.items() if event["flags"] & bit}
            found.append((names[event["name_id"]], event))
        return found


def place(event):
    fields = ("step", "category", "phase", "microbatch", "layer", "tick", "half", "stage")
    return tuple(event[field] for field in fields)


def place_of_operation(event):
    return tuple(event[field] for field in ("step", "phase", "microbatch", "layer"))


def is_operation(name, event):
    """On the compute lane. Whether a stage waits until a stream has left is a matter of time."""
    waits_for_stream = name == "wait_for_sends" and event["layer"] < 0
    return event["lane"] == "compute" and event["category"] != PLAN and not waits_for_stream


def operations(events):
    """What a rank did on its compute lane, in order."""
    return [(name, *place(event)) for name, event in events if is_operation(name, event)]


def messages(events):
    """Who exchanged how much with whom: order is the network's."""
    return Counter(
        (name, *place(event), event["peer"], event["bytes"], "sends" in event["flags"])
        for name, event in events
        if event["category"] in MESSAGES
    )


def tensor_collectives(events):
    """What a rank did with its tensor group within operations, in order."""
    return [
        (name, *place(event), int(event["bytes"]))
        for name, event in events
        if name.startswith("tensor_")
    ]


def work(events):
    """Bytes that were packed and unpacked, FLOPs, in the order of operations."""
    copies = ("pack", "unpack", "pack_stream", "unpack_stream")
    copied = [int(e["bytes"]) for name, e in events if name in copies]
    return copied, [float(e["flops"]) for _, e in events if e["lane"] == "compute" and e["flops"]]


def test_same_operations_and_messages_on_every_rank(both):
    run, simulated = both
    assert [p.name for p in traces(run)] == [p.name for p in traces(simulated)]
    for real, clocked in zip(map(named, traces(run)), map(named, traces(simulated)), strict=True):
        assert operations(clocked) == operations(real)
        assert messages(clocked) == messages(real)
        assert tensor_collectives(clocked) == tensor_collectives(real)
        bytes_real, flops_real = work(real)
        bytes_clocked, flops_clocked = work(clocked)
        assert bytes_clocked == bytes_real
        np.testing.assert_allclose(flops_clocked, flops_real, rtol=1e-9)
        assert all("simulated" in event["flags"] for _, event in clocked)


def test_rows_are_copied_but_for_wide_ones(both):
    for folder in both:
        events = [one for path in traces(folder) for one in named(path)]
        copied = sum(int(event["bytes"]) for name, event in events if name == "pack")
        sent = sum(int(event["bytes"]) for name, event in events
                   if name.startswith("attention_") and "sends" in event["flags"])
        assert (copied < 0.7 * sent) if "wide" in str(folder) else (copied == sent)


def test_a_missing_event_is_found(both):
    run, _ = both
    events = named(traces(run)[0])
    for missing, (name, event) in list(enumerate(events))[::7]:
        if event["category"] in MESSAGES:
            sees = messages
        elif name.startswith("tensor_"):
            sees = tensor_collectives
        else:
            sees = operations if is_operation(name, event) else None
        kept = events[:missing] + events[missing + 1 :]
        for find in (operations, messages, tensor_collectives):
            assert (find(kept) != find(events)) == (find is sees)


def test_tensor_collectives_lie_within_operations(both):
    for path in map(traces, both):
        for events in map(named, path):
            spans = {}
            for _, event in events:
                if event["lane"] == "compute":
                    begin_end = (int(event["begin_ns"]), int(event["end_ns"]))
                    spans.setdefault(place_of_operation(event), []).append(begin_end)
            for name, event in events:
                if name.startswith("tensor_") and event["layer"] >= 0:
                    begin, end = int(event["begin_ns"]), int(event["end_ns"])
                    assert any(b <= begin and end <= e for b, e in spans[place_of_operation(event)])


def paired(folder):
    """Messages by (step, flow, sender, receiver), collectives by (step, flow): who has them."""
    ends, members = {}, {}
    for rank, path in enumerate(traces(folder)):
        for name, event in named(path):
            flow = int(event["flow"])
            if event["category"] in MESSAGES:
                peer, sends = int(event["peer"]), "sends" in event["flags"]
                pair = (rank, peer) if sends else (peer, rank)
                key = (int(event["step"]), flow, *pair)
                ends.setdefault(key, []).append((sends, int(event["bytes"])))
            elif event["category"] == "collective":
                members.setdefault((int(event["step"]), flow), []).append((rank, name))
            else:
                assert flow == 0
    return ends, members


def test_flows_join_the_ends_of_messages_and_the_members_of_collectives(both):
    for folder in both:
        ends, members = paired(folder)
        for (_, flow, _, _), found in ends.items():
            assert flow != 0
            assert sorted(sends for sends, _ in found) == [False, True]
            assert len({size for _, size in found}) == 1
        for (_, flow), found in members.items():
            assert flow != 0
            ranks = [rank for rank, _ in found]
            assert len(ranks) == len(set(ranks)), "one flow, two collectives"
            assert len({name for _, name in found}) == 1
        for step in range(STEPS):
            everybody = [
                found for (of, _), found in members.items()
                if of == step and found[0][1] == "agree_on_plan"
            ]
            assert [len(found) for found in everybody] == [len(traces(folder))]


def test_same_steps_plans_and_ranks(both):
    run, simulated = both
    for real, clocked in zip(traces(run), traces(simulated), strict=True):
        with h5py.File(real, "r") as r, h5py.File(clocked, "r") as s:
            np.testing.assert_array_equal(s["/plan"][:], r["/plan"][:])
            np.testing.assert_array_equal(s["/plan_summary"][:], r["/plan_summary"][:])
            for column in ("step", "documents", "tokens", "sum_length2", "model_flops",
                           "bytes_sent", "bytes_received"):
                np.testing.assert_array_equal(s["/steps"][column], r["/steps"][column], column)
            np.testing.assert_allclose(
                s["/steps"]["executed_flops"], r["/steps"]["executed_flops"], rtol=1e-9
            )
            for column in ("rank", "world", "role", "data", "pipeline", "tensor", "context",
                           "server"):
                assert s["/meta/rank"][column] == r["/meta/rank"][column]
            for name in ("code_version", "code_revision", "build"):
                assert len(s.attrs[name]) > 0
                assert s.attrs[name] == r.attrs[name]
            assert s.attrs["producer"] == b"simulator"


def test_memory_is_that_of_the_run(both):
    run, simulated = both
    for real, clocked in zip(traces(run), traces(simulated), strict=True):
        with h5py.File(real, "r") as r, h5py.File(clocked, "r") as s:
            measured, estimated = r["/memory/highwater"][:], s["/memory/highwater"][:]
            total, peaks = "peak_total_bytes", "peak_bytes"
            np.testing.assert_allclose(estimated[total], measured[total], rtol=0.05)
            # What a step alone does not say: how much of what earlier steps needed is still held.
            np.testing.assert_allclose(
                estimated[peaks][:, OF_THE_MODEL], measured[peaks][:, OF_THE_MODEL], rtol=0.01
            )


def test_steps_follow_one_another(both):
    _, simulated = both
    seconds = [line["seconds"] for line in harness.read_metrics(simulated)]
    for path in traces(simulated):
        steps = harness.committed_steps(path)
        assert steps["begin_ns"][0] == 0
        np.testing.assert_array_equal(steps["begin_ns"][1:], steps["end_ns"][:-1])
        np.testing.assert_allclose((steps["end_ns"] - steps["begin_ns"]) / 1e9, seconds, rtol=1e-6)
        lane = [event for _, event in named(path) if event["lane"] == "compute"]
        ends = [event["end_ns"] for event in lane]
        begins = [event["begin_ns"] for event in lane]
        assert all(begin >= end for end, begin in zip(ends, begins[1:], strict=False))
        assert ends[-1] == steps["end_ns"][-1]


def test_late_starts_and_wrong_clocks(experiment, tmp_path):
    """A rank begins step 1 late and the other waits; then both are late, which is of no step; the
    clock of one is wrong, and nothing tells of it."""
    faults = {
        "even": "[]",
        "late": "[{rank: 1, between: 0.5, steps: [1]}, {rank: 0, between: 0.25, steps: [2]}, "
                "{rank: 1, between: 0.25, steps: [2]}, {rank: 0, clock: -2}]",
    }
    steps, events, seconds = {}, {}, {}
    for name, blocks in faults.items():
        simulate(experiment, "--output", tmp_path / name, "--trace", "full", "--steps", 3,
                 "--set", f"cluster.faults={blocks}")
        steps[name] = [harness.committed_steps(path) for path in traces(tmp_path / name)]
        events[name] = [[event for _, event in named(path)] for path in traces(tmp_path / name)]
        seconds[name] = [line["seconds"] for line in harness.read_metrics(tmp_path / name)]
    late = np.array([[0, 500_000_000, 750_000_000], [0, 500_000_000, 750_000_000]])
    ahead = np.array([[-2_000_000_000], [0]])
    ends = np.array([[one["end_ns"] for one in steps[name]] for name in ("even", "late")])
    np.testing.assert_allclose(ends[1], ends[0] + late + ahead, atol=3)
    begins = np.array([one["begin_ns"] for one in steps["late"]]) - ahead
    true_ends = ends[1] - ahead
    np.testing.assert_array_equal(begins[:, 0], 0)
    np.testing.assert_array_equal(begins[:, 1] - true_ends[:, 0], [0, 500_000_000])
    np.testing.assert_array_equal(begins[:, 2] - true_ends[:, 1], 250_000_000)
    np.testing.assert_allclose(seconds["late"], np.add(seconds["even"], [0, 0.5, 0]), atol=1e-8)
    for rank in range(2):
        first = next(event for event in events["late"][rank] if event["step"] == 1)
        assert first["end_ns"] - first["begin_ns"] == (500_000_000 if rank == 0 else 0)
        for event in events["late"][rank]:
            step = steps["late"][rank][event["step"]]
            assert step["begin_ns"] <= event["begin_ns"] <= event["end_ns"] <= step["end_ns"]


def test_without_its_core_a_rank_stands_still(experiment, tmp_path):
    simulate(experiment, "--output", tmp_path / "run", "--trace", "full", "--set",
             "cluster.faults=[{rank: 1, core: 0.25, phase: forward}]")
    for rank, path in enumerate(traces(tmp_path / "run")):
        mine = [event for name, event in named(path) if name == "attend"]
        lasts = np.array([event["end_ns"] - event["begin_ns"] for event in mine])
        still = np.array([event["still_ns"] for event in mine])
        lacks = np.array([rank == 1 and event["phase"] == "forward" for event in mine])
        np.testing.assert_allclose(still[lacks], 0.75 * lasts[lacks], atol=2)
        assert (still[~lacks] == -1).all() and lacks.any() == (rank == 1)


@pytest.fixture(scope="module")
def experiment(corpus, tmp_path_factory):
    changes = {
        "data": harness.tokens_data(corpus),
        "parallel": {"data": 2},
        "attention": {"placement": "cad"},
        "run": {"steps": STEPS},
    }
    return harness.write_experiment(tmp_path_factory.mktemp("simulated") / "e.yaml", changes)


def test_metrics_have_the_keys_of_a_run(experiment, tmp_path):
    simulate(experiment, "--output", tmp_path / "simulated", "--steps", 3, "--step", 1)
    harness.run_well(2, ["train", experiment, "--output", tmp_path / "run"])
    lines = harness.read_metrics(tmp_path / "simulated")
    real = harness.read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert list(line) == list(real[0])
        assert line["loss"] is None
        assert line["tokens_per_second"] == pytest.approx(line["tokens"] / line["seconds"])
    # The step that both have: the same batch, the same messages.
    for key in ("tokens", "bytes_moved"):
        assert lines[0][key] == real[1][key]


def test_summary_has_no_events(experiment, tmp_path):
    for detail, present in (("summary", False), ("full", True)):
        simulate(experiment, "--output", tmp_path / detail, "--trace", detail)
        for path in traces(tmp_path / detail):
            with h5py.File(path, "r") as file:
                assert (file["/events"].shape[0] > 0) == present
                assert file["/steps"].shape[0] == STEPS
                assert file["/memory/highwater"].shape[0] == STEPS
                assert file["/plan"].shape[0] > 0
                assert np.all(file["/steps"]["executed_flops"] > 0)


def test_a_step_has_more_microbatches_than_16_bits_count(experiment, tmp_path):
    count = 40_000
    parts = {"model.layers": 1, "parallel.data": 1, "attention.placement": "colocated",
             "batch.microbatch": 16, "batch.tokens": 16 * count,
             "data": "{source: synthetic, lengths: {distribution: constant, median: 16}}",
             }
    settings = [word for key, value in parts.items() for word in ("--set", f"{key}={value}")]
    simulate(experiment, *settings, "--steps", 1, "--trace", "full", "--output", tmp_path / "run")
    (path,) = traces(tmp_path / "run")
    with h5py.File(path, "r") as file:
        found = file["/events"]["microbatch"]
    assert np.array_equal(np.unique(found), np.arange(-1, count))


def of_8b_on_64_h100(folder):
    """Path of an experiment with one document of 8192 tokens a microbatch."""
    inputs = harness.ROOT / "inputs"
    experiment = folder / "experiment.yaml"
    experiment.write_text(f"""
model: {{config: {inputs / "models/llama3-8b.json"}}}
data: {{source: synthetic, max_document: 8192, lengths: {{distribution: constant, median: 8192}}}}
batch: {{tokens: {64 * 8192}, microbatch: 8192}}
parallel: {{data: 64}}
attention: {{placement: colocated}}
run: {{dtype: bfloat16, recompute: layer}}
cluster: {{machine: {inputs / "machines/h100.yaml"}}}
""")
    return experiment


def test_parameter_shards_of_8b_on_64_h100(tmp_path):
    """Against optimizer shards: 6 bytes a parameter fewer, but for what stays whole, and no
    gathering of updated weights at the end."""
    experiment = of_8b_on_64_h100(tmp_path)
    done = {}
    for shard in ("optimizer", "parameters"):
        words = ["--set", f"parallel.shard={shard}", "--steps", 1, "--format", "json"]
        done[shard] = json.loads(simulate(experiment, *words).out)
    layer = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    rest = 2 * 128256 * 4096 + 65 * 4096  # with norms
    shards = (32 * layer + rest) / 64
    fewer = 2 * (32 * layer - 2 * layer - shards) + 4 * (32 * layer - layer)
    sizes = {shard: of["memory"]["largest_bytes"] for shard, of in done.items()}
    assert sizes["optimizer"] - sizes["parameters"] == pytest.approx(fewer, abs=1e4)
    assert 0.7 < done["parameters"]["seconds"] / done["optimizer"]["seconds"] < 1.5


def test_8b_on_64_h100_in_other_stacks(tmp_path):
    """Each is named wherever its numbers are shown. Megatron's attention is the fastest and its
    states are the smallest: 2 + 2 + 12 bytes a parameter, and here 2 + 4 + 12."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\nsource: a test\nlayer_seconds: 1\n")
    experiment = of_8b_on_64_h100(tmp_path)
    done = {}
    for software in ("cadenza", "megatron", "torchtitan", str(mine)):
        words = ["--set", f"cluster.software={software}", "--steps", 1]
        found = json.loads(simulate(experiment, *words, "--format", "json").out)
        name = found["software"]
        assert name == Path(software).stem
        done[name] = found
        assert (f"software {name}" in simulate(experiment, *words).out) == (name != "cadenza")
    assert done["megatron"]["seconds"] < done["cadenza"]["seconds"] < done["torchtitan"]["seconds"]
    # Two passes forward, one of them again, and a backward pass that takes twice as long.
    assert done["mine"]["seconds"] - done["cadenza"]["seconds"] == pytest.approx(32 * 4, abs=1e-6)
    sizes = {name: of["memory"]["largest_bytes"] for name, of in done.items()}
    assert sizes["mine"] == sizes["cadenza"]
    assert sizes["megatron"] < sizes["cadenza"]


def test_nothing_is_written_unless_asked(experiment, tmp_path):
    result = simulate(experiment, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
    for word in ("step time", "attention", "dense", "wait", "communication", "slowest", "memory"):
        assert word in result.out
    simulate(experiment, "--trace", "none", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
    simulate(experiment, "--trace", "summary", cwd=tmp_path)
    assert (tmp_path / "runs/small-simulated/metrics.jsonl").is_file()


def test_is_the_same_every_time(experiment, tmp_path):
    for folder in ("first", "second"):
        simulate(
            experiment, "--set", "cluster.jitter=0.1", "--trace", "full", "--output",
            tmp_path / folder
        )
    for first, second in zip(
        traces(tmp_path / "first"), traces(tmp_path / "second"), strict=True
    ):
        assert named(first) == named(second)


def test_out_of_memory_names_rank_and_part(experiment):
    assert "memory: fits in" in simulate(experiment, "--set", "run.memory=1000000000").out
    result = simulate(experiment, "--set", "run.memory=100000")
    assert "out of memory on 2 ranks" in result.out
    for rank in range(2):
        assert f"rank {rank} needs" in result.out
    assert "most of it" in result.out


def test_the_analysis_opens_it(experiment, tmp_path):
    pytest.importorskip("cadenza.cli", reason="the package analysis/ is not installed here")

    from cadenza.read import schema
    from cadenza.opening import open_run

    simulate(experiment, "--trace", "full", "--output", tmp_path / "run")
    assert "imbalance" in harness.analyze("summary", tmp_path / "run").stdout
    run = open_run(tmp_path / "run")
    assert not run.truncated
    # Names that the analysis acts upon are names that the program gives.
    interned = set(next(iter(run.files.values())).names())
    acted_upon = (schema.PACK, schema.WAIT_FOR_ATTENTION, schema.WAIT_FOR_STAGE,
                  schema.WAIT_FOR_RANKS, schema.WAIT_FOR_SENDS, schema.WAIT_FOR_LAYER,
                  schema.GATHER_OF_LAYER, *schema.TENSOR_COLLECTIVES)
    assert interned >= set(acted_upon)
    assert set(run.events()["category"].cat.categories) >= {*schema.COMMUNICATION}
    assert set(run.events()["rank"]) == {0, 1}
    simulate(experiment, "--output", tmp_path / "summary")
    assert "no events" in harness.analyze("summary", tmp_path / "summary").stderr


def test_a_simulation_that_is_stopped_keeps_its_steps(experiment, tmp_path):
    arguments = ["simulate", experiment, "--trace", "full", "--output", tmp_path / "run"]
    process = harness.start(harness.command(1, [*arguments, "--steps", 100000]))
    try:
        harness.wait_for_steps(process, tmp_path / "run", 3)
    finally:
        process.kill()
        harness.finish(process)
    for path in traces(tmp_path / "run"):
        assert len(harness.committed_steps(path)) >= 3
        with trace_reader.open_trace(path) as file:
            status = file["/meta/status"]
            assert harness.names_of(status, "state")[status["state"][0]] == "open"


def refuse(code, words, arguments, **options):
    result = harness.run(1, ["simulate", *arguments], **options)
    assert result.code == code, str(result)
    assert len(result.complaints) == 1, str(result)
    for word in words:
        assert word in result.complaints[0], str(result)
    return result


def test_bad_input(experiment, tmp_path):
    (tmp_path / "bad.yaml").write_text("name: bad\nspeed: 3\n")
    (tmp_path / "file").write_text("")
    cases = [
        (USAGE, ["nowhere.yaml", "inputs/machines"], ["--set", "cluster.machine=nowhere.yaml"]),
        (USAGE, ["is a folder"], ["--set", f"cluster.machine={tmp_path}"]),
        (USAGE, ["bad.yaml:2", "speed"], ["--set", f"cluster.machine={tmp_path}/bad.yaml"]),
        (USAGE, ["batch.tokens"], ["--set", "parallel.data=5"]),
        (USAGE, ["cluster.jitter"], ["--set", "cluster.jitter=-1"]),
        (USAGE, ["--steps"], ["--steps", "0"]),
        (USAGE, ["--trace"], ["--trace", "some"]),
        (USAGE, ["--output", "--trace none"], ["--trace", "none", "--output", tmp_path / "o"]),
        (DATA, ["cannot be made"], ["--output", tmp_path / "file/below"]),
    ]
    for code, words, arguments in cases:
        refuse(code, words, [experiment, *arguments])
    assert not (tmp_path / "o").exists()


def test_a_machine_of_another_dtype_is_refused(experiment, tmp_path):
    machine = tmp_path / "machine.yaml"
    rates = "{flops_per_second: 1e12}"
    machine.write_text("name: other\nsource: a test\ndtype: bfloat16\n"
                       f"attention: {rates}\nproducts: {rates}\n"
                       "links: {inside: {bytes_per_second: 1e10}}\n")
    refuse(USAGE, ["bfloat16", "float32"], [experiment, "--set", f"cluster.machine={machine}"])


def test_a_full_disk_is_told(experiment, tmp_path):
    result = harness.run_limited(
        16, 1, ["simulate", experiment, "--trace", "full", "--output", tmp_path / "run"]
    )
    assert result.code == DATA, str(result)
    assert len(result.complaints) == 1, str(result)
    assert str(tmp_path / "run") in result.complaints[0]
