# SPDX-License-Identifier: Apache-2.0
"""bench/straggler_analysis: it compares every published number, and finds one that is wrong."""

import json
import sys

import pytest

import harness

sys.path[:0] = [str(harness.ROOT / "bench"), str(harness.ROOT / "analysis/tests")]
import straggler_traces  # noqa: E402
from benchmarks import straggler_analysis as bench  # noqa: E402

IDEAL = 12.25  # s of a step, as of test_straggler_analysis.py in analysis/tests
WORKERS = {(0, 0): (2.0, 4.0), (0, 1): (1.0, 2.0), (1, 0): (1.0, 2.0), (1, 1): (1.0, 2.0)}


@pytest.fixture
def published(tmp_path):
    """A trace with the numbers that are worked out by hand."""
    straggler_traces.write(tmp_path / "trace-X.parquet", straggler_traces.two_microbatches(WORKERS))
    result = {
        "blocking_slowdown": 14 / IDEAL,
        "blocking_decompose_by_optype": {"forward-compute": 12.5 / IDEAL,
                                         "backward-compute": 13.5 / IDEAL,
                                         "forward-pp-comm": 1.0, "optimizer": 1.0, "gc": 1.0},
        "blocking_decompose_by_dp_rank": {"0": 14 / IDEAL, "1": 1.0},
        "blocking_decompose_by_stage": {"0": 14.75 / IDEAL, "1": 10.75 / IDEAL},
    }
    files = {"result": result, "mw": {"Mw": 3.25 / 1.75}, "ms": {"Ms": -0.75 / 1.75}}
    for kind, content in files.items():
        (tmp_path / f"{kind}-X.json").write_text(json.dumps(content))
    return tmp_path


def run(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["straggler_analysis", str(folder)])
    return bench.main(), capsys.readouterr().out


def test_equal_numbers(published, monkeypatch, capsys):
    code, said = run(published, monkeypatch, capsys)
    assert code == 0
    assert "| X | S | 1 | 1.14286 | 1.14286 |" in said
    assert "| X | S of each type | 4 |" in said and "| X | S of each stage | 2 |" in said


@pytest.mark.parametrize("kind,path,value", [
    ("result", ("blocking_slowdown",), 1.16), ("ms", ("Ms",), -0.4), ("mw", ("Mw",), 1.8),
    ("result", ("blocking_decompose_by_stage", "1"), 0.9)])
def test_a_wrong_number_is_found(published, monkeypatch, capsys, kind, path, value):
    file = published / f"{kind}-X.json"
    content = json.loads(file.read_text())
    *outer, last = path
    at = content
    for key in outer:
        at = at[key]
    at[last] = value
    file.write_text(json.dumps(content))
    assert run(published, monkeypatch, capsys)[0] == 1


def test_an_empty_folder(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="no trace"):
        run(tmp_path, monkeypatch, capsys)
