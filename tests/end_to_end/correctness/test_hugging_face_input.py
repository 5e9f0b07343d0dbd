# SPDX-License-Identifier: Apache-2.0
"""Folders of Hugging Face's that are no model, or another one, end `train`, `convert` and dry runs
with one line that names the file, exit code 3, and nothing written."""

import fcntl
import json
import os
import shutil

import numpy as np
import pytest

import harness
from own_model import write_safetensors
from test_hugging_face import FAMILIES, LAYOUTS, cases, read_safetensors, write, write_documents

EMBEDDING = "model.embed_tokens.weight"


def changed(change):
    """A change of the tensors."""

    def apply(folder):
        tensors = read_safetensors(folder)
        change(tensors)
        write_safetensors(folder / "model.safetensors", tensors)

    return apply


def config(**values):
    def apply(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return apply


def put(name, key, value):
    def change(tensors):
        tensors[name] = tensors[name].copy()
        tensors[name][key] = value

    return changed(change)


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])


def with_index(folder):
    (folder / "model.safetensors.index.json").write_text("{}")


# Of a folder: what is done to llama3.1's, and what the complaint says.
FOLDERS = {
    "another architecture": (config(model_type="mixtral"), "config.json:1: model_type: found"),
    "a key": (config(new_key=1), "config.json:1: new_key: found a key that Cadenza does not know"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json: "),
    "broken config": (
        lambda folder: (folder / "config.json").write_text("{"),
        "config.json",
    ),
    "a tensor missing": (
        changed(lambda t: t.pop("model.norm.weight")),
        "lacks the tensor model.norm.weight",
    ),
    "a tensor too many": (
        changed(lambda t: t.update({"model.layers.2.mlp.up_proj.weight": np.ones((2, 2))})),
        "model.safetensors: holds model.layers.2.mlp.up_proj.weight",
    ),
    "another shape": (
        changed(lambda t: t.update({EMBEDDING: t[EMBEDDING][1:]})),
        f"{EMBEDDING} has shape [63, 16]; valid: [64, 16]",
    ),
    "not a number": (
        put(EMBEDDING, (5, 3), np.nan),
        f"model.safetensors: is damaged: {EMBEDDING} has nan in row 5; valid: finite numbers",
    ),
    "infinity": (
        put("model.norm.weight", 9, np.inf),
        "model.safetensors: is damaged: model.norm.weight has inf in row 9",
    ),
    "cut short": (cut, "model.safetensors: has "),
    "of another program": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"PK\3\4" + bytes(100)),
        "model.safetensors: begins with a header of",
    ),
    "both kinds": (with_index, "holds both model.safetensors and model.safetensors.index.json"),
    "a tied head of its own": (
        config(tie_word_embeddings=True),
        f"lm_head.weight differs from {EMBEDDING}",
    ),
}


def copy_of(name, folder):
    shutil.copytree(FAMILIES / name, folder / "model")
    return folder / "model"


def require_refusal(result, words, folder, before):
    assert result.code == harness.DATA, str(result)
    assert len(result.complaints) == 1 and words in result.complaints[0], str(result)
    assert set(folder.iterdir()) == before, "something was written"


@pytest.mark.parametrize("wrong", FOLDERS)
@pytest.mark.parametrize("command", ["train", "dry run", "convert"])
def test_a_wrong_folder_is_refused(wrong, command, tmp_path):
    change, words = FOLDERS[wrong]
    model = copy_of("llama3.1", tmp_path)
    tied = wrong == "a tied head of its own"
    changes = {"model": {"tie_embeddings": True}} if tied else {}
    ranks = write(
        tmp_path / "e.yaml",
        "llama3.1",
        write_documents(tmp_path / "d", cases.DOCUMENTS),
        {**LAYOUTS["tensor"], **changes},
    )
    change(model)
    before = set(tmp_path.iterdir())
    if command == "convert":
        arguments, ranks = ["convert", model, "--output", tmp_path / "out.h5"], 1
    else:
        arguments = ["train", tmp_path / "e.yaml", "--from", model]
        if command == "dry run":
            arguments, ranks = [*arguments, "--dry-run"], 1
        else:
            arguments += ["--output", tmp_path / "out"]
    require_refusal(harness.run(ranks, arguments), words, tmp_path, before)


def test_a_shard_of_another_model_is_refused(tmp_path):
    model = copy_of("llama2", tmp_path)
    shards = sorted(model.glob("*.safetensors"))
    shutil.copy(shards[0], shards[1])
    before = set(tmp_path.iterdir())
    result = harness.run(1, ["convert", model, "--output", tmp_path / "out.h5"])
    require_refusal(result, "is in another file of the folder too", tmp_path, before)
    shards[1].unlink()
    result = harness.run(1, ["convert", model, "--output", tmp_path / "out.h5"])
    require_refusal(result, f"{shards[1].name}: cannot be read: No such file", tmp_path, before)


