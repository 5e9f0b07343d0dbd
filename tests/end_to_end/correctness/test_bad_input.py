# SPDX-License-Identifier: Apache-2.0
"""What cannot be run ends at once, on every rank, with one line that names the fault, and writes
nothing. What is refused, and in which words, is tested where it is read: in tests/unit/config and
tests/unit/data. Here are some of each."""

import os
import subprocess

import numpy as np
import pytest

import harness
from harness import DATA, USAGE
from test_attend import layout, random_input, write_input


def tokens(content):
    """A corpus in `corpus.bin` with these bytes."""

    def prepare(folder):
        (folder / "corpus.bin").write_bytes(content)
        return {"data": harness.tokens_data(folder / "corpus.bin")}

    return prepare


def text(entry):
    return lambda folder: {"data": {"source": "text", "path": [str(folder / entry)]}}


def changes(**values):
    return lambda folder: values


def uint16(*values):
    return np.array(values, dtype="<u2").tobytes()


# What is wrong: exit code, words of the complaint, how the experiment is made.
EXPERIMENTS = {
    "corpus missing": (DATA, ["nowhere"], text("nowhere")),
    "token beyond the vocabulary": (DATA, ["corpus.bin", "259"], tokens(uint16(1, 259, 258))),
    "unknown key": (USAGE, ["model.layer", "layers"], changes(model={"layer": 3})),
    "heads do not divide": (USAGE, ["model.kv_heads", "3"], changes(model={"kv_heads": 3})),
    "device of another build": (
        USAGE,
        ["run.device", "cuda", "host"],
        changes(run={"device": "cuda"}),
    ),
    "a layout that is only simulated": (
        USAGE,
        ["parallel.shard", "parameters", "simulate", "none, optimizer"],
        changes(parallel={"shard": "parameters"}),
    ),
    "memory that is not enough": (
        USAGE,
        ["run.memory", "most of it", "run.recompute", "parallel.shard"],
        changes(run={"memory": 100000}),
    ),
}

ARGUMENTS = {
    "override of an unknown key": (USAGE, ["model.layer", "layers"], ["--set", "model.layer=3"]),
    "unknown option": (USAGE, ["--outptu"], ["--outptu", "x"]),
    "output below a file": (DATA, ["e.yaml/run"], ["--output", "{folder}/e.yaml/run"]),
    "output where nothing can be": (DATA, ["/proc/nowhere"], ["--output", "/proc/nowhere/run"]),
}


def assert_refused(result, code, words):
    assert result.code == code, str(result)
    assert len(result.complaints) == 1, str(result)
    for word in words:
        assert word in result.complaints[0], str(result)
    if not result.command.startswith("mpirun"):  # which has much to say itself
        assert result.err.splitlines() == result.complaints, str(result)


def good(corpus, ranks):
    return {"data": harness.tokens_data(corpus), "parallel": {"data": ranks}}


def refuse(folder, ranks, arguments, code, words):
    """The program on `folder`/e.yaml refuses, and leaves nothing in its working folder."""
    here = folder / "here"
    here.mkdir()
    arguments = [str(word).replace("{folder}", str(folder)) for word in arguments]
    result = harness.run(ranks, ["train", folder / "e.yaml", *arguments], cwd=here)
    assert_refused(result, code, words)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", EXPERIMENTS)
def test_experiment(case, ranks, corpus, tmp_path):
    code, words, prepare = EXPERIMENTS[case]
    experiment = harness.merged(good(corpus, ranks), {"data": None, **prepare(tmp_path)})
    experiment.setdefault("data", harness.tokens_data(corpus))
    harness.write_experiment(tmp_path / "e.yaml", experiment)
    refuse(tmp_path, ranks, [], code, words)


@pytest.mark.parametrize("ranks", [1, 2])
def test_file_that_is_no_experiment(ranks, tmp_path):
    (tmp_path / "e.yaml").write_text("name: x\nmodel: {layers: 2}}\n")
    refuse(tmp_path, ranks, [], USAGE, ["e.yaml:2"])


def test_memory_that_is_not_enough_for_messages(corpus, tmp_path):
    """It is found in the plan, when the run's folder is there: 1.02 MiB without them, 1.11 with."""
    changes = {"run": {"memory": 1100000}, "attention": {"placement": "cad"}}
    harness.write_experiment(tmp_path / "e.yaml", harness.merged(good(corpus, 2), changes))
    result = harness.run(2, ["train", tmp_path / "e.yaml", "--output", tmp_path / "run"])
    assert_refused(result, USAGE, ["run.memory", "most of it", "run.recompute", "parallel.shard"])
    assert (tmp_path / "run/metrics.jsonl").read_text() == ""


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments(case, ranks, corpus, tmp_path):
    code, words, arguments = ARGUMENTS[case]
    harness.write_experiment(tmp_path / "e.yaml", good(corpus, ranks))
    refuse(tmp_path, ranks, arguments, code, words)


@pytest.fixture
def locked(tmp_path):
    """A folder that may not be looked into, and what makes that hold for a root's command too."""
    folder = tmp_path / "locked"
    folder.mkdir()
    (folder / "e.yaml").touch()
    prefix = (
        ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    )
    folder.chmod(0)
    probe = subprocess.run(
        [*prefix, "cat", folder / "e.yaml"], capture_output=True, text=True, check=False
    )
    if "Permission denied" not in probe.stderr:
        folder.chmod(0o700)
        pytest.skip(f"root cannot give up its rights here: {probe.stderr.strip()}")
    yield folder, prefix
    folder.chmod(0o700)


