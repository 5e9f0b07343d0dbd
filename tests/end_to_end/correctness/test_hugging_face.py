# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face's transformers, in and out: beside what it and PyTorch computed in float64
from the folders in data/families, which data/families/make.py made."""

import json
import random
import subprocess
import sys

import h5py
import numpy as np
import pytest

import harness

FAMILIES = harness.ROOT / "tests/end_to_end/data/families"
sys.path.insert(0, str(FAMILIES))
import cases  # noqa: E402

NAMES = sorted(path.name for path in FAMILIES.iterdir() if (path / "config.json").exists())
LAYOUTS = {
    "tensor": {"parallel": {"tensor": 2}},
    "pipeline": {"parallel": {"pipeline": 2}},
    "context": {"parallel": {"context": 2}, "attention": {"placement": "cad", "block": 8}},
    "data": {
        "parallel": {"data": 2, "shard": "optimizer"},
        "attention": {"placement": "cad", "block": 8},
    },
    "all": {"parallel": {"data": 2, "tensor": 2}, "run": {"recompute": "layer"}},
    "ring": {"parallel": {"context": 2}, "attention": {"placement": "zigzag", "block": 4}},
}


def read_safetensors(folder):
    """By name, from the format's description alone."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = (8 + length + offset for offset in entry["data_offsets"])
                kind = {"F64": "<f8", "F32": "<f4", "BF16": "<u2", "F16": "<f2"}[entry["dtype"]]
                tensors[name] = np.frombuffer(data[begin:end], kind).reshape(entry["shape"])
    return tensors


def write_documents(folder, documents):
    folder.mkdir()
    for number, document in enumerate(documents):
        np.save(folder / f"{number:03}.npy", document.astype("<u2"))
    return folder


def experiment_of(name, documents, changes):
    base = {
        "model": None,
        "data": {
            "source": "tokens",
            "path": str(documents),
            "document_end": cases.DOCUMENT_END,
            "max_document": 96,
        },
        "batch": {"tokens": 96, "microbatch": 48, "packing": "pooled"},
        "optimizer": cases.OPTIMIZER,
        "run": {"steps": cases.STEPS, "dtype": "float64", "checkpoint": {"every": cases.STEPS}},
    }
    model = {"model": {"config": str(FAMILIES / name / "config.json")}}
    return harness.merged(harness.merged(base, changes), model)


def write(path, name, documents, changes):
    """DEFAULTS describe a model, which would win over the one of config.json."""
    full = harness.merged(harness.DEFAULTS, {"model": None})
    changes = {k: v for k, v in experiment_of(name, documents, changes).items() if v is not None}
    path.write_text(json.dumps(harness.merged(full, changes)))
    return harness.ranks_of(harness.merged(full, changes))


def train(folder, name, changes, start=None):
    documents = write_documents(folder / "documents", cases.DOCUMENTS)
    ranks = write(folder / "e.yaml", name, documents, changes)
    words = [
        "train",
        folder / "e.yaml",
        "--output",
        folder / "run",
        "--from",
        start or FAMILIES / name,
    ]
    return harness.run_well(ranks, words), harness.Run(folder / "run")


