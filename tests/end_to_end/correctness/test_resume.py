# SPDX-License-Identifier: Apache-2.0
"""Training goes on from a checkpoint as if it had never stopped, in any layout."""

import itertools
import json
import os
import shutil
import signal
import time

import h5py
import numpy as np
import pytest

import harness
import test_signals
from test_interrupted import ranks_below

USAGE, DATA = 2, 3
STEPS, STOP = 6, 3
COLUMNS = ("loss", "gradient_norm", "learning_rate")
LAYOUTS = {
    "one": {},
    "cad-2-and-1-server": {
        "parallel": {"data": 2},
        "attention": {"placement": "cad", "servers": 1},
    },
    "balanced-2": {
        "parallel": {"data": 2},
        "data": {"shuffle": True, "max_document": 288},
        "batch": {"packing": "balanced", "microbatch": 288, "longest": 1, "outliers": [60, 120]},
        "attention": {"placement": "cad"},
    },
    "tensor-2-pipeline-2": {"parallel": {"tensor": 2, "pipeline": 2}},
    "data-2-tensor-2-sharded": {
        "parallel": {"data": 2, "tensor": 2, "shard": "optimizer"},
        "run": {"recompute": "layer"},
    },
}


def experiment_of(corpus, changes):
    base = {
        "data": harness.tokens_data(corpus),
        "batch": {"tokens": 12 * 96, "microbatch": 96},
        "run": {"steps": STEPS, "checkpoint": {"every": STOP}},
    }
    return harness.merged(base, changes)


def name_of(step):
    return f"step-{step:08}.h5"


