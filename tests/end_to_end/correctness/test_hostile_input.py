# SPDX-License-Identifier: Apache-2.0
"""Input that is made to hurt: refused by every command in one line, within a second of processor
time and 2 GB, whatever it would have grown to. Here are only such as could grow or hang, and one or
two of each reader's: what else is refused is tested where it is read, in tests/unit/config,
tests/unit/base and tests/unit/data."""

import os
import resource
from dataclasses import dataclass, field

import pytest

import harness

USAGE, DATA = 2, 3
MEMORY = 2 * 10**9  # bytes of a process
SECONDS = 1.0  # of processor time for each rank, beyond what a plain refusal takes

EXPERIMENT = """\
name: small
model: {layers: 2, d_model: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 259}
data: {source: synthetic, documents: 64, lengths: {distribution: uniform, min: 2, max: 90}}
batch: {tokens: 768, microbatch: 128}
attention: {placement: colocated}
run: {steps: 1}
"""
MACHINE = "name: m\nsource: s\n"
RATES = ("attention: {flops_per_second: 1e12}\nproducts: {flops_per_second: 1e12}\n"
         "links: {inside: {bytes_per_second: 1e10}}\n")
SWEEP = "name: grid\nbase: e.yaml\naxes: {seed: [1, 2]}\n"

# Every way to start the program on an experiment.
COMMANDS = {
    "train": (1, ["train", "e.yaml"]),
    "train on 2": (2, ["train", "e.yaml"]),
    "dry run": (1, ["train", "e.yaml", "--dry-run"]),
    "plan": (1, ["plan", "e.yaml"]),
    "simulate": (1, ["simulate", "e.yaml"]),
    "sweep": (1, ["sweep", "sweep.yaml", "--output", "sweep"]),
    "calibrate": (1, ["calibrate", "e.yaml", "--output", "machine.yaml"]),
}
ALL = tuple(COMMANDS)
OF_DATA = ("train", "train on 2", "dry run", "plan", "simulate", "sweep")
OF_MACHINE = ("dry run", "plan", "simulate", "sweep")


@dataclass
class Case:
    """Files and settings in place of good ones, and what the complaint must say."""

    words: list
    files: dict = field(default_factory=dict)  # name: text, bytes, or what makes it
    settings: dict = field(default_factory=dict)
    code: int = USAGE
    commands: tuple = ALL


def yaml(text, *words):
    return Case(list(words), {"e.yaml": text})


def settings(words, commands=ALL, code=USAGE, **values):
    return Case(
        words, {}, {k.replace("__", "."): v for k, v in values.items()}, code, commands
    )


def lengths(content, *words):
    values = {"data.lengths.distribution": "file", "data.lengths.path": "lengths"}
    return Case(list(words), {"lengths": content}, values, DATA, OF_DATA)


def corpus(path, *words, make=lambda folder: None, source="text"):
    values = {"data": f"{{source: {source}, path: '{path}', document_end: 0}}"}
    return Case(list(words), {"corpus": make}, values, DATA, OF_DATA)


def machine(text, *words):
    return Case(
        list(words), {"m.yaml": text}, {"cluster.machine": "m.yaml"}, commands=OF_MACHINE
    )


