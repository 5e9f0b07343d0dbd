# SPDX-License-Identifier: Apache-2.0
"""bench/clusters/check: simulations of a few measured iterations, and its own judgement."""

import importlib.machinery
import importlib.util
import statistics

import pytest

import harness

MACHINE = "inputs/machines/h200.yaml"
STEPS = range(4)


def load_check():
    path = harness.ROOT / "bench" / "clusters" / "check"
    loader = importlib.machinery.SourceFileLoader("clusters_check", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


check = load_check()
MEASURED = check.read_measured(check.HERE / "iterations_34b.csv")


def configuration(system, context, data="prolong", tokens=131072, sequences=16):
    return check.Configuration(data, tokens, sequences, system, context)


def test_every_row_is_read_and_repeated_runs_are_one():
    rows = (check.HERE / "iterations_34b.csv").read_text().splitlines()
    assert len(rows) == 1 + 1421
    assert len(MEASURED) == 34
    repeated = MEASURED[configuration("per_sequence", 8)]
    assert repeated[0] == pytest.approx(statistics.fmean([15542.27, 15482.49, 15542.72]))


@pytest.mark.parametrize(
    "key", [configuration("cad", 0), configuration("per_document", 4),
            configuration("per_sequence", 16)],
    ids=lambda key: key.system)
def test_measured_iterations_of_a_cluster_are_met(key):
    measured = {step: MEASURED[key][step] for step in STEPS}
    simulated = check.simulate(key, measured, str(harness.PROGRAM), MACHINE)
    error = check.Comparison(key, measured, simulated).error
    assert abs(error) < check.MEAN_LIMIT, f"{error:+.1f} %"


def test_a_wrong_machine_is_told_apart():
    key = configuration("cad", 0)
    measured = {step: MEASURED[key][step] for step in STEPS}
    simulated = check.simulate(key, measured, str(harness.PROGRAM), "inputs/machines/a100.yaml")
    assert not check.Comparison(key, measured, simulated).within()


def test_what_varies_must_go_with_what_was_measured():
    measured = {0: 100.0, 1: 200.0, 2: 300.0}
    key = configuration("cad", 0)
    assert check.Comparison(key, measured, measured).within()
    assert not check.Comparison(key, measured, {0: 300.0, 1: 200.0, 2: 100.0}).within()
    assert not check.Comparison(key, measured, {s: 1.06 * t for s, t in measured.items()}).within()


@pytest.mark.parametrize("machine", ["h200", "h100", "a100"])
def test_shipped_machines_simulate(machine, tmp_path):
    rows = f"{harness.ROOT}/inputs/lengths/packed_prolong_128K.txt"
    result = harness.run_well(
        1,
        ["simulate", check.HERE / "34b.yaml", "--steps", "1", "--set",
         f"cluster.machine={harness.ROOT}/inputs/machines/{machine}.yaml", "--set",
         f"data.lengths.path={rows}"],
        cwd=tmp_path,
    )
    assert f"machine {machine}" in result.out
