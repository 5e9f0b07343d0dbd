# SPDX-License-Identifier: Apache-2.0
"""Balance of core attention by layer and pass: worked examples (MTraining, arXiv 2510.18830)."""

import numpy as np
import pandas as pd
import pytest
from step_frames import events_frame, ranks_frame

import cadenza
from cadenza.time.imbalance import pipelines_of

# 32 tokens in blocks of 4: for each block of queries, its active blocks of keys and its columns.
SMALL = [([0], []), ([0, 1], []), ([0, 1, 2], []), ([1, 2, 3], [0]), ([0, 2, 3, 4], []),
         ([1, 3, 4, 5], [0, 9]), ([2, 4, 5, 6], [0]), ([3, 5, 6, 7], [0, 9, 18])]
# Worker, step and lockstep imbalance by ranks and layout: striped, zigzag, contiguous ring.
LARGE = {
    4: [(1.0075, 1.2529, 1.0090), (1.0690, 1.9791, 1.1992), (1.3509, 4, 1.3510)],
    8: [(1.0083, 1.6752, 1.0100), (1.0683, 3.0198, 1.2858), (1.3661, 8, 1.3662)],
    32: [(1.0084, 3.1602, 1.0184), (1.0661, 7.6935, 1.4873), (1.3494, 32, 1.3567)],
}
PAIRS = {4: 29551488, 8: 63239680, 32: 278235456}


def levels(work):
    return (cadenza.worker_imbalance(work), cadenza.step_imbalance(work),
            cadenza.lockstep_imbalance(work))


