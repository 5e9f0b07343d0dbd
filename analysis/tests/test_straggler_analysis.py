# SPDX-License-Identifier: Apache-2.0
"""Traces of StragglerAnalysis: what their rows become, and what is refused."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import straggler_traces

import cadenza
from cadenza.errors import DataError
from cadenza.sources.importing import import_run
from cadenza.sources.neutral import COLUMNS, KINDS, PHASES
from cadenza.sources.straggler_analysis import claims, read

# Forward and backward pass in seconds, by (replica, stage): one worker is half as fast.
WORKERS = {(0, 0): (2.0, 4.0), (0, 1): (1.0, 2.0), (1, 0): (1.0, 2.0), (1, 1): (1.0, 2.0)}


@pytest.fixture
def trace(tmp_path):
    rows = straggler_traces.two_microbatches(WORKERS, steps=(7, 9))
    return straggler_traces.write(tmp_path / "trace-small.parquet", rows)


def all_events(ranks):
    return pd.concat([one.events.astype({"kind": str, "name": str, "group": str, "members": str})
                      for one in ranks], ignore_index=True)


def test_ranks_and_places(trace):
    assert claims(trace)
    found = read(trace)
    assert [one.rank for one in found] == [0, 2, 4, 6]
    assert [one.place for one in found] == [{"data": replica, "pipeline": stage}
                                            for stage in (0, 1) for replica in (0, 1)]
    assert found[2].groups == {"data 1": ("data", (4, 6)), "embedding 0": ("pipeline", (0, 4)),
                               "world": ("world", (0, 2, 4, 6))}
    assert any("Of ranks that share a place" in line for line in found[0].cannot)
    for one in found:
        events = one.events
        assert list(events) == list(COLUMNS) and (events["rank"] == one.rank).all()
        assert set(events["kind"]) <= set(KINDS) and set(events["phase"]) <= set(PHASES)
        assert (events["end_ns"] >= events["begin_ns"]).all()


def test_steps_follow_one_another(trace):
    for one in read(trace):
        steps = one.events[one.events["kind"] == "step"]
        assert steps[["step", "begin_ns", "end_ns"]].to_numpy().tolist() == [
            [7, 0, 14_000_000_000], [9, 14_000_000_000, 28_000_000_000]]
    found = read(trace)[0].events
    passes = found[found["kind"] == "dense"]
    shown = ["step", "phase", "microbatch", "begin_ns", "end_ns"]
    assert passes[shown].to_numpy().tolist()[:4] == [
        [7, "forward", 0, 500_000_000, 2_500_000_000],
        [7, "forward", 1, 2_500_000_000, 4_500_000_000],
        [7, "backward", 0, 5_500_000_000, 9_500_000_000],
        [7, "backward", 1, 9_500_000_000, 13_500_000_000]]
    update = found[found["kind"] == "optimizer"].iloc[-1]
    assert (update["begin_ns"], update["end_ns"]) == (27_875_000_000, 28_000_000_000)


def test_messages_have_two_ends(trace):
    events = all_events(read(trace))
    ends = {kind: events[events["kind"] == kind] for kind in ("send", "receive")}
    both = ends["send"].merge(ends["receive"], left_on=["rank", "peer", "sequence"],
                              right_on=["peer", "rank", "sequence"])
    assert len(both) == len(ends["send"]) == len(ends["receive"]) == 16
    assert (both["microbatch_x"] == both["microbatch_y"]).all()
    assert (both["phase_x"] == both["phase_y"]).all() and (both["step_x"] == both["step_y"]).all()
    assert set(both["rank_x"] - both["rank_y"]) == {-4, 4}


@pytest.mark.parametrize("name,members", [
    ("params-all-gather", {"0,2", "4,6"}), ("grads-reduce-scatter", {"0,2", "4,6"}),
    ("embedding-grads-all-reduce", {"0,4", "2,6"}), ("optimizer-clip-main-grad", {"0,2,4,6"}),
    ("layernorm-grads-all-reduce", {""})])
def test_collectives_meet_their_group(trace, name, members):
    """Of a tensor group nobody else is recorded: it is known to be a group, not whose."""
    events = all_events(read(trace))
    mine = events[events["name"] == name]
    assert set(mine["kind"]) == {"collective"} and set(mine["members"]) == members
    meets = mine.groupby(["group", "sequence"])["rank"].agg(lambda ranks: ",".join(map(str, ranks)))
    alone = members == {""}
    assert set(meets) == ({"0", "2", "4", "6"} if alone else members)
    assert len(meets) == 2 * len(set(meets))  # a number of its own in each step


def test_steps_without_all_ranks_are_left_out(tmp_path):
    rows = straggler_traces.two_microbatches(WORKERS, steps=(7, 8, 9))
    rows = [row for row in rows if (row["step"], row["rank"]) != (8, 4)]
    found = read(straggler_traces.write(tmp_path / "t.parquet", rows))
    assert set(found[0].events["step"]) == {7, 9}
    assert any(line.startswith("1 step left out") for line in found[0].cannot)


def chunk_row(stage, optype, begin, end, number, chunk=-1):
    computes = optype.endswith("compute")
    return {"dp_rank": 0, "stage": stage, "rank": stage, "step": 1, "optype": optype,
            "start_ts": begin, "duration": end - begin, "seq_id": number,
            "mc": chunk // 2 if computes else -1, "mb_id": 0 if computes else -1, "gmc": chunk}


def test_model_chunks(tmp_path):
    """Two stages with two chunks each: chunks 0 and 2, 1 and 3. The profiler records a message for
    every computation, also where the model ends."""
    rows = []
    for chunk in range(4):
        for optype, begin in (("forward-compute", chunk), ("backward-compute", 7 - chunk)):
            rows.append(chunk_row(chunk % 2, optype, begin, begin + 1, 0, chunk))
            phase = optype.partition("-")[0]
            rows.append(chunk_row(chunk % 2, f"{phase}-recv", begin, begin, 0))
            rows.append(chunk_row(chunk % 2, f"{phase}-send", begin + 1, begin + 1, 0))
    path = straggler_traces.write(tmp_path / "chunks.parquet", rows)
    events = all_events(read(path))
    sent, received = (events[events["kind"] == kind] for kind in ("send", "receive"))
    assert len(sent) == len(received) == 6
    both = sent.merge(received, left_on=["rank", "peer", "sequence"],
                      right_on=["peer", "rank", "sequence"])
    assert len(both) == 6
    assert (both["begin_ns_x"] == both["begin_ns_y"]).all()  # of the same computations' border
    assert set(events.loc[events["kind"] == "dense", "layer"]) == {0, 1}


def test_a_message_too_many_has_no_microbatch(tmp_path):
    rows = straggler_traces.two_microbatches(WORKERS)
    lost = next(i for i, row in enumerate(rows) if row["optype"] == "forward-send")
    path = straggler_traces.write(tmp_path / "t.parquet", rows[:lost] + rows[lost + 1 :])
    found = read(path)
    assert any(line.startswith("1 message ") for line in found[0].cannot)
    events = all_events(found)
    assert (events.loc[events["kind"] == "send", "microbatch"] < 0).sum() == 1


def test_unknown_types_are_computation(tmp_path):
    rows = straggler_traces.two_microbatches(WORKERS)
    rows.append({**rows[0], "optype": "recompute-\x1b[1m", "start_ts": 0.0})
    found = read(straggler_traces.write(tmp_path / "t.parquet", rows))
    (line,) = (line for line in found[0].cannot if "unknown type " in line)
    assert line.isprintable()
    assert (found[0].events["kind"] == "other").sum() == 1


def column(name, *values):
    """A change of the first values of a column."""
    def changed(rows):
        for row, value in zip(rows, values, strict=False):
            row[name] = value
        return rows, {}
    return changed


def replaced(name, made):
    """A column of another type, or none."""
    return lambda rows: (rows, {name: made and made(len(rows))})


REFUSED = {
    "no-gmc": (replaced("gmc", None), "has not one column gmc"),
    "text": (replaced("stage", lambda n: pa.array(["x"] * n)), "not a parquet file of numbers"),
    "nested": (replaced("rank", lambda n: pa.array([[1]] * n)), "not a parquet file of numbers"),
    "null": (replaced("rank", lambda n: pa.array([None] * n, pa.int32())), "row 0: rank is nan"),
    "no-type": (replaced("optype", lambda n: pa.array(["gc"] * (n - 1) + [None])), "no optype"),
    "nan": (column("start_ts", 0.0, float("nan")), "row 1: start_ts is nan"),
    "infinite": (column("duration", float("inf")), "row 0: duration is inf"),
    "endless": (replaced("gmc", lambda n: pa.array([float("inf")] * n)), "row 0: gmc is inf"),
    "negative": (column("duration", -1.0), "row 0: duration is -1"),
    "fraction": (replaced("step", lambda n: pa.array([0.5] * n)), "step is 0.5"),
    "below": (column("stage", -1), "row 0: stage is -1"),
    "huge": (replaced("rank", lambda n: pa.array([2**31] * n)), "rank is 2.14748e+09"),
    "long": (column("start_ts", 1e9), "the steps take 1e+09 s"),
    "two-places": (column("stage", 1), "one rank in each place"),
    "no-whole-step": (lambda rows: ([{**row, "step": row["rank"]} for row in rows], {}),
                      "no step is recorded on all of its 4 ranks"),
    "empty": (lambda rows: (rows[:0], {}), "has 0 rows"),
}


@pytest.mark.filterwarnings("error")  # which would be a second line
@pytest.mark.parametrize("change,words", REFUSED.values(), ids=REFUSED)
def test_refused_in_one_line(tmp_path, change, words):
    rows, columns = change(straggler_traces.two_microbatches(WORKERS))
    path = straggler_traces.write(tmp_path / "t.parquet", rows, **columns)
    with pytest.raises(DataError) as error:
        read(path)
    said = str(error.value)
    assert said.startswith(f"{path}: ") and words in said and "\n" not in said


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\xff" * 40 + b"PAR1", b"no parquet"])
def test_other_files_are_not_claimed(tmp_path, content):
    path = tmp_path / "trace-x.parquet"
    path.write_bytes(content)
    assert not claims(path)
    with pytest.raises(DataError, match="damaged"):
        read(path)


def test_other_parquet_is_not_claimed(tmp_path, trace):
    path = tmp_path / "trace-y.parquet"
    pa.parquet.write_table(pa.table({"text": ["rank"]}), path)
    assert not claims(path) and not claims(tmp_path)
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(trace.read_bytes()[:-30] + trace.read_bytes()[-8:])
    with pytest.raises(DataError, match="damaged"):
        read(cut)


def test_many_steps_are_read_at_once(tmp_path):
    rows = straggler_traces.two_microbatches(WORKERS, steps=range(300))
    found = read(straggler_traces.write(tmp_path / "t.parquet", rows))
    ends = found[0].events.query("kind == 'step'")["end_ns"].to_numpy()
    assert len(ends) == 300 and (np.diff(ends) == 14_000_000_000).all()


@pytest.fixture
def imported(tmp_path, trace):
    said = import_run([trace], tmp_path / "run")
    assert "The trace says where a step begins on all ranks." in said
    return tmp_path / "run"


def test_slowdown_by_hand(imported, inside):
    """With forward and backward passes of F0, B0 and F1, B1 on the two stages, what a replica
    computes takes F0 + F1 + B1 + max(F1 + B1, B0) + B0, and all else 1 s. Ideal passes take 1.25
    and 2.5 s: 12.25 s in all."""
    found = json.loads(inside("slowdown", imported, "--json").stdout)
    assert found["steps"] == 2 and found["recorded_seconds"] == pytest.approx(14)
    assert found["seconds"] == pytest.approx(14) and found["ideal_seconds"] == pytest.approx(12.25)
    assert found["slowdown"] == pytest.approx(14 / 12.25)

    def by(frame, name):
        return {row[name]: row["slowdown"] * 12.25 for row in found[frame]}

    assert by("types", "type") == pytest.approx({
        "forward compute": 12.5, "backward compute": 13.5, **dict.fromkeys((
            "forward messages", "backward messages", "optimizer", "params-all-gather",
            "grads-reduce-scatter", "embedding-grads-all-reduce", "layernorm-grads-all-reduce",
            "optimizer-clip-main-grad"), 12.25)})
    assert by("replicas", "data") == pytest.approx({0: 14, 1: 12.25})
    assert by("stages", "pipeline") == pytest.approx({0: 14.75, 1: 10.75})
    assert {tuple(row["ranks"]): row["slowdown"] * 12.25 for row in found["workers"]} \
        == pytest.approx({(0,): 14, (2,): 12.25, (4,): 10.75, (6,): 10.75})
    assert found["worst_workers"] == {"ranks": [0], "share": pytest.approx((14 - 10.75) / 1.75)}
    assert found["last_stage"]["share"] == pytest.approx((14 - 14.75) / 1.75)


EQUAL = {(replica, stage): (1.0, 2.0) for replica in range(3) for stage in (0, 1)}
SLOW = {0: ({**EQUAL, (1, 0): (1.9, 3.8)}, [2], "slow", "worst_workers"),
        1: ({place: (1.0 + 0.4 * place[1], 2.0 + 0.8 * place[1]) for place in EQUAL}, [6, 8, 10],
            "stage", "last_stage")}


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("which", SLOW)
def test_what_slowdown_finds_is_said_first(tmp_path, inside, which, told):
    """Also where ranks wait for the slowest one at no time that is recorded, which another replay
    would keep as it was."""
    workers, members, cause, share = SLOW[which]
    rows = straggler_traces.two_microbatches(workers, range(5), told)
    import_run([straggler_traces.write(tmp_path / "t.parquet", rows)], tmp_path / "run")
    (verdict,) = json.loads(inside("stragglers", tmp_path / "run", "--json").stdout)["verdicts"]
    assert (verdict["members"], verdict["cause"], verdict["trend"]) == (members, cause, "steady")
    found = json.loads(inside("slowdown", tmp_path / "run", "--json").stdout)
    assert verdict["saves"] == pytest.approx(found[share]["share"] * found["waste"])
    assert inside("stragglers", tmp_path / "run").stdout.startswith("Repairing ")


@pytest.mark.parametrize("seed", range(3))
def test_documents_that_differ_are_no_slow_rank(tmp_path, seed):
    random = np.random.default_rng(seed)
    rows = []
    for step in range(12):
        size = np.exp(0.2 * random.standard_normal(3))
        workers = {place: (size[place[0]], 2 * size[place[0]]) for place in EQUAL}
        rows += straggler_traces.two_microbatches(workers, (step,), told=False)
    import_run([straggler_traces.write(tmp_path / "t.parquet", rows)], tmp_path / "run")
    assert cadenza.Study(cadenza.open(tmp_path / "run")).verdicts.empty


def test_imported_places_and_clocks(imported):
    """The file's clocks are aligned, and its steps are those of all ranks: nothing is moved."""
    run = cadenza.open(imported)
    ranks = run.ranks().set_index("rank")
    assert ranks[["data", "pipeline"]].to_dict("index") == {
        rank: {"data": rank // 2 % 2, "pipeline": rank // 4} for rank in (0, 2, 4, 6)}
    assert run.steps()[["step", "begin_ns", "end_ns"]].drop_duplicates().to_numpy().tolist() == [
        [7, 0, 14_000_000_000], [9, 14_000_000_000, 28_000_000_000]]
    events = run.events(ranks=[0], steps=[9])
    passes = events[events["category"] == "compute_dense"]
    assert passes["begin_ns"].tolist() == [
        round(1e9 * (14 + begin)) for begin in (0.5, 2.5, 5.5, 9.5)]
