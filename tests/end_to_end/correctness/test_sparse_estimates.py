# SPDX-License-Identifier: Apache-2.0
"""What plans of sparse attention know: a run that goes on makes the plans of the uninterrupted one,
layers that are unlike have plans of their own, and the program says what it planned by."""

import json
import shutil

import h5py
import numpy as np
import pytest

import harness
from test_resume import STEPS, STOP, assert_goes_on, name_of, resume, words_of

USAGE, DATA = 2, 3
LENGTHS = [300, 40, 500, 90, 250, 30, 512, 200, 60, 480]
SPARSE = {
    "block": 8,
    "columns": 6,
    "slashes": 3,
    "sinks": 1,
    "window": 1,
    "dense_below": 64,
}


@pytest.fixture(scope="module")
def long_corpus(tmp_path_factory):
    documents = harness.random_documents(11, LENGTHS * 4)
    return harness.write_tokens(tmp_path_factory.mktemp("long") / "tokens.bin", documents)


def experiment_of(corpus, changes):
    base = {
        "model": {"layers": 3},
        "data": harness.tokens_data(corpus),
        "batch": {"tokens": 4 * 512, "microbatch": 512},
        "parallel": {"data": 2},
        "attention": {
            "kind": "vertical_slash",
            "sparse": SPARSE,
            "placement": "cad",
            "tolerance": 0.02,
        },
        "run": {"steps": STEPS, "checkpoint": {"every": STOP}},
    }
    return harness.merged(base, changes)


def planned(run):
    """By rank and step: its tasks and stages in the plans."""
    found = {}
    for path in sorted((run.folder / "trace").glob("rank-*.h5")):
        with h5py.File(path) as file:
            for table in ("/plan", "/plan_summary"):
                rows = file[table][:]
                for step in np.unique(rows["step"]):
                    found[path.name, table, int(step)] = rows[rows["step"] == step]
    return found


LAYOUTS = {
    "two layers alike": {"model": {"layers": 2}},
    "a full layer": {"attention": {"layers": ["vertical_slash", "full", "vertical_slash"]}},
    "two tensor ranks": {"parallel": {"data": 1, "tensor": 2}},
    "two stages": {
        "model": {"layers": 4},
        "parallel": {"data": 1, "pipeline": 2, "schedule": "1f1b"},
        "attention": {"layers": ["full", *["vertical_slash"] * 3]},
    },
    "two stages in a pool": {"model": {"layers": 4}, "parallel": {"data": 1, "pipeline": 2}},
    "dense steps": {"attention": {"sparse": {"dense_steps": STOP - 1}}},
}


@pytest.fixture(scope="module")
def whole(long_corpus, tmp_path_factory):
    return harness.train(tmp_path_factory.mktemp("whole"), experiment_of(long_corpus, {}))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_goes_on_with_the_same_plans_and_bits(layout, long_corpus, tmp_path):
    changes = experiment_of(long_corpus, LAYOUTS[layout])
    full = harness.train(tmp_path / "full", changes)
    run, out = resume(tmp_path, changes, full.folder / "checkpoints" / name_of(STOP))
    assert_goes_on(run, full, STOP)
    expected = {k: v for k, v in planned(full).items() if k[2] >= STOP}
    found = planned(run)
    assert found.keys() == expected.keys()
    for key, rows in expected.items():
        np.testing.assert_array_equal(found[key], rows, err_msg=str(key))
    dense = STOP - 1 if layout == "dense steps" else 0  # of a step without any sparsity it is 0
    sparsity = full.column("sparsity")
    assert np.all(sparsity[:dense] == 0) and np.all(sparsity[dense:] > 0)
    by = "budgets" if dense else f"steps up to {STOP - 2}"
    assert f"sparse    step {STOP} is planned by {by}\n" in out


def without_counts(source, path):
    shutil.copy(source, path)
    with h5py.File(path, "r+") as file:
        del file["sparse_estimate"]
    return path


