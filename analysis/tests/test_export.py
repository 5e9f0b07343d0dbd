# SPDX-License-Identifier: Apache-2.0
import gzip
import json

import pandas as pd
import pytest
from conftest import two_ranks
from trace_files import DENSE, DISPATCH, NON_BLOCKING, RECEIVE, SEND, Rank, write_run

import cadenza
from cadenza.errors import DataError, UsageError
from cadenza.formats.export import export


def parsed(folder, output, **chosen):
    run = cadenza.open(folder)
    assert export(run, "perfetto", output, **chosen) == [output]
    content = output.read_bytes()
    if output.suffix == ".gz":
        content = gzip.decompress(content)
    return json.loads(content)["traceEvents"], run


def of(events, phase):
    return [event for event in events if event["ph"] == phase]


def assert_nested(slices):
    """On every thread two events are apart, or one holds the other."""
    threads = {}
    for event in slices:
        begin = round(event["ts"] * 1000)
        threads.setdefault((event["pid"], event["tid"]), []).append(
            (begin, begin + round(event["dur"] * 1000))
        )
    for members in threads.values():
        open_ = []
        for begin, end in sorted(members, key=lambda pair: (pair[0], -pair[1])):
            while open_ and open_[-1] <= begin:
                open_.pop()
            assert not open_ or end <= open_[-1], members
            open_.append(end)


def test_times_are_exact(tmp_path):
    events = [(0, DENSE, 1_000_000, 1_000_001, {}), (0, DENSE, 2_500_000, 2_502_250, {"layer": 3})]
    folder = write_run(tmp_path / "r", [Rank(0, events, [(0, 1_000_000, 3_000_000)])])
    slices = of(parsed(folder, tmp_path / "t.json")[0], "X")
    assert [(s["ts"], s["dur"]) for s in slices] == [(0.0, 0.001), (1500.0, 2.25)]
    assert slices[1]["args"]["layer"] == 3 and "layer" not in slices[0]["args"]
    assert slices[1]["cat"] == "compute_dense" and slices[1]["pid"] == 0 and slices[1]["tid"] > 0


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_every_event_is_there_and_threads_nest(run_folder, tmp_path, name):
    events, run = parsed(run_folder, tmp_path / name)
    slices = of(events, "X")
    assert len(slices) == len(run.events()) == 28
    assert_nested(slices)
    names = {(e["pid"], e["name"]): e["args"].get("name") for e in of(events, "M")}
    assert names[1, "process_name"].startswith("rank 1 both dp1 pp0")
    threads = {(e["pid"], e["tid"]) for e in of(events, "M") if e["name"] == "thread_name"}
    assert {(s["pid"], s["tid"]) for s in slices} <= threads
    counters = of(events, "C")
    assert {c["name"] for c in counters} == {"memory", "resident"}
    assert counters[1]["args"]["activations"] == 1


def test_messages_side_by_side_have_threads_of_their_own(tmp_path):
    options = {"flags": NON_BLOCKING, "flow": 3, "peer": 1}
    events = [(0, DISPATCH, b, e, options) for b, e in ((0, 50), (10, 60), (20, 30), (60, 70))]
    folder = write_run(tmp_path / "r", [Rank(0, events, [(0, 0, 100)])])
    slices = of(parsed(folder, tmp_path / "t.json")[0], "X")
    assert_nested(slices)
    assert len({s["tid"] for s in slices}) == 2


def test_arrows_go_from_sender_to_receiver(tmp_path):
    option = {"flags": NON_BLOCKING, "flow": 3}
    sends = [(0, DENSE, 0, 40), (0, SEND, 40, 41, {"peer": 1, **option})]
    receives = [(0, RECEIVE, 10, 52, {"peer": 0, **option})]
    ranks = [Rank(0, sends, [(0, 0, 60)]), Rank(1, receives, [(0, 0, 60)])]
    events, _ = parsed(write_run(tmp_path / "r", ranks), tmp_path / "t.json")
    (start,), (finish,) = of(events, "s"), of(events, "f")
    assert (start["pid"], start["ts"], finish["pid"]) == (0, 0.04, 1)
    assert start["id"] == finish["id"] and finish["bp"] == "e"
    receive = next(s for s in of(events, "X") if s["pid"] == 1)
    assert receive["ts"] <= finish["ts"] < receive["ts"] + receive["dur"]
    assert finish["tid"] == receive["tid"]


def test_some_ranks_and_steps(run_folder, tmp_path):
    events, run = parsed(run_folder, tmp_path / "t.json", ranks=[1], steps=[1])
    assert {e["pid"] for e in events} == {1}
    assert {s["args"]["step"] for s in of(events, "X")} == {1}
    assert len(of(events, "X")) == 7
    with pytest.raises(UsageError, match=r"no rank 7; valid are 0 to 1"):
        export(run, "perfetto", tmp_path / "u.json", ranks=[7])
    with pytest.raises(UsageError, match="no complete step 9"):
        export(run, "csv", tmp_path / "u", steps=[9])
    with pytest.raises(UsageError, match="unknown format 'pdf'"):
        export(run, "pdf", tmp_path / "u")


def test_csv_holds_the_frames(run_folder, tmp_path):
    run = cadenza.open(run_folder)
    written = export(run, "csv", tmp_path / "csv", ranks=[0])
    assert {path.stem for path in written} >= {"events", "steps", "ranks", "memory", "metrics"}
    events = pd.read_csv(tmp_path / "csv/events.csv")
    wanted = run.events(ranks=[0])
    assert list(events.columns) == list(wanted.columns)
    assert events["begin_ns"].tolist() == wanted["begin_ns"].tolist()
    assert events["category"].tolist() == wanted["category"].tolist()
    assert pd.read_csv(tmp_path / "csv/steps.csv")["rank"].tolist() == [0, 0]


def test_unwritable_output_is_one_line(run_folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        export(cadenza.open(run_folder), "csv", tmp_path / "file")


def test_runs_without_events_have_no_slices(tmp_path):
    ranks = two_ranks()
    for rank in ranks:
        rank.events = []
    events, _ = parsed(write_run(tmp_path / "r", ranks), tmp_path / "t.json")
    assert of(events, "X") == [] and of(events, "M")
