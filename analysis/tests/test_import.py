# SPDX-License-Identifier: Apache-2.0
"""Foreign traces become runs: clocks, steps, lanes, and a planted truth that must come out."""

from __future__ import annotations

import json
import re
import resource
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import kineto_files as k
import numpy as np
import pandas as pd
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
from neutral_traces import LAYERS, MS, Planted, ddp, pipeline

import cadenza
from cadenza.causes.troubles import find
from cadenza.causes.slowdown import slowdown
from cadenza.cli import main
from cadenza.comparison import compare
from cadenza.errors import DataError, UsageError
from cadenza.report.health import efficiencies, health, overview
from cadenza.sources.importing import import_run
from cadenza.sources.lanes import assembled
from cadenza.sources.layout import dimension, parsed
from cadenza.sources.meetings import matched
from cadenza.sources.neutral import RankTrace, frame
from cadenza.sources.neutral_files import write
from cadenza.summary import summarize
from cadenza.time.pieces import PARTS


def written(traces, folder):
    folder.mkdir(parents=True)
    for trace in traces:
        write(trace, folder / f"rank-{trace.rank}.parquet")
    return folder


def imported(tmp_path, traces, **options):
    folder = written(traces, tmp_path / "traces")
    said = import_run([folder], tmp_path / "run", **options)
    return cadenza.Study(cadenza.open(tmp_path / "run")), said


def verdict(study):
    assert len(study.verdicts), "nothing found"
    return study.verdicts.iloc[0]


@pytest.mark.parametrize("world", [2, 4])
def test_a_clean_run_is_silent_and_whole(tmp_path, world):
    study, said = imported(tmp_path, ddp(world, steps=8))
    assert study.verdicts.empty
    assert cadenza.check(study.run) == []
    parts = study.parts
    assert (parts[list(PARTS)].sum(axis=1) == parts["window"]).all()
    # From the last sum of one step to that of the next: the optimizer comes first.
    assert study.chosen_steps(None) == list(range(1, 8))
    assert "last collective" in said[0]
    steps = study.steps.sort_values(["rank", "step"])
    same = steps["rank"].diff() == 0
    assert (steps["begin_ns"][same] == steps["end_ns"].shift()[same]).all()


@pytest.mark.parametrize(("planted", "rank", "cause", "phase", "lost"), [
    (Planted(slow={2: 1.2}), 2, "slow", "", None),
    (Planted(backward_ns={1: 10 * MS}), 1, "slow", "backward", 10 * MS),
    (Planted(host_ns={3: 40 * MS}), 3, "host gap", "forward", None),
    (Planted(data_ns={0: 60 * MS}), 0, "input", "forward", None),
    (Planted(attention={1: 1.8}), 1, "work", "", None),
    (Planted(attention={1: 1.8}, told=True), 1, "work", "", None),
    (Planted(attention_slow={1: 1.8}, told=True), 1, "slow", "", None),
    (Planted(host_ns={3: 100 * MS}, steps=(5,)), 3, "host gap", "forward", None),
    (Planted(slow={0: 1.3}, steps=(4, 5, 6, 7, 8, 9)), 0, "slow", "", None),
    (Planted(optimizer={1: 3.0}, steps=(4, 5, 6, 7, 8, 9)), 1, "slow", "optimizer", None),
    (Planted(optimizer={2: 9.0}, steps=(5,)), 2, "slow", "optimizer", None),
])
def test_a_planted_fault_is_named(tmp_path, planted, rank, cause, phase, lost):
    study, _ = imported(tmp_path, ddp(4, steps=10, planted=planted))
    clean, _ = imported(tmp_path / "clean", ddp(4, steps=10))
    found = verdict(study)
    assert (found["members"], found["cause"], found["phase"]) == ([rank], cause, phase)
    assert "their" not in found["sentence"]
    assert len(study.verdicts) == 1
    # What it saves is what a run without the fault takes less.
    truth = 1 - clean.seconds / study.seconds
    assert found["saves"] == pytest.approx(truth, abs=0.01)
    if planted.steps:
        # Steps end with their last sum: the update of one is in the next.
        later = phase == "optimizer"
        assert set(found["steps"]) == set(planted.steps) & {
            step - later for step in study.steady_steps}
        assert f"since step {planted.steps[0]}." in found["sentence"] or len(planted.steps) < 2
    if lost:
        assert study.seconds - clean.seconds == pytest.approx(lost / 1e9, rel=0.05)


