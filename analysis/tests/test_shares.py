# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import pytest
from conftest import HAND, two_ranks
from trace_files import ATTENTION, DENSE, NON_BLOCKING, RECEIVE, SEND, WAIT, Rank, write_run

import cadenza
from cadenza.shares import SHARES, serving_ranks


def shares_of(folder):
    run = cadenza.open(folder)
    return cadenza.time_shares(run.events(), run.steps())


def test_hand_computed_shares(run_folder):
    shares = shares_of(run_folder)
    assert len(shares) == 4
    for row in shares.to_dict("records"):
        assert {name: row[name] for name in SHARES} == HAND[row["rank"]], row


def test_shares_do_not_depend_on_the_clocks(tmp_path):
    plain = shares_of(write_run(tmp_path / "a", two_ranks()))
    shifted = shares_of(write_run(tmp_path / "b", two_ranks(shift=10**15 + 7)))
    pd.testing.assert_frame_equal(plain, shifted)


def test_clocks_do_matter_when_they_are_not_measured(tmp_path):
    """The test above can fail: without the offset the wait for the late rank is not seen."""
    ranks = two_ranks(shift=10**6)
    ranks[1].syncs = []
    shares = shares_of(write_run(tmp_path / "c", ranks))
    assert shares.loc[shares["rank"] == 0, "communicating"].tolist() != [10, 10]


def test_every_nanosecond_is_assigned_once(tmp_path):
    """Against a count of every single nanosecond, over random, overlapping events."""
    rng = np.random.default_rng(3)
    priority = [ATTENTION, DENSE, 3, 11, 8, WAIT, 14]
    for case in range(20):
        events, table = [], np.zeros((len(priority), 500), bool)
        for _ in range(30):
            kind = int(rng.integers(len(priority)))
            begin, size = int(rng.integers(-20, 500)), int(rng.integers(1, 40))
            # one lane each, so that nothing but the priority decides
            options = {"lane": len(events) % 16, "flags": NON_BLOCKING}
            events.append((0, priority[kind], begin + 50, begin + size + 50, options))
            table[kind, max(begin, 0) : max(begin + size, 0)] = True
        run = write_run(tmp_path / str(case), [Rank(0, events, [(0, 50, 550)])])
        row = shares_of(run).iloc[0]
        taken = np.zeros(500, bool)
        for kind, name in enumerate(SHARES[:-1]):
            assert row[name] == (table[kind] & ~taken).sum(), (case, name)
            taken |= table[kind]
        assert row["idle"] == (~taken).sum()
        assert row[list(SHARES)].sum() == row["window"] == 500


def test_receiver_waits_until_the_sender_comes(tmp_path):
    sender = [(0, DENSE, 0, 40), (0, SEND, 40, 50, {"flow": 3, "peer": 1})]
    receiver = [(0, RECEIVE, 10, 52, {"flow": 3, "peer": 0})]
    ranks = [Rank(0, sender, [(0, 0, 60)]), Rank(1, receiver, [(0, 0, 60)])]
    shares = shares_of(write_run(tmp_path / "r", ranks)).set_index("rank")
    assert shares.loc[0, "communicating"] == 10
    assert shares.loc[1, ["waiting", "communicating", "idle"]].tolist() == [30, 12, 18]


def test_flow_used_twice_by_a_rank_is_not_guessed_about(tmp_path):
    many = [(0, RECEIVE, 0, 10, {"flow": 3}), (0, RECEIVE, 20, 30, {"flow": 3})]
    shares = shares_of(write_run(tmp_path / "r", [Rank(0, many, [(0, 0, 30)])]))
    assert shares.loc[0, ["waiting", "communicating"]].tolist() == [0, 20]


def test_imbalance(run_folder):
    run = cadenza.open(run_folder)
    frame = cadenza.attention_imbalance(shares_of(run_folder), run.ranks())
    assert frame["imbalance"].tolist() == [1.5, 1.5]  # 30 and 10: max 30, mean 20
    assert frame["slowest"].tolist() == [0, 0]
    total = cadenza.imbalance_over_run(frame).iloc[0]
    assert [total["median"], total["run"]] == pytest.approx([1.5, 1.5])


def test_imbalance_does_not_cancel_over_steps():
    ranks = pd.DataFrame({"rank": [0, 1], "server": [0, 1], "role": "both"})
    shares = pd.DataFrame({"rank": [0, 1, 0, 1], "step": [0, 0, 1, 1], "attention": [4, 2, 2, 4]})
    frame = cadenza.attention_imbalance(shares, ranks)
    assert cadenza.imbalance_over_run(frame).loc[0, "run"] == pytest.approx(4 / 3)


def test_only_serving_ranks_count():
    """A trainer beside a dedicated server is not an idle server."""
    ranks = pd.DataFrame(
        {"rank": [0, 1, 2], "server": [-1, 0, 1], "role": ["trainer"] + ["attention_server"] * 2}
    )
    shares = pd.DataFrame({"rank": [0, 1, 2], "step": 0, "attention": [0, 10, 30]})
    assert serving_ranks(shares, ranks) == [1, 2]
    assert cadenza.attention_imbalance(shares, ranks).loc[0, "imbalance"] == 1.5
    unmarked = ranks.assign(server=-1, role="trainer")
    assert serving_ranks(shares, unmarked) == [0, 1, 2]


def test_imbalance_without_attention_is_unknown():
    ranks = pd.DataFrame({"rank": [0, 1], "server": [0, 1], "role": "both"})
    shares = pd.DataFrame({"rank": [0, 1], "step": 0, "attention": 0})
    assert np.isnan(cadenza.attention_imbalance(shares, ranks).loc[0, "imbalance"])


def test_planned_imbalance():
    plans = pd.DataFrame({"step": [0, 0, 0], "server": [0, 0, 1], "cost": [2.0, 2.0, 2.0]})
    assert cadenza.planned_imbalance(plans, 2).loc[0, "imbalance"] == pytest.approx(4 / 3)
    assert cadenza.planned_imbalance(plans, 3).loc[0, "imbalance"] == pytest.approx(2.0)


def test_totals_and_step_times(run_folder):
    totals = cadenza.rank_totals(shares_of(run_folder)).set_index("rank")
    assert totals.loc[0, "attention"] == pytest.approx(60e-9)
    assert totals.loc[0, "busy_share"] == pytest.approx(0.71)
    times = cadenza.step_times(cadenza.open(run_folder).steps())
    assert times["seconds"].tolist() == pytest.approx([100e-9, 100e-9])
