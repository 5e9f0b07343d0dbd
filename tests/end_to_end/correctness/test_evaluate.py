# SPDX-License-Identifier: Apache-2.0
"""cadenza evaluate: the loss that training has with the same weights and documents, by any layout,
every document once; answers scored whole."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from test_positions import tables

import cadenza
import harness

TRAINED, STEPS = 4, 6  # steps of the checkpoint; of the evaluation
BASE = {
    "model": {"layers": 4, "d_model": 32, "heads": 4, "kv_heads": 2, "ffn": 64, "vocab": 66},
    "data": {
        "source": "retrieval",
        "lengths": {"distribution": "list", "values": [100, 40, 52, 64]},
        "documents": 64,
        "retrieval": {"facts": 4, "questions": 3},
    },
    "batch": {"tokens": 512, "microbatch": 128},
    "optimizer": {"lr": 3e-2, "warmup": 1},
    "run": {"dtype": "float64", "steps": TRAINED, "checkpoint": {"every": TRAINED}},
}
LAYOUTS = {
    "cad": {"parallel": {"data": 2}, "attention": {"placement": "cad"}},
    "server": {"attention": {"placement": "cad", "servers": 1}},
    "halves": {"parallel": {"data": 2}, "attention": {"placement": "cad", "overlap": "ping_pong"}},
    "kept inputs": {"parallel": {"data": 2}, "attention": {"placement": "cad", "inputs": "keep"}},
    "inner rings": {"parallel": {"context": 4},
                    "attention": {"placement": "block_striped", "inner_ring": 2}},
    "ulysses": {"parallel": {"context": 2}, "attention": {"placement": "ulysses"}},
    "tensor": {"parallel": {"tensor": 2, "shard": "optimizer", "data": 2}},
    "1f1b": {"parallel": {"pipeline": 2, "data": 2}},
    "interleaved": {"parallel": {"pipeline": 2, "chunks": 2}},
    "phase-aligned": {"parallel": {"pipeline": 2}, "attention": {"placement": "cad"}},
    "phase-aligned, server": {"parallel": {"pipeline": 2},
                              "attention": {"placement": "cad", "servers": 1}},
}
KINDS = {
    "full": {},
    "dual_chunk": {"kind": "dual_chunk", "chunk": 32, "local": 8},
    "vertical_slash": {"kind": "vertical_slash",
                       "sparse": {"block": 8, "columns": 8, "slashes": 4, "dense_below": 30}},
}


def write(folder, changes):
    folder.mkdir(parents=True, exist_ok=True)
    keys = harness.merged(BASE, changes)
    ranks = harness.ranks_of(harness.merged(harness.DEFAULTS, keys))
    return harness.write_experiment(folder / "e.yaml", keys), ranks


def train(folder, changes, *words):
    path, ranks = write(folder, changes)
    harness.run_well(ranks, ["train", path, "--output", folder / "run", *words])
    return harness.Run(folder / "run")


def evaluate(folder, changes, weights, *words):
    """The results and the run's folder."""
    path, ranks = write(folder, harness.merged({"run": {"steps": STEPS}}, changes))
    done = harness.run_well(ranks, ["evaluate", path, "--from", weights, "--output",
                                    folder / "evaluation", "--format", "json", *words])
    found = json.loads(done.out)
    assert found == json.loads((folder / "evaluation/evaluation.json").read_text())
    return found, harness.Run(folder / "evaluation")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return train(tmp_path_factory.mktemp("weights"), {}).folder


@pytest.fixture(scope="module", params=KINDS)
def alone(request, weights, tmp_path_factory):
    """A kind of attention, and what one rank finds with it."""
    kind = {"attention": KINDS[request.param]}
    return kind, evaluate(tmp_path_factory.mktemp("alone"), kind, weights)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, list):
            assert len(found[key]) == len(value)
            for one, other in zip(found[key], value, strict=True):
                assert_same(one, other)
        elif isinstance(value, float):
            assert found[key] == pytest.approx(value, rel=1e-10)
        else:
            assert found[key] == value, key


def test_it_is_the_loss_of_training_before_the_update(alone, weights, tmp_path):
    kind, (found, run) = alone
    further = {**kind, "run": {"steps": TRAINED + 1, "checkpoint": {"every": 0}}}
    trained = train(tmp_path, further, "--from", weights)
    assert run.losses[TRAINED] == pytest.approx(trained.losses[0], rel=1e-12)
    assert trained.metrics[0]["step"] == TRAINED
    assert found["checkpoint_step"] == TRAINED and found["steps"] == STEPS == len(run.losses)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_finds_the_same(layout, alone, weights, tmp_path):
    kind, (expected, run) = alone
    if layout == "halves" and "sparse" in kind["attention"]:
        pytest.skip("sparse attention is refused in ping-pong")
    found, other = evaluate(tmp_path, harness.merged(LAYOUTS[layout], kind), weights)
    assert_same(found, expected)
    np.testing.assert_allclose(other.losses, run.losses, rtol=1e-12)


