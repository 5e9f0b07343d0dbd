# SPDX-License-Identifier: Apache-2.0
"""A picture of a step shows every part with the share of time that it has, whatever its width."""

import numpy as np
import pandas as pd
import pytest
from trace_files import COLLECTIVE, DENSE, Rank, write_run

import cadenza
from cadenza.colours import LABEL_COLOURS, PART_NAMES
from cadenza.time import intervals
from cadenza.time.parts import PARTS
from cadenza.timeline.panels import Panel, panel
from cadenza.timeline.picture import draw


def shares_drawn(bars, duration):
    """By label, what is seen of it once later bars are painted over earlier ones."""
    seen, covered = {}, intervals.EMPTY
    for bar in reversed(bars[bars["lane"] == "work"].to_dict("records")):
        pair = intervals.make([bar["begin_ns"]], [bar["end_ns"]])
        pieces, _ = intervals.outside(pair, covered)
        seen[bar["label"]] = seen.get(bar["label"], 0) + intervals.length(pieces)
        covered = intervals.union(covered, pair)
    return {label: ns / duration for label, ns in seen.items()}


@pytest.fixture
def tensor_run(tmp_path):
    """Dense operations of 1 000 ns, in each of which the tensor group sums for 620 ns; a long
    operation without, which had no core for a third of its time; and a quarter in which nothing is
    recorded."""
    inner = {"name": "tensor_all_reduce"}
    events = []
    for number in range(300):
        begin = 1000 * number
        events += [(0, DENSE, begin, begin + 1000),
                   (0, COLLECTIVE, begin + 200, begin + 820, inner)]
    events.append((0, DENSE, 300_000, 450_000, {"still_ns": 50_000}))
    return cadenza.Study(cadenza.open(write_run(
        tmp_path / "r", [Rank(r, events, [(0, 0, 600_000)]) for r in range(2)])))


@pytest.mark.parametrize("columns", [100_000, 1500, 200])
def test_each_part_has_its_share(tensor_run, columns):
    study = tensor_run
    made = panel(study, 0, 600_000 / columns, [0])
    drawn = shares_drawn(made.bars, made.duration_ns)
    parts = study.parts[study.parts["rank"] == 0].iloc[0]
    assert parts["communication"] > 0.2 * parts["window"]
    assert parts["no_core"] == 50_000
    for part in PARTS:
        share = parts[part] / parts["window"]
        assert drawn.get(PART_NAMES[part], 0.0) == pytest.approx(share, abs=0.01), part


def test_all_labels_have_room_in_the_legend():
    bars = pd.DataFrame([(0, "work", label, 0, 9, "") for label in LABEL_COLOURS],
                        columns=["row", "lane", "label", "begin_ns", "end_ns", "what"])
    figure = draw([Panel("all", ["rank 0"], bars, [1.0], 9)])
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width
    assert box.y0 >= figure.axes[0].bbox.y1 and box.y1 <= figure.bbox.height


def test_what_is_outside():
    pairs = intervals.make([0, 5, 20, 30], [10, 8, 25, 30])
    disjoint = intervals.make([2, 6, 24], [3, 7, 40])
    pieces, owner = intervals.outside(pairs, disjoint)
    assert pieces.tolist() == [[0, 2], [3, 6], [7, 10], [5, 6], [7, 8], [20, 24]]
    assert owner.tolist() == [0, 0, 0, 1, 1, 2]
    assert len(intervals.outside(intervals.EMPTY, disjoint)[0]) == 0
    random = np.random.default_rng(2)
    for _ in range(100):
        begins, opens = random.integers([[0], [-50]], [[50], [100]], (2, 20))
        pairs = intervals.make(begins, begins + random.integers(0, 30, 20))
        disjoint = intervals.union(intervals.make(opens, opens + random.integers(0, 20, 20)))
        pieces, owner = intervals.outside(pairs, disjoint)
        for index, (begin, end) in enumerate(pairs.tolist()):
            points = {p for low, high in pieces[owner == index].tolist() for p in range(low, high)}
            inside = {p for low, high in disjoint.tolist() for p in range(low, high)}
            assert points == set(range(begin, end)) - inside
