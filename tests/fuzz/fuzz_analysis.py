#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Usage: fuzz_analysis.py [--target NAME] [--seconds N | --runs N] [--seed N] [--findings DIR]
                        [INPUT...]

Fuzzes what cadenza-analyze and cadenza-prepare read. Targets:
  trace         rank files (*.h5) of a run of two ranks, its metrics (*.jsonl) and its experiment
                (*.yaml): the reader, and the quickest commands
  commands      the same of a run of four ranks in which everything occurs: every command
  simulated     the same of a simulated run
  sweep_folder  a sweep's table (*.csv) and what it asks for (*.yaml)
  plan_picture  a plan (*.json): its picture
  documents     JSON Lines (*.jsonl, *.gz, *.zst), parquet and the tokenizer (*.json) of
                cadenza-prepare
  kineto        traces of PyTorch's profiler (*.json, *.gz): the neutral columns, and the import
                with a file of documents' lengths (*.txt)
  neutral       files that have these columns (*.parquet, *.arrow), likewise
  nsight        exports of Nsight Systems (*.sqlite, and a folder's kernels, *.parquet), likewise
  straggler_analysis  a trace of StragglerAnalysis (*.parquet), likewise, and the slowdown
Reads each INPUT (a file, or a folder of them) as it is, then changed copies of the inputs and of
sound files: bytes, HDF5 objects and values alike. Right is an answer or a CadenzaError; anything
else, and more processor time or memory than the limits below, is a finding: it is kept in DIR, and
the exit status is 1.

An input is read by a child process, which may die of it.
"""

import argparse
import contextlib
import faulthandler
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(threads, "1")
os.environ["CADENZA"] = os.devnull  # nothing but the reading of an experiment
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # another reserves memory for later

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "analysis"), str(ROOT / "analysis/tests"), str(Path(__file__).parent)]

import h5py  # noqa: E402
import sound_files  # noqa: E402
from mutate_trace import mutate  # noqa: E402

from cadenza.cli import main as analyze  # noqa: E402
from cadenza.errors import CadenzaError  # noqa: E402
from cadenza.prepare.cli import main as prepare  # noqa: E402
from cadenza.plan.picture import draw  # noqa: E402, F401
from cadenza.report import write_report  # noqa: E402, F401  loaded once, before limits hold
from cadenza.sources import neutral  # noqa: E402
from cadenza.sources.known import SOURCES  # noqa: E402
from cadenza.sweep.plot import draw_view  # noqa: E402, F401

PROCESSOR_SECONDS = 10  # of all commands together
MEMORY = 2 << 30  # bytes, beyond what the interpreter and its libraries have
OF_RUN = {".h5": "trace/rank-00000.h5", ".jsonl": "metrics.jsonl", ".yaml": "experiment.yaml"}
OF_SWEEP = {".csv": "sweep.csv", ".yaml": "sweep.yaml"}
OF_PLAN = {".json": "step.json"}
OF_DOCUMENTS = {".jsonl": "d.jsonl", ".gz": "d.jsonl.gz", ".zst": "d.txt.zst",
                ".parquet": "d.parquet", ".json": "tokenizer/tokenizer.json"}
OF_STRAGGLER_ANALYSIS = {".parquet": "trace-x.parquet"}
OF_KINETO = {".json": "rank0_trace.json", ".gz": "rank1_trace.json.gz", ".txt": "lengths.txt"}
OF_NEUTRAL = {".parquet": "rank.parquet", ".arrow": "rank.arrow"}
OF_NSIGHT = {".sqlite": "report.sqlite", ".parquet": "export/CUPTI_ACTIVITY_KIND_KERNEL.parquet"}
PREPARING = tuple(("cadenza-prepare", f"{{in}}/{OF_DOCUMENTS[kind]}", "--tokenizer",
                   "{in}/tokenizer", "--output", f"{{out}}/{kind}", "--workers", "1")
                  for kind in (".jsonl", ".gz", ".zst", ".parquet"))
IMPORTING = {name: (*(("source", f"{{in}}/{place}") for place in places),
                    ("import", "{in}", "--from", name, *more, "--output", "{out}/run"),
                    (command, "{out}/run", "--json")) for name, places, command, *more in (
    ("kineto", OF_KINETO.values(), "stragglers", "--lengths", "{in}/lengths.txt"),
    ("neutral", OF_NEUTRAL.values(), "stragglers"),
    ("nsight", ("report.sqlite", "export"), "stragglers"),
    ("straggler_analysis", OF_STRAGGLER_ANALYSIS.values(), "slowdown"))}
DRAWING = (("plan", "{in}/step.json", "--output", "{out}/p.svg"),)
READING = (("check", "{in}"), ("export", "{in}", "--format", "csv", "--output", "{out}/csv"),
           ("export", "{in}", "--format", "tensorboard", "--output", "{out}/tensorboard"),
           ("data", "{in}/experiment.yaml"))
QUICK = (*((name, "{in}", "--json") for name in ("summary", "stragglers", "bubbles")),
         ("export", "{in}", "--format", "perfetto", "--output", "/dev/null"))
TABLES = ("summary", "stragglers", "bubbles", "imbalance", "what-if", "slowdown", "links",
          "critical-path", "positions", "check")
EVERY = tuple(
    [(name, "{in}", *more) for name in TABLES for more in ((), ("--json",))]
    + [("compare", *both, *more) for both in (("{in}", "{sound}"), ("{sound}", "{in}"))
       for more in ((), ("--json",))]
    + [("timeline", "{in}", "--output", "{out}/t.svg"), ("timeline", "{in}", "{sound}"),
       ("export", "{in}", "--format", "perfetto", "--output", "{out}/t.json"),
       ("report", "{in}"), ("report", "{in}", "{sound}", "--output", "{out}/r.html")]
)
# By target: what makes its sound folder, the inputs' places in it, commands that every input is
# given to, and others, of which one input in so many is given to one.
TARGETS = {
    "trace": (sound_files.two_ranks, OF_RUN, READING, QUICK, 4),
    "commands": (sound_files.real, OF_RUN, (), EVERY, 1),
    "simulated": (sound_files.simulated, OF_RUN, (), EVERY, 1),
    "sweep_folder": (sound_files.sweep, OF_SWEEP, (("sweep", "{in}"),), (), 1),
    "plan_picture": (sound_files.plan, OF_PLAN, DRAWING, (), 1),
    "documents": (sound_files.documents, OF_DOCUMENTS, PREPARING, (), 1),
    **{name: (sound, places, IMPORTING[name], (), 1) for name, sound, places in (
        ("kineto", sound_files.kineto, OF_KINETO), ("neutral", sound_files.neutral, OF_NEUTRAL),
        ("nsight", sound_files.nsight, OF_NSIGHT),
        ("straggler_analysis", sound_files.straggler_analysis, OF_STRAGGLER_ANALYSIS))},
}


class Finding(Exception):
    pass


def no_number(word):
    raise Finding(f"JSON with {word}")


def read_source(words):
    """What a source makes of a file, as a command: its rows are such as the next steps expect."""
    path = Path(words[0])
    source = next((one for one in SOURCES if one.claims(path)), None)
    try:
        ranks = source.read(path) if source else []
    except CadenzaError as error:
        print(f"cadenza-analyze: error: {error}", file=sys.stderr)
        return error.exit_code
    for rank in ranks:
        events = rank.events
        for name, (kind, _) in neutral.COLUMNS.items():
            if str(events[name].dtype) != kind:
                raise Finding(f"column {name} of type {events[name].dtype}")
        if not set(events["kind"].unique()) <= set(neutral.KINDS) \
                or not set(events["phase"].unique()) <= set(neutral.PHASES) \
                or (events["end_ns"] < events["begin_ns"]).any():
            raise Finding("rows that cannot be")
        if not all(sentence.isprintable() for sentence in rank.cannot):
            raise Finding(f"said {rank.cannot}")
    return 0


def look(folders, commands):
    """Every command answers or refuses in one line."""
    for words in commands:
        out, err = io.StringIO(), io.StringIO()
        name = "cadenza-prepare" if words[0] == "cadenza-prepare" else "cadenza-analyze"
        program = {"cadenza-prepare": prepare, "source": read_source}.get(words[0], analyze)
        words = words if program is analyze else words[1:]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = program([word.format_map(folders) for word in words])
        lines = err.getvalue().splitlines()
        said = " ".join(words) + f" ended with {code}: {err.getvalue()!r}"
        if code not in ((0, 1, 3) if words[0] == "check" else (0, 3)):
            raise Finding(said)
        if not all(line.startswith(f"{name}: ") and line.isprintable() for line in lines):
            raise Finding(said)
        if sum("error:" in line for line in lines) != (code == 3):
            raise Finding(said)
        if "--json" in words and code in (0, 1):
            json.loads(out.getvalue(), parse_constant=no_number)
        elif not out.getvalue().replace("\n", "").isprintable():
            raise Finding(f"{' '.join(words)} wrote {out.getvalue()!r}")
        if "perfetto" in words and code == 0 and "/dev/null" not in words:
            json.loads((folders["out"] / "t.json").read_bytes(), parse_constant=no_number)


class Reader:
    """A folder whose one file is the input."""

    def __init__(self, target, folder):
        make, self.places, self.always, self.others, self.every = TARGETS[target]
        self.folders = {name: folder / name for name in ("in", "sound", "out")}
        for path in self.folders.values():
            path.mkdir(parents=True)
        for name in ("in", "sound"):
            make(self.folders[name])
        self.sound = {kind: (self.folders["in"] / place).read_bytes()
                      for kind, place in self.places.items()}

    def read(self, kind, content, number):
        commands = list(self.always)
        if self.others and number % self.every == 0:
            commands.append(self.others[number // self.every % len(self.others)])
        shutil.rmtree(self.folders["out"])
        self.folders["out"].mkdir()
        place = self.folders["in"] / self.places[kind]
        place.write_bytes(content)
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)
        try:
            look(self.folders, commands)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            place.write_bytes(self.sound[kind])


def limit_memory():
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def inputs_of(arguments, reader):
    """[(kind, content)]: the arguments' files, then the sound ones."""
    paths = [path for argument in arguments
             for path in (sorted(argument.iterdir()) if argument.is_dir() else [argument])]
    given = [(path.suffix, path.read_bytes()) for path in paths if path.suffix in reader.places]
    return given, list(reader.sound.items())


def work(options, folder, first, current):
    """Reads inputs from number `first` on; `current` holds the one being read and its number."""
    limit_memory()
    faulthandler.disable()  # pytest's; the parent says what happened
    reader = Reader(options.target, folder)
    given, sound = inputs_of(options.inputs, reader)
    end = time.monotonic() + options.seconds
    number = first
    while number < len(given) + options.runs and (number < len(given) or time.monotonic() < end):
        if number < len(given):
            kind, content = given[number]
        else:
            rng = random.Random(f"{options.seed} {number}")
            kind, content = rng.choice(given + 4 * sound)
            content = mutate(kind, content, rng)
        (current / "input").write_bytes(content)
        (current / "number").write_text(f"{number} {kind}")
        try:
            reader.read(kind, content, number)
        except BaseException:  # whatever it is, it is a finding
            (current / "why").write_text(traceback.format_exc())
            os._exit(1)
        number += 1
    (current / "number").write_text(f"{number} end")
    os._exit(0)


def keep(options, current, status):
    """Puts the input that ended a child where it is found again; returns its number."""
    number, kind = (current / "number").read_text().split()
    why = current / "why"
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        text = "takes too much processor time" if name == "SIGPROF" else f"died by {name}"
    else:
        text = why.read_text()
    options.findings.mkdir(parents=True, exist_ok=True)
    path = options.findings / f"{options.seed}-{number}{kind}"
    shutil.copyfile(current / "input", path)
    Path(f"{path}.txt").write_text(text)
    print(f"finding: {path}: {text.strip().splitlines()[-1]}", flush=True)
    why.unlink(missing_ok=True)
    return int(number)


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[1],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=TARGETS, default="trace")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--runs", type=int, default=sys.maxsize)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    parser.add_argument("inputs", nargs="*", type=Path)
    options = parser.parse_args(words)
    begin, number, found = time.monotonic(), 0, 0
    seconds = options.seconds
    with tempfile.TemporaryDirectory() as scratch:
        current = Path(scratch) / "current"
        current.mkdir()
        while True:
            folder = Path(tempfile.mkdtemp(dir=scratch))
            options.seconds = seconds - (time.monotonic() - begin)
            child = os.fork()
            if child == 0:
                work(options, folder, number, current)
            _, status = os.waitpid(child, 0)
            shutil.rmtree(folder)
            if status == 0:
                number = int((current / "number").read_text().split()[0])
                break
            number = keep(options, current, status) + 1
            found += 1
    rate = number / (time.monotonic() - begin)
    hdf5 = h5py.version.hdf5_version
    print(f"{number} inputs, {rate:.0f} a second, {found} findings; HDF5 {hdf5}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
