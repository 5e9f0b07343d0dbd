# SPDX-License-Identifier: Apache-2.0
"""bench/published: rows, their experiments, and its judgement of rates, orders and memory."""

import dataclasses
import json
import sys
from collections import Counter

import pytest

import harness

sys.path.insert(0, str(harness.ROOT / "bench"))
from benchmarks.published import __main__ as bench
from benchmarks.published import checked, grids, judge, rows
from benchmarks.published.experiments import experiment, obstacle
from benchmarks.published.runs import Simulated, simulate

ROWS = rows.read()
SMALLEST = {row.section: row for row in sorted(ROWS, key=lambda row: -row.gpus)
            if row.pub_tps and not obstacle(row)}  # of each class
ROW = next(row for row in ROWS if row.id == "ie-tp2-8")


def done(tps, pub_tps, fits=True, **changed):
    """A step of the same model and cluster, with other facts where they are given."""
    return Simulated(dataclasses.replace(ROW, pub_tps=pub_tps, **changed), "", tps, 2**30, fits)


def test_every_row_is_read_and_has_a_source():
    assert len(ROWS) == len({row.id for row in ROWS}) == 343
    assert all(row.source and row.published for row in ROWS)
    laid_out = [row for row in ROWS if row.layers]
    assert all(row.dp * row.tp * row.pp * row.cp == row.gpus for row in laid_out)


def test_what_cannot_be_said_has_a_reason():
    assert Counter(map(obstacle, ROWS)) == {"": 339, "one attention operation, no step": 4}
    assert obstacle(dataclasses.replace(ROW, gpu="abacus")) == "no machine file for abacus"


def test_an_experiment_says_what_the_row_does():
    row = next(row for row in ROWS if row.id == "dgxcv24.11.1-70B-64")
    made = experiment(row)
    assert made["batch"] == {"tokens": 128 * 8192, "microbatch": 8192}
    assert made["parallel"] == {"data": 2, "tensor": 4, "pipeline": 4, "context": 2,
                                "schedule": "interleaved", "chunks": 5, "shard": "optimizer"}
    assert made["attention"]["placement"] == "zigzag"
    assert made["cluster"] == {"machine": "inputs/machines/h100.yaml", "bandwidth": 1.0,
                               "software": {"file": "megatron", "sequence_parallel": True}}
    assert experiment(ROW)["cluster"]["bandwidth"] == 0.25  # 50 of 200 Gb/s


@pytest.mark.parametrize("row", SMALLEST.values(), ids=SMALLEST)
def test_a_row_of_each_class_is_simulated(row, tmp_path, monkeypatch):
    monkeypatch.chdir(harness.ROOT)
    found = simulate(row, harness.PROGRAM, tmp_path)
    assert not found.left_out
    assert 0.3 < found.tps / row.pub_tps < 3
    assert found.memory > 0
    if row.pub_mem:
        assert 0.3 < found.memory / 2**30 / row.pub_mem < 3


def test_what_is_refused_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(harness.ROOT)
    found = simulate(dataclasses.replace(ROW, gbs=63), harness.PROGRAM, tmp_path)
    assert found.left_out == "refused by cadenza"
    assert "batch.tokens" in capsys.readouterr().err


def test_errors_are_of_the_rate_and_signed():
    steps = [done(110, 100), done(70, 100), done(100, 0), Simulated(ROW, "no machine file")]
    assert judge.errors(steps) == pytest.approx([0.1, -0.3])
    assert judge.spread([0.1, -0.3, 0.2]) == pytest.approx((0.2, 0.3, 0.1))


def test_pairs_of_one_choice_are_ordered():
    steps = [done(100, 100), done(120, 110, mbs=1), done(90, 120, mbs=2),
             done(120, 102, mbs=8),  # too near the first to be judged
             done(1, 500, gbs=128, mbs=2)]  # another choice
    # By the published rates: 100 < 110 right, 100 < 120 wrong, 110 < 120 wrong, 102 < 110 a tie,
    # which is wrong, 102 < 120 wrong.
    assert judge.order(steps) == {"right": 1, "wrong": 4}


def grid(*steps):
    found = list(grids.find(steps))
    assert len(found) == 1
    return found[0]


