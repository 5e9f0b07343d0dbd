# SPDX-License-Identifier: Apache-2.0
"""`cadenza sweep`: a row per point whatever becomes of it, the same table however it was made."""

import csv
import subprocess
import sys

import h5py
import numpy as np
import pytest
import yaml

import harness

SWEEP = {
    "name": "grid",
    "base": "experiment.yaml",
    "steps": 2,
    "axes": {
        "system": {
            "cad": {"attention.placement": "cad"},
            "ring": {"attention.placement": "ring"},
            "ulysses": {"attention.placement": "ulysses"},
        },
        "parallel.context": [1, 2, 3],
        "length": {
            "short": {"data.lengths.median": 64},
            "long": {"data.lengths.median": 384},
        },
    },
    "rules": [{"when": {"system": "ring", "parallel.context": 1}, "skip": True}],
}
CHANGES = {
    "data": {"source": "synthetic", "lengths": {"distribution": "constant"}},
    "batch": {"tokens": 3072, "microbatch": 768},
    "parallel": {"data": 2},
}


def write(folder, **changes):
    harness.write_experiment(folder / "experiment.yaml", CHANGES)
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump({**SWEEP, **changes}, sort_keys=False))
    return path


def sweep(path, output, *options, **keywords):
    return harness.run(1, ["sweep", path, "--output", output, *options], **keywords)


