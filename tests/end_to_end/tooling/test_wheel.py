# SPDX-License-Identifier: Apache-2.0
"""The wheel of the planner: packed, installed where nothing of the source is, and asked."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import harness

sys.path.insert(0, str(harness.ROOT / "bench"))
from benchmarks import batch_plan  # noqa: E402

# The C library's parts, which every machine has.
OF_LIBC = re.compile(r"(linux-vdso|ld-linux.*|libc|libm|libpthread|libdl|librt)\.so")
MACHINE = harness.ROOT / "inputs/machines/h100.yaml"
MODEL = {"heads": 4, "kv_heads": 2, "head_dim": 8}

# name: (layout, keys of an experiment that say the same)
LAYOUTS = {
    "cad": ({"data": 4}, {"parallel": {"data": 4}}),
    "cad, tensor and context": (
        {"data": 2, "tensor": 2, "context": 2, "model.ffn": 48, "batch.break_even": 300},
        {"parallel": {"data": 2, "tensor": 2, "context": 2}, "batch": {"break_even": 300}},
    ),
    "cad, pipeline": ({"data": 2, "pipeline": 2}, {"parallel": {"data": 2, "pipeline": 2}}),
    "cad, servers, halves": (
        {"data": 2, "servers": 2, "overlap": "ping_pong", "tolerance": 0, "dtype": "bfloat16"},
        {"parallel": {"data": 2}, "run": {"dtype": "bfloat16"},
         "attention": {"servers": 2, "overlap": "ping_pong", "tolerance": 0}},
    ),
    "zigzag, window": (
        {"context": 4, "placement": "zigzag", "kind": "window", "attention.window": 40},
        {"parallel": {"context": 4},
         "attention": {"placement": "zigzag", "kind": "window", "window": 40}},
    ),
    "cad, rates of a machine": (
        {"data": 4, "tolerance": "auto", "dtype": "bfloat16", "machine": MACHINE},
        {"parallel": {"data": 4}, "attention": {"tolerance": "auto"},
         "run": {"dtype": "bfloat16"}, "cluster": {"machine": str(MACHINE)}},
    ),
}


@pytest.fixture(scope="module")
def wheel():
    subprocess.run([harness.ROOT / "scripts/wheel"], check=True, timeout=2 * harness.TIMEOUT)
    (made,) = (harness.ROOT / "build/wheel").glob("*.whl")
    return made


@pytest.fixture(scope="module")
def venv(wheel, tmp_path_factory):
    """A virtual environment with the wheel and this one's numpy."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python"]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "numpy").symlink_to(Path(np.__file__).parent)
    (site / "numpy.libs").symlink_to(Path(np.__file__).parents[1] / "numpy.libs")
    return folder


def run(venv, folder, program, *arguments):
    """Runs a program of the environment in `folder`, without anything of this one."""
    environment = {"PATH": f"{venv}/bin:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"}
    return subprocess.run(
        [venv / "bin" / program, *map(str, arguments)], cwd=folder, env=environment,
        capture_output=True, text=True, timeout=harness.TIMEOUT, check=False)


@pytest.fixture(scope="module")
def planner(venv):
    """The package as a module of this process."""
    (site,) = venv.glob("lib/python*/site-packages")
    sys.path.insert(0, str(site))
    try:
        import cadenza_planner
    finally:
        sys.path.remove(str(site))
    return cadenza_planner


def test_it_needs_the_c_library_only(venv):
    (package,) = venv.glob("lib/python*/site-packages/cadenza_planner")
    for binary in ("bin/cadenza", "lib/cadenza.so"):
        words = ["ldd", package / binary]
        needs = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        lines = [line.split() for line in needs.splitlines() if "=>" in line]
        foreign = [words for words in lines if not OF_LIBC.match(words[0])]
        assert foreign, binary
        assert all(Path(words[2]).resolve().is_relative_to(package.resolve()) for words in foreign)