def test_places_without_permission(locked, corpus, tmp_path):
    folder, prefix = locked
    experiment = harness.write_experiment(tmp_path / "e.yaml", good(corpus, 1))
    unreadable = {"data.path": folder, "data.document_end": harness.DOCUMENT_END}
    settings = [word for key, value in unreadable.items() for word in ("--set", f"{key}={value}")]
    for arguments, code in (
        (["train", experiment, "--output", folder], DATA),
        (["train", experiment, "--output", folder / "run"], DATA),
        (["train", folder / "e.yaml"], USAGE),
        (["plan", folder / "e.yaml"], USAGE),
        (["plan", experiment, *settings], DATA),
    ):
        result = harness.finish(
            harness.start([*prefix, *harness.command(1, arguments)], cwd=tmp_path)
        )
        assert_refused(result, code, [str(folder), "Permission denied"])


@pytest.mark.parametrize("ranks", [1, 2])
def test_experiment_that_is_not_there(ranks, tmp_path):
    refuse(tmp_path, ranks, [], USAGE, ["e.yaml"])
    (tmp_path / "e.yaml").mkdir()
    (tmp_path / "here").rmdir()
    refuse(tmp_path, ranks, [], USAGE, ["e.yaml"])


@pytest.mark.parametrize(("ranks", "needed"), [(1, 2), (2, 1)])
def test_wrong_rank_count(ranks, needed, corpus, tmp_path):
    harness.write_experiment(tmp_path / "e.yaml", good(corpus, needed))
    refuse(tmp_path, ranks, [], USAGE, [f"{needed} rank", f"found {ranks}", f"mpirun -n {needed}"])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "arguments",
    [[], ["trian"], ["train"], ["--nothing"], ["attend", "e.yaml"]],
    ids=lambda a: " ".join(a) or "none",
)
def test_command_line(arguments, ranks):
    assert_refused(harness.run(ranks, arguments), USAGE, ["--help"])


def test_file_and_line_are_named(corpus, tmp_path):
    """The complaint leads to the place."""
    harness.write_experiment(tmp_path / "e.yaml", {**good(corpus, 1), "run": {"stps": 3}})
    lines = (tmp_path / "e.yaml").read_text().splitlines()
    number = next(index for index, line in enumerate(lines, 1) if "stps" in line)
    refuse(tmp_path, 1, [], USAGE, [f"{tmp_path}/e.yaml:{number}: run.stps", "steps"])


OF_ATTENTION_ALONE = {  # what attention alone cannot do with the input's heads, or at all
    "ulysses that cannot split the heads": (
        layout("ulysses", context=4),
        {"heads": 6, "kv_heads": 3},
        ["ulysses", "6 heads"],
    ),
    "tensor ranks": (
        {"parallel": {"tensor": 2}},
        {"heads": 4, "kv_heads": 2},
        ["parallel.tensor", "2", "1"],
    ),
    "pipeline ranks": (
        {"parallel": {"pipeline": 2}},
        {"heads": 4, "kv_heads": 2},
        ["parallel.pipeline", "2", "1"],
    ),
}


@pytest.mark.parametrize("case", OF_ATTENTION_ALONE)
def test_what_attention_alone_cannot_do(case, tmp_path):
    changes, heads, words = OF_ATTENTION_ALONE[case]
    changes = harness.merged({"data": {"source": "synthetic"}}, changes)
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    arrays = random_input(1, **heads, head_dim=8, lengths=[30, 20])
    source = write_input(tmp_path / "in.h5", arrays)
    output = tmp_path / "out.h5"
    ranks = harness.ranks_of(harness.merged(harness.DEFAULTS, changes))
    result = harness.run(ranks, ["attend", experiment, "--input", source, "--output", output])
    assert_refused(result, USAGE, words)
    assert not output.exists()


@pytest.mark.parametrize("command", [["plan"], ["train", "--dry-run"]], ids=" ".join)
@pytest.mark.parametrize("ranks", [1, 2])
def test_commands_without_mpi_refuse_alike(command, ranks, tmp_path):
    harness.write_experiment(tmp_path / "e.yaml", text("nowhere")(tmp_path))
    assert_refused(
        harness.run(ranks, [command[0], tmp_path / "e.yaml", *command[1:]]), DATA, ["nowhere"]
    )


# What looks odd but is fine.


@pytest.mark.parametrize("ranks", [1, 2])
def test_documents_of_one_token_train(ranks, tmp_path):
    """Alone they have no target: the loss is zero, and nothing divides by it."""
    mixed = harness.write_tokens(
        tmp_path / "mixed.bin", harness.random_documents(1, [1, 50, 1, 1, 3])
    )
    alone = harness.write_tokens(tmp_path / "alone.bin", [np.array([harness.DOCUMENT_END])])
    assert np.all(harness.train(tmp_path / "mixed", good(mixed, ranks)).losses > 1)
    assert np.all(harness.train(tmp_path / "alone", good(alone, ranks)).losses == 0)


def test_more_trainers_than_documents(tmp_path):
    path = harness.write_tokens(tmp_path / "one.bin", harness.random_documents(1, [40]))
    assert np.all(np.isfinite(harness.train(tmp_path, good(path, 3)).losses))


def test_no_steps(corpus, tmp_path):
    run = harness.train(tmp_path, {**good(corpus, 1), "run": {"steps": 0}})
    assert run.metrics == []
    assert len(harness.committed_steps(run.folder / "trace/rank-00000.h5")) == 0