@pytest.mark.parametrize(("noted", "waits"), [(300, True), (5_000, False)])
def test_a_wait_of_a_processor_whose_end_is_noted_late(noted, waits):
    """A gap of 240 ms ends with the collective, but for what its thread takes to note it: copies
    of what came go on meanwhile. Of more than 1 % of the gap that is no wait for it."""
    rows = [("dense", "host", 0, 10_000), ("collective", "gloo", 9_000, 250_000 + noted)]
    rows += [("other", "host", at, at + 20) for at in range(250_000, 256_000, 60)]
    kind, stream, begin, end = zip(*rows, strict=True)
    events = frame({"rank": 0, "kind": list(kind), "stream": list(stream), "phase": "backward",
                    "begin_ns": np.array(begin) * 1000, "end_ns": np.array(end) * 1000}, len(rows))
    lane = assembled(events, np.arange(len(rows)) == 1, {"": "data"}, (0, 260_000_000))
    long = lane[(lane["lane"] == "compute") & (lane["end_ns"] - lane["begin_ns"] > 10**8)]
    assert long["category"].tolist() == ["wait" if waits else "host"]
    collective = lane[lane["category"] == "collective"]
    assert collective["end_ns"].tolist() == [250_000_000 + (0 if waits else 1000 * noted)]


@pytest.mark.parametrize(("overlap", "moved"), [(1_500, True), (5_000, False)])
def test_collectives_that_overlap_by_rounding_follow_one_another(overlap, moved):
    """Else the second looks as if the rank had been there before the first was done."""
    begin = np.array([0, 10, 20]) * MS + np.array([0, 0, -overlap])
    events = frame({"rank": 0, "kind": ["dense", "collective", "collective"], "phase": "backward",
                    "stream": ["host", "gloo 1", "gloo 2"], "begin_ns": begin,
                    "end_ns": np.array([10, 20, 30]) * MS}, 3)
    lane = assembled(events, np.array([0, 1, 2]), {"": "data"}, (0, 30 * MS))
    there = lane[lane["category"] == "collective"]["begin_ns"].tolist()
    assert there == [10 * MS, 20 * MS - (0 if moved else overlap)]


def test_a_run_bound_by_its_processes(tmp_path):
    """Launches of 3 ms for kernels of 1 and 2 ms: all devices wait for their processes."""
    study, _ = imported(tmp_path, ddp(4, steps=8, planted=Planted(launch_ns=3 * MS)))
    found = verdict(study)
    assert (found["kind"], found["cause"]) == ("all", "host gap")
    share = study.totals["host_gap"].mean() / study.totals["window"].mean()
    assert share > 0.15
    assert found["saves"] == pytest.approx(share, abs=0.02)
    scenarios = study.what_if().set_index("scenario")
    assert scenarios.loc["no host gaps", "saved_seconds"] / study.seconds == pytest.approx(
        share, abs=0.02)


@pytest.mark.parametrize("told", [False, True])
def test_longer_documents_are_not_slowness(tmp_path, told):
    """What sharing core attention would get back: the mean of all ranks."""
    planted = Planted(attention={1: 1.8}, told=told)
    study, _ = imported(tmp_path, ddp(4, steps=8, planted=planted))
    row = study.what_if().set_index("scenario").loc["no attention imbalance"]
    attention = 3 * LAYERS * MS / 1e9  # forward and backward, of a rank in a step
    assert row["saved_seconds"] == pytest.approx(0.8 * attention * 3 / 4, rel=0.06)
    assert not (study.stragglers["why"] == "rate").any()


