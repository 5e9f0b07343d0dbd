# SPDX-License-Identifier: Apache-2.0
"""Where a simulated step's time goes: the terminal says what the analysis finds in the trace."""

import json
import os
import re
import subprocess
import sys

import pytest

import harness

PARTS = {
    "core attention": "compute_attention",
    "dense": "compute_dense",
    "other compute": "compute_other",
    "optimizer": "optimizer",
    "communication": "communication",
    "attention wait": "attention_wait",
    "pipeline bubble": "pipeline_bubble",
    "tensor-parallel wait": "tensor_parallel_wait",
    "data-parallel wait": "data_parallel_wait",
}
SLOW = {"slow_ranks": [[1, 0.7]], "jitter": 0.05}
# By layout: the changes, and the part in which ranks wait for others.
LAYOUTS = {
    "data": ({"parallel": {"data": 4}}, "data_parallel_wait"),
    "parameters": ({"parallel": {"data": 4, "shard": "parameters"}, "cluster": SLOW},
                   "data_parallel_wait"),
    "tensor": ({"parallel": {"tensor": 2, "data": 2}, "cluster": SLOW}, "tensor_parallel_wait"),
    "pipeline": ({"parallel": {"pipeline": 2, "data": 2}, "cluster": SLOW}, "pipeline_bubble"),
    "cad": (
        {"parallel": {"data": 4}, "attention": {"placement": "cad"}, "cluster": SLOW},
        "attention_wait",
    ),
    "servers": (
        {
            "parallel": {"data": 2},
            "attention": {"placement": "cad", "servers": 2},
            "cluster": SLOW,
        },
        "attention_wait",
    ),
}
SIZES = {
    "data": {"source": "synthetic", "max_document": 4096,
             "lengths": {"distribution": "lognormal", "median": 300.0, "sigma": 1.5}},
    "batch": {"tokens": 32768, "microbatch": 4096},
}


def summary_shares(folder):
    """Shares of the step, mean over ranks, that `cadenza-analyze summary` finds."""
    words = [sys.executable, "-m", "cadenza.cli", "summary", folder, "--json"]
    env = {**os.environ, "PYTHONPATH": str(harness.ROOT / "analysis")}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    ranks = run["per_rank"]
    seconds = {part: sum(rank[f"{part}_seconds"] for rank in ranks) for part in PARTS.values()}
    seconds["other"] = sum(rank["other_seconds"] for rank in ranks)
    return {part: value / sum(seconds.values()) for part, value in seconds.items()}


def terminal_shares(text):
    """The column "mean of ranks"."""
    found = re.findall(r"^([a-z][a-z -]+?) +[\d.]+ [mun]?s +([\d.]+) %", text, re.MULTILINE)
    return {PARTS[name]: float(share) / 100 for name, share in found}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_terminal_and_report_agree(layout, tmp_path):
    changes, waits = LAYOUTS[layout]
    experiment = harness.write_experiment(
        tmp_path / "experiment.yaml", harness.merged(SIZES, changes)
    )
    words = ["simulate", experiment, "--trace", "full", "--output", tmp_path / "run"]
    said = terminal_shares(harness.run_well(1, words).out)
    json_shares = json.loads(harness.run_well(1, [*words, "--format", "json"]).out)["parts"]
    found = summary_shares(tmp_path / "run")
    assert found[waits] > 0.02, found
    assert found["other"] < 0.001
    for part in PARTS.values():
        assert said.get(part, 0) == pytest.approx(found[part], abs=0.005), part
        assert json_shares[part]["mean_share"] == pytest.approx(found[part], abs=0.005), part
