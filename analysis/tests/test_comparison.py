# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from conftest import steps_of, two_ranks
from trace_files import ATTENTION, DENSE, Rank, write_run

import cadenza
from cadenza import comparison

A = [100, 102, 98, 101, 99, 100]
B = [90, 93, 91, 92, 89, 91]


def study(folder):
    return cadenza.Study(cadenza.open(folder))


def test_hand_computed_ratio():
    found = comparison.bootstrap_ratio(A, B)
    assert (found["first"], found["other"]) == (100, 91)
    assert found["ratio"] == pytest.approx(0.91)
    assert found["speed_up"] == pytest.approx(1.0989, abs=1e-4)
    assert 0.87 < found["low"] < 0.91 < found["high"] < 0.95
    assert found["verdict"] == "faster"
    assert comparison.bootstrap_ratio(B, A)["verdict"] == "slower"


def test_a_run_does_not_differ_from_itself():
    found = comparison.bootstrap_ratio(A, A)
    assert (found["ratio"], found["low"], found["high"]) == (1, 1, 1)
    assert found["verdict"] == "not different"


def test_noise_is_not_a_difference():
    """Of 100 pairs of runs that differ by chance alone, about five are taken for different."""
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(100):
        one, two = rng.normal(100, 5, (2, 20))
        wrong += comparison.bootstrap_ratio(one, two)["verdict"] != "not different"
    assert wrong <= 12


def test_the_interval_is_the_same_every_time_and_needs_three_steps():
    assert comparison.bootstrap_ratio(A, B) == comparison.bootstrap_ratio(A, B)
    assert comparison.bootstrap_ratio(A[:2], B[:2])["verdict"] == "unknown"


def test_waterfall_sums_exactly(tmp_path):
    """Two ranks begin apart: what no rank's window holds is a part of its own."""
    first = study(write_run(tmp_path / "a", two_ranks()))
    slow, fast = steps_of([(ATTENTION, 0, 80)]), steps_of([(DENSE, 0, 40)])
    late = [(step, begin + 20, end) for step, begin, end in fast[1]]
    other = study(write_run(tmp_path / "b", [Rank(0, *slow), Rank(1, fast[0], late)]))
    frame = comparison.waterfall(first, other)
    for run, name in ((first, "first"), (other, "other")):
        mean = run.step_times["seconds"].mean()
        assert frame[name].sum() == pytest.approx(mean, abs=1e-15)
    apart = frame.set_index("part").loc["apart"]
    assert apart["first"] == pytest.approx(0, abs=1e-15)
    assert apart["change"] == pytest.approx(10e-9)
    attention = frame.set_index("part").loc["compute_attention", "change"]
    assert attention == pytest.approx(40e-9 - 20e-9)


def test_changed_keys():
    first = {"run": {"steps": 3, "dtype": "float32"}, "seed": 1}
    other = {"run": {"steps": 3, "dtype": "bfloat16"}, "seed": 1, "trace": {"events": False}}
    rows = comparison.changed_keys(first, other).values.tolist()
    assert rows == [["run.dtype", "float32", "bfloat16"], ["trace.events", "(not set)", "False"]]


def test_operations(tmp_path):
    """Of a rank in a step; what changed most comes first."""
    first = study(write_run(tmp_path / "a", two_ranks()))
    events, steps = steps_of([(ATTENTION, 0, 90)])
    ranks = [Rank(0, events, steps), Rank(1, *steps_of([]))]
    frame = comparison.operations(first, study(write_run(tmp_path / "b", ranks)))
    attend = frame[frame["category"] == "compute_attention"].iloc[0]
    assert attend["seconds_first"] == pytest.approx(20e-9)
    assert (attend["count_first"], attend["count_other"]) == (1.0, 0.5)
    assert attend["change"] == pytest.approx(25e-9)
    assert frame["change"].abs().is_monotonic_decreasing
    assert "plan" not in set(frame["category"])  # on the host's lane, around other operations


def test_operations_are_means_of_all_common_steps(tmp_path):
    """One step alone would contradict the waterfall, which is a mean."""

    def run(name, durations):
        events = [(i, ATTENTION, 100 * i, 100 * i + d) for i, d in enumerate(durations)]
        steps = [(i, 100 * i, 100 * i + 100) for i in range(len(durations))]
        return study(write_run(tmp_path / name, [Rank(0, events, steps)]))

    first, other = run("a", [10, 90]), run("b", [10, 10, 40])
    row = comparison.operations(first, other).iloc[0]
    assert (row["seconds_first"], row["seconds_other"]) == pytest.approx((50e-9, 10e-9))
    part = comparison.waterfall(first, other).set_index("part").loc["compute_attention"]
    assert part["change"] == pytest.approx(row["change"])


def test_runs_without_a_common_step(tmp_path):
    one = study(write_run(tmp_path / "a", [Rank(0, [], [(0, 0, 100)])]))
    two = study(write_run(tmp_path / "b", [Rank(0, [], [(5, 0, 100)])]))
    with pytest.raises(cadenza.DataError, match="no step that both completed"):
        comparison.compare(one, two, ("a", "b"))


def test_real_against_simulated(tmp_path):
    """Every operation of the simulation takes 10 % longer."""
    real, simulated = [], []
    for number, length in enumerate((100, 200, 300)):
        real.append(Rank(number, [(0, DENSE, 0, length)], [(0, 0, 1000)]))
        simulated.append(Rank(number, [(0, DENSE, 0, length * 11 // 10)], [(0, 0, 1000)]))
    one = study(write_run(tmp_path / "a", real))
    two = study(write_run(tmp_path / "b", simulated))
    assert comparison.simulation_error(one, two) is None  # both are real
    two.run.info["producer"] = "simulator"
    found = comparison.simulation_error(one, two)
    assert found["median_error"] == pytest.approx(0.1)
    assert found["bias"] == pytest.approx(0.1)
    assert found["rank_correlation"] == pytest.approx(1.0)
    assert comparison.simulation_error(two, one) == pytest.approx(found)
