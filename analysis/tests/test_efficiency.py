# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import pytest
from trace_files import ATTENTION, COLLECTIVE, DENSE, NON_BLOCKING, WAIT, Rank, write_run

import cadenza
from cadenza.time.efficiency import (
    efficiencies, efficiency_of_run, overlap, utilization, work_rates,
)
from cadenza.time.pieces import lane_pieces
from cadenza.time.roofline import attention_tasks, rate_by_size


def open_ranks(tmp_path, *ranks):
    return cadenza.open(write_run(tmp_path / "r", list(ranks)))


def data_parallel(tmp_path):
    """Four ranks compute 10, 10, 10 and 14 s, then sum gradients for 2 s."""
    second, ranks = 10**9, []
    for number, own in enumerate((10, 10, 10, 14)):
        events = [
            (0, DENSE, 0, own * second),
            (0, WAIT, own * second, 14 * second, {"name": "wait_for_ranks", "phase": 3}),
            (0, COLLECTIVE, 14 * second, 16 * second,
             {"name": "reduce_gradients", "flow": 1, "lane": 0, "phase": 3}),
        ]
        ranks.append(Rank(number, events, [(0, 0, 16 * second)]))
    return open_ranks(tmp_path, *ranks)


def test_pop_efficiencies(tmp_path):
    run = data_parallel(tmp_path)
    parts = cadenza.time_parts(run.events(), run.steps(), run.ranks())
    assert (parts["data_parallel_wait"] / 1e9).tolist() == [4, 4, 4, 0]
    assert (parts["communication"] / 1e9).tolist() == [2, 2, 2, 2]
    row = efficiencies(parts, run.steps(), {0: 14.0}).iloc[0]
    expected = {"seconds": 16, "load_balance": 0.7857, "communication_efficiency": 0.875,
                "serialization_efficiency": 1, "transfer_efficiency": 0.875,
                "parallel_efficiency": 0.6875, "load_balance_loss": 0.1875,
                "communication_loss": 0.125, "serialization_loss": 0,
                "transfer_loss": 0.125}
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, abs=5e-5), name
    losses = row[["load_balance_loss", "serialization_loss", "transfer_loss"]].sum()
    assert losses + row["parallel_efficiency"] == pytest.approx(1)


def test_pop_efficiencies_without_a_replay(tmp_path):
    run = data_parallel(tmp_path)
    parts = cadenza.time_parts(run.events(), run.steps(), run.ranks())
    row = efficiencies(parts, run.steps()).iloc[0]
    assert row["communication_efficiency"] == 0.875
    assert np.isnan(row["serialization_efficiency"]) and np.isnan(row["transfer_loss"])
    # A replay that errs stays within what is possible.
    row = efficiencies(parts, run.steps(), {0: 16.5}).iloc[0]
    assert row["transfer_efficiency"] == 1


def test_efficiencies_of_a_run_multiply():
    names = ["seconds", "parallel_efficiency", "communication_efficiency", "transfer_efficiency"]
    steps = [(10.0, 0.4, 0.5, 0.8), (30.0, 0.9, 0.95, 1.0), (99.0, 0.1, 0.2, np.nan)]
    found = efficiency_of_run(pd.DataFrame(steps, columns=names))
    assert found["parallel_efficiency"] == pytest.approx((4 + 27) / 40)
    assert found["transfer_efficiency"] == pytest.approx(38 / 40)
    whole = found["load_balance"] * found["communication_efficiency"]
    assert whole == pytest.approx(found["parallel_efficiency"])
    of_two = found["serialization_efficiency"] * found["transfer_efficiency"]
    assert of_two == pytest.approx(found["communication_efficiency"])
    unknown = efficiency_of_run(pd.DataFrame(steps[2:], columns=names))
    assert unknown["parallel_efficiency"] == pytest.approx(0.1)
    assert np.isnan(unknown["transfer_efficiency"])


