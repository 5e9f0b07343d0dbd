# SPDX-License-Identifier: Apache-2.0
"""run.validate: the loss that `evaluate` gives of the same weights and documents, in every layout,
and training that does not notice."""

import signal
from collections import Counter

import h5py
import numpy as np
import pytest

import harness

STEPS = 4
COMPUTE = 0  # lane, of which every event is recorded
# What else than layouts may go wrong where a forward pass runs on the arrays of training.
CASES = {
    "one rank": {},
    "data, sharded": {"parallel": {"data": 2, "shard": "optimizer"}},
    "context": {"parallel": {"context": 2}, "attention": {"placement": "cad"}},
    "pipeline": {"parallel": {"pipeline": 2}},
    "pipeline, in phases": {
        "parallel": {"pipeline": 2, "schedule": "phase_aligned"},
        "attention": {"placement": "cad"},
    },
    "chunks": {"parallel": {"pipeline": 2, "chunks": 2}, "model": {"layers": 4}},
    "tensor": {"parallel": {"tensor": 2}, "run": {"recompute": "layer"}},
    "ping-pong": {
        "parallel": {"data": 2},
        "attention": {"placement": "cad", "overlap": "ping_pong"},
    },
    "dedicated server": {"parallel": {"data": 2}, "attention": {"placement": "cad", "servers": 1}},
    "offload": {"model": {"layers": 5}, "run": {"offload": "activations"}},
    "layers of two kinds": {
        "attention": {"kind": "window", "window": 20, "layers": ["window", "full"]}
    },
    "sparse": {
        "attention": {
            "kind": "vertical_slash",
            "sparse": {"block": 16, "columns": 32, "slashes": 32, "dense_steps": 2, "refresh": 2},
        }
    },
    "best fit": {"batch": {"packing": "best_fit"}},
    "balanced": {"batch": {"packing": "balanced"}},
}


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    """Documents of which some are cut, and no whole number of batches."""
    lengths = [*np.random.default_rng(3).integers(2, 128, 20), 200, 1, 2]
    path = tmp_path_factory.mktemp("held_out") / "held_out.bin"
    return harness.write_tokens(path, harness.random_documents(4, lengths))


def experiment_of(case, corpus, held_out, **run):
    data = harness.tokens_data(corpus, validation=[str(held_out)], max_document=128)
    return harness.merged(
        {
            "data": data,
            "run": {"steps": STEPS, "dtype": "float64", "validate": {"every": 2}, **run},
        },
        CASES[case],
    )


@pytest.mark.parametrize("case", CASES)
def test_the_loss_is_that_of_evaluate(case, corpus, held_out, tmp_path):
    changes = experiment_of(case, corpus, held_out, checkpoint={"every": 2})
    run = harness.train(tmp_path, changes)
    found = {line["step"]: line.get("validation_loss") for line in run.metrics}
    assert [step for step, loss in found.items() if loss is not None] == [1, 3]
    words = ["evaluate", tmp_path / "experiment.yaml", "--format", "json", "--set", "run.steps=99"]
    for step in (1, 3):
        start = run.folder / f"checkpoints/step-{step + 1:08}.h5"
        ranks = harness.ranks_of(harness.merged(harness.DEFAULTS, changes))
        words_of_step = [*words, "--from", start, "--output", tmp_path / "evaluated"]
        result = harness.run_well(ranks, words_of_step)
        assert "it holds" not in result.out + result.err, "other documents than those of training"
        out = result.out
        loss = harness.json.loads(out[out.index("{") :])["loss"]
        assert abs(found[step] / loss - 1) <= 1e-12, (step, found[step], loss)


@pytest.mark.parametrize("case", ["one rank", "context", "pipeline", "sparse", "balanced"])
def test_training_does_not_notice(case, corpus, held_out, tmp_path):
    changes = experiment_of(case, corpus, held_out)
    with_it = harness.train(tmp_path / "with", changes)
    without = harness.train(
        tmp_path / "without", harness.merged(changes, {"run": {"validate": None}})
    )
    for name in ("loss", "gradient_norm", "bytes_moved", "attention_flops"):
        assert list(with_it.column(name)) == list(without.column(name)), name
    names = []
    for run in (with_it, without):
        with h5py.File(run.folder / "trace/rank-00000.h5") as file:
            table = [name.decode() for name in file["meta/strings"][:]]
            events = file["events"][:]
            names.append(
                Counter(
                    table[event["name_id"]]
                    for event in events
                    if event["lane"] == COMPUTE or table[event["name_id"]] == "validate"
                )
            )
    extra = names[0].pop("validate")
    assert extra == 1, "the one of the last step is after the last record"
    assert names[0] == names[1]


