# SPDX-License-Identifier: Apache-2.0
"""run.offload: what layers keep waits in host memory: the same numbers, less memory."""

import json
import re

import h5py
import numpy as np
import pytest

import harness

LAYERS, ROWS, WIDTH, HEADS, KEYS, FFN = 8, 512, 64, 4, 32, 192
SLOTS = 3
# Input and middle, Q and O, two rstd, K and V, LSE, gate and up.
OF_ROW = 2 * WIDTH + 2 * WIDTH + 2 + 2 * KEYS + HEADS + 2 * FFN
CHANGES = {
    "model": {"layers": LAYERS, "d_model": WIDTH, "heads": HEADS, "kv_heads": 2, "ffn": FFN},
    "data": {"source": "synthetic", "lengths": {"distribution": "lognormal", "median": 100}},
    "batch": {"tokens": 4 * ROWS, "microbatch": ROWS},
    "run": {"steps": 2, "dtype": "float64"},
}
LAYOUTS = {
    "one rank": {},
    "biases and norms of heads": {"model": {"qkv_bias": True, "qk_norm": True},
                                  "parallel": {"tensor": 2}},
    "recomputed layers": {"run": {"recompute": "layer"}},
    "recomputed attention in a pipeline": {"parallel": {"pipeline": 2},
                                           "run": {"recompute": "attention"}},
    "interleaved pipeline": {"parallel": {"pipeline": 2, "chunks": 2, "schedule": "interleaved"}},
    "cad in ping-pong": {"parallel": {"data": 2},
                         "attention": {"placement": "cad", "overlap": "ping_pong"},
                         "run": {"recompute": "attention"}},
    "tensor and context": {"parallel": {"tensor": 2, "context": 2},
                           "attention": {"placement": "cad"}, "run": {"recompute": "mlp"}},
}
ACTIVATIONS = 3  # kind of memory


def train(folder, layout, offload):
    changes = harness.merged(harness.merged(CHANGES, layout), {"run": {"offload": offload}})
    return harness.train(folder, changes)


def peak(run, rank=0):
    with h5py.File(run.folder / "trace" / f"rank-{rank:05}.h5", "r") as file:
        samples = file["/memory/samples"]["host_rss_bytes"]
        return file["/memory/highwater"]["peak_bytes"][-1], int(np.max(samples))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_numbers_are_the_same_to_the_bit(layout, tmp_path):
    runs = {word: train(tmp_path / word, LAYOUTS[layout], word) for word in ("none", "activations")}
    for column in ("loss", "gradient_norm"):
        np.testing.assert_array_equal(*(run.column(column) for run in runs.values()))
    kept = [peak(run)[0][ACTIVATIONS] for run in runs.values()]
    assert kept[1] < kept[0]


def test_memory_falls_by_what_the_ledger_says(tmp_path):
    large = {"batch": {"tokens": 16 * ROWS, "microbatch": 8 * ROWS}, "parallel": {"data": 2},
             "model": {"layers": 12}, "run": {"steps": 1, "dtype": "float32"}}
    runs = {word: train(tmp_path / word, large, word) for word in ("none", "activations")}
    for rank in range(2):
        (before, rss_before), (after, rss_after) = (peak(run, rank) for run in runs.values())
        saved = before[ACTIVATIONS] - after[ACTIVATIONS]
        assert saved == (12 - SLOTS) * 8 * ROWS * OF_ROW * 4
        assert rss_before - rss_after == pytest.approx(saved, rel=0.1)


def write_machine(folder, rate):
    path = folder / "machine.yaml"
    path.write_text(
        "name: test\nsource: a test\ndtype: float64\nattention: {flops_per_second: 1.0e+10}\n"
        "products: {flops_per_second: 1.0e+10}\nelement_wise: {bytes_per_second: 1.0e+10}\n"
        f"links:\n  inside: {{bytes_per_second: 1.0e+10}}\n  host_bytes_per_second: {rate}\n")
    return path


def test_simulated_copies_are_waited_for_where_they_are_late(tmp_path):
    path = harness.write_experiment(
        tmp_path / "e.yaml", harness.merged(CHANGES, {"run": {"offload": "activations"}}))
    seconds = {}
    for rate in (1e30, 1e6):
        machine = write_machine(tmp_path, rate)
        out = harness.run_well(1, ["simulate", path, "--set", f"cluster.machine={machine}",
                                   "--steps", "1", "--format", "json"]).out
        seconds[rate] = json.loads(out)["seconds"]
    of_layer = ROWS * OF_ROW * 8
    copies = 4 * 2 * (LAYERS - SLOTS) * of_layer / 1e6  # microbatches, out and back
    assert seconds[1e6] > 0.8 * copies > 10 * seconds[1e30]


def test_a_folder_that_takes_no_file_is_named(tmp_path):
    path = harness.write_experiment(
        tmp_path / "e.yaml", harness.merged(CHANGES, {"run": {"offload": "activations"}}))
    env = {**harness.environment(), "TMPDIR": "/proc"}
    result = harness.run(1, ["train", path, "--output", tmp_path / "run"], env=env)
    assert result.code == 3, str(result)
    assert "run.offload: a file in /proc (TMPDIR) cannot be made" in result.err


def test_predictions_know_how_many_layers_stay(tmp_path):
    """They look at a few layers of many."""
    changes = {"run": {"offload": "activations"}, "parallel": {"data": 2},
               "attention": {"placement": "cad", "overlap": "auto"}, "model": {"layers": 24}}
    path = harness.write_experiment(tmp_path / "e.yaml", harness.merged(CHANGES, changes))
    machine = write_machine(tmp_path, 1e8)
    out = harness.run_well(2, ["simulate", path, "--set", f"cluster.machine={machine}",
                               "--steps", "1", "--format", "json"]).out
    found = json.loads(out)
    (decision,) = (line for line in found["decisions"] if line.startswith("overlap"))
    predicted = re.search(r"predicted ([\d.]+) s a step", decision)
    assert float(predicted[1]) == pytest.approx(found["seconds"], rel=0.03), decision
