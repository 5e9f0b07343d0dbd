# SPDX-License-Identifier: Apache-2.0
import signal

import pytest
from conftest import two_ranks
from trace_files import DENSE, NON_BLOCKING, SENDS, Rank, write_run

import cadenza


def rank_path(folder, rank=0):
    return folder / "trace" / f"rank-{rank:05d}.h5"


def test_frames(run_folder):
    run = cadenza.open(run_folder)
    assert run.config["name"] == "small" and not run.truncated and not run.warnings
    assert len(run.events()) == 28
    assert set(run.events(ranks=[1])["rank"]) == {1}
    assert set(run.events(steps=[1])["step"]) == {1} and len(run.events(steps=[1])) == 14
    assert list(run.events(steps=[])) == list(run.events()) and run.events(steps=[]).empty
    assert run.ranks()["role"].tolist() == ["both", "both"]
    assert run.ranks()["host"].tolist() == ["node", "node"]
    assert run.steps()["begin_ns"].tolist() == [1000, 1100, 1000, 1100]
    memory = run.memory()
    assert memory.query("kind == 'total'")["peak_bytes"].tolist() == [1 << 20] * 4
    assert len(memory) == 4 * 8
    assert set(run.memory_samples()["kind"]) >= {"activations", "host_rss"}
    assert run.metrics()["loss"].tolist() == [5.0, 4.0]


def test_categories_and_names(tmp_path):
    events = [(0, DENSE, 0, 5, {"name_id": 1, "layer": 2, "phase": 1})]
    run = cadenza.open(write_run(tmp_path / "r", [Rank(0, events, [(0, 0, 9)])]))
    event = run.events().iloc[0]
    assert (event["category"], event["phase"]) == ("compute_dense", "backward")
    assert event["name"] == "q_proj"
    assert event["layer"] == 2 and event["peer"] == -1


def test_plans_and_their_summary(tmp_path):
    row = (0, 3, 1, 1, 2, 0, 4, 2, 5e9, 100, 50, 0.25, 0.01)
    late = (7, *row[1:])  # of a step that was not completed
    plan = [(0, 0, 2.0), (7, 0, 2.0)]
    ranks = [Rank(0, [], [(0, 0, 9)], plan=plan, summary=[row, late]), Rank(1, [], [(0, 0, 9)])]
    run = cadenza.open(write_run(tmp_path / "r", ranks))
    assert run.plans()[["step", "server", "cost", "half"]].values.tolist() == [[0, 0, 2.0, -1]]
    found = run.plan_summary()
    assert tuple(found.iloc[0]) == (*row[:3], "backward", *row[4:], 0, 1) and len(found) == 1
    other = cadenza.open(write_run(tmp_path / "other", two_ranks()))
    assert len(other.plans()) == 8 and len(other.plan_summary()) == 0
    assert list(other.plan_summary()) == list(run.plan_summary())


def test_columns_of_events(tmp_path):
    option = {"tick": 3, "stage": 1, "half": 0, "flags": SENDS | NON_BLOCKING}
    events = [(0, DENSE, 0, 5, option)]
    run = cadenza.open(write_run(tmp_path / "r", [Rank(0, events, [(0, 0, 9)])]))
    columns = ["tick", "stage", "half", "sends", "non_blocking", "simulated"]
    assert run.events(columns=columns).values.tolist() == [[3, 1, 0, True, True, False]]
    assert run.event_count == 1 and list(run.events(ranks=[])) == list(run.events())
    with pytest.raises(cadenza.UsageError, match="events have no column 'colour'; valid are rank"):
        run.events(columns=["colour"])


def test_numbers_beyond_16_bits(tmp_path):
    """A simulated step may have 40 000 microbatches, layers and stages."""
    wide = {"microbatch": 39_999, "layer": 40_000, "stage": 65_536, "tick": 2**31 - 1}
    events = [(0, DENSE, 0, 5, wide)]
    run = cadenza.open(write_run(tmp_path / "r", [Rank(0, events, [(0, 0, 9)])]))
    assert run.events(columns=list(wide)).to_dict("records") == [wide]


def test_who_made_the_run(run_folder):
    info = cadenza.open(run_folder).info
    assert info["producer"] == "trainer" and info["seed"] == 7
    assert (info["code_revision"], info["build"]) == ("v0.1-3-gabc", "GNU 12.2 Release")


def test_clock_measurements(run_folder):
    clock = cadenza.open(run_folder).clock()
    assert clock["error_ns"].tolist() == [500, 500] and clock["rank"].tolist() == [0, 1]


def test_uncommitted_events_are_not_looked_at(tmp_path):
    ranks = two_ranks(tail=5, state=0)
    run = cadenza.open(write_run(tmp_path / "r", ranks))
    assert run.truncated and "did not end cleanly after step 1" in run.warnings[0]
    assert len(run.events()) == 28  # the tail holds a category that does not exist
    assert run.ranks()["tail_events"].tolist() == [5, 5]


@pytest.mark.parametrize(
    ("state", "number", "ending"),
    [
        (2, signal.SIGUSR1, "ended by SIGUSR1 after step 1"),
        (2, signal.SIGTERM, "ended by SIGTERM after step 1"),
        (2, 99, "ended by signal 99 after step 1"),
        (3, 0, "ended by an error after step 1"),
        (0, 0, "did not end cleanly after step 1: killed, or still running"),
    ],
)
def test_the_warning_says_how_the_run_ended(tmp_path, state, number, ending):
    ranks = two_ranks(state=state, signal=int(number))
    run = cadenza.open(write_run(tmp_path / "r", ranks))
    assert run.warnings == [f"{run.path}: the run {ending}; showing its complete steps"]


def test_a_copy_of_another_rank_s_file_is_a_warning(tmp_path):
    folder = write_run(tmp_path / "r", two_ranks())
    copy = folder / "trace/rank-00001.h5"
    copy.write_bytes((folder / "trace/rank-00000.h5").read_bytes())
    assert cadenza.open(folder).warnings == [
        f"{copy}: is a copy of the file of rank 0; continuing without it"
    ]


def test_missing_rank_file_is_a_warning(tmp_path):
    run = cadenza.open(write_run(tmp_path / "r", two_ranks()[:1], world=2))
    assert "1 of 2 rank files missing (rank 1)" in run.warnings[0]
    parts = cadenza.time_parts(run.events(), run.steps(), run.ranks())
    assert parts["communication"].tolist() == [20, 20]


def test_half_a_line_of_metrics(run_folder):
    path = run_folder / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 2, "lo')
    assert len(cadenza.open(run_folder).metrics()) == 2
    path.write_text("[1]\n" + path.read_text())
    with pytest.raises(cadenza.DataError, match=r"metrics.jsonl:1: not a JSON object: found list"):
        cadenza.open(run_folder).metrics()


def test_config_comes_from_the_trace_without_the_file(run_folder):
    (run_folder / "experiment.yaml").unlink()
    assert cadenza.open(run_folder).config == {"name": "from-trace"}
