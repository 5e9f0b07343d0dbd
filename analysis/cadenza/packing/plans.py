# SPDX-License-Identifier: Apache-2.0
"""Batches of an experiment, as `cadenza plan` makes them: nothing is packed here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cadenza.errors import DataError
from cadenza.files import read_text, read_yaml
from cadenza.words import shortened

# Of each packing the keys of `batch` that only it and others like it have.
PACKINGS = {"fixed": (), "pooled": ("longest", "break_even"),
            "balanced": ("longest", "break_even", "outliers"), "best_fit": ()}
_MOST = 2**31 - 1  # tokens of a microbatch, and so of the documents that are looked at
_SECONDS = 3600.0  # for one plan
_SAID = 300  # characters of what the program says
_BUILT = "build/release/cadenza"


class Piece(NamedTuple):
    """A document of a batch: a whole one of the corpus, or a part."""

    length: int
    microbatch: tuple[int, int]  # tick and data-parallel rank


@dataclass(frozen=True)
class Batch:
    pieces: list[Piece]  # in the order of the plan
    costs: list[float]  # of attention, forward FLOPs of a layer, by data-parallel rank
    delays: list[int]  # steps that each piece waited


@dataclass(frozen=True)
class Experiment:
    """The keys that say how documents become batches; every other one is the program's business.

    Lengths are in tokens."""

    path: Path
    data: int  # data-parallel ranks
    tokens: int  # of a step
    microbatch: int
    longest: int  # document that is not cut
    drawn: bool  # whether the longest document follows from that: of corpora that are made
    shuffled: bool
    batch: dict[str, object]


def read_experiment(path: Path) -> Experiment:
    """@throws DataError where a key that decides the batches is missing or to be searched"""
    keys = read_yaml(str(path), read_text(path))

    def whole(block: str, key: str, default: int | None = None) -> int:
        found = keys.get(block)
        value = found.get(key, default) if isinstance(found, dict) else default
        if type(value) is not int or not 0 <= value < 2**40:
            shown = "nothing" if value is None else shortened(str(value), 40)
            raise DataError(f"{path}: {block}.{key}: found {shown}; valid: a whole number, as what "
                            "the ranks get depends on it")
        return value

    data = keys.get("data")
    data = data if isinstance(data, dict) else {}
    lengths = data.get("lengths")
    longest = lengths.get("max") if isinstance(lengths, dict) else None
    microbatch = whole("batch", "microbatch")
    return Experiment(
        path, whole("parallel", "data", 1), whole("batch", "tokens"), microbatch,
        whole("data", "max_document", 0) or microbatch,
        data.get("source") in ("synthetic", "retrieval") and not longest,
        data.get("shuffle") is True, keys["batch"],
    )


def documents(experiment: Experiment, steps: int) -> list[int]:
    """Lengths of the first documents as the corpus has them, in its order: as many as `steps` steps
    need. Of the last one, only what is needed.

    It is a batch of one microbatch, in which nothing is cut.
    """
    tokens = experiment.tokens * steps
    if tokens > _MOST:
        raise DataError(f"{experiment.path}: {steps} steps of {experiment.tokens} tokens; valid: "
                        f"steps of {_MOST} tokens together")
    longest = {"data.lengths.max": experiment.longest} if experiment.drawn else {}
    found = _plan(experiment, 0, {
        "parallel": {}, "batch": {"tokens": tokens, "microbatch": tokens}, "data.shuffle": False,
        "data.max_document": tokens, **longest})
    return found["documents"]


def batch(experiment: Experiment, packing: str, step: int, in_order: bool) -> Batch:
    """A step, with attention where its tokens are, on data-parallel ranks alone.

    @param in_order  of the corpus; else in that of the experiment
    """
    order = {"data.shuffle": False} if in_order else {}
    own = {key: experiment.batch[key] for key in PACKINGS[packing] if key in experiment.batch}
    found = _plan(experiment, step, {
        "parallel": {"data": experiment.data}, **order,
        "batch": {"tokens": experiment.tokens, "microbatch": experiment.microbatch,
                  "packing": packing, **own}})
    rank = {one["document"]: one["rank"] for one in found["home"]}
    tick = {task["document"]: plan["tick"] for plan in found["plans"] for stage in plan["stages"]
            for task in stage["tasks"]}
    pieces = [Piece(length, (tick[number], rank[number]))
              for number, length in enumerate(found["documents"])]
    return Batch(pieces, found["summary"]["cost_per_rank"], found.get("delays", []))


def _plan(experiment: Experiment, step: int, keys: dict[str, object]) -> dict:
    """What `cadenza plan` prints with these keys, and with none of what moves attention."""
    keys = {"cluster": {}, "attention.placement": "colocated", "attention.servers": "in_place",
            "attention.mixed": False, "attention.overlap": "none", **keys}
    words = [_program(), "plan", str(experiment.path), "--format", "json", "--step", str(step),
             "--quiet"]
    for key, value in keys.items():
        words += ["--set", f"{key}={json.dumps(value)}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace",
                              timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"{words[0]}: cannot be run: {error}") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        said = said.removeprefix("cadenza: ")
        where = "" if str(experiment.path) in said else f"{experiment.path}: "
        raise DataError(f"{where}{shortened(said, _SAID)}")
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        raise DataError(f"{words[0]}: does not print the JSON of cadenza plan; valid: a cadenza of "
                        "this version") from error


def _program() -> str:
    """CADENZA names it, else it is on the path or was built here."""
    found = os.environ.get("CADENZA") or shutil.which("cadenza")
    path = Path(found or _BUILT)
    if not path.is_file():
        raise DataError(f"{path}: no such program; valid: the program cadenza on the path, or its "
                        "place in the environment variable CADENZA")
    return str(path.resolve())
