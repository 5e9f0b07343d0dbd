# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import pytest

from cadenza.time.typical import kinds_of_steps, typical


def features(seconds, waiting=None):
    frame = pd.DataFrame({"seconds": np.asarray(seconds, float)})
    frame["wait"] = 0.3 * frame["seconds"] if waiting is None else waiting
    return frame.rename_axis("step")


def test_typical_is_nearest_to_the_medians():
    """Of equal times, the one whose time went where most steps' time goes."""
    assert typical(features([1.0, 1.0, 1.0, 1.0], [0.5, 0.0, 0.5, 0.4])) == 0
    assert typical(features([3.0, 1.0, 1.1, 0.9])) in (1, 2)


def test_steps_that_are_apart_are_kinds():
    times = np.where(np.arange(40) % 3 == 1, 1.5, 1.0)
    times += np.random.default_rng(0).normal(0, 0.02, 40)
    assert kinds_of_steps(features(times)).tolist() == (np.arange(40) % 3 == 1).astype(int).tolist()
    assert kinds_of_steps(features([2.0] + [1.0] * 7)).tolist() == [1] + [0] * 7


def test_many_steps_have_the_kinds_of_few():
    times = np.where(np.arange(3000) % 5 == 0, 2.0, 1.0)
    kinds = kinds_of_steps(features(times))
    assert ((kinds == 1) == (np.arange(3000) % 5 == 0)).all()


@pytest.mark.parametrize("count", [1, 2, 4, 16, 30])
def test_steps_that_differ_by_degrees_are_of_one_kind(count):
    for seed in range(20):
        drawn = np.random.default_rng(seed).uniform(0.7, 1.3, count)
        assert (kinds_of_steps(features(drawn)) == 0).all()


def test_kinds_that_hardly_differ_are_one():
    assert (kinds_of_steps(features([1.0, 1.02] * 8)) == 0).all()
