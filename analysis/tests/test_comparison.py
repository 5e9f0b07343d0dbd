# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from conftest import steps_of, two_ranks
from trace_files import ATTENTION, DENSE, Rank, write_run

import cadenza
from cadenza import comparison

def study(folder):
    return cadenza.Study(cadenza.open(folder))


def timed(folder, share=1.0, speed=1.0, count=10, ranks=1, config=None, **options):
    """A run of steps that take `share` of some µs, some ns more or less; dense layers have 1000
    FLOPs in each, `speed` a ns."""
    made = []
    for number in range(ranks):
        ends = np.cumsum([int(share * (3000 + 500 * (s % 4)) + s % 3) for s in range(count)])
        steps = [(s, int(b), int(e)) for s, (b, e) in
                 enumerate(zip([0, *ends[:-1]], ends, strict=True))]
        events = [(s, DENSE, b, b + int(1000 / speed), {"flops": 1000.0}) for s, b, _ in steps]
        made.append(Rank(number, events, steps, **options))
    return study(write_run(folder, made, config=config))


def judged(tmp_path, one, two):
    """Verdict and reason of two timed() runs."""
    first, other = timed(tmp_path / "a", **one), timed(tmp_path / "b", **two)
    found = comparison.compare(first, other, ("a", "b"))
    return found["step_time"]["verdict"], found["step_time"]["reason"], found


@pytest.mark.parametrize("one, two, reason", [
    ({"config": {"model": {"layers": 4, "ffn": 8}}}, {"config": {"model": {"layers": 8, "ffn": 8}}},
     "the models differ (model.layers 4 against 8)"),
    ({"flops": {"tokens": 9}, "config": {"batch": {"tokens": 9}}},
     {"flops": {"tokens": 8}, "config": {"batch": {"tokens": 8}}},
     "9 of 9 equal steps have other documents (batch.tokens 9 against 8)"),
    ({"flops": {"sum_length2": 7}, "config": {"seed": 1}},
     {"flops": {"sum_length2": 8}, "config": {"seed": 2}},
     "9 of 9 equal steps have other documents (seed 1 against 2)"),
    ({"ranks": 2}, {"ranks": 4}, "2 ranks against 4; a step takes 1.00 x the rank-seconds"),
    ({}, {"producer": "evaluator"}, "only one of the runs trains"),
])
def test_unequal_work_is_not_comparable(tmp_path, one, two, reason):
    if "ranks" in two:
        two = {**two, "share": 0.5}
    verdict, why, found = judged(tmp_path, one, two)
    assert verdict == "not comparable" and why == reason
    for share in (0, 1):
        failed, line = comparison.slower_than(found, share)
        assert not failed and line.startswith("not decided") and reason in line


@pytest.mark.parametrize("one, two", [
    ({"config": {"seed": 1}}, {"config": {"seed": 2}}),
    ({"config": {"model": {"rope": {"theta": 1}}}}, {"config": {"model": {"rope": {"theta": 2}}}}),
    ({"config": {"run": {"dtype": "float32"}}}, {"config": {"run": {"dtype": "bfloat16"}}}),
])
def test_equal_work_of_other_keys_is_comparable(tmp_path, one, two):
    assert judged(tmp_path, one, {**two, "share": 0.9})[:2] == ("faster", None)


TENSOR = {"config": {"parallel": {"tensor": 2}}}
SIMULATED = {"producer": "simulator"}


@pytest.mark.parametrize("one, two, verdict", [
    ({}, {"share": 0.5, "speed": 2}, "not comparable"),  # all of it is the machine
    ({}, {"share": 1.02, "speed": 0.95}, "not comparable"),
    ({}, {"share": 1.0, "speed": 0.95}, "not comparable"),  # as long on a slower machine
    ({}, {"share": 0.85, "speed": 1.04}, "faster"),  # by more than the machine
    ({}, {"share": 0.85, "speed": 0.95}, "faster"),  # on a slower machine, too
    ({}, {"share": 0.5, "speed": 1.4}, "not comparable"),  # ranks waited for a busy one
    ({}, {"share": 1.2, "speed": 1.05}, "slower"),
    ({}, {"share": 1.2, "speed": 0.5, **TENSOR}, "slower"),  # small products have lower rates
    (SIMULATED, {"share": 1.2, "speed": 0.5, **SIMULATED}, "slower"),  # no machine is busy
])
def test_what_the_machine_may_account_for(tmp_path, one, two, verdict):
    found, reason, whole = judged(tmp_path, one, two)
    assert found == verdict
    assert (reason or "").startswith("dense layers") == (verdict == "not comparable")
    assert whole["rate_ratio"]["dense"] == pytest.approx(two["speed"], rel=0.01)
    assert whole["other_products"] == (["parallel.tensor"] if "config" in two else [])


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
