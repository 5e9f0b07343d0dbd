# SPDX-License-Identifier: Apache-2.0
"""`cadenza plan`, checked by someone who knows only what a plan is."""

import copy
import json

import pytest

import harness
import plan_checker
from packing import pack

LAYOUTS = {
    "colocated": {"parallel": {"data": 3}},
    "one rank": {"attention": {"placement": "cad"}},
    "cad on 2": {"parallel": {"data": 2}, "attention": {"placement": "cad"}},
    "cad on 3": {"parallel": {"data": 3}, "attention": {"placement": "cad"}},
    "cad on 6": {"parallel": {"data": 6}, "attention": {"placement": "cad", "block": 8}},
    "cad, tolerance 0": {
        "parallel": {"data": 2},
        "attention": {"placement": "cad", "tolerance": 0},
    },
    "cad, 2 servers": {"parallel": {"data": 2}, "attention": {"placement": "cad", "servers": 2}},
    "cad, float64": {
        "parallel": {"data": 2},
        "attention": {"placement": "cad"},
        "run": {"dtype": "float64"},
    },
    "cad, bfloat16": {  # on any host: planning computes nothing in it
        "parallel": {"data": 2},
        "attention": {"placement": "cad"},
        "run": {"dtype": "bfloat16"},
    },
    "colocated, 2 servers": {"parallel": {"data": 2}, "attention": {"servers": 2}},
}


def experiment_of(layout, corpus):
    changes = {"data": harness.tokens_data(corpus), "batch": {"tokens": 6 * 512, "microbatch": 512}}
    return harness.merged(harness.DEFAULTS, harness.merged(changes, layout))


def plan(folder, experiment, *options):
    path = harness.write_experiment(folder / "experiment.yaml", experiment)
    return harness.run_well(1, ["plan", path, *options], cwd=folder).out


def plan_json(folder, experiment, *options):
    return json.loads(plan(folder, experiment, "--format", "json", *options))


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_plan_holds_its_rules(layout, step, corpus, documents, tmp_path):
    experiment = experiment_of(LAYOUTS[layout], corpus)
    report = plan_json(tmp_path, experiment, "--step", step)
    assert plan_checker.check(report, experiment) == []

    batch = pack(
        documents, experiment["batch"]["tokens"], experiment["batch"]["microbatch"], step + 1
    )[step]
    data = experiment["parallel"]["data"]
    assert report["documents"] == [len(d) for microbatch in batch for d in microbatch]
    homes = {home["document"]: home["rank"] for home in report["home"]}
    expected = [index % data for index, microbatch in enumerate(batch) for _ in microbatch]
    assert [homes[document] for document in range(len(expected))] == expected
    assert [p["tick"] for p in report["plans"]] == list(range(len(batch) // data))


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name.startswith("cad")])
def test_cad_is_balanced(layout, corpus, tmp_path):
    experiment = experiment_of(LAYOUTS[layout], corpus)
    shape = plan_checker.Shape(experiment)
    attention = experiment["attention"]
    for step in range(3):
        report = plan_json(tmp_path, experiment, "--step", step)
        assert (
            plan_checker.check_balance(report, shape, attention["tolerance"], attention["block"])
            == []
        )


def test_balance_check_refuses_colocated(corpus, tmp_path):
    """Colocated plans of the same documents are as unequal as the documents are."""
    experiment = experiment_of(LAYOUTS["colocated"], corpus)
    shape = plan_checker.Shape(experiment)
    report = plan_json(tmp_path, experiment)
    assert report["summary"]["imbalance"] > 1.1
    assert plan_checker.check_balance(report, shape, 0.05, 1) != []
    assert sum(report["summary"]["bytes_sent_per_rank"]) == 0


def stages(report):
    return [stage for plan in report["plans"] for stage in plan["stages"]]


def drop_task(report):
    next(stage for stage in stages(report) if stage["tasks"])["tasks"].pop()


def repeat_task(report):
    tasks = next(stage for stage in stages(report) if stage["tasks"])["tasks"]
    tasks.append(tasks[0])


def drop_move(what):
    def fault(report):
        for stage in stages(report):
            for move in stage["moves"]:
                if move["what"] == what:
                    stage["moves"].remove(move)
                    return

    return fault


def swap_stages(report):
    report["plans"][0]["stages"].reverse()


def drop_merge(report):
    report["plans"][0]["merges"].pop()


def add_byte(report):
    next(stage for stage in stages(report) if stage["moves"])["moves"][0]["bytes"] += 1


def raise_summary(report):
    report["summary"]["cost_per_rank"][0] += 1e6


def lower_key_bytes(report):
    report["summary"]["key_bytes_moved"] -= 1


FAULTS = {
    "task missing": drop_task,
    "task twice": repeat_task,
    "Q missing": drop_move("Q"),
    "K missing": drop_move("K"),
    "V missing": drop_move("V"),
    "O missing": drop_move("O"),
    "LSE missing": drop_move("LSE"),
    "stages swapped": swap_stages,
    "merge missing": drop_merge,
    "bytes": add_byte,
    "summary": raise_summary,
    "key bytes": lower_key_bytes,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_checker_finds_planted_faults(fault, corpus, tmp_path):
    experiment = experiment_of(LAYOUTS["cad, 2 servers"], corpus)
    report = plan_json(tmp_path, experiment)
    broken = copy.deepcopy(report)
    FAULTS[fault](broken)
    assert broken != report
    assert plan_checker.check(broken, experiment) != []


def test_plan_is_repeated_exactly_and_changes_with_the_step(corpus, tmp_path):
    experiment = experiment_of(LAYOUTS["cad on 2"], corpus)
    first = plan_json(tmp_path, experiment)
    assert plan_json(tmp_path, experiment) == first
    assert plan_json(tmp_path, experiment, "--step", 1)["documents"] != first["documents"]


def test_table(corpus, tmp_path):
    experiment = experiment_of(LAYOUTS["cad on 2"], corpus)
    table = plan(tmp_path, experiment)
    assert table == plan(tmp_path, experiment, "--format", "table")
    ticks = experiment["batch"]["tokens"] // experiment["batch"]["microbatch"] // 2
    assert [line.split(":")[0] for line in table.splitlines() if line.startswith("tick ")] == [
        f"tick {tick}" for tick in range(ticks)
    ]
    imbalance = plan_json(tmp_path, experiment)["summary"]["imbalance"]
    total = next(line for line in table.splitlines() if line.startswith("step:"))
    assert f"imbalance {imbalance:.3f}" in total


def test_wrong_options(corpus, tmp_path):
    path = harness.write_experiment(tmp_path / "e.yaml", experiment_of({}, corpus))
    for options in (
        ["--format", "xml"],
        ["--step", "-1"],
        ["--step", "x"],
        ["--step", "99999999999999999999"],
        ["--nothing"],
    ):
        result = harness.run(1, ["plan", path, *options])
        assert result.code == 2, str(result)
        assert len(result.complaints) == 1, str(result)


@pytest.mark.parametrize("layout", ["one rank", "cad on 6"])  # a short and a long text
def test_output_that_finds_no_room(layout, corpus, tmp_path):
    path = harness.write_experiment(tmp_path / "e.yaml", experiment_of(LAYOUTS[layout], corpus))
    words = [
        "bash",
        "-c",
        'exec "$@" >/dev/full',
        "full",
        *harness.command(1, ["plan", path, "--format", "json"]),
    ]
    result = harness.finish(harness.start(words))
    assert result.code == 3, str(result)
    assert result.err.splitlines() == result.complaints, str(result)
    assert len(result.complaints) == 1
    assert "No space left on device" in result.complaints[0]