def test_it_says_what_to_run(venv, tmp_path):
    found = run(venv, tmp_path, "cadenza", "advise", "--model", "llama3.2-1b", "--machine", "h100",
                "--devices", 8, "--tensor", 8, "--set", "model.layers=4", "--format", "json")
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    assert answer["question"]["devices"] == 8
    assert answer["answer"].startswith("The fastest is data ")
    assert list(tmp_path.iterdir()) == []


def test_it_finds_no_file_that_is_nowhere(venv, tmp_path):
    found = run(venv, tmp_path, "cadenza", "plan", "inputs/clusters/none.yaml")
    assert found.returncode == harness.USAGE
    assert found.stderr.count("\n") == 1
    assert "inputs/clusters/none.yaml: cannot be read" in found.stderr


def test_a_file_here_comes_first(venv, tmp_path):
    (tmp_path / "inputs/placements").mkdir(parents=True)
    (tmp_path / "inputs/placements/cad.yaml").write_text("nonsense: 1\n")
    found = run(venv, tmp_path, "cadenza", "plan", "inputs/placements/cad.yaml")
    assert found.returncode == harness.USAGE
    assert "nonsense" in found.stderr


def test_it_offers_what_it_can_do(venv, tmp_path):
    text = run(venv, tmp_path, "cadenza", "--help").stdout
    assert all(command in text for command in ("plan", "simulate", "advise"))
    assert "calibrate" not in text
    words = ["simulate", "inputs/placements/cad.yaml", "--output", "x"]
    refused = run(venv, tmp_path, "cadenza", *words)
    assert refused.returncode == harness.USAGE and "--output" in refused.stderr


def ranges(row):
    """The row of a JSON plan with two columns for each range: `q` is q_begin and q_end."""
    names = {"q": "q", "k": "k", "tokens": "token", "heads": "head"}
    return {name: value for key, both in names.items() if key in row
            for name, value in zip((f"{both}_begin", f"{both}_end"), row[key], strict=True)}


def of_json(report):
    """Tasks, moves and merges of `cadenza plan`, with the columns of the package."""
    what = {"Q": 0, "K": 1, "V": 2, "O": 3, "LSE": 4}
    tasks, moves, merges = [], [], []
    far = 1 << 60
    for plan in report["plans"]:
        place = {"tick": plan["tick"], "half": plan["half"]}
        for stage, of_stage in enumerate(plan["stages"]):
            for task in of_stage["tasks"]:
                high = task["diagonal"] if task["rule"] == "causal" else task.get("high", far)
                tasks.append({**place, "stage": stage, "server": task["server"],
                              "document": task["document"], **ranges(task),
                              "low": task.get("low", -far), "high": high, "flops": task["cost"]})
            for move in of_stage["moves"]:
                same = {key: move[key] for key in ("from", "to", "document", "bytes")}
                moves.append({**place, **same, "stage": stage, "what": what[move["what"]],
                              **ranges(move)})
        for merge in plan["merges"]:
            merges += [{**place, "owner": merge["owner"], "contributor": rank,
                        "document": merge["document"], **ranges(merge)}
                       for rank in merge["contributors"]]
    return tasks, moves, merges


def rows_of(table):
    return [dict(zip(table.dtype.names, row, strict=True)) for row in table.tolist()]


