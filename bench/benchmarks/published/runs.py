# SPDX-License-Identifier: Apache-2.0
"""Simulates the steps, several at a time."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.published.experiments import experiment, obstacle
from benchmarks.published.rows import Row
from lib.command import RunError, call, words_of


@dataclass(frozen=True)
class Simulated:
    """What `cadenza simulate` says of a step; nothing else where it was not run."""

    row: Row
    left_out: str = ""  # why it was not run
    tps: float = 0.0  # tokens per second and GPU
    memory: int = 0  # bytes of the rank that needs most
    fits: bool = False  # in the memory of the machine file


def simulate_all(rows: Iterable[Row], program: Path, jobs: int,
                 made: Callable[[Row], dict] = experiment) -> Iterator[Simulated]:
    """In the order of the rows. `made` gives the experiment of a row."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda row: simulate(row, program, Path(folder), made), rows)


def simulate(row: Row, program: Path, folder: Path,
             made: Callable[[Row], dict] = experiment) -> Simulated:
    """One whole step. What cadenza refuses is left out with its reason, which is printed."""
    reason = obstacle(row)
    if reason:
        return Simulated(row, reason)
    file = folder / f"{row.id}.yaml"
    file.write_text(yaml.safe_dump(made(row), sort_keys=False))
    try:
        said = json.loads(call(words_of(
            program, ["simulate", file, "--steps", "1", "--format", "json", "--quiet"])))
    except RunError as error:
        print(f"{row.id}: {error}", file=sys.stderr, flush=True)
        return Simulated(row, "refused by cadenza")
    return Simulated(row, "", said["tokens_per_second"] / said["ranks"],
                     said["memory"]["largest_bytes"], said["memory"]["fits"])
