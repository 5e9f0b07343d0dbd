# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from trace_files import COLLECTIVE, DENSE, Rank, write_run

import cadenza
from cadenza.time.parts import PARTS, time_parts


def test_offset_is_interpolated_and_held_outside(tmp_path):
    start = 2**60 + 1  # no float64 holds this
    events = [(0, DENSE, start + t, start + t + 1) for t in (-500, 0, 250, 1000, 5000)]
    syncs = [(start + 1000, 300), (start, 100)]  # out of order
    rank = Rank(0, events, [(0, start, start + 9)], syncs=syncs)
    found = cadenza.open(write_run(tmp_path / "r", [rank])).events()["begin_ns"] - start
    assert found.tolist() == [-400, 100, 400, 1300, 5300]


def drifting(tmp_path, name, syncs):
    """A clock that runs 20 ppm fast and 3 ms ahead: what its readings become on rank 0's."""
    times = np.arange(0, 20_000_000_000, 1_000_000_000)
    local = [round(t * (1 + 20e-6)) + 3_000_000 for t in times]
    syncs = [(local[t], int(times[t]) - local[t]) for t in syncs]
    events = [(0, DENSE, t, t + 1) for t in local]
    rank = Rank(0, events, [(0, 0, 9)], syncs=syncs)
    return cadenza.open(write_run(tmp_path / name, [rank])).events()["begin_ns"] - times


def test_drift_is_recovered(tmp_path):
    assert drifting(tmp_path, "two", [0, 10]).abs().max() <= 1  # before, between and after
    assert drifting(tmp_path, "three", [0, 5, 10]).abs().max() <= 1
    assert drifting(tmp_path, "one", [0])[10] == pytest.approx(200_000, abs=1)


def test_drifting_clocks_change_nothing_after_alignment(tmp_path):
    """Parts of two ranks whose clocks drift, against those on one clock: steps of milliseconds, as
    times are whole nanoseconds."""
    rng = np.random.default_rng(1)
    second, steps = 1_000_000_000, [(s, s * 10**9, s * 10**9 + 10**8) for s in range(0, 20, 4)]

    def ranks(drift):
        made = []
        for number in (0, 1):
            slope, ahead = (1.0, 0) if number == 0 else (1 + drift, int(drift * 1e12))
            local = lambda t, k=slope, a=ahead: round(t * k) + a  # noqa: E731
            events = []
            for step, begin, _ in steps:
                late = begin + 10**7 * (1 + 3 * number)
                options = {"flow": 3, "lane": 0}
                events += [
                    (step, DENSE, local(begin), local(late)),
                    (step, COLLECTIVE, local(late), local(begin + 6 * 10**7), options),
                ]
            syncs = [(local(t), t - local(t)) for t in (0, 7 * second, 19 * second)]
            mine = [(s, local(b), local(e)) for s, b, e in steps]
            made.append(Rank(number, events, mine, syncs=syncs if number else []))
        return made

    plain, *moved = (
        time_parts(run.events(), run.steps(), run.ranks())
        for run in (
            cadenza.open(write_run(tmp_path / str(i), ranks(drift)))
            for i, drift in enumerate([0.0, *rng.uniform(-5e-5, 5e-5, 4)])
        )
    )
    assert (plain.loc[plain["rank"] == 0, "data_parallel_wait"] == 3 * 10**7).all()
    for other in moved:
        assert np.abs(other[list(PARTS)] - plain[list(PARTS)]).max(axis=None) <= 3


def test_one_offset_is_constant(tmp_path):
    events = [(0, DENSE, 50, 60), (0, DENSE, 10**12, 10**12 + 1)]
    rank = Rank(0, events, [(0, 0, 9)], syncs=[(0, -50)])
    found = cadenza.open(write_run(tmp_path / "r", [rank])).events()["begin_ns"]
    assert found.tolist() == [0, 10**12 - 50]
