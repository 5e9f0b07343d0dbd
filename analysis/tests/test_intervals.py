# SPDX-License-Identifier: Apache-2.0
import numpy as np

from cadenza.time import intervals


def pairs(*values):
    return np.array(values, dtype=np.int64).reshape(-1, 2)


def test_union_merges_what_overlaps_or_touches():
    merged = intervals.union(pairs((6, 14), (0, 10)), pairs((14, 15), (20, 20), (30, 31)))
    assert merged.tolist() == [[0, 15], [30, 31]]
    assert intervals.length(merged) == 16
    assert intervals.union().tolist() == []


def test_clip():
    assert intervals.clip(pairs((0, 5), (8, 20), (30, 40)), 4, 10).tolist() == [[4, 5], [8, 10]]


def test_coverage_of_bins():
    found = intervals.coverage(pairs((0, 5), (12, 40)), np.array([0, 10, 20, 30]))
    assert found.tolist() == [5, 8, 10]


def test_innermost_of_nested():
    begins, ends = np.array([0, 10, 12, 40]), np.array([30, 20, 15, 50])
    cut, owner = intervals.innermost(begins, ends)
    assert cut.tolist() == [[0, 10], [10, 12], [12, 15], [15, 20], [20, 30], [40, 50]]
    assert owner.tolist() == [0, 1, 2, 1, 0, 3]


def test_innermost_pieces_are_disjoint_and_cover_the_union():
    rng = np.random.default_rng(5)
    for _ in range(50):
        begins = rng.integers(0, 200, 25)
        ends = begins + rng.integers(0, 60, 25)
        cut, _ = intervals.innermost(begins, ends)
        union = intervals.union(intervals.make(begins, ends))
        assert intervals.union(cut).tolist() == union.tolist()
        assert intervals.length(cut) == intervals.length(union)