def test_microbatches_that_are_not_told_are_counted_in_turn(tmp_path):
    """Two microbatches after each of which the ranks meet: one has 28 and 8 ms of attention, the
    other 8 and 28. Over the step that is equal; shared as they meet it saves 20 of 60 ms."""
    traces = []
    for rank, attention in enumerate(([28, 8], [8, 28])):
        rows = []
        for step in range(6):
            rows.append(("step", "host", 60 * step, 60 * step + 60, step))
            for turn, took in enumerate(attention):
                at = 60 * step + 30 * turn
                rows.append(("attention", "host", at, at + took, -1))
                rows.append(("collective", "gloo", at + took, at + 30, -1))
        kind, stream, begin, end, number = zip(*rows, strict=True)
        name = ["all_reduce" if one == "collective" else one for one in kind]
        meets = np.array(kind) == "collective"
        traces.append(RankTrace(rank, 2, frame({
            "rank": rank, "kind": list(kind), "stream": list(stream), "step": list(number),
            "name": name, "phase": "forward", "sequence": np.where(meets, np.cumsum(meets), -1),
            "begin_ns": np.array(begin) * MS,
            "end_ns": np.array(end) * MS}, len(rows))))
    study, _ = imported(tmp_path, traces)
    row = study.what_if().set_index("scenario").loc["no attention imbalance"]
    assert row["saved_seconds"] == pytest.approx(0.02, rel=0.01)


def test_short_documents_are_not_slowness(tmp_path):
    """FLOPs that are told do not make a rank slow whose kernels have less to do at once."""
    for world in (2, 4):
        study, _ = imported(tmp_path / str(world),
                            ddp(world, steps=12, planted=Planted(told=True, drawn=True)))
        assert not study.verdicts["cause"].isin(["slow"]).any(), list(study.verdicts["sentence"])


@pytest.mark.parametrize(("world", "much", "slow"), [
    (2, 1.5, {}), (4, 2.0, {}), (5, 1.7, {3: 1.4})])
def test_another_rank_in_each_step_has_longer_documents(tmp_path, world, much, slow):
    study, _ = imported(tmp_path, ddp(world, steps=12, planted=Planted(turns=much, slow=slow)))
    found = study.verdicts.set_index("cause")
    row = found.loc["attention"]
    assert (row["kind"], row["trend"]) == ("all", "in turn")
    assert set(found.index) == {"attention", "slow"} if slow else {"attention"}
    balanced = study.what_if().set_index("scenario").loc["no attention imbalance"]
    alone = balanced["saved_seconds"] / study.seconds  # of a slow rank it gets less back
    assert row["saves"] == pytest.approx(alone, abs=0.001) or (slow and row["saves"] > alone)
    own = find(replace(study._facts, imported=False))
    assert not [one for one in own if one.cause == "attention"]
    assert row["sentence"].startswith("Sharing core attention among all ranks saves ")
    assert main(["report", str(tmp_path / "run"), "--output", str(tmp_path / "page.html")]) == 0
    assert "If the ranks shared" not in (tmp_path / "page.html").read_text()  # it is said already


def test_clocks_are_aligned(tmp_path):
    """11.56 s apart, and 50 ppm of drift, change no part by more than the residual."""
    off = {1: 11_560_000_000, 2: -3 * MS, 3: 5_000}
    planted = Planted(slow={2: 1.1})
    moved, _ = imported(tmp_path / "moved", ddp(4, 30, planted, offset=off,
                                                drift={1: 50e-6, 3: -20e-6}))
    still, _ = imported(tmp_path / "still", ddp(4, 30, planted))
    told = {int(rank): one for rank, one in moved.run.config["imported"]["clocks"].items()}
    assert told[1]["offset_ns"] == pytest.approx(-11_560_000_000, abs=1e9)
    assert told[1]["drift_ppm"] == pytest.approx(-50, abs=0.1)
    assert told[3]["drift_ppm"] == pytest.approx(20, abs=0.1)
    residual = max(one["residual_ns"] for one in told.values()) + 1
    both = [one.parts.set_index(["rank", "step"]) for one in (moved, still)]
    pieces = 100  # of a part in a step, each of which may be off
    assert (both[0] - both[1]).abs().to_numpy().max() <= pieces * residual
    assert moved.verdicts["members"].tolist() == still.verdicts["members"].tolist() == [[2]]


def test_collectives_without_numbers_are_matched_by_their_turns():
    rows = {"rank": [0, 0, 1, 1], "kind": "collective", "group": "0", "members": "0,1",
            "name": ["a", "b", "a", "b"], "begin_ns": [10, 20, 12, 25], "end_ns": [15, 30, 16, 31]}
    found = matched(frame(rows, 4), np.zeros(4, int))
    assert found[0] == found[2] != found[1] == found[3]
    # One of which the other rank knows nothing.
    others = frame({**rows, "name": ["a", "b", "a", "c"]}, 4)
    assert (matched(others, np.zeros(4, int)) >= 0).tolist() == [True, False, True, False]