def worst(found, expected):
    """Of all parameters: the largest difference beside the largest value."""
    return max(
        np.abs(found[name] - expected[name]).max() / np.abs(expected[name]).max() for name in found
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Every family after cases.STEPS updates on one rank."""
    runs = {}

    def get(name):
        if name not in runs:
            folder = tmp_path_factory.mktemp("trained")
            result, run = train(folder, name, {})
            assert f"from      {FAMILIES / name}, parameters alone: step 0" in result.out
            runs[name] = run
        return runs[name]

    return get


def logits_after_context(folder, config, dtype, start):
    """Up to a constant: the losses of a text that ends with each token of the vocabulary differ as
    its logits do."""
    texts = [np.append(cases.CONTEXT, token) for token in range(cases.VOCABULARY)]
    length = len(texts[0])
    documents = write_documents(folder / "texts", texts)
    batch = {"tokens": length, "microbatch": length, "packing": "fixed"}
    run = {"steps": cases.VOCABULARY, "dtype": dtype, "checkpoint": None}
    write(folder / "e.yaml", config, documents, {"batch": batch, "run": run})
    words = ["evaluate", folder / "e.yaml", "--from", start, "--output", folder / "evaluated"]
    harness.run_well(1, words)
    return -harness.Run(folder / "evaluated").losses * (length - 1)


def disagreement(found, expected):
    """Of logits that are known up to a constant, beside the largest."""
    difference = (found - found.mean()) - (expected - expected.mean())
    return np.abs(difference).max() / np.abs(expected).max()


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-11), ("float32", 1e-5)])
@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_those_of_transformers(name, dtype, tolerance, tmp_path):
    expected = np.load(FAMILIES / name / "expected.npz")["logits"]
    found = logits_after_context(tmp_path, name, dtype, FAMILIES / name)
    assert disagreement(found, expected) <= tolerance
    assert disagreement(found, expected[::-1]) > 0.1, "any logits would agree"


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_transformers_read_what_is_exported(name, trained, tmp_path):
    pytest.importorskip("transformers", reason="torch and transformers are not installed")
    run = trained(name)
    harness.run_well(1, ["convert", run.folder, "--output", tmp_path / "model"])
    words = [sys.executable, FAMILIES / "make.py", tmp_path / "model"]
    expected = np.array(json.loads(subprocess.check_output(words, text=True).splitlines()[-1]))
    found = logits_after_context(tmp_path, name, "float64", run.folder)
    assert disagreement(found, expected) <= 1e-11


@pytest.mark.parametrize("name", NAMES)
def test_ten_updates_equal_those_of_pytorch(name, trained):
    expected = np.load(FAMILIES / name / "expected.npz")
    run = trained(name)
    assert np.abs(run.losses / expected["losses"] - 1).max() <= 1e-11
    assert np.abs(run.column("gradient_norm") / expected["norms"] - 1).max() <= 1e-10
    assert worst(run.checkpoint(cases.STEPS), expected) <= 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_four_layouts_train_as_one_rank(name, trained, tmp_path):
    tied = json.loads((FAMILIES / name / "config.json").read_text())["tie_word_embeddings"]
    layouts = [key for key in LAYOUTS if key != "pipeline" or not tied]
    for layout in random.Random(name).sample(layouts, 4):
        (tmp_path / layout).mkdir()
        _, run = train(tmp_path / layout, name, LAYOUTS[layout])
        assert np.abs(run.losses / trained(name).losses - 1).max() <= 1e-11, layout
        after = run.checkpoint(cases.STEPS)
        assert worst(after, trained(name).checkpoint(cases.STEPS)) <= 1e-10, layout


@pytest.mark.parametrize("name", NAMES)
def test_a_trained_model_is_exported(name, trained, tmp_path):
    run = trained(name)
    harness.run_well(1, ["convert", run.folder, "--output", tmp_path / "model", "--quiet"])
    tensors = read_safetensors(tmp_path / "model")
    kept = run.checkpoint(cases.STEPS)
    assert tensors.keys() == kept.keys()
    for key, values in tensors.items():
        assert values.dtype == np.float64 and np.array_equal(values, kept[key]), key
    # What is read again is what was written.
    written = json.loads((tmp_path / "model/config.json").read_text())
    original = json.loads((FAMILIES / name / "config.json").read_text())
    ours = {"bos_token_id", "eos_token_id", "torch_dtype", "max_position_embeddings"}
    for key in (original.keys() & written.keys()) - ours:
        same = written[key] == original[key]
        if key == "rope_scaling" and original[key]:  # defaults may be written
            same = written[key] | original[key] == written[key]
        elif key == "head_dim" and original[key] is None:
            same = written[key] == original["hidden_size"] // original["num_attention_heads"]
        elif key in ("architectures", "model_type") and name == "mistral-nemo":
            same = "llama" in str(written[key]).lower()  # without a window it is one
        assert same, key
    result, again = train(tmp_path, name, {}, tmp_path / "model")
    assert "changed" not in result.out
    assert again.losses[0] < run.losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_there_and_back_keeps_every_bit(name, tmp_path):
    file = tmp_path / "start.h5"
    harness.run_well(1, ["convert", FAMILIES / name, "--output", file])
    harness.run_well(1, ["convert", file, "--output", tmp_path / "model"])
    before, after = read_safetensors(FAMILIES / name), read_safetensors(tmp_path / "model")
    assert before.keys() == after.keys()
    for key, values in before.items():
        assert values.dtype == after[key].dtype and np.array_equal(values, after[key]), key
    with h5py.File(file) as checkpoint:
        assert "optimizer" not in checkpoint and checkpoint.attrs["step"] == 0
    # It begins as the folder does.
    folder, converted = (
        train(tmp_path / kind, name, {"run": {"steps": 2}}, start)[1]
        for kind, start in (("a", FAMILIES / name), ("b", file))
        if (tmp_path / kind).mkdir() is None
    )
    assert list(folder.losses) == list(converted.losses)
