# SPDX-License-Identifier: Apache-2.0
"""What the README begins with: the experiments in inputs/ and, briefly, scripts/quickstart."""

import os
import subprocess
import sysconfig

import numpy as np
import pytest

import harness

LIBRARY = sysconfig.get_paths()["stdlib"]
INPUTS = sorted((harness.ROOT / "inputs").glob("*.yaml"))


@pytest.mark.parametrize("path", INPUTS, ids=lambda p: p.name)
def test_inputs_are_valid(path, tmp_path):
    result = harness.run_well(
        1, ["train", path, "--dry-run", "--set", f"data.path=['{LIBRARY}/*.py']"], cwd=tmp_path
    )
    assert "tick 0:" in result.out


def test_quickstart(tmp_path):
    """Two steps of it. It builds what it runs: only beside the build that it makes."""
    if harness.PROGRAM != harness.ROOT / "build/release/cadenza":
        pytest.skip(
            f"scripts/quickstart builds build/release/cadenza; tested here is {harness.PROGRAM}"
        )
    words = [harness.ROOT / "scripts/quickstart", "--steps", "2", "--output", tmp_path / "runs"]
    result = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=4 * harness.TIMEOUT,
        check=False,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **harness.environment()},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    runs = {name: harness.Run(tmp_path / "runs" / name) for name in ("cad", "colocated")}
    for run in runs.values():
        assert run.losses[1] < run.losses[0]
        for rank in range(2):
            assert len(harness.committed_steps(run.folder / f"trace/rank-{rank:05}.h5")) == 2
    np.testing.assert_allclose(runs["cad"].losses, runs["colocated"].losses, rtol=1e-5)
    assert (tmp_path / "runs/timeline.png").read_bytes().startswith(b"\x89PNG")
    assert "<section" in (tmp_path / "runs/report.html").read_text()
    for name in ("timeline.png", "report.html"):
        assert str(tmp_path / "runs" / name) in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]