def test_a_small_index_shared_by_stripes():
    work = np.zeros((2, 2))
    for row, (blocks, columns) in enumerate(SMALL):
        for block in blocks:
            work[row % 2, (row - block) % 2] += 10 if block == row else 16
        for column in columns:
            work[row % 2, (row - column // 4) % 2] += 4
    assert work.tolist() == [[124, 48], [120, 88]]
    worker, _, lockstep = levels(work)
    assert (round(float(worker), 4), round(float(lockstep), 4)) == (1.0947, 1.1158)


def large_work(ranks, owner):
    """F of the ring over a document of 64 blocks of 64 tokens for each rank."""
    size, blocks = 64, 64 * ranks
    offsets = {blocks * k**3 // 48**3 for k in range(48)}
    columns = {97 * k % blocks for k in range(16)}
    work = np.zeros((ranks, ranks))

    def add(row, column, pairs):
        work[owner(row), (owner(row) - owner(column)) % ranks] += pairs

    for row in range(blocks):
        for offset in offsets:
            if offset <= row:
                add(row, row - offset, size * (size + 1) // 2 if offset == 0 else size * size)
        for column in columns:
            if column < row and row - column not in offsets:
                add(row, column, size)
    return work


@pytest.mark.parametrize("ranks", LARGE)
def test_layouts_share_a_large_index_as_worked_out(ranks):
    blocks = 64 * ranks
    owners = [
        lambda block: block % ranks,
        lambda block: min(block * 2 * ranks // blocks, 2 * ranks - 1 - block * 2 * ranks // blocks),
        lambda block: block * ranks // blocks,
    ]
    for owner, expected in zip(owners, LARGE[ranks], strict=True):
        work = large_work(ranks, owner)
        assert work.sum() == PAIRS[ranks]
        assert [round(float(level), 4) for level in levels(work)] == list(expected)


def attend(rank, begin, end, stage, **fields):
    return {"rank": rank, "begin": begin, "end": end, "stage": stage, "name": "attend",
            "category": "compute_attention", "layer": 0, "tick": 0, "flops": end - begin,
            **fields}


def passes_of(rows, config=None, **columns):
    events = events_frame(rows)
    found = ranks_frame(int(events["rank"].max()) + 1, **columns)
    pipelines = pipelines_of(found, config or {})
    return cadenza.pass_imbalance(cadenza.stage_work(events, pipelines), pipelines)


def test_the_index_counts_as_a_part_of_the_first_stage():
    rows = [attend(0, 0, 2, 4, name="estimate", flops=0), attend(0, 2, 6, 0), attend(0, 6, 8, 1),
            attend(1, 0, 4, 1)]
    row = passes_of(rows).iloc[0]  # F = [[6, 2], [0, 4]] ms
    assert (row["ranks"], row["stages"]) == (2, 2)
    assert row["mean_seconds"] == pytest.approx(6e-3)
    assert row["worker"] == pytest.approx(8 / 6)
    assert row["step_level"] == pytest.approx(2)  # rank 1: 4 of a mean of 2
    assert row["lockstep"] == pytest.approx(10 / 6)
    assert row["worker_flops"] == pytest.approx(6 / 5)  # F = [[4, 2], [0, 4]] FLOPs
    assert row["lockstep_flops"] == pytest.approx(8 / 5)


def test_stages_of_halves_follow_one_another():
    rows = [attend(0, 0, 3, 0, half=0), attend(0, 3, 4, 0, half=1), attend(0, 4, 6, 1, half=1),
            attend(1, 0, 1, 0, half=0), attend(1, 1, 4, 0, half=1)]
    row = passes_of(rows).iloc[0]  # F = [[3, -, 1, 2], [1, -, 3, 0]]: nobody has the second one
    assert row["stages"] == 3
    assert row["worker"] == pytest.approx(6 / 5)
    assert row["step_level"] == pytest.approx(3 / (4 / 3))
    assert row["lockstep"] == pytest.approx((3 + 3 + 2) / 5)


def test_trainers_beside_dedicated_servers_are_left_out():
    rows = [attend(0, 0, 9, 0, name="estimate"), attend(1, 0, 2, 0), attend(2, 0, 4, 0)]
    columns = {"server": [-1, 0, 1], "role": ["trainer"] + ["attention_server"] * 2}
    assert passes_of(rows, **columns)["worker"].tolist() == pytest.approx([4 / 3])


def test_pipeline_stages_with_pools_of_their_own_do_not_wait_for_one_another():
    rows = [attend(0, 0, 1, 0), attend(1, 0, 3, 0), attend(2, 0, 5, 0), attend(3, 0, 5, 0)]
    columns = {"pipeline": [0, 0, 1, 1]}
    own = passes_of(rows, {"parallel": {"schedule": "1f1b"}}, **columns)
    assert own["pipeline"].tolist() == [0, 1]
    assert own["worker"].tolist() == pytest.approx([1.5, 1])
    shared = {"parallel": {"schedule": "phase_aligned"}}
    assert passes_of(rows, shared, **columns)["worker"].tolist() == pytest.approx([5 / 3.5])


def test_passes_are_weighed_by_their_time():
    rows = [attend(0, 0, 3, 0), attend(1, 0, 1, 0), attend(0, 5, 6, 0, layer=1),
            attend(1, 5, 8, 0, layer=1), attend(0, 9, 11, 0, layer=1, phase="backward"),
            attend(1, 9, 11, 0, layer=1, phase="backward")]
    passes = passes_of(rows)
    by_layer = cadenza.over_passes(passes, ["layer"])
    assert by_layer["worker"].tolist() == pytest.approx([3 / 2, 5 / 4])
    assert by_layer["passes"].tolist() == [1, 2]
    # Each rank computes for 6 ms: over the step alone nothing would be lost.
    assert cadenza.over_passes(passes, ["step"])["worker"].tolist() == pytest.approx([8 / 6])


def test_sparsity_is_of_the_flops_of_dense_attention():
    rows = [attend(0, 0, 3, 0, flops=10.0), attend(1, 0, 1, 0, flops=30.0),
            attend(0, 5, 6, 0, layer=1, flops=20.0)]
    steps = pd.DataFrame({"step": [0, 0], "dense_attention_flops": [200.0, 200.0]})
    passes = passes_of(rows)
    assert cadenza.attention_sparsity(passes, steps, ["step"])["sparsity"].tolist() == [0.7]
    layers = cadenza.attention_sparsity(passes, steps, ["step", "pipeline", "layer"])
    assert layers["dense_flops"].tolist() == [100, 100]
    assert layers["sparsity"].tolist() == pytest.approx([0.6, 0.8])
    # Layers of two masks: the same FLOPs, and none left out.
    full = cadenza.attention_sparsity(passes, steps.assign(dense_attention_flops=60.0),
                                      ["step", "pipeline", "layer"])
    assert full["sparsity"].tolist() == [0, 0]
    older = steps.assign(dense_attention_flops=0.0)
    assert cadenza.attention_sparsity(passes, older, ["step"]).empty


def test_without_attention_nothing_is_said():
    passes = passes_of([{"rank": 0, "begin": 0, "end": 1}, {"rank": 1, "begin": 0, "end": 1}])
    assert passes.empty and cadenza.over_passes(passes, ["step"]).empty
