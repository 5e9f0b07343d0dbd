# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import pytest

import cadenza
from cadenza.time.imbalance import serving_ranks


def test_imbalance(run_folder):
    run = cadenza.open(run_folder)
    parts = cadenza.time_parts(run.events(), run.steps(), run.ranks())
    frame = cadenza.attention_imbalance(parts, run.ranks())
    assert frame["imbalance"].tolist() == [1.5, 1.5]  # 30 and 10: max 30, mean 20
    assert frame["slowest"].tolist() == [0, 0]
    total = cadenza.imbalance_over_run(frame).iloc[0]
    assert [total["median"], total["run"]] == pytest.approx([1.5, 1.5])


def test_imbalance_does_not_cancel_over_steps():
    ranks = pd.DataFrame({"rank": [0, 1], "server": [0, 1], "role": "both"})
    attention = [4, 2, 2, 4]
    parts = pd.DataFrame(
        {"rank": [0, 1, 0, 1], "step": [0, 0, 1, 1], "compute_attention": attention}
    )
    frame = cadenza.attention_imbalance(parts, ranks)
    assert cadenza.imbalance_over_run(frame).loc[0, "run"] == pytest.approx(4 / 3)


def test_only_serving_ranks_count():
    """A trainer beside a dedicated server is not an idle server."""
    ranks = pd.DataFrame(
        {"rank": [0, 1, 2], "server": [-1, 0, 1], "role": ["trainer"] + ["attention_server"] * 2}
    )
    parts = pd.DataFrame({"rank": [0, 1, 2], "step": 0, "compute_attention": [0, 10, 30]})
    assert serving_ranks(ranks) == [1, 2]
    assert cadenza.attention_imbalance(parts, ranks).loc[0, "imbalance"] == 1.5
    unmarked = ranks.assign(server=-1, role="trainer")
    assert serving_ranks(unmarked) == [0, 1, 2]
    # Of sparse attention it makes the index, which serves nobody.
    estimating = parts.assign(compute_attention=[5, 10, 30])
    assert cadenza.attention_imbalance(estimating, ranks).loc[0, "imbalance"] == 1.5


def test_imbalance_without_attention_is_unknown():
    ranks = pd.DataFrame({"rank": [0, 1], "server": [0, 1], "role": "both"})
    parts = pd.DataFrame({"rank": [0, 1], "step": 0, "compute_attention": 0})
    assert np.isnan(cadenza.attention_imbalance(parts, ranks).loc[0, "imbalance"])


def test_planned_imbalance():
    plans = pd.DataFrame({"step": [0, 0, 0], "server": [0, 0, 1], "cost": [2.0, 2.0, 2.0],
                          "layer_class": -1, "layers": -1})
    assert cadenza.planned_imbalance(plans, 2).loc[0, "imbalance"] == pytest.approx(4 / 3)
    assert cadenza.planned_imbalance(plans, 3).loc[0, "imbalance"] == pytest.approx(2.0)


def test_plans_of_layers_count_as_many_times_as_they_have_layers():
    """Three layers are dense, one is sparse: server 0 has 3 x 4 + 1, server 1 has 3 x 2 + 5."""
    plans = pd.DataFrame({"step": 0, "server": [0, 1, 0, 1], "cost": [4.0, 2.0, 1.0, 5.0],
                          "layer_class": [0, 0, 1, 1], "layers": [3, 3, 1, 1]})
    assert cadenza.planned_imbalance(plans, 2).loc[0, "imbalance"] == pytest.approx(13 / 12)
