# SPDX-License-Identifier: Apache-2.0
"""Balance and FLOPs of attention, on the step line, in metrics.jsonl, by the analysis and on the
page, against what the events of real runs add up to."""

import json
import re
from collections import defaultdict

import h5py
import numpy as np
import pytest

import harness

cli = pytest.importorskip(
    "cadenza.cli", reason="the package analysis/ is not installed here", exc_type=ImportError
)

LENGTHS = [192, 64, 128, 128]
MODEL = {"layers": 3, "d_model": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 259}
SPARSE = {
    "kind": "vertical_slash",
    "sparse": {
        "block": 8,
        "columns": 6,
        "slashes": 3,
        "sinks": 1,
        "window": 1,
        "dense_below": 1,
    },
}
# The analysis rounds both ends of an event to ns of rank 0's clock; events take 10 us and more.
CLOCK = 2e-4
RUNS = {
    "full, ring": ({"context": 2}, {"placement": "ring"}, "none"),
    "sparse, ring": ({"context": 2}, {"placement": "ring", **SPARSE}, "none"),
    "sparse, cad": ({"data": 2}, {"placement": "cad", "overlap": "none", **SPARSE}, "attention"),
    "sparse, dedicated": (
        {"data": 2},
        {"placement": "cad", "servers": 1, "overlap": "none", **SPARSE},
        "none",
    ),
    "full, ping-pong": ({"data": 2}, {"placement": "cad", "overlap": "ping_pong"}, "none"),
}

# Of four ticks, different ones have different slowest ranks.
UNEVEN = {
    "data": {"lengths": {"values": [256, 16, 16, 32, 64, 128, 192, 8, 8, 16, 240]}},
    "batch": {"tokens": 2048},
    "attention": {"tolerance": 1.0},
}


def changes_of(name):
    parallel, attention, recompute = RUNS[name]
    return {
        "model": MODEL,
        "data": {
            "source": "synthetic",
            "lengths": {"distribution": "list", "values": LENGTHS},
            "max_document": 256,
        },
        "batch": {"tokens": 1024, "microbatch": 256},
        "parallel": {"data": 1, **parallel},
        "attention": attention,
        "run": {"steps": 4, "recompute": recompute},
    }


@pytest.fixture(scope="module", params=RUNS)
def finished(request, tmp_path_factory):
    """A run, and what it printed."""
    changes = changes_of(request.param)
    folder = tmp_path_factory.mktemp("balance")
    experiment = harness.write_experiment(folder / "experiment.yaml", changes)
    ranks = harness.ranks_of(harness.merged(harness.DEFAULTS, changes))
    out = harness.run_well(ranks, ["train", experiment, "--output", folder / "run"]).out
    return request.param, harness.Run(folder / "run"), out


def raw_work(run, name):
    """By (step, tick, layer, phase): seconds and FLOPs by (rank, stage) of the ranks that serve."""
    work = defaultdict(lambda: {"seconds": {}, "flops": {}})
    paths = sorted((run.folder / "trace").glob("rank-*.h5"))
    serving = [2] if "dedicated" in name else list(range(len(paths)))
    for rank in serving:
        with h5py.File(paths[rank], "r") as file:
            events, strings = file["/events"][...], file["/meta/strings"][...]
            phases = harness.names_of(file["/events"], "phase")
        for event in events:
            kind = strings[event["name_id"]].decode()
            if kind not in ("attend", "estimate"):
                continue
            stage = 0 if kind == "estimate" else int(event["stage"])
            place = (int(event["step"]), int(event["tick"]), int(event["layer"]),
                     phases[event["phase"]])
            cell = (rank, (int(event["half"]), stage))
            seconds = (event["end_ns"] - event["begin_ns"]) / 1e9
            for measure, value in (("seconds", seconds), ("flops", float(event["flops"]))):
                mine = work[place][measure]
                mine[cell] = mine.get(cell, 0.0) + value
    return work, serving


def levels(cells, serving):
    """Sum of the slowest, of the mean and in lockstep, and the step level, one rank at a time."""
    stages = {stage for (_, stage), value in cells.items() if value > 0}
    rows = [[cells.get((rank, stage), 0.0) for stage in stages] for rank in serving]
    sums = [sum(row) for row in rows]
    lockstep = sum(max(row[i] for row in rows) for i in range(len(stages)))
    step = max(max(row) * len(row) / sum(row) for row in rows if sum(row) > 0)
    return max(sums), sum(sums) / len(sums), lockstep, step


