# SPDX-License-Identifier: Apache-2.0
"""cadenza calibrate: a machine file of the machine at hand, which simulate takes."""

import re
import subprocess
import sys

import pytest
import yaml

import harness
from harness import DATA, USAGE

TOO_NOISY = 4  # other programs run here: the file is the same, but not recommended
# Sizes that take seconds; documents of 64 tokens are fewer than attention is measured with.
CHANGES = {
    "model": {"layers": 1, "d_model": 64, "heads": 2, "kv_heads": 1},
    "data": {"source": "synthetic", "max_document": 64},
    "batch": {"tokens": 1024, "microbatch": 512},
}


# Works and sleeps for random times, longer and longer ones.
NOISE = """
import random, sys, time
random.seed(int(sys.argv[1]))
while True:
    for work in (True, False):
        end = time.monotonic() + random.expovariate(1 / 0.05)
        while work and time.monotonic() < end:
            pass
        time.sleep(max(0, end - time.monotonic()))
"""


def calibrate(folder, ranks):
    experiment = harness.write_experiment(folder / "experiment.yaml", CHANGES)
    machine = folder / f"machine-{ranks}.yaml"
    result = harness.run(ranks, ["calibrate", experiment, "--output", machine])
    assert result.code in (0, TOO_NOISY), str(result)
    said = yaml.safe_load(machine.read_text())["source"]
    assert said.startswith("NOT RELIABLE: ") == (result.code == TOO_NOISY), str(result)
    assert len(result.complaints) == (result.code == TOO_NOISY), str(result)
    assert ("next      cadenza simulate" in result.out) == (result.code == 0), str(result)
    return experiment, machine, result


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    return calibrate(tmp_path_factory.mktemp("calibrated"), 2)


def test_measures_all_that_the_model_runs(calibrated):
    _, file, result = calibrated
    machine = yaml.safe_load(file.read_text())
    assert machine["dtype"] == "float32"
    assert "2 ranks x 1 thread" in machine["source"]
    assert machine["source"].count("% median") == 3
    assert "round 2 of 2" in result.out
    attention = machine["attention"]
    assert (attention["heads"], attention["kv_heads"], attention["head_dim"]) == (2, 1, 32)
    for table in (attention["forward"], attention["backward"]):
        assert [4096, 4096] in [row[:2] for row in table]
        assert all(row[2] > 0 for row in table)
    assert [row[0] for row in attention["sparse"]["table"]] == [4, 16, 32, 64, 128]
    assert all(0.3 < pair < 200 for row in attention["sparse"]["table"] for pair in row[1:])
    adjoining = attention["sparse"]["adjoining"]
    assert [row[0] for row in adjoining] == [4, 16, 32, 64, 128]
    assert all(0.3 < pair < 200 for row in adjoining for pair in row[1:])
    assert all(1e5 < rate < 1e13 for rate in attention["index"].values())
    # q of the forward pass, gate and up, the gradient of gate and up
    shapes = [row[:3] for row in machine["products"]["table"]]
    assert [512, 64, 64] in shapes and [512, 96, 64] in shapes and [96, 64, 512] in shapes
    for name in ("attention_inputs", "attention_outputs", "embedding", "copies"):
        assert all(rate > 0 for rate in machine["element_wise"][name].values()), name
    assert 0 < machine["links"]["inside"]["latency_seconds"] < 0.1
    assert machine["links"]["inside"]["bytes_per_second"] > 1e6


def test_simulate_takes_it(calibrated):
    experiment, machine, _ = calibrated
    words = ["simulate", experiment, "--set", f"cluster.machine={machine}", "--steps", 1]
    assert "step time" in harness.run_well(1, words).out
    refused = harness.run(1, [*words, "--set", "run.dtype=float64"])
    assert refused.code == USAGE, str(refused)
    assert "measured in float32" in refused.complaints[0]


def test_one_rank_knows_nothing_of_messages(tmp_path):
    _, machine, result = calibrate(tmp_path, 1)
    found = yaml.safe_load(machine.read_text())
    assert "copies and links need two ranks and were not measured" in found["source"]
    assert found["element_wise"]["copies"]["pack"] == 0


def test_says_before_it_measures_what_cannot_be_written(tmp_path):
    experiment = harness.write_experiment(tmp_path / "experiment.yaml", CHANGES)
    output = tmp_path / "missing" / "machine.yaml"
    result = harness.run(2, ["calibrate", experiment, "--output", output])
    assert result.code == DATA, str(result)
    assert len(result.complaints) == 1 and str(output) in result.complaints[0]
    assert "round 1" not in result.out
    result = harness.run(1, ["calibrate", experiment])
    assert result.code == USAGE and "--output is required" in result.complaints[0], str(result)


def test_only_its_own_file_is_replaced(calibrated, tmp_path):
    experiment = harness.write_experiment(tmp_path / "experiment.yaml", CHANGES)
    by_hand = tmp_path / "by-hand.yaml"
    by_hand.write_text((harness.ROOT / "inputs/machines/h200.yaml").read_text())
    for path in (experiment, by_hand):
        before = path.read_text()
        result = harness.run(1, ["calibrate", experiment, "--output", path])
        assert result.code == DATA and len(result.complaints) == 1, str(result)
        assert f"{path}: exists and was not written by cadenza calibrate" in result.complaints[0]
        assert path.read_text() == before
        assert "round 1" not in result.out, "told before it measures"
    # Its own file, or any with --force, is no obstacle: it complains of what comes next.
    _, machine, _ = calibrated
    wrong = ["--set", "attention.kernel=mma"]
    for words in ([machine], [by_hand, "--force"]):
        result = harness.run(1, ["calibrate", experiment, *wrong, "--output", *words])
        assert result.code == USAGE and "attention.kernel" in result.complaints[0], str(result)


def test_refuses_a_broken_experiment_once(tmp_path):
    experiment = harness.write_experiment(tmp_path / "experiment.yaml", {"model": {"heads": 5}})
    result = harness.run(2, ["calibrate", experiment, "--output", tmp_path / "machine.yaml"])
    assert result.code == USAGE and len(result.complaints) == 1, str(result)
    assert not (tmp_path / "machine.yaml").exists()


@pytest.mark.thorough
def test_says_what_is_too_noisy_and_does_not_recommend_it(tmp_path):
    """Another program takes the ranks' core by turns of milliseconds while they measure."""
    experiment = harness.write_experiment(tmp_path / "experiment.yaml", CHANGES)
    machine = tmp_path / "machine.yaml"
    words = ["taskset", "-c", "0", harness.PROGRAM, "calibrate", experiment, "--output", machine]
    noise = [sys.executable, "-c", NOISE]
    disturbers = [subprocess.Popen(["taskset", "-c", "0", *noise, str(i)]) for i in range(3)]
    try:
        result = harness.finish(harness.start([*map(str, words), "--verbose"]))
    finally:
        for disturber in disturbers:
            disturber.kill()
            disturber.wait()
    assert result.code == TOO_NOISY, str(result)
    (complaint,) = result.complaints
    assert str(machine) in complaint and "calibrate again while nothing else runs" in complaint
    assert re.search(r"measurements vary from round to round: \S|far from the measurements: \S",
                     complaint), str(result)
    assert "noisy only:" in result.out and "next" not in result.out
    assert result.out.count(", predicted ") > 5
    source = yaml.safe_load(machine.read_text())["source"]
    assert source.startswith("NOT RELIABLE: "), source
    said = harness.run_well(1, ["simulate", experiment, "--set", f"cluster.machine={machine}",
                                "--steps", 1]).out
    assert "NOT RELIABLE" in said