def test_a_grid_is_judged_by_what_the_fastest_simulated_layout_had():
    others = [done(40, 100), done(50, 80, mbs=1), done(30, 120, mbs=2)]
    assert grid(*others, done(60, 90, mbs=8)).share == 90 / 120
    assert grid(*others, done(60, 90, False, mbs=8)).share == 80 / 120  # said not to fit
    assert grid(*others, done(50, 60, mbs=8)).share == 60 / 120  # of equals the slowest
    late = grid(*others, done(1, 1, mbs=8), done(70, 0, pub_fits=False, tp=8))  # ran out of memory
    assert (late.share, late.share_that_ran) == (0, 80 / 120)
    assert grid(*(done(1, 1 + one, False, mbs=one) for one in range(4))).share == 0


def test_few_layouts_or_repeated_ones_of_several_choices_are_no_grid():
    steps = [done(100, 100 + one, mbs=one) for one in range(3)]
    assert not list(grids.find(steps))
    assert not list(grids.find([*steps, done(1, 0, mbs=8), done(1, 100, gbs=128)]))
    assert not list(grids.find([*steps, Simulated(ROW, "no machine file")]))


def test_every_group_has_the_stack_of_its_source():
    said = [row for row in ROWS if not obstacle(row)]
    stacks = {row.group: experiment(row)["cluster"]["software"] for row in said}
    assert stacks["AlephAlpha 30B 2k 64 A100"]["file"] == "aleph-alpha"
    assert stacks["LLM-foundry A100 FSDP"]["file"] == "llm-foundry"
    assert stacks["torchtitan FSDP(+TP)"]["file"] == "torchtitan"
    plain = stacks["VocabularyParallelism PP8 A100"]
    assert (plain["overlaps_tensor"], plain["loss_rate"]) == (False, 0.25)
    assert "loss_rate" not in stacks["DGXC H100 8B v24.11.1"]
    unseen = dataclasses.replace(ROW, group="another", gpu="gb200")
    assert experiment(unseen)["cluster"]["software"]["file"] == "cadenza"
    row = next(row for row in ROWS if row.id == "aa-13B-2k-64-tp2-pp2-mb2-no-norms")
    norms = experiment(row)["cluster"]["software"]
    assert (norms["element_wise_rate"], norms["kept"]) == (0.25, {"width": 10})


def test_layouts_that_no_experiment_tells_apart_are_not_ordered():
    assert judge.order([done(100, 100), done(100, 120, note="again")]) == {"alike": 1}


def test_memory_verdicts_have_a_direction():
    steps = [done(1, 1, True), done(1, 1, True, pub_fits=False), done(1, 1, False),
             done(1, 0, False, pub_fits=False), done(1, 1, True, pub_fits=None)]
    assert judge.memory(steps) == {"right": 2, "fits": 1, "does not fit": 1}
    assert judge.memory_ratios([done(1, 1, pub_mem=2.0), done(1, 1)]) == [0.5]


def test_a_line_of_the_table():
    steps = [done(110, 100, pub_mem=0.5), done(130, 125, False, mbs=2)]
    assert bench.cells(steps) == ["7.0 %", "10.0 %", "+7.0 %", "1 / 1", "1 / 2", "", 1, "2.00"]
    assert bench.cells([done(1, 0, pub_fits=None)]) == [""] * 8


def test_a_few_rows_give_a_table_and_a_file(tmp_path, monkeypatch, capsys):
    output = tmp_path / "out.csv"
    monkeypatch.chdir(harness.ROOT)
    monkeypatch.setattr(sys, "argv", ["published", "--program", str(harness.PROGRAM), "--jobs", "1",
                                      "--rows", "ie-tp2-8,ringflash", "--output", str(output)])
    bench.main()
    said = capsys.readouterr().out
    assert "| one attention operation, no step | 4 |" in said
    assert "| **all** |  | 1 |" in said
    assert len(output.read_text().splitlines()) == 1 + 5


def test_what_advise_reads_is_by_stack_and_machine(tmp_path):
    file = tmp_path / "checked.json"
    own = {"software": "cadenza", "machine": "h200", "source": "docs/results/clusters.md"}
    file.write_text(json.dumps([own, {"source": "docs/results/published.md"}]))
    steps = [done(100 + off, 100, off < 9, pub_fits=True) for off in range(11)]
    checked.write(file, steps)
    first, second = json.loads(file.read_text())
    assert second == own
    assert (first["software"], first["machine"], first["steps"]) == ("megatron", ROW.gpu, 11)
    assert (first["median"], first["ninety"]) == (0.05, 0.09)
    assert (first["memory_right"], first["memory_all"]) == (9, 11)