@pytest.mark.parametrize("stage", [0, 1])
def test_a_slow_stage_of_a_pipeline(tmp_path, stage):
    study, said = imported(tmp_path, pipeline(steps=8, slow={stage: 1.5}))
    assert study.ranks["pipeline"].tolist() == [0, 1]
    found = verdict(study)
    assert (found["members"], found["cause"]) == ([stage], "slow")
    assert "last rank is done" in said[0]
    assert study.totals["pipeline_bubble"].iloc[1 - stage] > 0


def test_a_clean_pipeline(tmp_path):
    study, _ = imported(tmp_path, pipeline(steps=8))
    assert study.verdicts.empty
    assert study.totals["pipeline_bubble"].min() > 0


def test_commands_open_traces_directly(tmp_path, capsys):
    folder = written(ddp(2, steps=5), tmp_path / "theirs")
    assert main(["summary", str(folder), "--json"]) == 0
    run = json.loads(capsys.readouterr().out)["runs"][0]
    assert (run["ranks"], run["producer"], run["name"]) == (2, "importer", "theirs")
    assert run["imported"]["from"] == ["neutral"]
    assert main(["import", str(folder), "--output", str(tmp_path / "kept")]) == 0
    assert "run: " in capsys.readouterr().out
    assert cadenza.open(tmp_path / "kept").world == 2
    assert main(["report", str(tmp_path / "kept"), "--output", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "imported from" in page and "do not say how long documents were" in page
    assert not list(tmp_path.glob(".import-*"))


def test_runs_whose_documents_are_not_known_are_not_comparable(tmp_path):
    first, _ = imported(tmp_path / "a", ddp(2, steps=12))
    other, _ = imported(tmp_path / "b", ddp(2, steps=12, planted=Planted(slow={0: 1.5, 1: 1.5})))
    times = compare(first, other, ("a", "b"))["step_time"]
    assert times["verdict"] == "not comparable" and "which documents" in times["reason"]


def test_clocks_that_are_far_apart_may_be_two_runs(tmp_path):
    _, said = imported(tmp_path, ddp(2, steps=4, offset={1: 342_000_000_000}))
    assert any(" s apart: if these are files of two runs" in line for line in said), said
    _, said = imported(tmp_path / "near", ddp(2, steps=4, offset={1: 11_560_000_000}))
    assert not any("two runs" in line for line in said)


def test_steps_that_a_rank_lacks_are_told(tmp_path):
    traces = ddp(3, steps=8)
    lacks = traces[1].events["step"].isin([3, 4])
    traces[1] = replace(traces[1], events=traces[1].events[~lacks].reset_index(drop=True))
    study, said = imported(tmp_path, traces)
    assert "2 steps left out, of which rank 1 tells nothing: 3, 4." in said
    assert not {3, 4} & set(study.steps["step"])
    assert not any("left out" in line for line in imported(tmp_path / "all", ddp(3, steps=8))[1])


def test_passes_that_are_told_in_some_files_of_a_rank(tmp_path):
    """The last file of a program's hook may hold the end of a step alone."""
    traces = ddp(2, steps=4)
    folder = written(traces, tmp_path / "traces")
    for trace in traces:
        first = trace.events["begin_ns"] < trace.events["begin_ns"].median()
        for part, rows in (("a", first), ("b", ~first)):
            events = trace.events[rows].copy()
            if part == "b":
                events["phase"] = pd.Categorical(["other"] * len(events))
            write(replace(trace, events=events), folder / f"rank-{trace.rank}.{part}.parquet")
        (folder / f"rank-{trace.rank}.parquet").unlink()
    assert not any("Passes" in line for line in import_run([folder], tmp_path / "run"))


def test_a_layout_that_is_given(tmp_path):
    study, _ = imported(tmp_path, ddp(4, steps=4), layout="data=2,tensor=2")
    places = study.ranks[["data", "tensor"]].to_numpy().tolist()
    assert places == [[0, 0], [0, 1], [1, 0], [1, 1]]
    with pytest.raises(UsageError, match="2 places, the trace has rank 3"):
        imported(tmp_path / "small", ddp(4, steps=4), layout="data=2")
    with pytest.raises(UsageError, match="valid: sizes of data"):
        parsed("data=2,expert=2")
    for text in ("data=2,data=2", "data=\uff12", "", "data=", "data=99999999999999999999"):
        with pytest.raises(UsageError, match="valid: sizes of data"):
            parsed(text)
    with pytest.raises(UsageError, match="8 places, and the files say that the run has 4 ranks"):
        imported(tmp_path / "large", ddp(4, steps=4), layout="data=8")


@pytest.mark.parametrize(("name", "description", "which"), [
    ("1", "TENSOR_MODEL_PARALLEL_GROUP", "tensor"), ("2", "DATA_PARALLEL_GROUP_WITH_CP", "data"),
    ("3", "PIPELINE_MODEL_PARALLEL_GROUP", "pipeline"), ("4", "CONTEXT_PARALLEL_GROUP", "context"),
    ("5", "mesh_dp_shard", "data"), ("6", "mesh_tp", "tensor"), ("7", "mesh_pp", "pipeline"),
    ("8", "mesh_cp", "context"), ("0", "default_pg", "data"), ("9", "undefined", ""),
])
def test_dimensions_of_groups(name, description, which):
    assert dimension(name, description) == which


def test_what_cannot_be_imported(tmp_path, capsys):
    folder = written(ddp(2, steps=3), tmp_path / "theirs")
    (tmp_path / "there").mkdir()
    with pytest.raises(DataError, match="exists; valid: a new folder"):
        import_run([folder], tmp_path / "there")
    with pytest.raises(DataError, match="no trace that can be read"):
        import_run([tmp_path / "there"], tmp_path / "run")
    with pytest.raises(UsageError, match="no such source; valid are"):
        import_run([folder], tmp_path / "run", source="chrome")
    assert main(["import", str(tmp_path / "no"), "--output", str(tmp_path / "run")]) == 3
    assert "no such file or folder" in capsys.readouterr().err
    assert main(["import", str(folder), "--output", str(tmp_path / "run"), "--layout", "x"]) == 2
    assert not (tmp_path / "run").exists() and not list(tmp_path.glob(".import-*"))


def test_a_rank_that_is_missing_is_said(tmp_path):
    study, _ = imported(tmp_path, ddp(4, steps=4)[:3])
    assert any("1 of 4 rank files missing (rank 3)" in line for line in study.run.warnings)


def test_traces_without_steps_are_one_step(tmp_path):
    traces = []
    for one in ddp(2, steps=1):
        events = one.events[one.events["kind"] != "step"]
        traces.append(RankTrace(one.rank, one.world, events))
    study, said = imported(tmp_path, traces)
    assert len(study.step_times) == 1
    assert any("all counts as one step" in line for line in said)


def test_ranks_that_share_no_step(tmp_path):
    traces = ddp(2, steps=3)
    steps = traces[1].events["step"]
    traces[1].events["step"] = steps.where(steps < 0, steps + 100)
    with pytest.raises(DataError, match="no step is in the traces of all ranks"):
        imported(tmp_path, traces)


def test_a_rank_of_several_files(tmp_path):
    whole, _ = imported(tmp_path / "whole", ddp(2, steps=6))
    folder = tmp_path / "parts"
    folder.mkdir()
    for trace in ddp(2, steps=6):
        middle = int(trace.events["begin_ns"].median())
        for part, rows in enumerate((trace.events["begin_ns"] < middle,
                                     trace.events["begin_ns"] >= middle)):
            half = RankTrace(trace.rank, trace.world, trace.events[rows], groups=trace.groups)
            write(half, folder / f"{trace.rank}-{part}.arrow")
    import_run([folder], tmp_path / "run")
    both = cadenza.Study(cadenza.open(tmp_path / "run"))
    pd.testing.assert_frame_equal(both.parts, whole.parts)


def test_the_recorded_trace_of_a_profiler(tmp_path):
    """Of PyTorch 2.8 on two ranks with gloo, two steps: tests/data/kineto."""
    folder = Path(__file__).parent / "data/kineto"
    import_run([folder], tmp_path / "run")
    study = cadenza.Study(cadenza.open(tmp_path / "run"))
    assert len(study.ranks) == 2 and len(study.step_times) == 2
    assert (study.parts[list(PARTS)].sum(axis=1) == study.parts["window"]).all()
    assert {"compute_dense", "compute_attention", "optimizer"} <= {
        name for name in PARTS if study.parts[name].sum() > 0}
    assert main(["report", str(tmp_path / "run")]) == 0
    assert main(["slowdown", str(tmp_path / "run")]) in (0, 3)  # where it applies


def test_what_is_printed_agrees_in_number(tmp_path, capsys):
    import_run([Path(__file__).parent / "data/kineto"], tmp_path / "run")
    texts = {}
    for command in ("summary", "stragglers", "slowdown", "what-if", "critical-path", "links",
                    "imbalance", "bubbles"):
        assert main([command, str(tmp_path / "run")]) == 0
        texts[command] = " ".join(capsys.readouterr().out.split())
        assert not re.findall(r"\b1 (?!as |us )[a-z]+s\b|rank \d times", texts[command])
    assert "1 communication left out: still going on when the record ended (rank 1)." in \
        texts["summary"]
    assert "of the loss: rank 0 " in texts["slowdown"]
    assert "which stays on one rank" in texts["critical-path"]
    assert texts["imbalance"].count("all forward") == 1  # no layer is told


def test_rows_that_no_trace_of_others_fills_are_left_out(tmp_path):
    study, _ = imported(tmp_path, ddp(2, steps=4))
    both = [study], ["run"], [summarize(study)]
    rows = {row[0]: row[1] for table in (overview(*both), health(*both)) for row in table.rows}
    assert rows["clocks off by at most"] == "0 s" and rows["folder"] == str(tmp_path / "run")
    assert not {"made by", "build", "between steps", "MFU", "promises of docs/trace.md",
                "events dropped", "cost of writing the trace"} & set(rows)
    table = efficiencies([study], ["run"])
    assert not any(row[1] == "-" for row in table.rows) and len(table.rows) == 5
    assert table.note.startswith("Not told by the traces: model-FLOPs utilisation; hardware")


def test_files_that_are_none_and_files_of_two_runs(tmp_path):
    folder = written(ddp(2, steps=3), tmp_path / "theirs")
    (folder / "rank-7.json").write_text("no trace")
    (folder / "notes.txt").write_text("nothing")
    said = import_run([folder], tmp_path / "made" / "run")
    assert any("passed over: 1 (rank-7.json)" in line for line in said)
    write(ddp(2, steps=3)[0], folder / "again.parquet")
    with pytest.raises(DataError, match="tells of step 0 of rank 0, as .*; valid: files of one"):
        import_run([folder], tmp_path / "other")
    assert not (tmp_path / "other").exists()


def _other_program(path):
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE runs (name TEXT)")
    database.close()


STRAYS = {  # by name: what is written there
    "x.parquet": lambda path: path.write_text("no trace"),
    "x.arrow": lambda path: path.write_bytes(b""),
    "x.sqlite": lambda path: path.write_text("no trace"),
    "x.json": lambda path: path.write_text("no trace"),
    "train-0.parquet": lambda path: pyarrow.parquet.write_table(
        pyarrow.table({"text": ["a"], "tokens": [[1, 2]]}), path),
    "train-0.arrow": lambda path: pyarrow.feather.write_feather(
        pyarrow.table({"text": ["a"], "begin": [1]}), path),
}
DAMAGED = {
    "rank-7.parquet": lambda path: path.write_bytes(_neutral(path)[:1000]),
    "rank-7.arrow": lambda path: path.write_bytes(_neutral(path)[:1000]),
    "rank-7.json": lambda path: path.write_text('{"traceEvents": []}'),
    "runs.db": _other_program,
}


def _neutral(path):
    write(ddp(1, steps=3)[0], path)
    return path.read_bytes()


@pytest.mark.parametrize("name", STRAYS)
def test_what_no_source_claims_is_passed_over(tmp_path, name):
    folder = written(ddp(2, steps=3), tmp_path / "theirs")
    STRAYS[name](folder / name)
    said = import_run([folder], tmp_path / "run")
    assert said[0] == f"Files that are no traces, or damaged, are passed over: 1 ({name})."
    assert len(cadenza.open(tmp_path / "run").files) == 2


@pytest.mark.parametrize("name", DAMAGED)
def test_a_trace_that_cannot_be_read_is_left_out_with_a_warning(tmp_path, name, capsys):
    folder = written(ddp(2, steps=3), tmp_path / "theirs")
    DAMAGED[name](folder / name)
    assert main(["import", str(folder), "--output", str(tmp_path / "run")]) == 0
    told = capsys.readouterr()
    assert f"warning: {folder / name}: " in told.err and "; continuing without it" in told.err
    assert told.out.startswith(f"Traces that cannot be read are left out: 1 ({name}).")
    assert "are left out: 1" in str(cadenza.open(tmp_path / "run").config["imported"])
    alone = tmp_path / "alone"
    alone.mkdir()
    DAMAGED[name](alone / name)
    assert main(["import", str(alone), "--output", str(tmp_path / "none")]) == 3
    assert not (tmp_path / "none").exists()


def test_ranks_that_are_missing_or_too_many(tmp_path):
    traces = ddp(6, steps=3)
    for one in traces:
        one.world = 4 if one.rank < 3 else 8
    folder = written([one for one in traces if one.rank != 4], tmp_path / "theirs")
    said = import_run([folder], tmp_path / "run")
    assert said[0] == ("Files do not agree how many ranks the run has: 4 (rank-0.parquet), "
                       "8 (rank-3.parquet); taken for 8.")
    assert said[1] == "Of 8 ranks these have no trace: 4, 6, 7."
    assert cadenza.open(tmp_path / "run").world == 8
    whole = ddp(2, steps=3)
    trace = k.document(k.training(3).events, rank=2, world=2)
    folder = written(whole, tmp_path / "more")
    k.write(folder / "x.json", trace)
    with pytest.raises(DataError, match="is of rank 2, but the files say that the run has 2 ranks"):
        import_run([folder], tmp_path / "other")


def test_a_run_is_not_put_among_its_traces(tmp_path, capsys):
    folder = written(ddp(2, steps=3), tmp_path / "theirs")
    (tmp_path / "link").symlink_to(folder)
    for output in (folder / "run", folder / "a/run", tmp_path / "link/run"):
        assert main(["import", str(folder), "--output", str(output)]) == 2
        assert "which is read; valid: a folder outside it" in capsys.readouterr().err
    assert len(list(folder.iterdir())) == 2


def test_a_full_disk_is_said_of_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would be cut short, too
    folder = written(ddp(2, steps=3), tmp_path / "theirs")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for most in (1 << 10, 20_000):  # too little for what is put aside, and for the run
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            assert main(["import", str(folder), "--output", str(tmp_path / "run")]) == 3
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert f"error: {tmp_path / 'run'}: cannot be written: File too" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_all_ranks_wait_for_data(tmp_path):
    """And what repairs save is what a run without the fault takes less."""
    planted = Planted(data_ns=dict.fromkeys(range(4), 60 * MS))
    study, _ = imported(tmp_path, ddp(4, steps=8, planted=planted))
    clean, _ = imported(tmp_path / "clean", ddp(4, steps=8))
    found = verdict(study)
    assert (found["kind"], found["cause"]) == ("all", "input")
    assert found["saves"] == pytest.approx(1 - clean.seconds / study.seconds, abs=0.02)


def test_one_rank_is_beside_no_other(tmp_path):
    study, _ = imported(tmp_path, ddp(1, steps=8, planted=Planted(launch_ns=3 * MS)))
    assert "others" not in verdict(study)["sentence"]


def test_one_of_two_ranks_waits_for_data(tmp_path):
    study, _ = imported(tmp_path, ddp(2, steps=8, planted=Planted(data_ns={1: 60 * MS})))
    assert (verdict(study)["members"], verdict(study)["cause"]) == ([1], "input")


def test_a_finished_record_is_not_watched(capsys):
    folder = Path(__file__).parent / "data/kineto"
    assert main(["watch", str(folder)]) == 3
    assert "holds traces of kineto" in capsys.readouterr().err


def test_slowdown_refuses_a_pipeline_whose_microbatches_are_not_told(tmp_path):
    traces = pipeline(6)
    study, _ = imported(tmp_path, traces)
    assert slowdown(study).steps == 6
    for trace in traces:
        trace.events["microbatch"] = -1
    study, _ = imported(tmp_path / "untold", traces)
    with pytest.raises(DataError, match="of which microbatch computations are"):
        slowdown(study)