def test_it_is_the_sum_of_its_trace(alone):
    _, (found, run) = alone
    frames = tables(run.folder)
    sums = frames["positions"][["targets", "hits", "loss"]].sum()
    assert found["targets"] == sums["targets"]
    assert found["loss"] == pytest.approx(sums["loss"] / sums["targets"], rel=1e-12)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]), rel=1e-12)
    assert found["accuracy"] == pytest.approx(sums["hits"] / sums["targets"], rel=1e-12)
    for name in ("lengths", "positions"):
        rows = pd.DataFrame(found[name])
        assert rows["targets"].sum() == found["targets"]
        assert (rows["loss"] * rows["targets"]).sum() == pytest.approx(
            found["loss"] * found["targets"], rel=1e-10)
    answers = frames["answers"]
    assert len(answers) > 0
    questions = answers.groupby(["step", "document", "question"])["hit"].min()
    assert (found["questions"], found["right"]) == (len(questions), questions.sum())
    assert sum(cell["questions"] for cell in found["answers"]) == found["questions"]
    events = cadenza.open(run.folder).events()
    assert "loss" in set(events["name"])
    assert not set(events["name"]) & {"optimize", "reduce_gradients", "gradient_norm"}
    assert "backward" not in set(events["phase"])


def test_weights_stay_as_they_are(weights, tmp_path):
    first = evaluate(tmp_path / "a", {}, weights)[0]
    again = evaluate(tmp_path / "b", {}, weights / "checkpoints" / f"step-{TRAINED:08}.h5")[0]
    for one in (first, again):
        one.pop("checkpoint")
    assert first == again


TEXTS = ["a few  words", "\n", "one\ttwo three " * 20, "x" * 70, "the last one, of six words"]


def of_one_pass(step):
    """Targets and words of TEXTS, whose tokens (with begin and end) are cut every `step` tokens."""
    targets, words, before = 0, 0, 0
    for text in TEXTS:
        end = len(text) + 2
        cuts = [0, *(cut for cut in range(1, end) if (before + cut) % step == 0), end]
        for first, last in zip(cuts[:-1], cuts[1:], strict=True):
            targets += last - first - 1
            words += sum(not text[i - 1].isspace() and (i == 1 or text[i - 2].isspace())
                         for i in range(first + 1, min(last, end - 1)))
        before += end
    return targets, words


@pytest.mark.parametrize("packing", ["fixed", "pooled", "balanced"])
def test_a_text_is_read_once_and_its_words_are_counted(packing, tmp_path):
    for i, text in enumerate(TEXTS):
        (tmp_path / f"{i}.txt").write_text(text)
    path = harness.write_experiment(tmp_path / "t.yaml", {
        "model": {**BASE["model"], "vocab": 259},
        "data": {"source": "text", "path": f"{tmp_path}/*.txt", "shuffle": False,
                 "max_document": 1000},
        "batch": {"tokens": 128, "microbatch": 128, "packing": packing},
        "run": {"dtype": "float64", "steps": 1, "checkpoint": {"every": 1}}})
    harness.run_well(1, ["train", path, "--output", tmp_path / "run"])
    words = ["evaluate", path, "--from", tmp_path / "run", "--output", tmp_path / "ev"]
    more = ["--format", "json", "--set", "run.steps=1000", "--set", f"batch.packing={packing}"]
    found = json.loads(harness.run_well(1, [*words, *more]).out)
    assert found["steps"] == -(-sum(len(text) + 2 for text in TEXTS) // 128)
    assert (found["targets"], found["words"]) == of_one_pass(128)
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2), rel=1e-12)
    assert found["word_perplexity"] == pytest.approx(
        math.exp(found["loss"] * found["targets"] / found["words"]), rel=1e-9)
    # A step longer than the corpus holds its first documents twice, and every token counts once.
    for tokens, microbatch in ((1024, 128), (768, 256), (1536, 512)):
        longer = ["--set", f"batch.tokens={tokens}", "--set", f"batch.microbatch={microbatch}"]
        whole = json.loads(harness.run_well(1, [*words, *more, *longer, "--set",
                                                "data.max_document=100"]).out)
        if packing != "fixed":
            pieces = sum(-(-(len(text) + 2) // 100) for text in TEXTS)
            assert whole["targets"] == sum(len(text) + 2 for text in TEXTS) - pieces
        assert whole["steps"] == 1 and whole["complete"]
    table = harness.run_well(1, words).out
    for word in ("perplexity", "bits a byte", "document from", "place from", "evaluation.json"):
        assert word in table


@pytest.mark.parametrize(("words", "code", "says"), [
    ([], 2, "--from is required"),
    (["--from", "nowhere"], 3, "no such file or folder"),
    (["--from", "{run}", "--set", "model.ffn=96"], 3, "model.ffn"),
    (["--from", "{run}", "--format", "xml"], 2, "valid: table, json"),
    (["--from", "{run}", "--set", "run.steps=0"], 2, "run.steps: found 0, which evaluates nothing"),
])
def test_what_is_refused(words, code, says, weights, tmp_path):
    path, _ = write(tmp_path, {})
    words = [word.replace("{run}", str(weights)) for word in words]
    done = harness.run(1, ["evaluate", path, "--output", tmp_path / "ev", *words])
    assert done.code == code and says in done.err
    assert not (tmp_path / "ev").exists()


def test_the_analysis_reads_it(alone, tmp_path):
    _, (found, run) = alone
    places = json.loads(harness.analyze("positions", run.folder, "--json", "--steps",
                                        f"0-{STEPS - 1}").stdout)
    assert sum(row["targets"] for row in places["positions"]) == found["targets"]
    harness.analyze("check", run.folder)
    harness.analyze("summary", run.folder)
    harness.analyze("report", run.folder, "--output", tmp_path / "report.html")