def expected(work, serving, measure, places):
    found = [levels(work[place][measure], serving) for place in places]
    most, mean, lockstep = (sum(one[i] for one in found) for i in range(3))
    return {"worker": most / mean, "lockstep": lockstep / mean,
            "step_level": sum(one[3] for one in found) / len(found)}


def forward_flops(run):
    """Of dense attention in a step, all layers and heads."""
    with h5py.File(run.folder / "trace/rank-00000.h5", "r") as file:
        steps = file["/steps"][...]
    pairs = (steps["sum_length2"] + steps["tokens"]) / 2
    return MODEL["layers"] * 4.0 * MODEL["d_model"] * pairs, steps["dense_attention_flops"]


def places_of(work, **wanted):
    keys = ("step", "tick", "layer", "phase")
    return [place for place in work
            if all(dict(zip(keys, place, strict=True))[k] == v for k, v in wanted.items())
            and ("step" in wanted or place[0] > 0)]


def assert_levels(row, work, serving, places):
    for measure, suffix, error in (("seconds", "", CLOCK), ("flops", "_flops", 1e-9)):
        for level, value in expected(work, serving, measure, places).items():
            assert row[level + suffix] == pytest.approx(value, rel=error), level + suffix


def test_metrics_are_what_events_add_up_to(finished):
    name, run, _ = finished
    work, serving = raw_work(run, name)
    imbalance = [expected(work, serving, "seconds", places_of(work, step=step))["worker"]
                 for step in range(4)]
    np.testing.assert_allclose(run.column("attention_imbalance_by_layer"), imbalance, rtol=1e-12)
    assert max(imbalance) > 1 or len(serving) == 1
    flops = [sum(sum(work[place]["flops"].values()) for place in places_of(work, step=step))
             for step in range(4)]
    np.testing.assert_allclose(run.column("attention_flops"), flops, rtol=1e-12)


@pytest.mark.parametrize("name", ["sparse, ring", "sparse, dedicated", "full, ping-pong"])
def test_metrics_of_a_simulation_are_what_its_events_add_up_to(name, tmp_path):
    changes = changes_of(name)
    if "ping-pong" in name:
        changes = harness.merged(changes, UNEVEN)
    experiment = harness.write_experiment(tmp_path / "experiment.yaml", changes)
    words = ["simulate", experiment, "--trace", "full", "--output", tmp_path / "run"]
    harness.run_well(1, words)
    run = harness.Run(tmp_path / "run")
    work, serving = raw_work(run, name)
    for step, line in enumerate(run.metrics):
        places = places_of(work, step=step)
        worker = expected(work, serving, "seconds", places)["worker"]
        assert line["attention_imbalance_by_layer"] == pytest.approx(worker, rel=CLOCK)
        flops = sum(sum(work[place]["flops"].values()) for place in places)
        assert line["attention_flops"] == pytest.approx(flops, rel=1e-12)
    np.testing.assert_allclose(run.column("dense_attention_flops"), 3.5 * forward_flops(run)[0])


def test_dense_flops_count_every_pair_of_every_pass(finished):
    name, run, _ = finished
    forward, recorded = forward_flops(run)
    dense = (4.5 if RUNS[name][2] == "attention" else 3.5) * forward
    np.testing.assert_allclose(recorded, dense, rtol=1e-12)
    np.testing.assert_allclose(run.column("dense_attention_flops"), dense, rtol=1e-12)
    share = 1 - run.column("attention_flops") / dense
    if "sparse" in name:  # all documents are: pairs and FLOPs are left out alike
        np.testing.assert_allclose(share, run.column("sparsity"), rtol=1e-9)
        assert min(share) > 0.1
    else:
        np.testing.assert_allclose(share, 0, atol=1e-12)


