# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import two_ranks
from trace_files import DENSE, Rank, write_run

import cadenza


def rank_path(folder, rank=0):
    return folder / "trace" / f"rank-{rank:05d}.h5"


def test_frames(run_folder):
    run = cadenza.open(run_folder)
    assert run.config["name"] == "small" and not run.truncated and not run.warnings
    assert len(run.events()) == 32
    assert set(run.events(ranks=[1])["rank"]) == {1}
    assert set(run.events(steps=[1])["step"]) == {1} and len(run.events(steps=[1])) == 16
    assert len(run.events(steps=[7])) == 0
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


def test_equal_plans_of_all_ranks_count_once(tmp_path):
    same = [(0, 0, 2.0), (0, 1, 2.0)]
    ranks = [Rank(r, [], [(0, 0, 9)], plan=same) for r in range(2)]
    assert len(cadenza.open(write_run(tmp_path / "same", ranks)).plans()) == 2
    assert len(cadenza.open(write_run(tmp_path / "parts", two_ranks())).plans()) == 8


def test_offset_is_interpolated_and_held_outside(tmp_path):
    start = 2**60 + 1  # no float64 holds this
    events = [(0, DENSE, start + t, start + t + 1) for t in (-500, 0, 250, 1000, 5000)]
    syncs = [(start + 1000, 300), (start, 100)]  # out of order
    rank = Rank(0, events, [(0, start, start + 9)], syncs=syncs)
    found = cadenza.open(write_run(tmp_path / "r", [rank])).events()["begin_ns"] - start
    assert found.tolist() == [-400, 100, 400, 1300, 5300]


def test_one_offset_is_constant(tmp_path):
    events = [(0, DENSE, 50, 60), (0, DENSE, 10**12, 10**12 + 1)]
    rank = Rank(0, events, [(0, 0, 9)], syncs=[(0, -50)])
    found = cadenza.open(write_run(tmp_path / "r", [rank])).events()["begin_ns"]
    assert found.tolist() == [0, 10**12 - 50]


def test_uncommitted_events_are_not_looked_at(tmp_path):
    ranks = two_ranks(tail=5, state=0)
    run = cadenza.open(write_run(tmp_path / "r", ranks))
    assert run.truncated and "did not end cleanly" in run.warnings[0]
    assert len(run.events()) == 32  # the tail holds a category that does not exist
    assert run.ranks()["tail_events"].tolist() == [5, 5]


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
import h5py, numpy as np
from trace_files import DENSE, Rank, event_rows, fill, step_rows
rank = Rank(0, [(0, DENSE, 0, 5)], [(0, 0, 9)], state=0)
file = h5py.File(sys.argv[1], "w", libver="latest")
fill(file, rank, 1)
file.flush()
file.swmr_mode = True
rank.events.append((1, DENSE, 10, 15))
rank.steps.append((1, 9, 20))
for name, rows in (("events", event_rows(rank)), ("steps", step_rows(rank))):
    file[name].resize((2,))
    file[name][:] = rows
    file[name].flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_file_of_a_killed_writer(tmp_path):
    folder = write_run(tmp_path / "r", [Rank(0, [], [(0, 0, 9)])])
    path = rank_path(folder)
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), here], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    with pytest.raises(OSError):
        h5py.File(path, "r")
    before = path.read_bytes()
    run = cadenza.open(folder)
    assert run.truncated
    assert run.events()["begin_ns"].tolist() == [0, 10]
    assert path.read_bytes() == before  # read around, not repaired


def test_missing_rank_file_is_a_warning(tmp_path):
    run = cadenza.open(write_run(tmp_path / "r", two_ranks()[:1], world=2))
    assert "1 of 2 rank files missing (rank 1)" in run.warnings[0]
    assert cadenza.time_shares(run.events(), run.steps())["communicating"].tolist() == [20, 20]


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


def break_text(folder):
    rank_path(folder).write_text("hello")


def break_empty(folder):
    rank_path(folder).write_bytes(b"")


def break_half(folder):
    data = rank_path(folder).read_bytes()
    rank_path(folder).write_bytes(data[: len(data) // 2])


def break_newer(folder):
    with h5py.File(rank_path(folder), "r+") as file:
        file.attrs["schema"] = "cadenza-trace/2"


def break_other_hdf5(folder):
    h5py.File(rank_path(folder), "w").close()


def break_no_events(folder):
    with h5py.File(rank_path(folder), "r+") as file:
        del file["events"]


def break_field(folder):
    with h5py.File(rank_path(folder), "r+") as file:
        del file["steps"]
        file["steps"] = np.zeros(2)


def break_category(folder):
    with h5py.File(rank_path(folder), "r+") as file:
        rows = file["events"][:]
        rows["cat"][0] = 77
        file["events"][:] = rows


def break_count(folder):
    with h5py.File(rank_path(folder), "r+") as file:
        rows = file["steps"][:]
        rows["n_events_end"] = 10**6
        file["steps"][:] = rows


def break_mixed(folder):
    with h5py.File(rank_path(folder), "r+") as file:
        file.attrs["run_id"] = "older"


def break_yaml(folder):
    (folder / "experiment.yaml").write_text("- a\n- b\n")


def break_no_trace(folder):
    for path in (folder / "trace").iterdir():
        path.unlink()


def break_no_steps(folder):
    for rank in (0, 1):
        with h5py.File(rank_path(folder, rank), "r+") as file:
            file["steps"].resize((0,))


BROKEN = {
    break_text: "not an HDF5 file",
    break_empty: "not an HDF5 file",
    break_half: "cannot be read",
    break_newer: "schema 'cadenza-trace/2' is not known here; valid is 'cadenza-trace/1'",
    break_other_hdf5: "not a Cadenza trace",
    break_no_events: "no dataset /events",
    break_field: "cannot be read",
    break_category: "unknown event category 77",
    break_count: "the file is damaged",
    break_mixed: "belongs to another run",
    break_yaml: "found a list, expected a map",
    break_no_trace: "no trace in it",
    break_no_steps: "no complete step",
}


@pytest.mark.parametrize("break_it", BROKEN, ids=lambda f: f.__name__)
def test_bad_input_is_one_line_and_3(break_it, run_folder, inside):
    break_it(run_folder)
    done = inside("summary", run_folder)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("\n") == 1 and BROKEN[break_it] in done.stderr, done.stderr
    assert done.stdout == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(run_folder):
    rank_path(run_folder).chmod(0)
    with pytest.raises(cadenza.DataError, match="cannot be read: Permission denied"):
        cadenza.open(run_folder)
