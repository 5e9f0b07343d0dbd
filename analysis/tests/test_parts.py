# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import pytest
from conftest import HAND, by_rank, parts_of, two_ranks
from trace_files import (
    ATTENTION,
    COLLECTIVE,
    DENSE,
    NON_BLOCKING,
    OPTIMIZER,
    OTHER,
    SENDS,
    SIMULATED,
    WAIT,
    Rank,
    write_run,
)

import cadenza
from cadenza.read.run import Run
from cadenza.time.parts import PARTS


def test_parts_worked_out_by_hand(run_folder):
    parts = parts_of(run_folder)
    assert len(parts) == 4
    for row in parts.to_dict("records"):
        assert {name: row[name] for name in PARTS} == HAND[row["rank"]], row


def test_parts_do_not_depend_on_the_clocks(tmp_path):
    plain = parts_of(write_run(tmp_path / "a", two_ranks()))
    shifted = parts_of(write_run(tmp_path / "b", two_ranks(shift=10**15 + 7)))
    pd.testing.assert_frame_equal(plain, shifted)


def test_clocks_do_matter_when_they_are_not_known(tmp_path, monkeypatch):
    """The test above can fail: without the offset the wait for the late rank is not seen."""
    monkeypatch.setattr(Run, "wrong_clocks", [])
    ranks = two_ranks(shift=10**6)
    ranks[1].syncs = []
    parts = parts_of(write_run(tmp_path / "c", ranks))
    assert parts.loc[parts["rank"] == 0, "communication"].tolist() != [10, 10]


def test_parts_sum_to_the_step_on_random_traces(tmp_path):
    """Random events of all categories on all lanes, nested or overlapping, blocking or not, with
    and without partners: no nanosecond is lost or counted twice."""
    rng = np.random.default_rng(11)
    for case in range(30):
        ranks = []
        for number in range(3):
            events = []
            for _ in range(60):
                begin, size = int(rng.integers(-50, 900)), int(rng.integers(0, 120))
                options = {
                    "lane": int(rng.integers(0, 3)),
                    "flow": int(rng.integers(0, 6)),
                    "peer": int(rng.integers(-1, 3)),
                    "flags": int(rng.choice([0, NON_BLOCKING, SENDS | NON_BLOCKING, SIMULATED])),
                    "phase": int(rng.integers(0, 5)),
                    "microbatch": int(rng.integers(-1, 2)),
                    "name_id": int(rng.integers(0, 12)),
                    "still_ns": int(rng.integers(-1, 150)),
                }
                events.append((0, int(rng.integers(0, 15)), begin, begin + size, options))
            ranks.append(Rank(number, events, [(0, 0, 900)], place=(0, number, 0)))
        parts = parts_of(write_run(tmp_path / str(case), ranks))
        assert (parts["window"] == 900).all()
        assert (parts[list(PARTS)].sum(axis=1) == 900).all(), case
        assert (parts[list(PARTS)] >= 0).all(axis=None), case


def test_computing_counts_before_waiting(tmp_path):
    """Against a count of every single nanosecond, over events that overlap on all lanes."""
    rng = np.random.default_rng(3)
    priority = [(ATTENTION, "nothing"), (DENSE, "nothing"), (OTHER, "nothing"),
                (OPTIMIZER, "nothing"), (WAIT, "wait_for_sends"), (WAIT, "wait"),
                (WAIT, "wait_for_stage"), (WAIT, "wait_for_ranks")]
    for case in range(40):
        events, table = [], np.zeros((len(priority), 500), bool)
        for lane in range(3):
            kind = int(rng.integers(len(priority)))
            begin, size = int(rng.integers(-20, 500)), int(rng.integers(1, 300))
            category, name = priority[kind]
            events.append((0, category, begin, begin + size, {"lane": lane, "name": name}))
            table[kind, max(begin, 0) : max(begin + size, 0)] = True
        row = parts_of(write_run(tmp_path / str(case), [Rank(0, events, [(0, 0, 500)])])).iloc[0]
        taken = np.zeros(500, bool)
        # These need partners, a time for which the rank stood still, an imported run.
        others = ("tensor_parallel_wait", "no_core", "host_gap")
        parts = [part for part in PARTS[:-1] if part not in others]
        for kind, name in enumerate(parts):
            assert row[name] == (table[kind] & ~taken).sum(), (case, name)
            taken |= table[kind]
        assert row["other"] == (~taken).sum()


def test_what_a_computation_had_no_core_for_is_a_part_of_its_own(tmp_path):
    """Of a dense operation around a collective its own 60 ns are counted, whichever they are;
    waiting ranks and messages lose none, and no more is lost than there was."""
    rank = Rank(0, [
        (0, DENSE, 0, 100, {"still_ns": 45}),
        (0, COLLECTIVE, 30, 70, {"name": "tensor_all_reduce", "still_ns": 9}),
        (0, ATTENTION, 100, 200, {"still_ns": 1000}),
        (0, WAIT, 200, 300, {"name": "wait_for_ranks", "still_ns": 80}),
        (0, OPTIMIZER, 300, 400, {"still_ns": 0}),
    ], [(0, 0, 450)])
    row = parts_of(write_run(tmp_path / "a", [rank])).iloc[0]
    found = {part: int(row[part]) for part in PARTS if row[part]}
    assert found == {"compute_dense": 15, "no_core": 145, "optimizer": 100, "communication": 40,
                     "data_parallel_wait": 100, "other": 50}


def test_totals_and_step_times(run_folder):
    totals = cadenza.rank_totals(parts_of(run_folder)).set_index("rank")
    assert totals.loc[0, "compute_attention"] == pytest.approx(60e-9)
    assert totals.loc[0, "busy_share"] == pytest.approx(0.71)
    times = cadenza.step_times(cadenza.open(run_folder).steps())
    assert times["seconds"].tolist() == pytest.approx([100e-9, 100e-9])


def test_optimizer_is_busy(tmp_path):
    totals = cadenza.rank_totals(by_rank(tmp_path, [(OPTIMIZER, 0, 25)]).reset_index())
    assert totals.loc[0, "busy_share"] == 0.25
