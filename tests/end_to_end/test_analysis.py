# SPDX-License-Identifier: Apache-2.0
"""The Python package on what the program really writes."""

import json
import os
import subprocess
import sys

import pytest

import harness

cadenza = pytest.importorskip(
    "cadenza.cli", reason="the package analysis/ is not installed here", exc_type=ImportError
)


def analyze(*arguments):
    """Runs cadenza-analyze to its end."""
    result = subprocess.run(
        [sys.executable, "-m", "cadenza.cli", *map(str, arguments)],
        text=True,
        capture_output=True,
        timeout=harness.TIMEOUT,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory):
    """The same training with attention placed in two ways."""
    changes = {
        "data": harness.tokens_data(corpus),
        "parallel": {"data": 2},
        "run": {"steps": 4},
        "batch": {"tokens": 1024, "microbatch": 512},
    }
    return {
        placement: harness.train(
            tmp_path_factory.mktemp(placement),
            harness.merged(changes, {"attention": {"placement": placement}}),
        ).folder
        for placement in ("colocated", "cad")
    }


def test_summary(runs):
    output = json.loads(analyze("summary", runs["colocated"], runs["cad"], "--json").stdout)
    assert len(output["runs"]) == 2
    text = analyze("summary", runs["cad"]).stdout
    assert "rank" in text
    assert "imbalance" in text


def test_timeline(runs, tmp_path):
    picture = tmp_path / "timeline.png"
    analyze("timeline", runs["colocated"], runs["cad"], "--output", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


def test_summary_of_a_killed_run(corpus, tmp_path):
    changes = {"data": harness.tokens_data(corpus), "run": {"steps": 100000}}
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    process = harness.start(harness.command(1, ["train", experiment, "--output", tmp_path / "run"]))
    try:
        harness.wait_for_steps(process, tmp_path / "run", 4)
    finally:
        os.kill(process.pid, 9)
        harness.finish(process)
    result = analyze("summary", tmp_path / "run")
    assert "warning" in result.stderr
    steps = harness.committed_steps(tmp_path / "run/trace/rank-00000.h5")
    output = json.loads(analyze("summary", tmp_path / "run", "--json").stdout)
    assert f": {len(steps)}" in json.dumps(output)
