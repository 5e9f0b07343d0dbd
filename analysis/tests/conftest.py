# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import pytest
from trace_files import (
    ATTENTION,
    COLLECTIVE,
    DENSE,
    DISPATCH,
    HOST,
    HOST_LANE,
    NON_BLOCKING,
    OPTIMIZER,
    OTHER,
    PLANNING,
    WAIT,
    Rank,
    write_run,
)

import cadenza
from cadenza.cli import main

# Two ranks, two equal steps of 100 ns; the answers are worked out by hand in HAND.
RANK_0 = [
    (DENSE, 0, 30),
    (ATTENTION, 30, 60),
    (OTHER, 60, 65),
    (COLLECTIVE, 70, 90, {"flow": 9, "lane": 0}),  # early: rank 1 comes at 80
    (OPTIMIZER, 90, 96),
    (PLANNING, 20, 40, {"lane": HOST_LANE}),  # under compute
    (PLANNING, 60, 70, {"lane": HOST_LANE}),
]
RANK_1 = [
    (HOST, 0, 50),  # holds the next two: 0 to 5, 25 to 30 and 40 to 50 are its own
    (DENSE, 5, 25),
    (ATTENTION, 30, 40),
    (DISPATCH, 20, 60, {"flow": 5, "flags": NON_BLOCKING}),  # partner unknown
    (WAIT, 50, 70, {"name": "wait"}),  # the message came at 60, but when it began is not known
    (COLLECTIVE, 80, 90, {"flow": 9, "lane": 0}),
    (OPTIMIZER, 90, 96),
]
HAND = {
    0: {"compute_attention": 30, "compute_dense": 30, "compute_other": 5, "optimizer": 6,
        "no_core": 0, "communication": 10, "attention_wait": 0, "pipeline_bubble": 0,
        "tensor_parallel_wait": 0, "data_parallel_wait": 10,
        "host_gap": 0, "other": 9},
    1: {"compute_attention": 10, "compute_dense": 20, "compute_other": 0, "optimizer": 6,
        "no_core": 0, "communication": 10, "attention_wait": 20, "pipeline_bubble": 0,
        "tensor_parallel_wait": 0, "data_parallel_wait": 0,
        "host_gap": 0, "other": 34},
}


def steps_of(events, count=2, start=1000):
    """`count` copies of a step's events, 100 ns each, from `start` on."""
    copies = []
    for step in range(count):
        at = start + 100 * step
        copies += [(step, c, b + at, e + at, *o) for c, b, e, *o in events]
    return copies, [(s, start + 100 * s, start + 100 * (s + 1)) for s in range(count)]


def two_ranks(shift=0, **options):
    ranks = []
    for number, events in enumerate((RANK_0, RANK_1)):
        rows, steps = steps_of(events)
        plan = [(s, number, cost) for s in (0, 1) for cost in (3.0, 1.0)]
        ranks.append(Rank(number, rows, steps, shift=shift * number, plan=plan, **options))
    return ranks


def parts_of(folder):
    run = cadenza.open(folder)
    return cadenza.time_parts(run.events(), run.steps(), run.ranks())


def by_rank(tmp_path, *events, window=100, places=None):
    ranks = [
        Rank(r, [(0, *e) for e in mine], [(0, 0, window)], place=places[r] if places else None)
        for r, mine in enumerate(events)
    ]
    return parts_of(write_run(tmp_path / "r", ranks)).set_index("rank")


@pytest.fixture
def run_folder(tmp_path):
    return write_run(tmp_path / "small", two_ranks())


@pytest.fixture
def inside(capsys):
    """The program without a process of its own, for the many ways it can fail."""

    def call(*arguments):
        code = main([str(a) for a in arguments])
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return call


@pytest.fixture
def cli():
    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "cadenza.cli", *map(str, arguments)],
            capture_output=True, text=True, timeout=300,
        )

    return call
