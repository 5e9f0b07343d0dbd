# SPDX-License-Identifier: Apache-2.0
"""Running the program as its users do: experiments from dicts, ranks, files read back."""

import contextlib
import io
import json
import os
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

USAGE, DATA = 2, 3  # exit codes
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("CADENZA", ROOT / "build/release/cadenza")).resolve()
# Seconds after which something hangs: nothing here takes more than a few on a calm machine, and
# most machines are busy.
TIMEOUT = 300.0

DOCUMENT_END = 258
VOCABULARY = 259

# Milliseconds a step, with everything in it: layers, grouped heads, several microbatches.
DEFAULTS = {
    "name": "small",
    "seed": 7,
    "model": {
        "layers": 2,
        "d_model": 32,
        "heads": 4,
        "kv_heads": 2,
        "ffn": 48,
        "vocab": VOCABULARY,
    },
    "batch": {"tokens": 768, "microbatch": 128},
    "parallel": {"data": 1},
    "attention": {"placement": "colocated", "block": 16, "tolerance": 0.05, "overlap": "none"},
    "optimizer": {"lr": 3e-3, "warmup": 3},
    "run": {"steps": 3},
}


def merged(base, changes):
    """`base` with the nested dict `changes` on top; a value of None leaves its key out."""
    result = dict(base)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def write_experiment(path, changes):
    """DEFAULTS with `changes` as a YAML file. Returns its path."""
    path = Path(path)
    # YAML of 1e-3 without a point would be text to some readers: PyYAML writes 0.001.
    path.write_text(yaml.safe_dump(merged(DEFAULTS, changes), sort_keys=False))
    return path


def ranks_of(experiment):
    servers = experiment["attention"].get("servers", "in_place")
    trainers = 1
    for axis in ("data", "pipeline", "tensor", "context"):
        trainers *= experiment["parallel"].get(axis, 1)
    return trainers + (0 if servers == "in_place" else servers)


def environment():
    """More ranks than cores must work, and root may run them (containers)."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("CADENZA")}
    env.update(
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        PRTE_ALLOW_RUN_AS_ROOT="1",
        PRTE_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        OMPI_MCA_rmaps_base_oversubscribe="1",
        PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
        OMPI_MCA_hwloc_base_binding_policy="none",
        PRTE_MCA_hwloc_default_binding_policy="none",
        OMPI_MCA_mpi_yield_when_idle="1",
        OMPI_MCA_odls_base_sigkill_timeout="0",  # s that mpirun lets pass after a rank has failed
        OMP_NUM_THREADS="1",
        OMP_PROC_BIND="false",
    )
    return env


def command(ranks, arguments):
    """One rank is started without a launcher: that must work too."""
    words = [str(PROGRAM), *map(str, arguments)]
    return words if ranks == 1 else ["mpirun", "-n", str(ranks), *words]


@dataclass
class Result:
    command: str
    code: int
    out: str
    err: str

    @property
    def complaints(self):
        """The program's own lines on standard error."""
        return [line for line in self.err.splitlines() if line.startswith("cadenza:")]

    def __str__(self):
        return (
            f"{self.command}\nexit code {self.code}\n-- stdout\n{self.out}\n-- stderr\n{self.err}"
        )


def stop(process):
    """Ends a launcher and, through it, its ranks."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)


def start(words, cwd=None, env=None):
    """`env` comes on top of environment(); a value of None leaves its variable out."""
    return subprocess.Popen(
        words,
        cwd=cwd,
        env={k: v for k, v in {**environment(), **(env or {})}.items() if v is not None},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process, timeout=TIMEOUT):
    """Waits; a process that does not end is stopped and fails the test."""
    words = " ".join(map(str, process.args))
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        stop(process)
        out, err = process.communicate()
        raise AssertionError(f"no end after {timeout} s: {Result(words, -1, out, err)}") from None
    return Result(words, process.returncode, out, err)


def run(ranks, arguments, cwd=None, env=None, timeout=TIMEOUT):
    """Runs the program on `ranks` ranks to its end, whatever that is."""
    return finish(start(command(ranks, arguments), cwd, env), timeout)


def run_well(ranks, arguments, **options):
    result = run(ranks, arguments, **options)
    assert result.code == 0, str(result)
    assert result.complaints == [], str(result)
    return result


def run_limited(kibibytes, ranks, arguments):
    """Runs the program where no file may outgrow a size: a full disk that needs no mounting."""
    # Of MPI's own files, which may be larger, none is made by a rank: shared memory is left out,
    # and the launcher, which makes the others, is not limited.
    words = [
        "mpirun",
        "-n",
        str(ranks),
        "bash",
        "-c",
        f'ulimit -f {kibibytes}; exec "$@"',
        "limited",
        str(PROGRAM),
        *map(str, arguments),
    ]
    transport = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}
    return finish(start(words, env=transport))


class Run:
    """A training run's folder."""

    def __init__(self, folder):
        self.folder = Path(folder)

    @property
    def metrics(self):
        return read_metrics(self.folder)

    def column(self, name):
        return np.array([line[name] for line in self.metrics], dtype=np.float64)

    @property
    def losses(self):
        return self.column("loss")

    def checkpoint(self, step):
        return read_checkpoint(self.folder / "checkpoints" / f"step-{step:08}.h5")