def test_flops_used(tmp_path):
    """P_mm 1e9, 16 layers of width 2048, documents 4096 + 4096, 0.25 s, two ranks of 989e12."""
    model = 6 * 1e9 * 8192 + 6 * 16 * 2048 * 2 * 4096**2
    quarter = 250_000_000
    ranks = [
        Rank(r, [], [(0, 0, quarter)], peak_flops=989e12,
             flops={"model_flops": model, "executed_flops": model * 2 / 3, "tokens": 8192})
        for r in (0, 1)
    ]
    run = open_ranks(tmp_path, *ranks)
    row = utilization(run.steps(), run.ranks(), work_rates(run.events())).iloc[0]
    assert model == pytest.approx(5.5749e13, rel=1e-4)
    assert row["mfu"] == pytest.approx(0.11274, abs=1e-5)
    assert row["hfu"] == pytest.approx(0.15032, abs=1e-5)  # 8 for every 6, half on each rank
    assert row["tokens_per_second"] == 32768 and np.isnan(row["attention_rate"])


def test_unknown_peak_is_unknown(tmp_path):
    run = open_ranks(tmp_path, Rank(0, [], [(0, 0, 9)], peak_flops=0, flops={"model_flops": 1}))
    row = utilization(run.steps(), run.ranks(), work_rates(run.events())).iloc[0]
    assert np.isnan(row["mfu"]) and np.isnan(row["hfu"])


def test_rates_of_attention_and_dense(tmp_path):
    ranks = [
        Rank(0, [(0, ATTENTION, 0, 1000, {"flops": 500.0}), (0, DENSE, 1000, 1500,
             {"flops": 400.0})], [(0, 0, 2000)]),
        Rank(1, [(0, ATTENTION, 0, 3000, {"flops": 700.0})], [(0, 0, 2000)]),
    ]
    run = open_ranks(tmp_path, *ranks)
    row = utilization(run.steps(), run.ranks(), work_rates(run.events())).iloc[0]
    assert row["attention_rate"] == pytest.approx(1200 / 4000e-9)
    assert row["attention_of_peak"] == pytest.approx(0.3)  # peaks are 1e9
    assert row["dense_rate"] == pytest.approx(8e8)


def test_overlap(tmp_path):
    """Compute [0, 10), communication [6, 14)."""
    message = {"flags": NON_BLOCKING, "peer": 1}
    run = open_ranks(tmp_path, Rank(0, [(0, DENSE, 0, 10), (0, 7, 6, 14, message)], [(0, 0, 14)]))
    row = overlap(lane_pieces(run.events(), run.ranks()), run.steps()).iloc[0]
    assert row["communication_ns"] == 8 and row["overlapped_ns"] == 4
    assert row["exposed_ns"] == 4 and row["ratio"] == 0.5


def test_roofline_of_attention(tmp_path):
    calls = [(0, ATTENTION, 0, 1000, {"flops": 500.0, "layer": 3, "phase": 1, "tick": 2}),
             (0, ATTENTION, 1000, 1000, {"flops": 9.0}),
             (0, ATTENTION, 2000, 3000, {"flops": 0.0})]
    ranks = [Rank(0, calls, [(0, 0, 3000)], peak_flops=1e9),
             Rank(1, calls[:1], [(0, 0, 3000)], peak_flops=0)]
    run = open_ranks(tmp_path, *ranks)
    tasks = attention_tasks(run.events(), run.ranks())
    assert tasks["rank"].tolist() == [0, 0, 1]
    first = tasks.iloc[0]
    assert (first["phase"], first["layer"], first["tick"]) == ("backward", 3, 2)
    assert first["rate"] == pytest.approx(5e8) and first["of_peak"] == pytest.approx(0.5)
    assert np.isnan(tasks["rate"].iloc[1]) and np.isnan(tasks["of_peak"].iloc[2])


def test_rate_by_size():
    sizes = np.repeat([1e6, 1e9, 1e12], 10)
    rates = np.concatenate([np.arange(1, 11), np.arange(101, 111), np.arange(201, 211)])
    tasks = pd.DataFrame({"phase": "forward", "flops": sizes, "rate": rates})
    curve = rate_by_size(tasks, bins=3)
    assert curve["calls"].tolist() == [10, 10, 10]
    assert curve["rate_median"].tolist() == [5.5, 105.5, 205.5]
    assert curve["flops"].tolist() == pytest.approx([1e6, 1e9, 1e12])
    assert len(rate_by_size(tasks.iloc[:0])) == 0 and len(rate_by_size(tasks.iloc[:1])) == 1
