# SPDX-License-Identifier: Apache-2.0
import pandas as pd
import pytest
from trace_files import Rank, write_run

import cadenza
from cadenza.time.memory import divergence, growth


def series(*peaks, kind="total", rank=0):
    return pd.DataFrame(
        {"rank": rank, "step": range(len(peaks)), "kind": kind, "peak_bytes": peaks}
    )


def test_divergence():
    memory = pd.DataFrame({"rank": range(4), "step": 0, "kind": "total",
                           "peak_bytes": [40, 40, 40, 52]})
    ranks = pd.DataFrame({"rank": range(4), "role": "both"})
    [row] = divergence(memory, ranks).to_dict("records")
    assert row["divergence"] == pytest.approx(1.2093, abs=1e-4)
    assert row["max_over_median"] == pytest.approx(1.3) and row["rank"] == 3
    assert (row["max_bytes"], row["mean_bytes"]) == (52, 43)


def test_only_ranks_of_a_role_are_compared():
    memory = pd.DataFrame({"rank": range(4), "step": 0, "kind": "total",
                           "peak_bytes": [40, 40, 10, 30]})
    ranks = pd.DataFrame({"rank": range(4), "role": ["trainer"] * 2 + ["attention_server"] * 2})
    found = divergence(memory, ranks).set_index("role")
    assert found.loc["trainer", "divergence"] == 1
    assert found.loc["attention_server", "divergence"] == 1.5


def test_divergence_of_a_run(run_folder, tmp_path):
    run = cadenza.open(run_folder)
    found = divergence(run.memory(), run.ranks())
    assert (found["divergence"] == 1).all() and set(found["kind"]) >= {"total", "activations"}
    empty = cadenza.open(write_run(tmp_path / "none", [Rank(0)]))
    assert len(divergence(empty.memory(), empty.ranks())) == len(growth(empty.memory())) == 0


@pytest.mark.parametrize(
    ("peaks", "slope", "leak"),
    [
        ([10] * 12, 0, False),
        (range(10, 22), 1, True),
        ([10, 11, 12], 1, False),  # too few steps to say
        (range(30, 18, -1), -1, False),
        ([1, 9, *[20] * 12], 0, False),  # buffers grow at first
        ([10, 30] * 6, None, False),  # no line
    ],
)
def test_growth(peaks, slope, leak):
    [row] = growth(series(*peaks)).to_dict("records")
    assert slope is None or row["bytes_per_step"] == pytest.approx(slope)
    assert row["leak"] == leak


def test_growth_of_each_rank_and_kind():
    memory = pd.concat([series(*range(20)), series(*[5] * 20, kind="activations", rank=1)])
    found = growth(memory).set_index(["rank", "kind"])
    assert found.loc[(0, "total"), "leak"] and not found.loc[(1, "activations"), "leak"]