def rows(output):
    with (output / "sweep.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    result = sweep(write(folder), folder / "out")
    assert result.code == 0, str(result)
    return folder, result


def test_every_point_has_a_row_in_the_order_of_the_grid(done):
    folder, result = done
    found = rows(folder / "out")
    names = [(r["system"], r["parallel.context"], r["length"]) for r in found]
    expected = [
        (system, context, length)
        for system in SWEEP["axes"]["system"]
        for context in "123"
        for length in SWEEP["axes"]["length"]
        if (system, context) != ("ring", "1")
    ]
    assert names == expected
    assert f"{len(expected)} points: " in result.out
    refused = [r for r in found if r["status"] == "refused"]
    assert {(r["system"], r["parallel.context"]) for r in refused} == {("ulysses", "3")}
    assert all("parallel.context" in r["reason"] for r in refused)
    for row in found:
        if row["status"] == "ok":
            assert float(row["seconds"]) >= float(row["lower_bound_seconds"]) > 0
            assert int(row["steps"]) == 2


def test_a_point_is_what_simulate_says_of_it(done, tmp_path):
    folder, _ = done
    (row,) = [
        r
        for r in rows(folder / "out")
        if (r["system"], r["parallel.context"], r["length"]) == ("ring", "2", "long")
    ]
    options = ["attention.placement=ring", "parallel.context=2", "data.lengths.median=384"]
    words = [w for option in options for w in ("--set", option)]
    words += ["--steps", 2, "--output", tmp_path / "r"]
    harness.run_well(1, ["simulate", folder / "experiment.yaml", *words])
    seconds = [line["seconds"] for line in harness.read_metrics(tmp_path / "r")]
    assert np.mean(seconds) == pytest.approx(float(row["seconds"]), rel=1e-6)


def test_hdf5_holds_the_same_table(done):
    folder, _ = done
    found = rows(folder / "out")
    with h5py.File(folder / "out" / "sweep.h5") as file:
        assert set(file) == set(found[0])
        assert [text.decode() for text in file["system"]] == [r["system"] for r in found]
        seconds = [float(r["seconds"] or "nan") for r in found]
        np.testing.assert_array_equal(file["seconds"], seconds)


def test_the_table_does_not_depend_on_scheduling(done, tmp_path):
    folder, _ = done
    words = harness.command(1, ["sweep", folder / "grid.yaml", "--output", tmp_path / "out"])
    result = harness.finish(harness.start(["taskset", "-c", "0", *words]))
    assert result.code == 0, str(result)
    expected = (folder / "out" / "sweep.csv").read_bytes()
    assert (tmp_path / "out" / "sweep.csv").read_bytes() == expected


def test_rows_are_kept_and_changed_ones_made_again(done, tmp_path):
    folder, _ = done
    path, out = write(tmp_path), tmp_path / "out"
    assert sweep(path, out).code == 0
    table = (out / "sweep.csv").read_text()
    # A mark in a kept row stays; a point whose experiment changed is simulated again.
    lines = table.splitlines(keepends=True)
    marked = lines[1].replace(",ok,", ",ok,marked ")
    assert marked != lines[1]
    (out / "sweep.csv").write_text("".join([lines[0], marked, *lines[2:]]))
    assert sweep(path, out).code == 0
    assert "marked" in (out / "sweep.csv").read_text()
    assert sweep(path, out, "--set", "model.ffn=64").code == 0
    assert "marked" not in (out / "sweep.csv").read_text()
    assert sweep(path, out).code == 0
    assert (out / "sweep.csv").read_text() == table
    assert table == (folder / "out" / "sweep.csv").read_text()


def test_rows_of_other_lengths_under_the_same_name_are_made_again(tmp_path):
    lengths = tmp_path / "lengths"
    lengths.write_text("64\n")
    options = ["--set", "data.lengths.distribution=file", "--set", f"data.lengths.path={lengths}"]
    path, out = write(tmp_path, axes={"parallel.context": [1]}, rules=[]), tmp_path / "out"
    assert sweep(path, out, *options).code == 0
    first = (out / "sweep.csv").read_text()
    lengths.write_text("384\n")
    assert sweep(path, out, *options).code == 0
    assert (out / "sweep.csv").read_text() != first


def test_a_killed_sweep_goes_on_where_it_was(done, tmp_path):
    axes = {**SWEEP["axes"], "attention.tolerance": [i / 40 for i in range(20)]}
    path, out = write(tmp_path, axes=axes), tmp_path / "out"
    process = harness.start(harness.command(1, ["sweep", path, "--output", out]))
    table = out / "sweep.csv"
    harness.wait_until(process, lambda: table.exists() and table.read_text().count("\n") >= 40)
    process.kill()
    process.communicate()
    kept = (out / "sweep.csv").read_text().count("\n") - 1
    result = sweep(path, out)
    assert result.code == 0, str(result)
    assert 0 < kept < len(rows(out))
    again = sweep(path, tmp_path / "again")
    assert again.code == 0, str(again)
    assert (out / "sweep.csv").read_text() == (tmp_path / "again" / "sweep.csv").read_text()


def test_memory_that_does_not_suffice_is_a_row(tmp_path):
    path = write(tmp_path, set={"run.memory": 1000})
    result = sweep(path, tmp_path / "out")
    assert result.code == 0, str(result)
    found = [r for r in rows(tmp_path / "out") if r["status"] != "refused"]
    assert {r["status"] for r in found} == {"out_of_memory"}
    assert all("out of memory on" in r["reason"] and float(r["seconds"]) > 0 for r in found)


def test_analysis_draws_and_checks_it(done, tmp_path):
    folder, _ = done
    report = [
        {
            "title": "ring over cad",
            "value": {"speed_up": {"of": ["cad"], "over": ["ring"]}},
            "axis": "system",
            "x": "parallel.context",
            "series": ["length"],
            "checks": [{"what": "all", "range": [0, 1000], "source": "here"}],
        }
    ]
    path, out = write(tmp_path, report=report), tmp_path / "out"
    assert sweep(path, out).code == 0
    table = tmp_path / "table.md"
    words = [sys.executable, "-m", "cadenza.cli", "sweep", out, "--markdown", table]
    env = {**harness.environment(), "PYTHONPATH": str(harness.ROOT / "analysis")}
    subprocess.run(words, check=True, env=env, capture_output=True, timeout=harness.TIMEOUT)
    assert (out / "grid-0.png").stat().st_size > 1000
    assert "| agrees |" in table.read_text()


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"stepz": 1}, 2, "grid.yaml:"),
        ({"base": "nowhere.yaml"}, 2, "nowhere.yaml: cannot be read"),
        ({"axes": {"seconds": {"a": {}}}, "rules": []}, 2, "found the name of a result's column"),
        ({"axes": {"parallel.contxt": [1]}, "rules": []}, 2, "all points were refused"),
        (
            {"set": {"data.lengths": {"distribution": "file", "path": "none.txt"}}},
            3,
            "'none.txt': cannot be read",
        ),
        (
            {"axes": {"a": {"x": {}}}, "rules": [{"when": {"a": "x"}, "skip": True}]},
            2,
            "no point",
        ),
    ],
)
def test_bad_sweeps_end_with_one_line(tmp_path, changes, code, message):
    result = sweep(write(tmp_path, **changes), tmp_path / "out")
    assert result.code == code, str(result)
    assert len(result.complaints) == 1 and message in result.complaints[0], str(result)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    result = sweep(write(tmp_path), tmp_path / "file" / "out")
    assert result.code == 3, str(result)
    assert "cannot be made" in result.complaints[0]


def test_another_sweeps_table_is_left_alone(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "sweep.csv").write_text("mine\n1\n")
    result = sweep(write(tmp_path), out)
    assert result.code == 3 and "another sweep" in result.complaints[0], str(result)
    assert (out / "sweep.csv").read_text() == "mine\n1\n"


def test_files_that_no_sweep_wrote_stay(tmp_path):
    """But the sweep's own file may lie where its results go."""
    path, out = write(tmp_path, axes={"parallel.context": [1]}, rules=[]), tmp_path / "out"
    out.mkdir()
    mine = out / "sweep.yaml"
    mine.write_text("mine")
    result = sweep(path, out)
    assert result.code == 3 and f"{mine}: was not written by a sweep" in result.complaints[0]
    assert mine.read_text() == "mine"
    mine.write_text(path.read_text())
    harness.write_experiment(out / "experiment.yaml", CHANGES)
    assert sweep(mine, out).code == 0
    assert mine.read_text() == path.read_text()
