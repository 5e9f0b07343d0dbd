# SPDX-License-Identifier: Apache-2.0
"""Against the 1F1B schedule of the field: p stages, m microbatches, passes of 1 and 2."""

import pandas as pd
import pytest
from trace_files import (
    ATTENTION,
    COLLECTIVE,
    DENSE,
    NON_BLOCKING,
    OPTIMIZER,
    RECEIVE,
    SEND,
    WAIT,
    Rank,
    write_run,
)

import cadenza
from cadenza.time.bubbles import ideal_bubble_fraction, pipeline_bubbles

_UNIT = 1000  # ns


def one_f_one_b(stages, microbatches, forward=1, backward=2):
    """When each pass runs, by the dependencies alone: (stage, microbatch, is backward) -> begin."""
    queues = []
    for stage in range(stages):
        warm = min(stages - 1 - stage, microbatches)
        order = [(i, False) for i in range(warm)]
        for i in range(microbatches - warm):
            order += [(warm + i, False), (i, True)]
        order += [(i, True) for i in range(microbatches - warm, microbatches)]
        queues.append(order)
    ends, begins, free = {}, {}, [0] * stages
    while any(queues):
        for stage, queue in enumerate(queues):
            if not queue:
                continue
            microbatch, back = queue[0]
            before = stage + 1 if back else stage - 1
            own = (stage, microbatch, False)
            needed = [own] if back else []
            needed += [(before, microbatch, back)] if 0 <= before < stages else []
            if not all(n in ends for n in needed):
                continue
            begins[stage, microbatch, back] = max([free[stage], *(ends[n] for n in needed)])
            free[stage] = begins[stage, microbatch, back] + (backward if back else forward)
            ends[stage, microbatch, back] = free[stage]
            queue.pop(0)
    return begins, ends


def pipeline_run(folder, stages, microbatches):
    """Every stage waits for each stream that it receives, and at the end for the last stage."""
    begins, ends = one_f_one_b(stages, microbatches)
    total = max(ends.values())
    ranks = []
    for stage in range(stages):
        mine = sorted((begins[key], key) for key in begins if key[0] == stage)
        events, now = [], 0
        for begin, (_, microbatch, back) in mine:
            end, sender = ends[stage, microbatch, back], stage + (1 if back else -1)
            place = {"microbatch": microbatch, "phase": int(back)}
            if 0 <= sender < stages:
                sent = ends[sender, microbatch, back]
                arrival = max(now, sent)
                flags = message_of(place)
                events += [
                    (0, WAIT, now, arrival, {"name": "wait_for_stage", **place}),
                    (0, RECEIVE, now, arrival, {"peer": sender, **flags}),
                ]
            events.append((0, DENSE, begin, end, place))
            now = end
            receiver = stage + (-1 if back else 1)
            if 0 <= receiver < stages:
                events.append((0, SEND, end, end, {"peer": receiver, **message_of(place)}))
        events.append((0, WAIT, now, total, {"name": "wait_for_ranks", "phase": 3}))
        agree = {"name": "agree_on_norm", "flow": 2, "phase": 3, "lane": 0}
        events.append((0, COLLECTIVE, total, total, agree))
        scaled = [(s, c, b * _UNIT, e * _UNIT, *o) for s, c, b, e, *o in events]
        ranks.append(Rank(stage, scaled, [(0, 0, total * _UNIT)], place=(0, stage, 0)))
    config = {"parallel": {"pipeline": stages, "data": 1},
              "batch": {"tokens": microbatches * 10, "microbatch": 10}}
    return cadenza.open(write_run(folder, ranks, config=config))


def message_of(place):
    return {"flags": NON_BLOCKING, "flow": 1 + place["microbatch"], **place}


def bubbles_of(run):
    return pipeline_bubbles(run.events(), run.steps(), run.ranks(), run.config)


