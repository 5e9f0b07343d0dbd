# SPDX-License-Identifier: Apache-2.0
"""bench/simulation: classes of operations from traces, errors, verdicts; one small run of all."""

import json
import sys

import numpy as np
import pytest

import harness

sys.path.insert(0, str(harness.ROOT / "bench"))
from benchmarks.placements import cases as placed
from benchmarks.simulation import __main__ as bench
from benchmarks.simulation import classes, servers, table

NAMES = ["attend", "attention_inputs", "pack", "unpack", "wait", "tensor_gather"]
CATEGORIES = [1, 0, 2, 2, 8, 5]
EVENT = np.dtype([("begin_ns", "i8"), ("end_ns", "i8"), ("name_id", "u2"), ("category", "u1"),
                  ("phase", "u1"), ("lane", "u1")])


def events(*rows):
    """(name, phase, begin, end[, lane]) in microseconds."""
    return np.array([(1000 * begin, 1000 * end, NAMES.index(name),
                      CATEGORIES[NAMES.index(name)], phase, *(lane or [0]))
                     for name, phase, begin, end, *lane in rows], EVENT)


def test_classes_are_sums_without_what_is_inside_them():
    found = classes.seconds_by_class(events(
        ("attention_inputs", 0, 0, 100), ("tensor_gather", 0, 20, 50, 1), ("attend", 0, 100, 140),
        ("attend", 1, 140, 240), ("pack", 0, 240, 250), ("unpack", 1, 250, 255),
        ("wait", 0, 255, 300), ("attend", 0, 0, 500, 1)), NAMES)
    assert found == pytest.approx({"attention_inputs forward": 70e-6, "attend forward": 40e-6,
                                   "attend backward": 100e-6, "copies": 15e-6})


def case(step=1.0, **changed):
    real = {"attend forward": 0.6, "loss": 0.395, "other": 0.005}
    return {"real": {"seconds": 1.0, "classes": real},
            "simulated": {"seconds": step, "classes": {**real, **changed}}}


@pytest.mark.parametrize("found, steps, judged", [
    (case(), "1 of 1", "2 of 2"),
    (case(step=1.06), "0 of 1", "2 of 2"),
    (case(step=0.94), "0 of 1", "2 of 2"),
    (case(loss=0.5), "1 of 1", "1 of 2"),
    (case(other=0.5), "1 of 1", "2 of 2"),  # too small to be judged
])
def test_verdicts_fail_where_they_should(found, steps, judged):
    first, second = table.verdict({"mix/CAD": found})
    assert f"within 5 %: {steps}" in first
    assert f"within 10 %: {judged}" in second


def test_tables_show_every_case_and_failures():
    cases = {"mix/CAD": case(step=1.016), "mix/ring": {"error": "no network"}}
    assert table.steps(cases, ["mix"], ["CAD", "ring", "striped"])[2:] == [
        "| CAD | +1.6 |", "| ring | no network |", "| striped | – |"]
    lines = "\n".join(table.classes(cases))
    assert "| attend forward | 60.00 | 0.0 | 0.0 | 1 of 1 |" in lines
    assert table.verdict({"mix/ring": {"error": "no"}}) == ["nothing was run"]


def test_noise_is_how_far_equal_work_is_apart():
    def run(real, simulated):
        return {"real": {"seconds": real}, "simulated": {"seconds": simulated}}
    cases = {"mix/a": run(1.0, 1.0), "mix/b": run(1.2, 1.009), "mix/c": run(5.0, 2.0),
             "other/a": run(9.0, 1.0), "mix/d": {"error": "no"}}
    assert table.noise(cases, "mix") == pytest.approx(0.2)
    assert table.noise(cases, "other") == 0
    assert table.calm(cases, ["mix", "nothing"])[2:] == ["| mix | 1 of 3 | 15.9 | 60.0 | 20.0 |"]


def test_servers_have_the_devices_and_tokens_of_the_others(capsys):
    assert {layout[2] for layout in servers.layouts(64, 12, 1 << 17, served=False)} == {0}
    for data, context, served in servers.layouts(64, 12, 1 << 17, served=True):
        assert 8 * data * context + served == 64 and 12 % data == 0
    servers.show(harness.PROGRAM, [(64, 12, "128K")])
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[2] for row in rows] == list(servers.MODES)
    assert all(float(row.split(" | ")[5]) > 0 for row in rows)  # each has a layout that fits


def test_measures_and_simulates_the_same(monkeypatch, tmp_path, capsys):
    """The whole of it with a small model."""
    monkeypatch.setattr(placed, "MODEL", {"layers": 1, "d_model": 32, "heads": 1, "kv_heads": 1,
                                          "ffn": 48, "vocab": 64})
    monkeypatch.setattr(placed, "MICROBATCH", 1024)
    first = next(iter(placed.MIXES))
    monkeypatch.setitem(placed.MIXES, first, [1024] + [128] * 8)
    for name, value in harness.environment().items():
        monkeypatch.setenv(name, value)
    output = tmp_path / "results.json"
    sparse = "CAD, vertical-slash"
    placement, keys = bench.KINDS[sparse]
    keys = [*keys, "attention.sparse.dense_below=256"]
    monkeypatch.setitem(bench.KINDS, sparse, (placement, keys))
    chosen = ",".join(str(1 + list(bench.CASES).index(name))
                      for name in ("CAD", bench.ONE_RANK, sparse))
    bench.main(["--mixes", "1", "--placements", chosen, "--program", str(harness.PROGRAM),
                "--steps", "1", "--output", str(output)])
    results = json.loads(output.read_text())
    assert set(results["machines"][first]) == {"1", "2"}
    for found in results["cases"].values():
        real, simulated = found["real"], found["simulated"]
        assert set(real["classes"]) == set(simulated["classes"])
        assert real["seconds"] > 0 and simulated["seconds"] > 0
    classes_of = {name: found["real"]["classes"] for name, found in results["cases"].items()}
    assert classes_of[f"{first}/{sparse}"]["estimate"] > 0
    assert "estimate" not in classes_of[f"{first}/CAD"]
    said = capsys.readouterr().out
    assert "| CAD |" in said and "steps within 5 %" in said