@pytest.mark.parametrize("name", LAYOUTS)
def test_plans_are_those_of_the_program(planner, name, tmp_path):
    layout, changes = LAYOUTS[name]
    random = np.random.default_rng(3)
    microbatches = [[256 - 12, 12], [100, 100, 50, 6], [16] * 16, [256]] * 2
    random.shuffle(microbatches)
    lengths = [length for microbatch in microbatches for length in microbatch]
    base = {
        "model": {"d_model": 32, "heads": 4, "kv_heads": 2},
        "data": {"source": "synthetic", "lengths": {"distribution": "list", "values": lengths}},
        "batch": {"tokens": sum(lengths), "microbatch": 256},
        "attention": {"placement": "cad", "tolerance": 0.1, "block": 16},
    }
    experiment = harness.write_experiment(tmp_path / "it.yaml", harness.merged(base, changes))
    words = ["plan", experiment, "--format", "json"]
    report = json.loads(harness.run_well(1, words, cwd=tmp_path).out)
    layout = {**MODEL, "block": 16, **layout}
    plan = planner.plan(microbatches, layout, layout.pop("machine", None))
    tasks, moves, merges = of_json(report)
    assert rows_of(plan.tasks) == tasks
    assert rows_of(plan.moves) == moves
    assert rows_of(plan.merges) == merges
    assert plan.documents["length"].tolist() == report["documents"]
    homes = [(home["rank"], home["document"], *home["tokens"]) for home in report["home"]]
    assert plan.homes[["rank", "document", "token_begin", "token_end"]].tolist() == homes
    for row in plan.documents:
        assert microbatches[row["microbatch"]][row["index"]] == row["length"]
    pools = report.get("pools", [plan.pools["world_rank"].tolist()])
    assert plan.pools["world_rank"].reshape(len(pools), -1).tolist() == pools


@pytest.mark.parametrize("lengths, layout, why", [
    ([], {}, "lengths: found no document"),
    ([[], []], {"data": 2}, "lengths: found no document"),
    ([[5, -3], [4]], {"data": 2}, "lengths: found a document of -3 tokens in microbatch 0"),
    ([[5, 0]], {}, "found a document of 0 tokens"),
    ([[5], [4], [3]], {"data": 2}, "lengths: found 3 microbatches; valid: a multiple of"),
    ([5, 4], {}, "lengths: found something else than a list"),
    ([[5.5]], {}, "lengths: found something else than a list"),
    ([[1 << 80]], {}, "lengths: found something else than a list"),
    ([[1 << 62]], {}, "valid: an integer in [1, 1099511627776]"),
    ([[5]], {"datum": 2}, "layout: found the key 'datum'"),
    ([[5]], {"data": "many"}, "parallel.data=many: found many"),
    ([[5]], {"tensor": 3}, "parallel.tensor"),
    ([[5]], {"kv_heads": 3}, "model.kv_heads"),
    ([[5]], {"head_dim": "x"}, "layout: found heads 4 and head_dim 'x'"),
    ([[5]], {"placement": "auto"}, "layout: found auto"),
    ([[5]], {"placement": "nearest"}, "attention.placement=nearest"),
    ([[5]], {"kind": "xattention"}, "attention.kind: found one"),
])
def test_what_does_not_fit_is_a_value_error(planner, lengths, layout, why):
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        planner.plan(lengths, {**MODEL, **layout})
    assert "\n" not in str(caught.value) and "--set" not in str(caught.value)


def test_a_plan_takes_no_time_of_a_step(planner):
    """Processor time: 64 ranks of 128K tokens take 10 ms, here ten times as much and more."""
    batch = batch_plan.batch(64, 131072)
    layout = {**batch_plan.LAYOUT, "data": 64}
    seconds = []
    for _ in range(5):
        begin = time.process_time()
        plan = planner.plan(batch, layout)
        seconds.append(time.process_time() - begin)
    assert sorted(seconds)[2] < 0.25
    work = np.bincount(plan.tasks["server"], plan.tasks["flops"])
    assert work.max() / work.mean() < 1.11


@pytest.mark.thorough
def test_a_loop_of_pytorch_follows_the_plan(venv, tmp_path):
    python = harness.python_with("torch")
    (site,) = venv.glob("lib/python*/site-packages")
    (tmp_path / "cadenza_planner").symlink_to(site / "cadenza_planner")
    example = harness.ROOT / "docs/examples/plan_in_loop.py"
    found = subprocess.run([python, example], env={**os.environ, "PYTHONPATH": str(tmp_path)},
                           capture_output=True, text=True, timeout=harness.TIMEOUT, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "equal"
    assert found.stdout.count("largest difference") == 12