def test_1f1b_of_four_stages_and_eight_microbatches(tmp_path):
    run = pipeline_run(tmp_path / "r", 4, 8)
    bubbles = bubbles_of(run)
    assert (run.steps()["end_ns"] == 33 * _UNIT).all()
    assert (bubbles["bubble_ns"] == 9 * _UNIT).all()
    assert bubbles["fraction"].tolist() == pytest.approx([3 / 11] * 4)
    assert bubbles["ideal_fraction"].tolist() == pytest.approx([3 / 11] * 4)
    assert (bubbles["ideal_ns"] == 9 * _UNIT).all()
    split = bubbles[["warm_up_ns", "cool_down_ns", "steady_ns"]] / _UNIT
    assert split.values.tolist() == [[0, 0, 9], [1, 2, 6], [2, 4, 3], [3, 6, 0]]
    parts = cadenza.time_parts(run.events(), run.steps(), run.ranks())
    assert (parts["compute_dense"] == 24 * _UNIT).all()
    assert (parts["pipeline_bubble"] == 9 * _UNIT).all()


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (3, 7), (4, 1), (1, 3)])
def test_measured_is_the_formula_for_equal_stages(tmp_path, stages, microbatches):
    bubbles = bubbles_of(pipeline_run(tmp_path / "r", stages, microbatches))
    expected = (stages - 1) / (microbatches + stages - 1)
    assert bubbles["fraction"].tolist() == pytest.approx([expected] * stages)
    assert bubbles["ideal_fraction"].tolist() == pytest.approx([expected] * stages)


def test_ideal_formula():
    def ideal(**parallel):
        batch = {"tokens": 16, "microbatch": 1}
        return ideal_bubble_fraction({"parallel": parallel, "batch": batch})

    assert ideal(pipeline=4, data=2) == pytest.approx(3 / 11)
    assert ideal(pipeline=4, data=16) == pytest.approx(0.75)
    assert ideal(pipeline=1) == 0 and ideal_bubble_fraction({}) == 0
    interleaved = ideal(pipeline=4, data=2, chunks=2)
    assert interleaved / (1 - interleaved) == pytest.approx(3 / 16)  # idle / ideal


def test_optimizer_is_not_a_pass(tmp_path):
    """Cool-down begins after the last pass, whatever the optimizer does later."""
    events = [
        (0, DENSE, 0, 40, {"microbatch": 0}),
        (0, WAIT, 40, 60, {"name": "wait_for_stage", "phase": 1}),
        (0, OPTIMIZER, 70, 90, {"phase": 3}),
    ]
    ranks = [Rank(r, events, [(0, 0, 100)], place=(0, r, 0)) for r in (0, 1)]
    bubbles = bubbles_of(cadenza.open(write_run(tmp_path / "r", ranks)))
    assert (bubbles["cool_down_ns"] == 20).all() and (bubbles["steady_ns"] == 0).all()


def test_help_with_attention_of_others_is_no_own_pass(tmp_path):
    """While the pipeline fills, the second stage computes attention of the first one's tokens."""
    first = [(0, DENSE, 0, 100, {"microbatch": 0})]
    second = [
        (0, WAIT, 0, 10, {"name": "wait", "microbatch": -1}),
        (0, ATTENTION, 10, 30, {"microbatch": -1}),
        (0, WAIT, 30, 50, {"name": "wait_for_stage", "microbatch": 0}),
        (0, DENSE, 50, 100, {"microbatch": 0}),
    ]
    ranks = [
        Rank(r, events, [(0, 0, 100)], place=(0, r, 0)) for r, events in enumerate((first, second))
    ]
    bubbles = bubbles_of(cadenza.open(write_run(tmp_path / "r", ranks))).set_index("rank")
    assert bubbles.loc[1, ["warm_up_ns", "steady_ns"]].tolist() == [30, 0]


def test_no_events(tmp_path):
    run = cadenza.open(write_run(tmp_path / "r", [Rank(0, [], [(0, 0, 9)])]))
    assert len(bubbles_of(run)) == 0 and isinstance(bubbles_of(run), pd.DataFrame)