def words_of(folder, changes, source, *more):
    """The command's arguments; the experiment is written to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    experiment = harness.write_experiment(folder / "resumed.yaml", changes)
    return ["train", experiment, "--from", source, "--output", folder / "resumed", *more]


def resume(folder, changes, source):
    ranks = harness.ranks_of(harness.merged(harness.DEFAULTS, changes))
    result = harness.run_well(ranks, words_of(folder, changes, source))
    return harness.Run(folder / "resumed"), result.out


def datasets(path):
    values = {}
    with h5py.File(path, "r") as file:
        file.visititems(
            lambda name, item: values.update({name: item[...]} if hasattr(item, "shape") else {})
        )
        return values, int(file.attrs["step"])


def assert_same_checkpoint(path, other):
    (found, step), (expected, expected_step) = datasets(path), datasets(other)
    assert step == expected_step
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def assert_goes_on(run, whole, first):
    """The same bits as the run that was not interrupted, from step `first` on."""
    assert [line["step"] for line in run.metrics] == list(range(first, STEPS))
    for column in COLUMNS:
        np.testing.assert_array_equal(run.column(column), whole.column(column)[first:], column)
    for step in (first, STEPS):
        name = f"checkpoints/{name_of(step)}"
        assert_same_checkpoint(run.folder / name, whole.folder / name)


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """A run on one rank that was not interrupted."""
    return harness.train(tmp_path_factory.mktemp("whole"), experiment_of(corpus, {}))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_goes_on_as_if_never_interrupted(layout, corpus, tmp_path):
    changes = experiment_of(corpus, LAYOUTS[layout])
    full = harness.train(tmp_path / "full", changes)
    run, _ = resume(tmp_path, changes, full.folder / "checkpoints" / name_of(STOP))
    assert_goes_on(run, full, STOP)
    for path in sorted((run.folder / "trace").glob("rank-*.h5")):
        assert list(harness.committed_steps(path)["step"]) == list(range(STOP, STEPS))


def test_balanced_packing_carries_documents(corpus, tmp_path):
    """What is resumed above has documents that were read before the checkpoint."""
    changes = experiment_of(corpus, LAYOUTS["balanced-2"])
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    words = ["plan", experiment, "--step", STOP, "--format", "json"]
    assert max(json.loads(harness.run_well(1, words).out)["delays"]) > 0


SAME_BATCHES = [layout for layout in LAYOUTS if layout != "balanced-2"]


@pytest.mark.parametrize(("writer", "reader"), list(itertools.permutations(SAME_BATCHES, 2)))
def test_any_layout_reads_what_another_wrote(writer, reader, corpus, tmp_path):
    double = {"run": {"dtype": "float64"}}
    full = harness.train(
        tmp_path / "full", experiment_of(corpus, harness.merged(LAYOUTS[writer], double))
    )
    changes = experiment_of(corpus, harness.merged(LAYOUTS[reader], double))
    run, _ = resume(tmp_path, changes, full.folder / "checkpoints" / name_of(STOP))
    for column in COLUMNS:
        np.testing.assert_allclose(run.column(column), full.column(column)[STOP:], rtol=1e-12)
    name = f"checkpoints/{name_of(STOP)}"
    assert_same_checkpoint(run.folder / name, full.folder / name)


def test_another_state_is_noticed(whole, corpus, tmp_path):
    """What is held above notices moments, parameters or a step that differ in little."""
    source = whole.folder / "checkpoints" / name_of(STOP)
    faults = {
        "moment": lambda f: f["optimizer/second_moment/model.norm.weight"].__setitem__(0, 1e-3),
        "weight": lambda f: f["model.norm.weight"].__setitem__(0, 1.001),
        "step": lambda f: f.attrs.__setitem__("step", STOP + 1),
    }
    for fault, plant in faults.items():
        (tmp_path / fault).mkdir()
        path = shutil.copy(source, tmp_path / fault / "changed.h5")
        with h5py.File(path, "r+") as file:
            plant(file)
        run, _ = resume(tmp_path / fault, experiment_of(corpus, {}), path)
        with pytest.raises(AssertionError):
            assert_goes_on(run, whole, STOP)


@pytest.fixture
def interrupted(whole, tmp_path):
    """A copy of a run whose last checkpoint is that of step STOP, and half of a later one."""
    folder = tmp_path / "interrupted"
    shutil.copytree(whole.folder, folder)
    last = folder / "checkpoints" / name_of(STEPS)
    last.rename(last.with_name(last.name + ".partial"))
    os.truncate(last.with_name(last.name + ".partial"), 5000)
    return folder


@pytest.mark.parametrize("below", ["", "checkpoints"])
def test_newest_in_a_folder(below, interrupted, whole, corpus, tmp_path):
    run, out = resume(tmp_path, experiment_of(corpus, {}), interrupted / below)
    assert_goes_on(run, whole, STOP)
    assert f"from      {interrupted}/checkpoints/{name_of(STOP)}, step {STOP}" in out


def without_head(path):
    with h5py.File(path, "r+") as file:
        del file["lm_head.weight"]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda path: os.truncate(path, 7000), "cannot open"),
        (without_head, "is damaged: lacks lm_head.weight"),
    ],
)
def test_damaged_newest_is_passed_over_and_told(
    damage, told, interrupted, whole, corpus, tmp_path
):
    damage(interrupted / "checkpoints" / name_of(STOP))
    run, out = resume(tmp_path, experiment_of(corpus, {}), interrupted)
    assert_goes_on(run, whole, 0)
    assert f"skipped   {interrupted}/checkpoints/{name_of(STOP)}: {told}" in out


@pytest.mark.parametrize("ranks", [1, 3])
def test_damaged_numbers_are_passed_over_and_told(ranks, interrupted, whole, corpus, tmp_path):
    """Whichever rank reads the damaged part, all of them go on from the older file."""
    flip_a_weight(interrupted / "checkpoints" / name_of(STOP))
    layout = {"parallel": {"pipeline": 2}, "attention": {"placement": "cad", "servers": 1}}
    changes = experiment_of(corpus, layout if ranks == 3 else {})
    run, out = resume(tmp_path, changes, interrupted)
    assert [line["step"] for line in run.metrics] == list(range(STEPS))
    if ranks == 1:
        assert_goes_on(run, whole, 0)
    (told,) = [line for line in out.splitlines() if line.startswith("skipped")]
    assert f"{interrupted}/checkpoints/{name_of(STOP)}: cannot read dataset lm_head" in told
    assert f"from      {interrupted}/checkpoints/{name_of(0)}, step 0" in out
    dry = harness.run_well(1, [*words_of(tmp_path / "dry", experiment_of(corpus, {}), interrupted),
                               "--dry-run"]).out
    assert f"{name_of(0)}, step 0" in dry


def test_a_file_of_another_step_is_passed_over(interrupted, whole, corpus, tmp_path):
    folder = interrupted / "checkpoints"
    shutil.copy(folder / name_of(0), folder / name_of(STOP + 1))
    run, out = resume(tmp_path, experiment_of(corpus, {}), interrupted)
    assert_goes_on(run, whole, STOP)
    assert "found step 0; valid: 4" in out


def test_another_model_is_not_passed_over(interrupted, corpus, tmp_path):
    changes = experiment_of(corpus, {"model": {"norm_eps": 1e-6}})
    refuse(DATA, ["norm_eps", name_of(STOP)], 1, words_of(tmp_path, changes, interrupted))


def test_other_settings_are_told_in_a_line(whole, corpus, tmp_path):
    source = whole.folder / "checkpoints" / name_of(STOP)
    changes = experiment_of(corpus, {"optimizer": {"lr": 1e-4}, "seed": 77})
    _, out = resume(tmp_path / "changed", changes, source)
    assert "changed   since the checkpoint: optimizer.lr, seed\n" in out
    changes = experiment_of(corpus, {"attention": {"kind": "window", "window": 16}})
    _, out = resume(tmp_path / "kind", changes, source)
    assert "changed   since the checkpoint: attention.kind\n" in out
    yarn = {"kind": "yarn", "factor": 2.0, "original_context": 64}
    changes = experiment_of(corpus, {"model": {"rope": {"scaling": yarn}}})
    _, out = resume(tmp_path / "longer", changes, source)
    assert "changed   since the checkpoint: model.rope.scaling.factor, " in out
    slow = {"attention": {"placement": "cad", "capacity": [[0, 50]]}}
    changes = experiment_of(corpus, slow)
    _, out = resume(tmp_path / "capacity", changes, source)
    assert "changed" not in out, "batches do not depend on it"
    changes = experiment_of(corpus, {**slow, "batch": {"packing": "balanced"}})
    _, out = resume(tmp_path / "packing", changes, source)
    assert "changed   since the checkpoint: attention.capacity, batch.packing\n" in out
    _, out = resume(tmp_path / "same", experiment_of(corpus, {}), source)
    assert "changed" not in out


def test_other_files_under_the_same_names_are_told_in_a_line(tmp_path):
    """Batches are others although no setting is."""
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("a text of its own " * 40)
    lengths = tmp_path / "lengths"
    lengths.write_text("40\n50\n60\n")
    budgets = tmp_path / "budgets.json"
    budgets.write_text("[[{columns: 8}]]")
    from_file = {"distribution": "file", "path": str(lengths)}
    numbers = {"block": 8, "columns": 16, "slashes": 2, "window": 2, "budgets": str(budgets)}
    sparse = {"kind": "vertical_slash", "sparse": numbers}
    cases = {
        "data.path": ({"data": {"source": "text", "path": str(texts)}}, texts / "b.txt", "b " * 50),
        "data.lengths.path": (
            {"data": {"source": "synthetic", "lengths": from_file}}, lengths, "40\n50\n61\n"),
        "attention.sparse.budgets": (
            {"data": {"source": "synthetic"}, "attention": sparse}, budgets, "[[{columns: 9}]]"),
    }
    for key, (changes, file, text) in cases.items():
        once = {"run": {"steps": 1, "checkpoint": {"every": 1}}, "batch": {"tokens": 256}}
        first = harness.train(tmp_path / key, harness.merged(changes, once))
        more = harness.merged(harness.merged(changes, once), {"run": {"steps": 2}})
        source = first.folder / "checkpoints" / name_of(1)
        _, out = resume(tmp_path / key / "same", more, source)
        assert "changed   since the checkpoint: run.steps\n" in out
        file.write_text(text)
        _, out = resume(tmp_path / key / "other", more, source)
        assert f"changed   since the checkpoint: run.steps, {key} (it holds " in out


@pytest.mark.parametrize(("keep", "stay"), [(1, [6]), (2, [5, 6]), (100, range(7)), (0, range(7))])
def test_the_newest_stay(keep, stay, corpus, tmp_path):
    changes = experiment_of(corpus, {"run": {"checkpoint": {"every": 1, "keep": keep}}})
    folder = tmp_path / "run" / "checkpoints"
    foreign = [folder / name_of(9), folder / "notes.txt"]  # folders: files would be refused
    for path in foreign:
        path.mkdir(parents=True)
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    harness.run_well(1, ["train", experiment, "--output", tmp_path / "run"])
    assert sorted(folder.iterdir()) == sorted([folder / name_of(step) for step in stay] + foreign)
    newest = folder / name_of(STEPS)
    assert datasets(newest)[1] == STEPS


def test_a_resumed_run_leaves_the_files_of_the_first(corpus, tmp_path):
    every = {"run": {"checkpoint": {"every": 1, "keep": 1}}}
    three = harness.merged(every, {"run": {"steps": 3}})
    first = harness.train(tmp_path, experiment_of(corpus, three))
    partial = first.folder / "checkpoints" / (name_of(4) + ".partial")
    partial.write_text("half")
    words = words_of(tmp_path, experiment_of(corpus, every), first.folder)
    words[words.index("--output") + 1] = first.folder
    harness.run_well(1, words)
    earlier = first.folder.with_name(first.folder.name + ".1")
    assert [p.name for p in (earlier / "checkpoints").iterdir()] == [name_of(3)]
    assert [p.name for p in (first.folder / "checkpoints").iterdir()] == [name_of(6)]


def test_into_the_folder_it_came_from(interrupted, whole, corpus, tmp_path):
    interrupted.rename(tmp_path / "resumed")
    run, _ = resume(tmp_path, experiment_of(corpus, {}), tmp_path / "resumed")
    assert_goes_on(run, whole, STOP)
    assert len(harness.read_metrics(tmp_path / "resumed.1")) == STEPS


def test_killed_before_its_first_checkpoint(interrupted, whole, corpus, tmp_path):
    """`--from R --output R` has renamed R to R.1 and wrote nothing more, or not even the folder;
    an R.1 that an earlier `--from R` has left in the same way is passed over."""
    interrupted.rename(tmp_path / "resumed.1")
    (tmp_path / "resumed.2/checkpoints").mkdir(parents=True)
    (tmp_path / "resumed/checkpoints").mkdir(parents=True)
    run, out = resume(tmp_path, experiment_of(corpus, {}), f"{tmp_path}/resumed/")
    assert_goes_on(run, whole, STOP)
    assert f"from      {tmp_path}/resumed.1/checkpoints/{name_of(STOP)}, step {STOP}" in out
    shutil.rmtree(tmp_path / "resumed")
    run, out = resume(tmp_path, experiment_of(corpus, {}), tmp_path / "resumed")
    assert_goes_on(run, whole, STOP)


def test_a_damaged_run_falls_back_to_the_one_before(interrupted, whole, corpus, tmp_path):
    """If that has the same settings; else it may be any other run that had the folder."""
    interrupted.rename(tmp_path / "resumed")
    run, _ = resume(tmp_path, experiment_of(corpus, {}), tmp_path / "resumed")
    for path in (run.folder / "checkpoints").iterdir():
        os.truncate(path, 7000)
    other = experiment_of(corpus, {"optimizer": {"lr": 1e-4}})
    words = words_of(tmp_path, other, run.folder, "--dry-run")
    why = f"4 skipped; the newest: {run.folder}/checkpoints/{name_of(STEPS)}: cannot open"
    result = refuse(DATA, ["resumed: no checkpoint to start from", why], 1, words)
    assert "is of an earlier run with another optimizer.lr" in result.out
    run, out = resume(tmp_path, experiment_of(corpus, {}), run.folder)
    assert_goes_on(run, whole, STOP)
    assert f"skipped   {run.folder}/checkpoints/{name_of(STEPS)}" in out
    assert f"from      {run.folder}.1/checkpoints/{name_of(STOP)}, step {STOP}" in out


def test_a_chain_of_attempts(interrupted, whole, corpus, tmp_path):
    """From its folder, the newest of all its runs that is sound."""
    chain = tmp_path / "chain"
    chain.mkdir()
    shutil.copytree(interrupted, chain / "attempt-0")
    shutil.copytree(interrupted, chain / "attempt-10")
    shutil.copytree(whole.folder, chain / "other")
    os.truncate(chain / f"attempt-10/checkpoints/{name_of(STOP)}", 7000)
    run, out = resume(tmp_path, experiment_of(corpus, {}), chain)
    assert_goes_on(run, whole, STOP)
    assert f"skipped   {chain}/attempt-10/checkpoints/{name_of(STOP)}" in out
    assert f"from      {chain}/attempt-0/checkpoints/{name_of(STOP)}, step {STOP}" in out


def test_dry_run_plans_the_step_that_comes(whole, corpus, tmp_path):
    words = words_of(tmp_path, experiment_of(corpus, {}), whole.folder / "checkpoints" /
                     name_of(STOP), "--dry-run")
    out = harness.run_well(1, words).out
    assert f"{name_of(STOP)}, step {STOP}" in out
    assert f"step {STOP} takes" in out


def without_moments(path):
    with h5py.File(path, "r+") as file:
        del file["optimizer/second_moment"]


def not_a_checkpoint(path):
    with h5py.File(path, "r+") as file:
        del file.attrs["schema"]


def schema_as_an_array(path):
    with h5py.File(path, "r+") as file:
        file.attrs["schema"] = np.full(9999, b"cadenza-checkpoint/2")


def flip_a_weight(path):
    with h5py.File(path, "r") as file:
        offset = file["lm_head.weight"].id.get_chunk_info(0).byte_offset
    flip(path, offset + 100, 2)


def flip(path, byte, bit):
    content = bytearray(path.read_bytes())
    content[byte] ^= 1 << bit
    path.write_bytes(content)


def other_model(words, model):
    return DATA, [words], None, {"model": model}


REFUSED = {
    "missing": (DATA, ["no such file or folder; valid: --from"], lambda path: path.unlink(), {}),
    "text": (DATA, ["is not an HDF5 file"], lambda p: p.write_text("weights"), {}),
    "empty": (DATA, ["is not an HDF5 file"], lambda path: os.truncate(path, 0), {}),
    "without moments": (DATA, ["lacks optimizer/second_moment/"], without_moments, {}),
    "no checkpoint": (DATA, ["is not a checkpoint", "cadenza-checkpoint/2"], not_a_checkpoint, {}),
    "schema as an array": (DATA, ["schema has 9999 values; valid: 1"], schema_as_an_array, {}),
    "a flipped bit": (DATA, ["lm_head.weight", "Fletcher32"], flip_a_weight, {}),
    "another ffn": other_model("model.ffn: the checkpoint has 48, the experiment 56", {"ffn": 56}),
    "another theta": other_model(
        "model.rope.theta: the checkpoint has 10000.0, the experiment 500.0",
        {"rope": {"theta": 500.0}},
    ),
    "another eps": other_model(
        "model.norm_eps: the checkpoint has 1.0e-05, the experiment 1.0e-06", {"norm_eps": 1e-6}
    ),
    "other heads of the same shapes": other_model(
        "model.heads: the checkpoint has 4, the experiment 2", {"heads": 2, "kv_heads": 1}
    ),
    "more layers": other_model(
        "model.layers: the checkpoint has 2, the experiment 3", {"layers": 3}
    ),
    "no steps left": (USAGE, ["run.steps", "found 3"], None, {"run": {"steps": STOP}}),
}


def refuse(code, words, ranks, arguments):
    result = harness.run(ranks, arguments)
    assert result.code == code, str(result)
    assert len(result.complaints) == 1, str(result)
    for word in words:
        assert word in result.complaints[0], str(result)
    return result


@pytest.mark.parametrize("case", REFUSED)
def test_bad_checkpoints(case, whole, corpus, tmp_path):
    code, words, plant, changes = REFUSED[case]
    path = tmp_path / "planted.h5"
    shutil.copy(whole.folder / "checkpoints" / name_of(STOP), path)
    if plant:
        plant(path)
    layout = {"parallel": {"data": 2}}
    arguments = words_of(
        tmp_path, experiment_of(corpus, harness.merged(changes, layout)), path
    )
    refuse(code, [*words, path.name], 2, arguments)
    assert not (tmp_path / "resumed").exists()


def test_cut_checkpoints(whole, corpus, tmp_path):
    source = whole.folder / "checkpoints" / name_of(STOP)
    path = tmp_path / "cut.h5"
    arguments = words_of(tmp_path, experiment_of(corpus, {}), path)
    size = source.stat().st_size
    for left in (7, 96, 800, 5000, size // 2, size - 1):
        shutil.copy(source, path)
        os.truncate(path, left)
        reason = "is not" if left < 8 else "cannot open as"  # its signature has 8 bytes
        refuse(DATA, ["cut.h5", f"{reason} an HDF5 file"], 1, arguments)
    shutil.copy(source, path)
    harness.run_well(1, arguments)


def test_a_folder_without_checkpoints(corpus, tmp_path):
    changes = experiment_of(corpus, {})
    refuse(DATA, ["holds no checkpoint; valid"], 1, words_of(tmp_path, changes, tmp_path))


def test_goes_on_after_a_signal(corpus, tmp_path):
    """As jobs that are requeued do, into the folder that the first one left."""
    steady = {"optimizer": {"schedule": "constant"}}  # run.steps changes no rate
    process = test_signals.start(tmp_path, corpus, 2, steady)
    stopped = test_signals.end(process, test_signals.to_rank(1, signal.SIGUSR1))
    assert stopped.code == test_signals.REQUEUE, str(stopped)
    first = harness.read_metrics(tmp_path / "run")
    last = len(first) + 2
    words = ["train", tmp_path / "e.yaml", "--set", f"run.steps={last}", "--output"]
    harness.run_well(2, [*words, tmp_path / "run", "--from", tmp_path / "run"])
    harness.run_well(2, [*words, tmp_path / "whole"])
    losses = [line["loss"] for line in first + harness.read_metrics(tmp_path / "run")]
    assert losses == [line["loss"] for line in harness.read_metrics(tmp_path / "whole")]


@pytest.mark.parametrize("delay", [0.0, 0.011, 0.023, 0.037])
def test_killed_while_writing(delay, corpus, tmp_path):
    """Rank 0 writes most of the time: whenever it is killed, what has a final name is whole."""
    changes = experiment_of(
        corpus,
        {
            "model": {"d_model": 128, "ffn": 512},
            "batch": {"tokens": 96, "microbatch": 48},
            "parallel": {"data": 2},
            "run": {"steps": 100000, "checkpoint": {"every": 1}},
        },
    )
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    folder = tmp_path / "run"
    process = harness.start(harness.command(2, ["train", experiment, "--output", folder]))
    try:
        harness.wait_for_steps(process, folder, 3)
        time.sleep(delay)
        os.kill(ranks_below(process.pid)[0], signal.SIGKILL)
        harness.finish(process)
    finally:
        harness.stop(process)
    written = sorted((folder / "checkpoints").glob("step-*.h5"))
    assert [datasets(path)[1] for path in written] == list(range(len(written)))
    newest = len(written) - 1
    shorter = harness.merged(changes, {"run": {"steps": newest + 2}})
    run, _ = resume(tmp_path, shorter, folder)
    assert [line["step"] for line in run.metrics] == [newest, newest + 1]