def test_a_share_is_never_trained_on(tmp_path):
    """A document that is held out has tokens that no other has."""
    documents = [np.full(20, token) for token in range(100)]
    for document in documents:
        document[-1] = harness.DOCUMENT_END
    corpus = harness.write_tokens(tmp_path / "c.bin", documents)
    data = harness.tokens_data(corpus, validation=0.2)
    run = harness.train(
        tmp_path,
        {
            "data": data,
            "model": {"tie_embeddings": False},
            "batch": {"tokens": 2000, "microbatch": 1000},
            "optimizer": {"weight_decay": 0.0},
            "run": {"steps": 2, "validate": {"every": 1}, "checkpoint": {"every": 2}},
        },
    )
    before, after = (run.checkpoint(step)["model.embed_tokens.weight"] for step in (0, 2))
    moved = [bool(np.any(before[token] != after[token])) for token in range(100)]
    assert 10 <= moved.count(False) <= 30
    first, last = (line["validation_loss"] for line in run.metrics)
    told = harness.analyze("summary", run.folder).stdout
    assert f"; validation {first:.4f} -> {last:.4f}" in told
    assert "no findings" in harness.analyze("check", run.folder).stdout


def test_a_signal_ends_a_long_validation(corpus, tmp_path):
    changes = {
        "data": harness.tokens_data(corpus, validation=0.5),
        "batch": {"tokens": 64, "microbatch": 64},
        "run": {"steps": 1000, "validate": {"every": 1}},
    }
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    words = harness.command(1, ["train", experiment, "--output", tmp_path / "run"])
    process = harness.start(words)
    harness.wait_until(process, lambda: (tmp_path / "run/metrics.jsonl").exists())
    process.send_signal(signal.SIGTERM)
    result = harness.finish(process)
    assert result.code == 143, str(result)


def test_entries_of_a_blend_count_once(held_out, corpus, tmp_path):
    """Weights say what is trained on: held-out documents count once, whatever they are."""
    losses = []
    for weights in ([0.5, 0.5], [0.01, 0.99], None):
        data = harness.tokens_data(corpus, validation=0.2, max_document=128)
        data |= {"path": [str(corpus), str(held_out)], "weights": weights}
        if weights is None:
            data |= {"path": str(corpus)}
            del data["weights"]
        changes = {
            "data": data,
            "optimizer": {"lr": 1e-30},
            "run": {"steps": 1, "dtype": "float64", "validate": {"every": 1}},
        }
        run = harness.train(tmp_path / str(len(losses)), changes)
        losses.append(run.metrics[0]["validation_loss"])
    assert abs(losses[0] / losses[1] - 1) <= 1e-12
    assert losses[0] != losses[2]


REFUSED = {
    "files of training": (
        {"data": {"validation": None}, "run": {"validate": {"every": 1}}},
        "which data.path has, too; valid: other files",
    ),
    "no documents": ({"run": {"validate": {"every": 1}}}, "run.validate.every: found 1, but"),
    "share of all": ({"data": {"validation": 1.0}}, "data.validation: found a share of 1"),
    "negative share": ({"data": {"validation": -0.1}}, "data.validation: found a share of -0.1"),
    "too small a share": ({"data": {"validation": 1e-9}}, "which holds out 0 of"),
    "no such file": (
        {"data": {"validation": ["nowhere.bin"]}, "run": {"validate": {"every": 1}}},
        "data.validation: cannot read 'nowhere.bin'",
    ),
    "files beside synthetic": (
        {
            "data": {
                "source": "synthetic",
                "path": None,
                "document_end": None,
                "validation": ["a.bin"],
            },
            "run": {"validate": {"every": 1}},
        },
        "data.validation: found files, but data.source = synthetic reads none",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_cannot_be_validated_is_refused(wrong, corpus, tmp_path):
    changes, words = REFUSED[wrong]
    changes = harness.merged({"data": harness.tokens_data(corpus)}, changes)
    if wrong == "files of training":
        changes["data"]["validation"] = [str(corpus.parent)]
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    before = set(tmp_path.iterdir())
    result = harness.run(
        2, ["train", experiment, "--output", tmp_path / "run", "--set", "parallel.data=2"]
    )
    assert result.code in (harness.USAGE, harness.DATA), str(result)
    assert len(result.complaints) == 1 and words in result.complaints[0], str(result)
    assert set(tmp_path.iterdir()) == before
