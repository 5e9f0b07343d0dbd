# SPDX-License-Identifier: Apache-2.0
"""A rank that is stopped for a while in a real run is named, with the step: bench/real_faults does
it at length."""

import sys
import time

import numpy as np
import pytest

import harness

cadenza = pytest.importorskip(
    "cadenza", reason="the package analysis/ is not installed here", exc_type=ImportError
)
sys.path.insert(0, str(harness.ROOT / "bench"))
from benchmarks.real_faults import plant, processes, verdicts  # noqa: E402

PAUSE = 1.5  # seconds: long beside what a busy machine takes from a rank at one go
ATTEMPTS = 4  # a pause between two steps is in no step
READS = "load"  # who stands still in this operation is told to wait for its data
# A step takes much longer than what lies between two.
LONG_STEPS = {
    "model": {"layers": 2, "d_model": 64, "ffn": 128},
    "batch": {"tokens": 8192, "microbatch": 1024},
    "run": {"steps": 24},
}
LAYOUTS = {  # and the rank that is stopped
    "data": ({"data": 2}, 1),
    "tensor": ({"tensor": 2}, 0),
    "pipeline": ({"pipeline": 2}, 1),
}


def pause_in(folder, changes, victim):
    """A run with a pause somewhere in its steps. @returns its folder, what was planted"""
    folder.mkdir()
    experiment = harness.write_experiment(folder / "e.yaml", changes)
    words = harness.command(2, ["train", experiment, "--output", folder / "run"])
    process = harness.start(words)
    try:
        harness.wait_for_steps(process, folder / "run", 2)
        time.sleep(float(np.random.default_rng().uniform(0, 0.2)))
        planted = plant.pause([processes.rank_processes(process.pid)[victim]], PAUSE)
        result = harness.finish(process)
    finally:
        harness.stop(process)
    assert result.code == 0, str(result)
    return folder, planted


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pause_of_a_real_rank_is_named(layout, corpus, tmp_path):
    parallel, victim = LAYOUTS[layout]
    changes = {"data": harness.tokens_data(corpus), "parallel": parallel}
    changes = harness.merged(LONG_STEPS, changes)
    for attempt in range(ATTEMPTS):
        folder, planted = pause_in(tmp_path / str(attempt), changes, victim)
        study = cadenza.Study(cadenza.open(folder / "run"))
        place = verdicts.place_of(study, planted, victim)
        if place is not None and place[2] != READS:
            break
    found = study.stragglers[study.stragglers["why"] == "paused"]
    # On a busy machine ranks stand still elsewhere, too.
    named = set(zip(found["step"], found["rank"], strict=True))
    assert (place[0], victim) in named, f"stopped in {place}\n{study.stragglers.to_string()}"
