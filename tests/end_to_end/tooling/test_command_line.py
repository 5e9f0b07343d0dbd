# SPDX-License-Identifier: Apache-2.0
"""What every command says, and how much: typing errors, quiet, verbose, terminals, versions."""

import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import termios

import pytest

import harness
from harness import DATA, USAGE

COLUMNS = 80
SWEEP = """name: small
base: experiment.yaml
steps: 1
axes: {parallel.data: [1, 2], attention.placement: [colocated, cad]}
"""


@pytest.fixture
def experiment(tmp_path):
    changes = {
        "data": {"source": "synthetic", "max_document": 512},
        "parallel": {"data": 2, "pipeline": 2},
        "attention": {"placement": "cad"},
    }
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    return harness.write_experiment(tmp_path / "experiment.yaml", changes)


def on_terminal(*arguments, cwd):
    """What the program writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    words = [str(harness.PROGRAM), *map(str, arguments)]
    process = subprocess.Popen(words, stdout=theirs, env=harness.environment(), cwd=cwd)
    os.close(theirs)
    said = b""
    while True:
        try:
            said += os.read(ours, 1 << 16)
        except OSError:  # the program has ended
            break
    os.close(ours)
    assert process.wait(timeout=harness.TIMEOUT) == 0, said.decode()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["trian", "x.yaml"], "unknown command 'trian': did you mean train?"),
        (["simulat"], "did you mean simulate?"),
        (["train", "x.yaml", "--outptu", "y"], "unknown option '--outptu': did you mean --output?"),
        (["plan", "x.yaml", "--fromat=json"], "did you mean --format?"),
        (["plan", "x.yaml", "--gpus"], "unknown option '--gpus' (see"),  # nothing is near
        (["attend", "x.yaml", "--inptu", "q.h5", "--output", "o.h5"], "did you mean --input?"),
    ],
)
def test_a_word_with_a_typing_error(words, meant):
    result = harness.run(1, words)
    assert result.code == USAGE, str(result)
    assert len(result.complaints) == 1 and meant in result.complaints[0], str(result)


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "experiment.yaml"],
        ["simulate", "experiment.yaml"],
        ["simulate", "experiment.yaml", "--trace", "summary"],
        ["sweep", "sweep.yaml"],
        ["simulate", "--help"],
    ],
    ids=" ".join,
)
def test_lines_fit_a_terminal_of_80_columns(words, experiment):
    said = on_terminal(*words, cwd=experiment.parent)
    lines = re.split(r"[\r\n]+", said)
    assert max(map(len, lines)) <= COLUMNS, "\n".join(line for line in lines if len(line) > COLUMNS)
    plain = harness.run_well(1, words, cwd=experiment.parent).out
    results = [line for line in plain.splitlines() if not re.match("step|point|the earlier", line)]
    lost = {word for line in results for word in line.split()} - set(said.split())
    assert not {word for word in lost if not re.search(r"\d", word)}, "words are lost"


def test_simulate_prints_json(experiment, tmp_path):
    words = ["simulate", experiment, "--format", "json", "--output", tmp_path / "run"]
    for _ in range(2):  # the second time an earlier run is renamed, which is told elsewhere
        out = harness.run_well(1, words).out
        found = json.loads(out)
    assert found["ranks"] == 4 and len(found["step_seconds"]) == 3
    assert sum(part["mean_share"] for part in found["parts"].values()) == pytest.approx(1)
    assert found["seconds"] == pytest.approx(sum(found["step_seconds"]) / 3)
    assert found["memory"]["fits"] and found["output"] == str(tmp_path / "run")
    assert json.loads(harness.run_well(1, [*words, "--verbose"]).out)["ranks"] == 4


@pytest.mark.parametrize("words", [["plan"], ["simulate", "--steps", "1"], ["train", "--dry-run"]])
def test_quiet_and_verbose(words, experiment):
    command, *options = words
    said = {
        option: harness.run_well(1, [command, experiment, *options, *option]).out.splitlines()
        for option in ((), ("--quiet",), ("--verbose",))
    }
    plain, quiet, verbose = said.values()
    assert set(quiet) <= set(plain) and quiet
    steps = [line.split()[1] for line in plain if re.match(r"step +\d", line)]  # progress
    assert steps == (["0/1"] if command == "simulate" else [])
    assert not [line for line in quiet if line.startswith("step 0/")]
    assert len(verbose) > len(plain) and "tolerance: 0.05" in "\n".join(verbose)
    both = harness.run(1, [command, experiment, *options, "--quiet", "--verbose"])
    assert both.code == USAGE and len(both.complaints) == 1


def test_train_quietly(experiment, tmp_path):
    words = ["train", experiment, "--set", "parallel.pipeline=1", "--output", tmp_path / "run"]
    out = harness.run_well(2, [*words, "--quiet"]).out
    lines = [line for line in out.splitlines() if line]
    assert lines[0].split()[:2] == ["rank", "role"], out
    assert [line.split()[0] for line in lines[1:]] == ["0", "1", "metrics", "traces"], out
    assert max(map(len, lines[:3])) <= COLUMNS


def test_both_programs_have_one_version():
    analysis = [sys.executable, "-m", "cadenza.cli", "--version"]
    env = {**os.environ, "PYTHONPATH": str(harness.ROOT / "analysis")}
    found = subprocess.run(analysis, capture_output=True, text=True, env=env, check=True).stdout
    ours = harness.run_well(1, ["--version"]).out
    said = re.fullmatch(r"cadenza (\d+\.\d+\.\d+) \([\w.+-]+\)\n", ours)  # and the revision
    assert said and found == f"cadenza-analyze {said[1]}\n"


def test_an_experiment_taken_for_tokens(tmp_path):
    data = {"source": "tokens", "path": str(tmp_path / "experiment.yaml"), "document_end": 1}
    experiment = harness.write_experiment(tmp_path / "experiment.yaml", {"data": data})
    for command in ("plan", "simulate"):
        result = harness.run(1, [command, experiment])
        assert result.code == DATA and len(result.complaints) == 1, str(result)
        assert "is a text file, without token ids" in result.complaints[0]


def test_the_first_runs_of_the_readme(tmp_path):
    """As printed, in a shell that knows nothing of MPI, beside the quickstart's results."""
    block = (harness.ROOT / "README.md").read_text().split("## Use\n```bash\n")[1].split("```")[0]
    source, *lines = block.replace("\\\n", " ").splitlines()
    lines = [line.partition("#")[0] for line in lines
             if line.startswith("mpirun") and "--from" not in line]
    assert source.startswith("source ") and "-n 2" in lines[0] and "-n 3" in lines[1]
    lines.append("mpirun -n 2 build/release/cadenza train inputs/quickstart.yaml")  # as it says
    for folder in ("inputs", "scripts"):
        shutil.copytree(harness.ROOT / folder, tmp_path / folder)
    (tmp_path / "build/release").mkdir(parents=True)
    (tmp_path / "build/release/cadenza").symlink_to(harness.PROGRAM)
    results = tmp_path / "runs/quickstart/cad"
    results.mkdir(parents=True)
    (results / "metrics.jsonl").write_text("")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI", "PRTE"))}
    library = sysconfig.get_paths()["stdlib"]
    settings = {"run.steps": 2, "batch.tokens": 2048, "batch.microbatch": 1024,
                "data.path": f"{library}/t*.py"}
    small = " ".join(f"--set {key}={value}" for key, value in settings.items())
    for line in lines:
        words = ["bash", "-ec", f"{source}\n{line} {small}"]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True,
                              timeout=harness.TIMEOUT, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "mine", "python-library", "quickstart", "served"
    ]
    assert (results / "metrics.jsonl").exists(), "results of the quickstart were renamed"