def test_without_counts_plans_begin_with_the_budgets(whole, long_corpus, tmp_path):
    source = whole.folder / "checkpoints" / name_of(STOP)
    old = without_counts(source, tmp_path / name_of(STOP))
    changes = experiment_of(long_corpus, {})
    run, out = resume(tmp_path, changes, old)
    said = "is planned by budgets: the checkpoint has no counts of earlier steps\n"
    assert f"sparse    step {STOP} {said}" in out
    np.testing.assert_allclose(run.losses, whole.losses[STOP:], rtol=1e-5)
    first, later = planned(run), planned(whole)
    key = ("rank-00000.h5", "/plan", STOP)
    assert not np.array_equal(first[key], later[key]), "the counts changed no plan"
    dry = harness.run_well(1, [*words_of(tmp_path / "dry", changes, old), "--dry-run"]).out
    assert f"sparse    step {STOP} {said}" in dry
    dry = harness.run_well(1, [*words_of(tmp_path / "dry", changes, source), "--dry-run"]).out
    assert f"sparse    step {STOP} is planned by steps up to {STOP - 2}\n" in dry


def test_a_full_run_carries_no_counts(whole, long_corpus, tmp_path):
    source = whole.folder / "checkpoints" / name_of(STOP)
    changes = experiment_of(long_corpus, {"attention": {"kind": "full", "sparse": None}})
    run, out = resume(tmp_path, changes, source)
    assert "sparse    " not in out and all("sparsity" not in line for line in run.metrics)
    with h5py.File(run.folder / "checkpoints" / name_of(STEPS)) as file:
        assert "sparse_estimate" not in file


def change_rows(path, dataset, change):
    """Values of another kind with checksums of their own: what a writer with a fault leaves."""
    with h5py.File(path, "r+") as file:
        values = change(file[dataset][:])
        del file[dataset]
        file.create_dataset(dataset, data=values, chunks=values.shape, fletcher32=True)


def set_at(row, column, value):
    def change(values):
        values[row, column] = value
        return values

    return change