@pytest.mark.parametrize(
    "key, value", [("rope_theta", 500001.0), ("rms_norm_eps", 2e-6), ("hidden_size", 32)]
)
def test_another_model_than_the_experiments_is_refused(key, value, tmp_path):
    model = copy_of("llama3.1", tmp_path)
    config(**{key: value})(model)
    write(tmp_path / "e.yaml", "llama3.1", write_documents(tmp_path / "d", cases.DOCUMENTS), {})
    before = set(tmp_path.iterdir())
    words = ["train", tmp_path / "e.yaml", "--from", model, "--output", tmp_path / "out"]
    require_refusal(harness.run(1, words), "valid: the model of the folder", tmp_path, before)


def test_settings_that_may_differ_are_told(tmp_path):
    model = copy_of("mistral", tmp_path)
    write(
        tmp_path / "e.yaml",
        "mistral",
        write_documents(tmp_path / "d", cases.DOCUMENTS),
        {"attention": {"kind": "full"}, "run": {"steps": 1}},
    )
    words = ["train", tmp_path / "e.yaml", "--from", model, "--output", tmp_path / "out"]
    out = harness.run_well(1, words).out
    assert "changed   since config.json of the folder: attention.kind" in out


def test_a_folder_of_both_or_neither_is_refused(tmp_path):
    model = copy_of("llama3.1", tmp_path)
    harness.run_well(1, ["convert", model, "--output", model / "step-00000000.h5"])
    write(tmp_path / "e.yaml", "llama3.1", write_documents(tmp_path / "d", cases.DOCUMENTS), {})
    before = set(tmp_path.iterdir())
    start = ["train", tmp_path / "e.yaml", "--output", tmp_path / "out", "--from"]
    require_refusal(
        harness.run(1, [*start, model]), "holds safetensors and the checkpoint", tmp_path, before
    )
    (tmp_path / "d/empty").mkdir()
    for arguments in (
        [*start, tmp_path / "d/empty"],
        ["convert", tmp_path / "d/empty", "--output", tmp_path / "out"],
    ):
        require_refusal(harness.run(1, arguments), "checkpoint", tmp_path, before)


def test_what_exists_is_not_replaced(tmp_path):
    model = copy_of("llama3.1", tmp_path)
    file = tmp_path / "start.h5"
    harness.run_well(1, ["convert", model, "--output", file])
    kept = file.read_bytes()
    before = set(tmp_path.iterdir())
    for source, output in ((model, file), (file, model)):
        result = harness.run(1, ["convert", source, "--output", output])
        require_refusal(result, f"{output}: exists already", tmp_path, before)
    assert file.read_bytes() == kept
    result = harness.run(1, ["convert", model, "--output", tmp_path / "step-00000003.h5"])
    assert result.code == harness.USAGE and "valid: a name of step 0" in result.err
    assert set(tmp_path.iterdir()) == before


def test_an_output_may_end_with_a_slash(tmp_path):
    model = copy_of("llama3.1", tmp_path)
    harness.run_well(1, ["convert", model, "--output", f"{tmp_path}/start.h5/"])
    harness.run_well(1, ["convert", tmp_path / "start.h5", "--output", f"{tmp_path}/new//"])
    assert (tmp_path / "new/config.json").exists()


def test_two_conversions_do_not_share_an_output(tmp_path):
    """The other one holds what it writes, as these locks do; what a killed one left is replaced."""
    model = copy_of("llama3.1", tmp_path)
    harness.run_well(1, ["convert", model, "--output", tmp_path / "start.h5"])
    for source, output in ((model, tmp_path / "a.h5"), (tmp_path / "start.h5", tmp_path / "a")):
        partial = output.with_name(output.name + ".partial")
        partial.mkdir() if output.suffix == "" else partial.write_bytes(b"begun")
        descriptor = os.open(partial, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        before = set(tmp_path.iterdir())
        result = harness.run(1, ["convert", source, "--output", output])
        require_refusal(result, "another process is writing it", tmp_path, before)
        os.close(descriptor)
        harness.run_well(1, ["convert", source, "--output", output])
        assert output.exists() and not partial.exists()


@pytest.mark.parametrize("source", ["folder", "checkpoint"])
def test_a_full_disk_leaves_nothing(source, tmp_path):
    model = copy_of("llama3.1", tmp_path)
    file = tmp_path / "start.h5"
    harness.run_well(1, ["convert", model, "--output", file])
    before = set(tmp_path.iterdir())
    start, output = (model, "a.h5") if source == "folder" else (file, "a")
    result = harness.run_limited(8, 1, ["convert", start, "--output", tmp_path / output])
    assert result.code == harness.DATA and "File too large" in result.err, str(result)
    assert set(tmp_path.iterdir()) == before


def test_all_finite_float16_are_read(tmp_path):
    """As NumPy reads them."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    finite = bits[(bits & 0x7C00) != 0x7C00]
    model = copy_of("llama3.1", tmp_path)
    tensors = read_safetensors(model)
    values = finite.view(np.float16).reshape(-1, 16)
    vocabulary = len(values)
    config(vocab_size=vocabulary)(model)
    tensors |= {EMBEDDING: values, "lm_head.weight": values}
    write_safetensors(model / "model.safetensors", tensors, "F16")
    harness.run_well(1, ["convert", model, "--output", tmp_path / "a.h5"])
    found = harness.read_checkpoint(tmp_path / "a.h5")
    assert np.array_equal(found[EMBEDDING], values.astype(np.float64))
