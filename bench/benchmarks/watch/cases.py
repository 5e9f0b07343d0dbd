# SPDX-License-Identifier: Apache-2.0
"""Simulated runs for the watch: documents with a heavy tail, jitter, and a fault from some step on.

A link that gets slow is two runs, one joined to the other: the simulator's are slow all along."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from lib.command import call, words_of
from lib.host import ROOT

PLACEMENTS = ("colocated", "cad")
JITTER, ALPHA = 0.03, 1.1
HEALTHY = 24  # steps before a fault, at least
AFTER = 12  # steps with the fault
KINDS = ("slow", "attention", "backward", "no core", "pause", "late start", "all ranks", "link")


@dataclass(frozen=True)
class Case:
    """@param first  step in which a fault begins"""

    kind: str  # "clean", or one of KINDS
    placement: str
    ranks: int
    seed: int
    steps: int
    rank: int = -1
    first: int = -1
    settings: tuple[str, ...] = ()  # what plants it


def clean(placement, ranks, seed, steps):
    return Case("clean", placement, ranks, seed, steps)


def fault(kind, placement, ranks, seed):
    random = np.random.default_rng([seed, KINDS.index(kind), ranks, len(placement)])
    first = HEALTHY + int(random.integers(8))
    steps = list(range(first, first + AFTER))
    rank = int(random.integers(ranks))
    speed = round(float(random.uniform(0.75, 0.93)), 3)
    what = {"slow": f"speed: {speed}",
            "attention": f"speed: {round(speed / 2, 3)}, work: attention",
            "backward": f"speed: {speed}, phase: backward", "no core": f"core: {speed}",
            "pause": "pause: 0.1", "late start": f"between: {round(0.15 * (1 - speed), 4)}",
            "all ranks": f"speed: {speed}"}
    if kind == "link":
        other = (rank + 1) % ranks
        settings = (f"cluster.slow_links=[[{rank}, {other}, {round((1 - speed) / 2, 3)}]]",)
    else:
        mine = steps[:1] if kind == "pause" else steps
        members = range(ranks) if kind == "all ranks" else [rank]
        blocks = ", ".join(f"{{rank: {one}, {what[kind]}, steps: {mine}}}" for one in members)
        settings = (f"cluster.faults=[{blocks}]",)
    return Case(kind, placement, ranks, seed, first + AFTER, rank, first, settings)


def settings_of(case):
    """The experiment without the fault."""
    random = np.random.default_rng([case.seed, case.ranks])
    microbatch = int(random.choice([16384, 32768]))
    heads = int(random.choice([8, 16]))
    return [
        f"seed={case.seed + 1}",
        f"model={{layers: {int(random.integers(2, 5))}, d_model: {128 * heads}, heads: {heads}, "
        f"kv_heads: {heads // 2}, ffn: {352 * heads}, vocab: 32000}}",
        f"data={{source: synthetic, max_document: {microbatch}, documents: 100000, lengths: "
        f"{{distribution: pareto, alpha: {ALPHA}, min: {int(random.choice([128, 256, 512]))}}}}}",
        f"batch={{tokens: {case.ranks * microbatch}, microbatch: {microbatch}}}",
        f"parallel={{data: {case.ranks}}}", f"attention={{placement: {case.placement}}}",
        f"run={{steps: {case.steps}, dtype: bfloat16}}",
        f"cluster={{machine: {ROOT}/inputs/machines/h200.yaml, ranks_per_node: 8, "
        f"jitter: {JITTER}}}"]


def simulate(program, case, folder, planted=True, trace="full"):
    shutil.rmtree(folder, ignore_errors=True)
    settings = settings_of(case) + list(case.settings if planted else ())
    call(words_of(program, ["simulate", ROOT / "inputs/quickstart.yaml", "--trace", trace,
                            "--output", folder, "--quiet"], settings))
    return folder


def planted(program, case, folder):
    """The run with its fault, and the seconds of each step without and with it."""
    folder = Path(folder)
    before = simulate(program, case, folder / "without", planted=False,
                      trace="full" if case.kind == "link" else "summary")
    run = simulate(program, case, folder / "with")
    seconds = [seconds_of(before), seconds_of(run)]
    if case.kind == "link":
        _join(before, run, case.first)
    return run, *seconds


def _join(before, run, first):
    """Replaces the first steps of a run by those of another one, and what follows moves in time."""
    for path in sorted((run / "trace").glob("rank-*.h5")):
        with h5py.File(before / "trace" / path.name) as other, h5py.File(path, "r+") as file:
            old, new = other["steps"][:first], file["steps"][first:]
            begins = int(file["steps"]["n_events_end"][first - 1])
            events = np.concatenate([other["events"][: int(old["n_events_end"][-1])],
                                     file["events"][begins:]])
            count = int(old["n_events_end"][-1])
            moved = int(old["end_ns"][-1]) - int(new["begin_ns"][0])
            for field in ("begin_ns", "end_ns"):
                events[field][count:] += moved
                new[field] += moved
            new["n_events_end"] += np.uint64(count) - np.uint64(begins)
            for name, rows in (("events", events), ("steps", np.concatenate([old, new]))):
                file[name].resize(len(rows), axis=0)
                file[name][:] = rows


def seconds_of(run):
    """Of each step, from the first rank's begin to the last one's end."""
    with_all = []
    for path in sorted((run / "trace").glob("rank-*.h5")):
        with h5py.File(path) as file:
            steps = file["steps"][:]
        with_all.append((steps["begin_ns"], steps["end_ns"]))
    begin, end = (np.stack(part) for part in zip(*with_all, strict=True))
    return (end.max(axis=0) - np.append(0, end.max(axis=0)[:-1])) / 1e9
