# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind and shows, and the commands that leave nothing."""

import json
import re

import h5py
import numpy as np
import pytest
import yaml

import harness

CHANGES = {
    "parallel": {"data": 2},
    "attention": {"placement": "cad", "servers": 1},
    "run": {"steps": 4, "checkpoint": {"every": 2}},
}
RANKS = 3
METRICS = {
    "step",
    "loss",
    "tokens",
    "seconds",
    "tokens_per_second",
    "model_flops_utilization",
    "hardware_flops_utilization",
    "attention_imbalance",
    "attention_imbalance_by_layer",
    "attention_flops",
    "dense_attention_flops",
    "bytes_moved",
    "peak_memory_bytes",
    "gradient_norm",
    "learning_rate",
}


def write_model(path):
    """The usual model as Hugging Face writes it."""
    model = harness.DEFAULTS["model"]
    names = {
        "num_hidden_layers": "layers",
        "hidden_size": "d_model",
        "num_attention_heads": "heads",
        "num_key_value_heads": "kv_heads",
        "intermediate_size": "ffn",
        "vocab_size": "vocab",
    }
    config = {"model_type": "llama", **{name: model[key] for name, key in names.items()}}
    path.write_text(json.dumps(config, indent=2))
    return {**dict.fromkeys(model), "config": str(path)}