def bomb():
    lines = [f"x{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 8)]
    return EXPERIMENT + "x0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "\n".join(lines) + "\n"


def link_to(target):
    return lambda path: os.symlink(target, path)


def deep_folders(folder):
    for path in (folder / "x/y" / "/".join("dddddddd"), folder / "x/z/" / "/".join("eeeeeeee")):
        path.mkdir(parents=True)


NESTED = 200_000
HUGE = 2**40

CASES = {
    # Experiments
    "aliases of aliases": yaml(bomb(), "x5", "100000 values"),
    "brackets, closed": yaml("x: " + "[" * NESTED + "]" * NESTED, "8 nested levels"),
    "anchors": yaml("x: [" + "".join(f"&a{i} 1, " for i in range(90_000)) + "]", "unknown key"),
    "keys": yaml("".join(f"k{i}: {i}\n" for i in range(75_000)), "100000 values"),
    "a key of 200 000 letters": yaml(EXPERIMENT + "? " + "k" * 200_000 + "\n: 1\n", "unknown key"),
    "a device without end": Case(["1 MiB"], {"e.yaml": link_to("/dev/zero")}),
    "a pipe": Case(["nobody has written to"], {"e.yaml": os.mkfifo}),
    "a link to itself": Case(["Too many levels"], {"e.yaml": link_to("e.yaml")}),
    "control characters": yaml(EXPERIMENT + 'x: "\\e[2J\\x07"\n', "e.yaml:7", "\\x1b[2J\\x07"),
    # Their sizes
    "lengths of 2^40": settings(
        ["data.max_document", "128", "100000000 documents"],
        OF_DATA,
        DATA,
        data__lengths=f"{{distribution: list, values: {[HUGE] * 10}}}",
    ),
    "tokens of a corpus": settings(
        ["data: found a corpus of more than"],
        OF_DATA,
        DATA,
        data="{source: synthetic, documents: 10000000, max_document: 1099511627776, "
        "lengths: {distribution: constant, median: 1e12}}",
    ),
    "documents of a step": settings(
        ["batch.tokens", "1048576 documents"],
        OF_DATA,
        data__lengths="{distribution: constant, median: 1}",
        batch="{tokens: 1073741824, microbatch: 1073741824}",
    ),
    "pooled microbatches": settings(
        ["batch.packing"],
        OF_DATA,
        data__max_document=90,
        trace="{events: false}",
        batch="{tokens: 8388608, microbatch: 8, packing: pooled}",
    ),
    "parameters": settings(
        ["model", "parameters"], model__d_model=2**31 - 8, model__ffn=2**31 - 1
    ),
    # Names
    "name with an escape": settings(["name", "\\x1b[31m"], name='"\\e[31m"'),
    # Lengths
    "lengths, nested": lengths("[" * NESTED + "]" * NESTED, "a list as entry 0"),
    "lengths, escaped text": lengths('["\\u001b[2J"]', "\\x1b[2J"),
    "lengths, a hole of 1 TB": lengths(lambda path: hole(path, 10**12), "128 MiB"),
    # Corpora
    "corpus, a pipe": corpus("corpus", "neither a regular file", make=os.mkfifo),
    "corpus, tokens from a pipe": corpus("corpus", "neither", make=os.mkfifo, source="tokens"),
    "corpus, a link to itself": corpus("corpus", "Too many levels", make=link_to("corpus")),
    "corpus, a text of 2^40 bytes": corpus(
        "corpus", "max_document", make=lambda path: hole(path, 2**40, b"x" * 1024)
    ),
    "corpus, any depth many times": corpus(
        "corpus/" + "**/" * 100 + "none", "no file matches", make=deep_folders
    ),
    "corpus, a long path": corpus("a/" * 60_000, "path of 120000 bytes"),
    # Machines
    "machine, 1e308": machine(
        MACHINE + "attention: {flops_per_second: 1e308}\n", "attention.flops_per_second", "1e+30"
    ),
    "machine, a slow part": machine(
        MACHINE + RATES + "element_wise: {loss: 1e-300}\n", "cluster.machine", "a step takes"
    ),
}

SWEEPS = {
    "text of all points": Case(
        ["points x bytes at most"],
        {
            "sweep.yaml": f"base: e.yaml\nset: {{data.path: {'x' * 50_000}}}\n"
            f"axes: {{seed: {list(range(40_000))}}}\n"
        },
    ),
    "rules": Case(
        ["labels in rules"],
        {
            "sweep.yaml": f"base: e.yaml\naxes: {{seed: {list(range(40_000))}}}\nrules:\n"
            f"  - {{when: {{seed: {list(range(30_000))}}}, skip: true}}\n"
        },
    ),
    "label with an escape": Case(
        ["\\x1b"], {"sweep.yaml": SWEEP.replace("[1, 2]", '{"\\e[2J": {seed: 1}}')}
    ),
    "labels": Case(
        ["a second time"],
        {"sweep.yaml": SWEEP.replace("[1, 2]", str([*range(60_000), 0]))},
    ),
}
ARGUMENTS = {
    "output with a line end": (["--output", "out\nput"], ["--output", "control characters"]),
    "output without a name": (["--output", ""], ["--output", "found an empty name"]),
    "from without a name": (["--from", ""], ["--from", "found an empty name"]),
    "output with an escape": (["--output", "\x1b[2Jx"], ["--output", "control characters"]),
    "an unknown option with an escape": (["--\x1b[2J"], ["\\x1b[2J"]),
    "an override with an escape": (["--set", "\x1b[2J=1"], ["\\x1b[2J"]),
    "an override with line ends": (["--set", "a\nb.c=1"], ["a\\nb"]),
    "bytes that are no text": (["--set", b"name=\xff\x9b"], ["--set"]),
    "a number beyond all": (["--timeout", "1e999"], ["--timeout"]),
}


def hole(path, size, start=b""):
    with open(path, "wb") as file:
        file.write(start)
        file.truncate(size)


def prepare(folder, case):
    for name, content in {"e.yaml": EXPERIMENT, "sweep.yaml": SWEEP, **case.files}.items():
        path = folder / name
        if callable(content):
            content(path)
        else:
            path.write_text(content)


def run_limited(ranks, words, folder):
    """The result and the processor seconds that it took, its ranks' included."""
    limits = ["prlimit", f"--data={MEMORY}", "--cpu=10", "--core=0"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = harness.finish(harness.start([*limits, *harness.command(ranks, words)], cwd=folder))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return result, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.fixture(scope="module")
def plain_seconds(tmp_path_factory):
    """What it takes a command to refuse an unknown key."""
    known = {}

    def seconds(command):
        if command not in known:
            folder = tmp_path_factory.mktemp("plain")
            prepare(folder, yaml(EXPERIMENT + "unknown: 1\n"))
            ranks, words = COMMANDS[command]
            result, known[command] = run_limited(ranks, words, folder)
            assert result.code == USAGE, str(result)
        return known[command]

    return seconds


def assert_one_line(result, code, words):
    shown = str(result)[-3000:]
    assert result.code == code, shown
    assert len(result.complaints) == 1, shown
    for word in words:
        assert word in result.complaints[0], shown
    for text in (result.out, result.err):
        assert all(c.isprintable() or c == "\n" for c in text), repr(shown)
    if "mpirun" not in result.command:  # which has much to say itself
        assert result.err.splitlines() == result.complaints, shown


def refuse(folder, command, case, plain):
    prepare(folder, case)
    ranks, words = COMMANDS[command]
    words = [*words, *(["--set", "parallel.data=2"] if ranks == 2 else [])]
    for key, value in case.settings.items():
        words += ["--set", f"{key}={value}"]
    result, seconds = run_limited(ranks, words, folder)
    assert_one_line(result, case.code, case.words)
    assert seconds < plain + ranks * SECONDS, str(result)[-3000:]


# What every command refuses is said once: the readers are the same. These were tried on each.
EVERYWHERE = [
    "aliases of aliases",
    "brackets, closed",
    "keys",
    "a device without end",
    "a pipe",
    "control characters",
    "lengths of 2^40",
    "parameters",
    "lengths, nested",
    "corpus, a pipe",
    "machine, 1e308",
]


@pytest.mark.parametrize("case", CASES)
def test_plan_refuses(case, plain_seconds, tmp_path):
    refuse(tmp_path, "plan", CASES[case], plain_seconds("plan"))


@pytest.mark.parametrize(
    ("command", "case"),
    [(c, name) for name in EVERYWHERE for c in CASES[name].commands if c != "plan"],
)
def test_refused(command, case, plain_seconds, tmp_path):
    refuse(tmp_path, command, CASES[case], plain_seconds(command))


@pytest.mark.parametrize("case", SWEEPS)
def test_sweep_refused(case, plain_seconds, tmp_path):
    refuse(tmp_path, "sweep", SWEEPS[case], plain_seconds("sweep"))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_refused(case, ranks, tmp_path):
    arguments, words = ARGUMENTS[case]
    prepare(tmp_path, Case([]))
    started = harness.start(
        [*harness.command(ranks, ["train", "e.yaml"]), *arguments], cwd=tmp_path
    )
    assert_one_line(harness.finish(started), USAGE, words)


@pytest.mark.parametrize("command", ["plan", "dry run", "simulate", "train", "train on 2"])
def test_out_of_memory_is_one_line(command, tmp_path):
    """What may be asked for but does not fit ends like every other failure, on all ranks."""
    prepare(tmp_path, Case([]))
    ranks, words = COMMANDS[command]
    words = [*words, "--set", "data.documents=100000000", "--set", f"parallel.data={ranks}"]
    limited = ["prlimit", "--data=700000000", *harness.command(ranks, words)]
    result = harness.finish(harness.start(limited, cwd=tmp_path))
    assert_one_line(result, 1, ["out of memory"])