def train(folder, changes, words=(), **options):
    """Trains DEFAULTS with `changes` into `folder`/run, on as many ranks as they ask for.

    @param words  more of the command line
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    experiment = write_experiment(folder / "experiment.yaml", changes)
    ranks = ranks_of(merged(DEFAULTS, changes))
    run_well(ranks, ["train", experiment, "--output", folder / "run", *words], **options)
    return Run(folder / "run")


def read_metrics(folder):
    text = (Path(folder) / "metrics.jsonl").read_text()
    # A reader beside the run may see the begin of a line that is being written.
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def read_checkpoint(path):
    """Parameters by name, float64; the optimizer's moments are left out."""
    values = {}
    with h5py.File(path, "r") as file:

        def take(name, item):
            if isinstance(item, h5py.Dataset) and not name.startswith("optimizer/"):
                values[name] = item[...].astype(np.float64)

        file.visititems(take)
    return values


def names_of(table, field):
    """By number: what an enumerated field of an open trace's table says that its numbers are."""
    return {number: name for name, number in h5py.check_enum_dtype(table.dtype[field]).items()}


def committed_steps(path):
    """Rows of /steps of a rank's trace; every event that they commit to was read and checked."""
    words = [sys.executable, Path(__file__).with_name("trace_reader.py"), path]
    read = subprocess.run(words, capture_output=True, timeout=TIMEOUT, check=False)
    assert read.returncode == 0, f"{path}: {read.stderr.decode()}"
    return np.load(io.BytesIO(read.stdout))


def wait_until(process, reached):
    """Polls until `reached()`; the process must still be at it."""
    end = time.monotonic() + TIMEOUT
    while not reached():
        assert process.poll() is None, "the run ended before it could be interrupted"
        assert time.monotonic() < end, f"not reached in {TIMEOUT} s"
        time.sleep(0.02)


def wait_for_steps(process, folder, count):
    """Until `count` steps are reported."""
    metrics = folder / "metrics.jsonl"
    wait_until(process, lambda: metrics.exists() and metrics.read_text().count("\n") >= count)


def write_tokens(path, documents, dtype="<u2"):
    """A flat corpus: every document ends with DOCUMENT_END, which belongs to it."""
    np.concatenate(documents).astype(dtype).tofile(path)
    return Path(path)


def write_megatron(prefix, documents, dtype="<u2", pieces=1, ends=None):
    """PREFIX.bin and PREFIX.idx as Megatron-LM's core/datasets/indexed_dataset.py writes them.

    @param pieces  sequences of a document
    @param ends    the document index, where it is not that of the documents
    """
    code = {"<u2": 8, "<i4": 4, "<i8": 5}[dtype]
    sequences = [part for document in documents for part in np.array_split(document, pieces)]
    lengths = np.array([len(part) for part in sequences], "<i4")
    pointers = (np.cumsum(lengths, dtype="<i8") - lengths) * np.dtype(dtype).itemsize
    ends = np.arange(0, len(sequences) + 1, pieces) if ends is None else np.array(ends)
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(ends))
    arrays = lengths, pointers.astype("<i8"), ends.astype("<i8")
    index = Path(f"{prefix}.idx")
    index.write_bytes(header + b"".join(array.tobytes() for array in arrays))
    np.concatenate(documents).astype(dtype).tofile(f"{prefix}.bin")
    return index


def random_documents(seed, lengths):
    """Documents of these lengths, end token included: easy to learn in part, so losses move."""
    random = np.random.default_rng(seed)
    documents = []
    for length in lengths:
        steps = np.where(random.random(length) < 0.7, 3, random.integers(0, 256, length))
        tokens = np.cumsum(steps) % 256
        tokens[-1] = DOCUMENT_END
        documents.append(tokens)
    return documents


def tokens_data(path, **options):
    return {"source": "tokens", "path": str(path), "document_end": DOCUMENT_END, **options}


def analyze(*arguments):
    """Runs cadenza-analyze to its end."""
    result = subprocess.run(
        [sys.executable, "-m", "cadenza.cli", *map(str, arguments)],
        text=True,
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result


def python_with(*modules):
    """A Python that has them: this one, or that of the benchmarks. Without one the test is left
    out."""
    cache = Path(os.environ.get("CADENZA_CACHE", Path.home() / ".cache/cadenza"))
    for python in (sys.executable, *sorted(cache.glob("bench-python-*/bin/python"))):
        asked = subprocess.run([python, "-c", f"import {', '.join(modules)}"], capture_output=True,
                               check=False)
        if asked.returncode == 0:
            return python
    return pytest.skip(f"no Python has {' and '.join(modules)}: bench/compare installs PyTorch")