@pytest.fixture(scope="module")
def experiment(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("experiment")
    changes = {"data": harness.tokens_data(corpus), "model": write_model(folder / "config.json")}
    return harness.write_experiment(folder / "small.yaml", harness.merged(changes, CHANGES))


@pytest.fixture(scope="module")
def finished(experiment, tmp_path_factory):
    """The run, and what it printed."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    result = harness.run_well(RANKS, ["train", experiment, "--output", folder])
    return harness.Run(folder), result


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_files(finished):
    run, _ = finished
    assert files_below(run.folder) == {
        "experiment.yaml",
        "metrics.jsonl",
        "trace/run.h5",
        *(f"trace/rank-{rank:05}.h5" for rank in range(RANKS)),
        *(f"checkpoints/step-{step:08}.h5" for step in (0, 2, 4)),
    }


def test_metrics(finished, corpus):
    run, _ = finished
    assert len(run.metrics) == 4
    for step, line in enumerate(run.metrics):
        assert line.keys() >= METRICS
        assert line["step"] == step
        assert line["tokens"] == harness.DEFAULTS["batch"]["tokens"]
        assert line["tokens_per_second"] == pytest.approx(line["tokens"] / line["seconds"])
        assert line["attention_imbalance_by_layer"] >= line["attention_imbalance"] >= 1
        assert 0 < line["model_flops_utilization"] < 2
        assert line["peak_memory_bytes"] > 0
    optimizer = harness.DEFAULTS["optimizer"]
    assert run.metrics[0]["learning_rate"] == pytest.approx(optimizer["lr"] / optimizer["warmup"])


def test_resolved_experiment_runs_the_same(finished, tmp_path):
    run, _ = finished
    resolved = run.folder / "experiment.yaml"
    content = yaml.safe_load(resolved.read_text())
    assert content["optimizer"]["schedule"] == "cosine", "defaults are filled in"
    assert "config" not in content["model"], "what it says is here"
    assert content["model"].items() >= harness.DEFAULTS["model"].items()
    harness.run_well(RANKS, ["train", resolved, "--output", tmp_path / "run"])
    again = harness.Run(tmp_path / "run")
    assert (again.folder / "experiment.yaml").read_text() == resolved.read_text()
    np.testing.assert_array_equal(again.losses, run.losses)


def test_keys_of_model_win_over_the_file_of_a_qwen(corpus, tmp_path):
    path = tmp_path / "config.json"
    model = write_model(path)
    config = json.loads(path.read_text())
    config |= {"model_type": "qwen3", "head_dim": 10, "rms_norm_eps": 1e-6, "sliding_window": None}
    path.write_text(json.dumps(config))
    layout = {"parallel": {"tensor": 2}, "data": harness.tokens_data(corpus)}
    written = {"layers": 1, "qkv_bias": True}
    read = harness.train(
        tmp_path / "read", {**layout, "run": {"checkpoint": {"every": 3}}, "model": model | written}
    )
    own = {**written, "qk_norm": True, "head_dim": 10, "norm_eps": 1e-6}
    spelt = harness.train(tmp_path / "spelt", {**layout, "model": own})
    np.testing.assert_array_equal(read.losses, spelt.losses)
    parameters = read.checkpoint(3)
    attention = "model.layers.0.self_attn."
    shapes = {
        name.removeprefix(attention): value.shape
        for name, value in parameters.items()
        if name.startswith(attention) and value.ndim == 1
    }
    assert shapes == {
        "q_proj.bias": (40,),
        "k_proj.bias": (20,),
        "v_proj.bias": (20,),
        "q_norm.weight": (10,),
        "k_norm.weight": (10,),
    }
    assert not any("layers.1" in name for name in parameters)


def test_trace_index_reaches_every_rank(finished):
    run, _ = finished
    with h5py.File(run.folder / "trace/run.h5", "r") as index:
        assert list(index["rank"]) == [f"{rank:05}" for rank in range(RANKS)]
        assert index["/ranks"]["rank"].tolist() == list(range(RANKS))
        run_ids = set()
        for rank in range(RANKS):
            of_rank = index[f"rank/{rank:05}"]
            assert of_rank["/meta/rank"]["rank"].tolist() == [rank]
            run_ids.add(of_rank.attrs["run_id"])
        assert run_ids == {index.attrs["run_id"]}


def test_trace_agrees_with_metrics(finished):
    run, _ = finished
    sent = np.zeros(4)
    for rank in range(RANKS):
        steps = harness.committed_steps(run.folder / f"trace/rank-{rank:05}.h5")
        np.testing.assert_array_equal(steps["loss"], run.losses)
        np.testing.assert_array_equal(steps["gradient_norm"], run.column("gradient_norm"))
        np.testing.assert_array_equal(steps["learning_rate"], run.column("learning_rate"))
        sent += steps["bytes_sent"]
    np.testing.assert_array_equal(sent, run.column("bytes_moved"))


def test_every_message_is_in_both_traces(finished):
    """Of attention messages: what a rank says it sent to another, that one says it received."""
    run, _ = finished
    sent, received = {}, {}
    for rank in range(RANKS):
        with h5py.File(run.folder / f"trace/rank-{rank:05}.h5", "r") as file:
            assert int(file["/meta/status"]["n_dropped"][0]) == 0
            for row in file["/steps"][:]:
                sent[rank, row["step"]] = int(row["bytes_sent"])
                received[rank, row["step"]] = int(row["bytes_received"])
    for step in range(4):
        total = sum(sent[rank, step] for rank in range(RANKS))
        assert total == sum(received[rank, step] for rank in range(RANKS)) > 0


def test_attention_is_where_the_plan_puts_it(finished):
    run, _ = finished
    for rank in range(RANKS):
        with h5py.File(run.folder / f"trace/rank-{rank:05}.h5", "r") as file:
            attends = np.any(file["/events"]["category"] == 1)
            planned = file["/plan"][:]
        serves = rank == RANKS - 1
        assert attends == serves
        assert (len(planned) > 0) == serves
        assert np.all(planned["server"] == rank)


def test_earlier_run_is_kept(experiment, finished, tmp_path):
    folder = tmp_path / "run"
    arguments = ["train", experiment, "--output", folder, "--set", "run.steps=2"]
    harness.run_well(RANKS, arguments)
    (folder / "mark").write_text("first")
    result = harness.run_well(RANKS, arguments)
    assert f"{folder}.1" in result.out
    assert (tmp_path / "run.1/mark").read_text() == "first"
    assert files_below(folder) | {"mark"} == files_below(tmp_path / "run.1")
    # A trailing slash is no other folder.
    harness.run_well(RANKS, [*arguments[:3], f"{folder}/", *arguments[4:]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.1", "run.2"]
    np.testing.assert_array_equal(
        harness.Run(folder).losses, harness.Run(tmp_path / "run.1").losses
    )


def test_default_folder_is_runs_name(corpus, tmp_path):
    experiment = harness.write_experiment(
        tmp_path / "e.yaml", {"data": harness.tokens_data(corpus), "run": {"steps": 1}}
    )
    harness.run_well(1, ["train", experiment], cwd=tmp_path)
    assert (tmp_path / "runs/small/metrics.jsonl").is_file()


def test_overrides(experiment, finished, tmp_path):
    harness.run_well(
        1,
        [
            "train",
            experiment,
            "--output",
            tmp_path / "run",
            "--set",
            "parallel.data=1",
            "--set",
            "attention={placement: colocated, block: 16}",
            "--set",
            "run.steps=1",
            "--set",
            "run.steps=2",
        ],
    )
    run = harness.Run(tmp_path / "run")
    np.testing.assert_allclose(run.losses[0], finished[0].losses[0], rtol=1e-5)
    content = yaml.safe_load((run.folder / "experiment.yaml").read_text())
    assert (content["run"]["steps"], content["attention"]["placement"]) == (2, "colocated")


def test_output_is_plain_when_piped(finished):
    run, result = finished
    assert "\r" not in result.out
    assert "\x1b" not in result.out
    progress = [line for line in result.out.splitlines() if line.startswith("step ")]
    assert 1 <= len(progress) <= 4
    for line in progress:
        assert re.fullmatch(
            r"step +\d+/4  loss \d+\.\d+  \S+ tokens/s  MFU \S+ %  "
            r"attention imbalance \d+\.\d+ \(by layer \d+\.\d+\)  left .+",
            line,
        )
    assert f"loss {run.losses[-1]:.4f}" in progress[-1]
    assert str(run.folder / "metrics.jsonl") in result.out
    assert str(run.folder / "trace") in result.out


def test_closing_table_has_every_rank(finished):
    _, result = finished
    lines = result.out.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.split()[:2] == ["rank", "role"])
    for word in ("busy", "waiting", "comm.", "memory"):
        assert word in lines[begin]
    rows = lines[begin + 1 : begin + 1 + RANKS]
    assert [row.split()[0] for row in rows] == [str(rank) for rank in range(RANKS)]
    assert "server" in rows[-1]


@pytest.mark.parametrize("ranks", [1, 3])
def test_dry_run_touches_nothing(ranks, experiment, tmp_path):
    result = harness.run_well(ranks, ["train", experiment, "--dry-run"], cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "3 ranks = 2 trainers" in result.out
    assert "1 dedicated attention server" in result.out
    for word in ("parameters", "activations", "messages", "memory", "imbalance"):
        assert word in result.out
    assert result.out.count("tick 0:") == 1, "printed once, however many ranks there are"
    assert len(re.findall(r"^ +[012] .*[KM]iB", result.out, re.MULTILINE)) >= RANKS


def test_dry_run_estimates_the_peak_of_the_run(experiment, finished, tmp_path):
    """Memory that is counted while training, against what was announced."""
    out = harness.run_well(1, ["train", experiment, "--dry-run"], cwd=tmp_path).out
    row = next(line for line in out.splitlines() if re.match(r" +0 +\S+ .iB", line))
    sizes = [
        float(number) * {"K": 2**10, "M": 2**20}[unit]
        for number, unit in re.findall(r"([\d.]+) ([KM])iB", row)
    ]
    measured = finished[0].metrics[0]["peak_memory_bytes"]
    assert sizes[-1] == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["train", "--help"], ["attend", "--help"], ["plan", "--help"], ["--version"]],
    ids=" ".join,
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_help(arguments, ranks):
    result = harness.run_well(ranks, arguments)
    assert result.out.count("cadenza") >= 1
    lines = [line for line in result.out.splitlines() if line.strip()]
    assert len(lines) == len(set(lines)), "said once, however many ranks there are"
    if ranks == 1:
        assert result.err == ""


def test_help_names_every_option():
    for command, options in {
        "train": ["--set", "--output", "--dry-run"],
        "attend": ["--set", "--input", "--output"],
        "plan": ["--set", "--format", "--step"],
    }.items():
        out = harness.run_well(1, [command, "--help"]).out
        for option in options:
            assert option in out
    out = harness.run_well(1, ["--help"]).out
    for word in ("train", "attend", "plan", "Exit codes"):
        assert word in out


def test_trace_can_be_turned_off(corpus, tmp_path):
    changes = {
        "data": harness.tokens_data(corpus),
        "run": {"steps": 2},
        "trace": {"events": False, "memory": False},
    }
    run = harness.train(tmp_path, changes)
    with h5py.File(run.folder / "trace/rank-00000.h5", "r") as file:
        assert len(file["/steps"]) == 2
        assert len(file["/events"]) == 0
        assert len(file["/memory/samples"]) == 0


def test_plan_in_the_trace_is_the_plan_command_s(experiment, finished):
    run, _ = finished
    report = json.loads(
        harness.run_well(1, ["plan", experiment, "--format", "json", "--step", "1"]).out
    )
    expected = sorted(
        (plan["tick"], task["server"], *task["q"], *task["k"], task["cost"])
        for plan in report["plans"]
        for stage in plan["stages"]
        for task in stage["tasks"]
    )
    found = []
    for rank in range(RANKS):
        with h5py.File(run.folder / f"trace/rank-{rank:05}.h5", "r") as file:
            rows = file["/plan"][:]
        found += [
            (
                int(r["tick"]),
                int(r["server"]),
                int(r["q_begin"]),
                int(r["q_end"]),
                int(r["k_begin"]),
                int(r["k_end"]),
                float(r["cost"]),
            )
            for r in rows[rows["step"] == 1]
        ]
    assert sorted(found) == expected


LAYOUTS = {
    "cad": {"parallel": {"data": 2}, "attention": {"placement": "cad"}},
    "ping_pong": {
        "parallel": {"data": 2},
        "attention": {"placement": "cad", "overlap": "ping_pong"},
    },
    "pipeline": {"parallel": {"pipeline": 2}},
    "tensor": {"parallel": {"tensor": 2}},
}
# Every step has the same documents, and with them the same events. The long ones take attention
# much longer than what goes untraced may be.
LARGE = {
    "model": {"layers": 2, "d_model": 128, "ffn": 256},
    "data": {"source": "synthetic", "max_document": 1024,
             "lengths": {"distribution": "list", "values": [1024, 256, 256, 256, 256]}},
    "batch": {"tokens": 4096, "microbatch": 1024},
    "run": {"steps": 7},
}
UNTRACED = 100  # microseconds between two operations; 13 were measured under a load of 16


def untraced(path, left_out=()):
    """Microseconds before each event of the compute lane, and after the last, in which no event of
    the compute or host lane is open. One row a step."""
    with h5py.File(path, "r") as file:
        names = np.array([name.decode() for name in file["/meta/strings"][:]])
        events, steps = file["/events"][:], file["/steps"][:]
        numbers = {name: lane for lane, name in harness.names_of(file["/events"], "lane").items()}
    events = events[np.isin(events["lane"], (numbers["compute"], numbers["host"]))]
    events = events[~np.isin(names[events["name_id"]], left_out)]
    rows = []
    for step in steps:
        inside = events[(events["end_ns"] > step["begin_ns"])
                        & (events["begin_ns"] < step["end_ns"])]
        inside = inside[np.argsort(inside["begin_ns"], kind="stable")]
        ends = np.maximum.accumulate(np.append(step["begin_ns"], inside["end_ns"]))
        begins = np.append(inside["begin_ns"], step["end_ns"])
        # Events of the host lane may be there or not, those of the compute lane always are.
        place = np.append(0, np.cumsum(inside["lane"] == numbers["compute"]))
        rows.append(np.bincount(place, np.maximum(0, begins - ends)) / 1e3)
    assert len({len(row) for row in rows}) == 1, "steps have different operations"
    return np.array(rows)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_moment_of_a_step_has_an_event(layout, tmp_path):
    """What goes untraced at a place in most steps: what the operating system takes away, it takes
    away at another place in each. Shares of steps are measured by bench/bench_trace."""
    run = harness.train(tmp_path, harness.merged(LARGE, LAYOUTS[layout]))
    for rank in range(2):
        path = run.folder / f"trace/rank-{rank:05}.h5"
        assert np.median(untraced(path), axis=0).max() <= UNTRACED
        gaps = np.median(untraced(path, left_out=["attend"]), axis=0)
        assert gaps.max() > UNTRACED, "a gap would be found"
