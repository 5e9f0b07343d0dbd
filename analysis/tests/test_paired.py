# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from cadenza.paired import paired_ratio, t_quantile


def test_hand_computed_interval():
    """Logs of the ratios are ln 2 and, seven times, 0: mean ln 2 / 8, standard deviation
    ln 2 / √8, so the interval is ± 2.364624 ln 2 / 8."""
    first, other = [1, 2, 3, 4, 5, 6, 7, 8], [2, 2, 3, 4, 5, 6, 7, 8]
    found = paired_ratio(first, other)
    assert (found["first"], found["other"], found["steps"]) == (4.5, 4.625, 8)
    eighth = np.log(2) / 8
    assert found["ratio"] == pytest.approx(np.exp(eighth))
    assert found["low"] == pytest.approx(np.exp(eighth * (1 - 2.364624)), rel=1e-6)
    assert found["high"] == pytest.approx(np.exp(eighth * (1 + 2.364624)), rel=1e-6)
    assert found["verdict"] == "not different" and found["reason"] is None
    back = paired_ratio(other, first)
    assert back["ratio"] == pytest.approx(found["speed_up"])
    assert back["low"] == pytest.approx(1 / found["high"])


@pytest.mark.parametrize("freedom, quantile", [
    (2, 4.302653), (3, 3.182446), (7, 2.364624), (18, 2.100922), (49, 2.009575), (100, 1.983972),
    (1000, 1.962339), (1_000_000, 1.959966)])
def test_t_quantile_is_that_of_tables(freedom, quantile):
    assert t_quantile(freedom) == pytest.approx(quantile, abs=1e-6)


def test_runs_without_noise():
    """Simulated ones: equal, and of which one takes 1 % less in every step."""
    times = np.linspace(1, 9, 8)
    found = paired_ratio(times, times)
    assert (found["ratio"], found["low"], found["high"]) == (1, 1, 1)
    assert found["verdict"] == "not different"
    found = paired_ratio(times, 0.99 * times)
    assert (found["low"], found["high"]) == pytest.approx((0.99, 0.99))
    assert found["verdict"] == "faster" and paired_ratio(0.99 * times, times)["verdict"] == "slower"


def test_seven_steps_are_too_few():
    found = paired_ratio([1.0] * 7, [2.0] * 7)
    assert (found["ratio"], found["low"], found["verdict"]) == (2, None, "unknown")
    assert found["reason"] == "8 equal steps are needed, there are 7"


@pytest.mark.parametrize("first", [[], [0.0] * 9, [np.nan] * 9, [np.inf] * 9])
def test_damaged_times(first):
    found = paired_ratio(first, [1.0] * len(first))
    assert found["verdict"] == "unknown" and found["steps"] == 0


def drawn(rng, steps):
    """Seconds of the steps of two equal runs: documents vary, for both alike; noise is 1 to 5 %,
    and one step of fifty is an outlier, 7 % longer in the mean, some twice as long."""
    documents, noise = np.exp(rng.normal(0, 0.5, steps)), rng.uniform(0.01, 0.05)

    def run():
        outliers = (rng.random(steps) < 0.02) * rng.pareto(2.5, steps) * 0.1
        return documents * np.exp(rng.normal(0, noise, steps)) * (1 + outliers)

    return run(), run()


@pytest.mark.parametrize("steps", [8, 19, 50])
def test_noise_is_a_difference_as_often_as_the_interval_says(steps):
    rng = np.random.default_rng(steps)
    wrong = sum(paired_ratio(*drawn(rng, steps))["verdict"] != "not different"
                for _ in range(5000))
    assert 0.04 <= wrong / 5000 <= 0.06


def test_a_difference_is_found():
    """3 % under noise of 2 % in each run, 19 steps: the standard error is 0.65 %."""
    rng = np.random.default_rng(3)
    found = [paired_ratio(np.exp(rng.normal(0, 0.02, 19)), 1.03 * np.exp(rng.normal(0, 0.02, 19)))
             for _ in range(500)]
    assert sum(one["verdict"] == "slower" for one in found) > 0.95 * 500
