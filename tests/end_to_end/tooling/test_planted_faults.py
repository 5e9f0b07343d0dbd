# SPDX-License-Identifier: Apache-2.0
"""Faults that are planted in simulated runs are named, with phase, cause and what they cost; the
simulation without them says what that is. `bench/faults` does the same on many seeds."""

import copy
import sys

import pytest

import harness

pytest.importorskip(
    "cadenza", reason="the package analysis/ is not installed here", exc_type=ImportError
)
sys.path.insert(0, str(harness.ROOT / "bench"))
from benchmarks.faults.__main__ import Runs  # noqa: E402
from benchmarks.faults.layouts import LAYOUTS  # noqa: E402
from benchmarks.faults.score import score  # noqa: E402

SEED = 4000  # of runs that no tuning has seen
FEW = ["data 4", "pipeline 4", "ping-pong 4"]
CASES = [("slow", layout) for layout in LAYOUTS]
CASES += [(kind, layout) for kind in ("phase", "intermittent", "pause", "clean") for layout in FEW]
CASES += [("data", layout) for layout in ("data 2", "data 2 x tensor 2 x pipeline 2")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("planted"), harness.PROGRAM)


@pytest.mark.parametrize(("kind", "layout"), CASES)
def test_a_planted_fault_is_named(kind, layout, runs):
    right, fault, said, without, seconds = runs.judge(kind, layout, SEED)
    assert all(right.values()), (right, fault, said, without, seconds)


def test_another_fault_is_scored_wrong(runs):
    """The truth is swapped: another rank, phase and cause, or a run that is as slow without it."""
    right, fault, said, without, seconds = runs.judge("phase", "data 4", SEED)
    assert set(right) == {"rank", "phase", "cause", "gain"}
    swapped = copy.copy(fault)
    swapped.ranks = {(min(fault.ranks) + 1) % 4}
    swapped.phase = "optimizer"
    assert score(swapped, said, without, seconds)["rank"] is False
    assert score(swapped, said, without, seconds)["phase"] is False
    assert score(fault, said, 0.9 * without, seconds)["gain"] is False
    swapped.kind = "intermittent"
    assert score(swapped, said, without, seconds)["cause"] is False