def test_the_step_line_has_the_numbers_of_metrics(finished):
    name, run, out = finished
    lines = [line for line in out.splitlines() if "attention imbalance" in line]
    pattern = r"attention imbalance ([\d.]+) \(by layer ([\d.]+)\)"
    sparse = r"  sparse ([\d.]+) % \(([\d.]+)(\w?) of ([\d.]+)(\w?) FLOPs\)"
    for line in (lines[0], lines[-1]):
        step = int(re.search(r"step +(\d+)/", line)[1])
        metrics = run.metrics[step]
        whole, by_layer = re.search(pattern, line).groups()
        assert whole == f"{metrics['attention_imbalance']:.3f}"
        assert by_layer == f"{metrics['attention_imbalance_by_layer']:.3f}"
        if "sparse" not in name:
            assert "sparse" not in line
            continue
        share, *flops = re.search(sparse, line).groups()
        assert share == f"{100 * metrics['sparsity']:.1f}"
        units = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}
        for value, unit, key in ((*flops[:2], "attention"), (*flops[2:], "dense_attention")):
            assert float(value) * units[unit] == pytest.approx(metrics[f"{key}_flops"], rel=5e-3)


def test_the_analysis_says_the_same_of_every_layer_and_pass(finished):
    name, run, _ = finished
    work, serving = raw_work(run, name)
    found = json.loads(harness.analyze("imbalance", run.folder, "--json").stdout)
    assert_levels(found["run"], work, serving, places_of(work))
    assert len(found["passes"]) == len(work)
    for row in found["passes"]:
        place = tuple(row[key] for key in ("step", "tick", "layer", "phase"))
        assert_levels(row, work, serving, [place])
        assert row["ranks"] == len(serving)
    for row in found["layers"]:
        layer = {} if row["layer"] < 0 else {"layer": row["layer"]}
        assert_levels(row, work, serving, places_of(work, phase=row["phase"], **layer))
    for row, metrics in zip(found["steps"], run.metrics, strict=True):
        assert row["worker"] == pytest.approx(metrics["attention_imbalance_by_layer"], rel=CLOCK)
    (summary,) = json.loads(harness.analyze("summary", run.folder, "--json").stdout)["runs"]
    assert summary["attention_imbalance"]["by_layer"] == pytest.approx(found["run"]["worker"])


def test_the_analysis_says_the_same_of_sparsity(finished):
    name, run, _ = finished
    work, _ = raw_work(run, name)
    found = json.loads(harness.analyze("imbalance", run.folder, "--json").stdout)["sparsity"]
    dense = run.column("dense_attention_flops")
    share = 1 - run.column("attention_flops") / dense
    for row in found["steps"]:
        assert row["sparsity"] == pytest.approx(share[row["step"]], abs=1e-9)
    assert [row["layer"] for row in found["layers"]] == [-1, *range(MODEL["layers"])]
    for row in found["layers"][1:]:
        flops = sum(sum(work[place]["flops"].values())
                    for place in places_of(work, layer=row["layer"]))
        assert row["flops"] == pytest.approx(flops, rel=1e-9)
        of_layer = dense[1:].sum() / MODEL["layers"]
        assert row["sparsity"] == pytest.approx(1 - flops / of_layer, abs=1e-9)


def test_terminal_and_page_print_these_numbers(finished, tmp_path):
    name, run, _ = finished
    found = json.loads(harness.analyze("imbalance", run.folder, "--json").stdout)
    whole = [row for row in found["layers"] if row["layer"] < 0]
    names = [level + suffix for suffix in ("", "_flops")
             for level in ("worker", "step_level", "lockstep")]
    text = harness.analyze("imbalance", run.folder).stdout
    for row in whole:
        numbers = r"\s+".join(f"{row[one]:.3f}" for one in names)
        assert re.search(rf"all\s+{row['phase']}\s+{row['stages']}\s.*\s{numbers}\s", text), text
    page = tmp_path / "page.html"
    assert cli.main(["report", str(run.folder), "--output", str(page), "--quiet"]) == 0
    section = page.read_text().partition('<section id="balance">')[2].partition("</section>")[0]
    for row in whole:
        cells = re.search(rf"<td[^>]*>{row['phase']}</td>(.*?)</tr>", section, re.S)[1]
        shown = re.findall(r">([\d.]+)</td>", cells)[-6:]
        assert shown == [f"{row[one]:.3f}" for one in names]
    if "sparse" in name:
        for row in found["sparsity"]["layers"]:
            assert f"{row['sparsity']:.1%}" in section
    else:
        assert "sparsity" not in section