DAMAGES = {
    "nan": ("shares", set_at(1, 3, np.nan), "has nan in row 1; valid: shares from 0 to 1"),
    "above one": ("shares", set_at(0, 0, 1.5), "has 1.5 in row 0; valid: shares from 0 to 1"),
    "below zero": ("shares", set_at(0, 31, -0.5), "has -0.5 in row 0"),
    "shape": ("shares", lambda values: values[:, :-1].copy(), "sparse_estimate/shares"),
    "rows": ("shares", lambda values: values[:-1].copy(), "sparse_estimate/shares"),
    "layer": ("places", set_at(-1, 1, 3), "a layer below 3 and 1 to 41 binary digits"),
    "type": ("places", lambda values: values.astype(np.float64), "sparse_estimate/places"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_counts_are_refused(damage, whole, long_corpus, tmp_path):
    path = tmp_path / name_of(STOP)
    shutil.copy(whole.folder / "checkpoints" / name_of(STOP), path)
    dataset, change, expected = DAMAGES[damage]
    change_rows(path, f"sparse_estimate/{dataset}", change)
    changes = experiment_of(long_corpus, {})
    for more in ((), ("--dry-run",)):
        ranks = 1 if more else 2
        result = harness.run(ranks, words_of(tmp_path, changes, path, *more))
        assert result.code == DATA, str(result)
        (line,) = result.complaints
        assert str(path) in line and expected in line


def plan_json(folder, changes, *more):
    experiment = harness.write_experiment(folder / "plan.yaml", changes)
    return json.loads(harness.run_well(1, ["plan", experiment, "--format", "json", *more]).out)


def test_plans_say_what_they_know(long_corpus, tmp_path):
    changes = experiment_of(long_corpus, {"attention": {
        "layers": ["vertical_slash", "full", "vertical_slash"]}})
    found = plan_json(tmp_path, changes)
    assert found["estimate"] == "budgets"
    assert [plan["layers"] for plan in found["plans"]] == [[1], [0, 2]] * 2
    assert [plan["tick"] for plan in found["plans"]] == [0, 0, 1, 1]
    assert sum(found["documents"]) == 4 * 512
    documents = 0
    for dense, sparse in zip(found["plans"][::2], found["plans"][1::2], strict=True):
        assert "density" not in dense
        lengths = found["documents"][documents : documents + len(sparse["density"])]
        documents += len(lengths)
        for length, shares in zip(lengths, sparse["density"], strict=True):
            if length < SPARSE["dense_below"]:
                assert shares is None
            else:
                assert len(shares) == 32 and all(0 < share <= 1 for share in shares)
        assert min(dense["imbalance"], sparse["imbalance"]) >= 1
        assert max(dense["imbalance"], sparse["imbalance"]) < 1.1
    assert documents == len(found["documents"])
    experiment = tmp_path / "plan.yaml"
    text = harness.run_well(1, ["plan", experiment]).out
    assert "sparse attention: by budgets\n" in text
    assert "tick 0, layers 1: " in text and "tick 1, layers 0,2: " in text
    full = plan_json(
        tmp_path, experiment_of(long_corpus, {"attention": {"kind": "full", "sparse": None}})
    )
    assert "estimate" not in full
    assert not any("density" in plan or "layers" in plan for plan in full["plans"])


def test_steps_that_are_dense_are_planned_so(long_corpus, tmp_path):
    changes = experiment_of(long_corpus, {"attention": {"sparse": {"dense_steps": 2}}})
    assert "estimate" not in plan_json(tmp_path, changes, "--step", 1)
    assert plan_json(tmp_path, changes, "--step", 2)["estimate"] == "budgets"


def budgets_of(tmp_path, text, changes=None):
    path = tmp_path / "budgets.json"
    path.write_text(text)
    budgets = {"attention": {"sparse": {"budgets": str(path)}}}
    return path, harness.merged(budgets, changes or {})


def test_heads_have_budgets_of_their_own(whole, long_corpus, tmp_path):
    """Layer 0 as in the experiment, layer 1 with heads that keep nearly all."""
    heads = [None, [{"columns": 300, "slashes": 200}] * 2 + [{"columns": 1, "slashes": 0}]]
    _, changes = budgets_of(tmp_path, json.dumps(heads))
    one = experiment_of(long_corpus, changes)
    run = harness.train(tmp_path / "budgets", one)
    assert run.column("sparsity")[0] < whole.column("sparsity")[0]
    # Whoever has the heads: the same numbers.
    tensor = harness.merged(one, {"parallel": {"data": 1, "tensor": 2}})
    other = harness.train(tmp_path / "tensor", tensor)
    np.testing.assert_allclose(other.losses, run.losses, rtol=1e-4)
    np.testing.assert_allclose(other.column("sparsity"), run.column("sparsity"), rtol=1e-3)
    # Before anything is measured, layers already differ by their budgets.
    assert [plan["layers"] for plan in plan_json(tmp_path, one)["plans"]] == [[0, 2], [1]] * 2


BAD_BUDGETS = {
    "missing file": (None, "budgets.json: "),
    "empty": ("", "budgets.json: "),
    "not a list": ("{}", "budgets.json:1: found a block of keys; valid: a list"),
    "too many layers": ("[[], [], [], []]", "found 4 items; valid: a list of the model's layers"),
    "too many heads": ("[[{}, {}, {}, {}, {}]]", "[0]: found 5 items; valid: a list of the layer"),
    "unknown key": ('[[{"rows": 3}]]', "rows: found an unknown key"),
    "negative": ('[[{"columns": -3}]]', "[0][0].columns: found -3"),
    "fraction": ('[[{"slashes": 0.5}]]', "[0][0].slashes: found 0.5"),
    "text": ('[[{"slashes": "3"}]]', "[0][0].slashes: found"),
    "nothing": ('[[{"columns": 0, "slashes": 0}]]', "nothing but the blocks of the diagonal"),
    "broken": ("[[{]", "budgets.json:1"),
}


@pytest.mark.parametrize("case", BAD_BUDGETS)
def test_bad_budgets_are_refused_in_a_line(case, long_corpus, tmp_path):
    text, expected = BAD_BUDGETS[case]
    path, changes = budgets_of(tmp_path, text or "")
    if text is None:
        path.unlink()
    experiment = harness.write_experiment(
        tmp_path / "e.yaml", experiment_of(long_corpus, changes)
    )
    for ranks, words in ((1, ["plan", experiment]), (2, ["train", experiment])):
        result = harness.run(ranks, [*words, *(["--output", tmp_path / "r"] if ranks > 1 else [])])
        assert result.code == USAGE, str(result)
        (line,) = result.complaints
        assert expected in line


def test_budgets_are_for_sparse_attention_alone(long_corpus, tmp_path):
    path, _ = budgets_of(tmp_path, "[]")
    others = dict.fromkeys(SPARSE)  # None: left out
    changes = experiment_of(
        long_corpus, {"attention": {"kind": "full", "sparse": {**others, "budgets": str(path)}}}
    )
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    result = harness.run(1, ["plan", experiment])
    assert result.code == USAGE and "attention.sparse" in result.complaints[0]
