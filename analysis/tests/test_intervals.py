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


def some_intervals(rng):
    """Of any kind: apart, nested, crossing, empty."""
    count = int(rng.integers(0, 12))
    begins = rng.integers(0, 20, count)
    return begins, begins + rng.integers(0, 12, count) * (rng.random(count) < 0.8)


def test_innermost_is_what_began_last():
    """By looking at every nanosecond."""
    rng = np.random.default_rng(6)
    for _ in range(300):
        begins, ends = some_intervals(rng)
        cut, owner = intervals.innermost(begins, ends)
        order = np.lexsort((-ends, begins))
        for now in range(40):
            open_ = [index for index in order if begins[index] <= now < ends[index]]
            found = owner[(cut[:, 0] <= now) & (now < cut[:, 1])]
            assert found.tolist() == open_[-1:]
        empty = owner[cut[:, 0] == cut[:, 1]]
        assert sorted(empty) == np.flatnonzero(begins == ends).tolist()


def test_crossings_of_lanes():
    """A pair crosses where one begins inside the other and ends behind it, and nothing that began
    later is open then."""
    rng = np.random.default_rng(7)
    assert not intervals.crossings(*np.array([[0, 2, 5], [9, 4, 9], [0, 0, 0]])).any()
    for _ in range(300):
        begins, ends = some_intervals(rng)
        lanes = rng.integers(0, 2, len(begins))
        found = intervals.crossings(begins, ends, lanes)
        for lane in (0, 1):
            mine = [index for index in np.lexsort((-ends, begins)) if lanes[index] == lane]
            pairs = [(a, b) for at, b in enumerate(mine) for a in mine[:at]]
            crossed = any(begins[b] < ends[a] < ends[b] for a, b in pairs)
            assert found[lanes == lane].any() == crossed
