# SPDX-License-Identifier: Apache-2.0
"""The same documents from any kind of file train the same."""

import time

import numpy as np
import pytest

import harness

END = 257  # what the byte tokenizer ends a document with


@pytest.fixture(scope="module")
def texts():
    random = np.random.default_rng(2)
    words = [b"def", b"return", b"x", b"\xc3\xa9t\xc3\xa9", b"\n    ", b" ", b"\x01\xff", b"()"]
    return [
        b"".join(words[i] for i in random.integers(0, len(words), n)) for n in (40, 1, 9, 150, 30)
    ]


@pytest.fixture(scope="module")
def text_folder(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("text") / "corpus"
    for index, text in enumerate(texts):
        name = folder / f"{'deep/er/' if index % 2 else ''}file-{index}.py"
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_bytes(text)
    (folder / "empty.py").touch()
    (folder / ".hidden").write_text("not a document")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/x.pyc").write_text("not a document")
    return folder


@pytest.fixture(scope="module")
def documents(texts):
    """In byte order of the paths: deep/er/file-1, deep/er/file-3, file-0, file-2, file-4."""
    return [np.array([256, *texts[index], END]) for index in (1, 3, 0, 2, 4)]


def losses(folder, data):
    changes = {"data": data, "run": {"steps": 2}, "batch": {"tokens": 256, "microbatch": 128}}
    return harness.train(folder, changes).losses


@pytest.fixture(scope="module")
def text_losses(text_folder, tmp_path_factory):
    return losses(tmp_path_factory.mktemp("losses"), {"source": "text", "path": [str(text_folder)]})


@pytest.mark.parametrize("kind", ["uint16", "uint32", "npy", "pieces"])
def test_token_files_train_like_the_text(kind, documents, text_losses, tmp_path):
    data = {"source": "tokens", "document_end": END, "path": str(tmp_path / "tokens.bin")}
    if kind == "npy":
        data["path"] = str(tmp_path / "tokens.npy")
        np.save(data["path"], np.concatenate(documents).astype(np.int64))
    elif kind == "pieces":
        for index, document in enumerate(documents):
            harness.write_tokens(tmp_path / f"{index}.bin", [document])
        data["path"] = str(tmp_path / "*.bin")
    else:
        data["dtype"] = kind
        harness.write_tokens(data["path"], documents, np.dtype(kind).newbyteorder("<"))
    np.testing.assert_array_equal(losses(tmp_path / "out", data), text_losses)


@pytest.mark.parametrize("dtype", ["<u2", "<i4", "<i8"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_documents_of_megatron_train_like_the_text(dtype, pieces, documents, text_losses, tmp_path):
    index = harness.write_megatron(tmp_path / "tokens", documents, dtype, pieces)
    np.testing.assert_array_equal(
        losses(tmp_path / "out", {"source": "tokens", "path": str(index)}), text_losses)


def test_megatron_on_two_ranks_trains_like_a_flat_file(documents, tmp_path):
    (tmp_path / "indexed").mkdir()
    index = harness.write_megatron(tmp_path / "indexed/tokens", documents)
    flat = harness.write_tokens(tmp_path / "flat.bin", documents)
    changes = {"run": {"steps": 2}, "batch": {"tokens": 256, "microbatch": 128},
               "parallel": {"data": 2}}
    found = [
        harness.train(tmp_path / name, changes | {"data": {"source": "tokens", **data}}).losses
        for name, data in {
            "a": {"path": str(index)},
            "b": {"path": str(index.parent)},
            "c": {"path": str(flat), "document_end": END},
        }.items()
    ]
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[1], found[2])


def test_a_blend_trains_like_its_documents_in_turn(documents, tmp_path):
    """Of weights 2 to 1 and equal documents: two of one entry, one of the other, the smaller twice;
    files with an index and without, on two ranks."""
    parts = [document[:10] for document in documents[1:4]]
    index = harness.write_megatron(tmp_path / "a", [*parts, parts[0]])
    ends = [np.append(documents[4][1:10], END)]
    flat = harness.write_tokens(tmp_path / "b.bin", ends)
    data = {"source": "tokens", "path": [str(index), str(flat)], "document_end": END}
    changes = {"run": {"steps": 2}, "batch": {"tokens": 60, "microbatch": 30},
               "parallel": {"data": 2}}
    blend = harness.train(tmp_path / "blend", changes | {"data": {**data, "weights": [2, 1]}})
    order = [parts[0], ends[0], parts[1], parts[2], ends[0], parts[0]]
    same = harness.write_megatron(tmp_path / "same", order)
    plain = harness.train(
        tmp_path / "plain", changes | {"data": {"source": "tokens", "path": str(same)}})
    np.testing.assert_array_equal(blend.losses, plain.losses)


def test_weights_that_do_not_fit(documents, tmp_path):
    index = harness.write_megatron(tmp_path / "a", documents)
    path = f"data.path=[{index}, {index}]"
    experiment = harness.write_experiment(
        tmp_path / "experiment.yaml", {"data": {"source": "tokens", "path": "x"}})
    for weights, code, words in [
        ("[1]", harness.USAGE, "found 1 weights with 2 entries of data.path"),
        ("[1, 0]", harness.USAGE, "data.weights[1]: found 0"),
        ("[1, 1e-12]", harness.DATA, "data.weights: found 1 for"),
    ]:
        words_of = ["plan", experiment, "--set", path, "--set", f"data.weights={weights}"]
        result = harness.run(1, words_of)
        assert result.code == code and len(result.complaints) == 1, str(result)
        assert words in result.complaints[0]


def test_a_token_outside_the_vocabulary_ends_all_ranks(documents, tmp_path):
    """The index says nothing of tokens: the rank that reads the token finds it."""
    wrong = np.full(100, 65535)
    index = harness.write_megatron(tmp_path / "tokens", [*documents, wrong])
    before = sum(map(len, documents))
    changes = {"data": {"source": "tokens", "path": str(index)}, "parallel": {"data": 2},
               "batch": {"tokens": 256, "microbatch": 128}}
    experiment = harness.write_experiment(tmp_path / "experiment.yaml", changes)
    result = harness.run(2, ["train", experiment, "--output", tmp_path / "run"])
    assert result.code == harness.DATA, str(result)
    assert len(result.complaints) == 1, str(result)
    assert (f"'{tmp_path}/tokens.bin': token 65535 at position {before} is outside the vocabulary "
            "(model.vocab: 259; valid are 0 to 258)") in result.complaints[0]


def test_a_document_index_that_was_not_merged(documents, tmp_path):
    """Files joined as bytes, with all sequences, and the document index of the first."""
    index = harness.write_megatron(tmp_path / "tokens", [*documents, *documents], ends=range(6))
    changes = {"data": {"source": "tokens", "path": str(index)}}
    experiment = harness.write_experiment(tmp_path / "experiment.yaml", changes)
    for ranks, words in {1: ["plan"], 2: ["train", "--set", "parallel.data=2"]}.items():
        result = harness.run(ranks, [words[0], experiment, *words[1:]], cwd=tmp_path)
        assert result.code == harness.DATA and len(result.complaints) == 1, str(result)
        assert "has a document index from 0 to 5, but 10 sequences" in result.complaints[0]


def test_ranks_scan_large_files_once(documents, tmp_path):
    """Flat files of 64 MiB, mostly holes: two ranks share them, a second run reads the indexes."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    tokens = np.concatenate(documents).astype("<u2")
    for name in ("a.bin", "b.bin", "c.bin"):
        with open(corpus / name, "wb") as file:
            file.write(tokens)
            file.truncate(2**26 + 2)
    time.sleep(3.1)  # what just changed is not kept
    changes = {"data": {"source": "tokens", "path": str(corpus), "document_end": END},
               "parallel": {"data": 2}, "batch": {"tokens": 256, "microbatch": 128},
               "run": {"steps": 1}}
    experiment = harness.write_experiment(tmp_path / "experiment.yaml", changes)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    losses = []
    for name, scans in {"first": True, "second": False}.items():
        result = harness.run_well(2, ["train", experiment, "--output", tmp_path / name], env=env)
        assert ("file 3/3  scanned for documents" in result.err) == scans, str(result)
        losses.append(harness.Run(tmp_path / name).losses)
        kept = sorted(path.suffix for path in (tmp_path / "cache/cadenza/documents").iterdir())
        assert kept == [".idx"] * 3
    np.testing.assert_array_equal(*losses)
    index = harness.write_megatron(tmp_path / "a", documents)
    alone = harness.train(tmp_path / "own", harness.merged(changes, {"data": {"path": str(index)}}))
    np.testing.assert_array_equal(alone.losses, losses[0])


def test_other_order_gives_other_losses(documents, text_losses, tmp_path):
    path = harness.write_tokens(tmp_path / "tokens.bin", documents[::-1])
    data = {"source": "tokens", "document_end": END, "path": str(path)}
    assert np.all(losses(tmp_path, data) != text_losses)


def test_globs_and_shuffle(text_folder, text_losses, tmp_path):
    every = {"source": "text", "path": [f"{text_folder}/**/*.py"]}
    np.testing.assert_array_equal(losses(tmp_path / "glob", every), text_losses)
    assert np.all(losses(tmp_path / "shuffle", {**every, "shuffle": True}) != text_losses)


@pytest.mark.parametrize("distribution", ["constant", "uniform", "lognormal", "pareto", "list"])
def test_synthetic_documents_can_be_learned(distribution, tmp_path):
    lengths = {"distribution": distribution, "median": 60, "min": 10, "max": 100, "values": [3, 70]}
    changes = {
        "data": {"source": "synthetic", "documents": 50, "lengths": lengths},
        "model": {"vocab": 32},
        "optimizer": {"lr": 1e-2},
        "run": {"steps": 15},
    }
    found = harness.train(tmp_path, changes).losses
    assert abs(found[0] - np.log(32)) < 0.2
    assert found[-1] < found[0] - 0.2
