# SPDX-License-Identifier: Apache-2.0
"""Files in every state that a crash, a full disk or a wrong copy can leave them in."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from conftest import two_ranks
from cut_files import look_at_cut_files
from trace_files import Rank, write_run

import cadenza
from cadenza.read import superblock
from cadenza.read.superblock import lookup3, read_superblock


def rank_path(folder, rank=0):
    return folder / "trace" / f"rank-{rank:05d}.h5"


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
for step in range(1, 60):
    rank.events.append((step, DENSE, 10 * step, 10 * step + 5))
    rank.steps.append((step, 10 * step, 10 * step + 9))
    for name, rows in (("events", event_rows(rank)), ("steps", step_rows(rank))):
        file[name].resize((step + 1,))
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
    assert run.events()["begin_ns"].tolist() == list(range(0, 600, 10))
    assert path.read_bytes() == before  # read around, not repaired
    assert steps_of_cut_files(folder, path) >= {0, 16, 32, 48}  # chunks have 16 rows


def steps_of_cut_files(folder, path):
    """A file cut at any byte gives its complete steps or one line. Returns how many steps."""
    length = path.stat().st_size
    rng = np.random.default_rng(2)
    cuts = {*range(100), *rng.integers(0, length, 150).tolist(), length - 1}
    counts = set()
    for found in look_at_cut_files(folder, path, sorted(cuts)):
        if "error" in found:
            assert str(path) in found["error"] and "\n" not in found["error"]
        else:
            assert found["truncated"] and found["steps_with_events"] == found["steps"]
            counts.add(len(found["steps"]))
    return counts


def test_closed_file_cut_at_any_byte(run_folder, tmp_path):
    path = rank_path(run_folder)
    folder = tmp_path / "r"
    (folder / "trace").mkdir(parents=True)
    path = path.rename(rank_path(folder))
    assert 0 in steps_of_cut_files(folder, path)


def test_checksum_of_hdf5():
    """The reference values of lookup3's author, and HDF5's own superblocks."""
    assert lookup3(b"") == 0xDEADBEEF
    assert lookup3(b"Four score and seven years ago") == 0x17770551


def test_an_address_beyond_all_files_reads_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(200))
    with superblock._Corrected(path, b"head", 200) as file:
        for place in (200, 2**63, 2**70):
            file.seek(place)
            assert file.read(8) == b""
        file.seek(2)
        assert file.read(4) == b"ad\0\0"


def test_superblock_of_a_sound_file_stays(tmp_path):
    for number, version in enumerate(("earliest", "v108", "latest")):
        path = tmp_path / f"{number}.h5"
        with h5py.File(path, "w", libver=(version, "latest")) as file:
            file["x"] = np.arange(9)
        block = read_superblock(path)
        assert block.sound and block.corrected() == block.head


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


def rewrite(folder, name, change):
    """Table `name` of rank 0 as `change` makes it of its rows."""
    with h5py.File(rank_path(folder), "r+") as file:
        rows, attributes = change(file[name][:]), dict(file[name].attrs)
        del file[name]
        made = file.create_dataset(name, data=rows, maxshape=(None,) * rows.ndim, chunks=True)
        made.attrs.update(attributes)


def without(field):
    def change(rows):
        return rows[[name for name in rows.dtype.names if name != field]]

    return change


def retyped(field, dtype):
    def change(rows):
        types = [(name, dtype if name == field else rows.dtype[name]) for name in rows.dtype.names]
        return np.zeros(len(rows), types)

    return change


def with_value(field, value, row=-1):
    def change(rows):
        rows[field][row] = value
        return rows

    return change


def resized(name, rows):
    def break_it(folder):
        with h5py.File(rank_path(folder), "r+") as file:
            file[name].resize((rows,))

    return break_it


def changed(name, change):
    return lambda folder: rewrite(folder, name, change)


def break_virtual(folder):
    with h5py.File(rank_path(folder), "r+") as file:
        layout = h5py.VirtualLayout(file["steps"].shape, file["steps"].dtype)
        layout[:] = h5py.VirtualSource("/etc/other.h5", "steps", file["steps"].shape)
        del file["steps"]
        file.create_virtual_dataset("steps", layout)


def break_schema(folder):
    with h5py.File(rank_path(folder), "r+") as file:
        file.attrs["schema"] = [1, 2]


def break_category(folder):
    with h5py.File(rank_path(folder), "r+") as file:
        rows = file["events"][:]
        rows["category"][0] = 77
        file["events"][:] = rows


def break_count(folder):
    with h5py.File(rank_path(folder), "r+") as file:
        rows = file["steps"][:]
        rows["n_events_end"] = 10**6
        file["steps"][:] = rows


def break_order(folder):
    with h5py.File(rank_path(folder), "r+") as file:
        rows = file["steps"][:]
        assert len(rows) > 1
        rows["n_events_end"][-1] = 1
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


def break_pipe(folder):
    rank_path(folder).unlink()
    os.mkfifo(rank_path(folder))


def break_metrics_pipe(folder):
    (folder / "metrics.jsonl").unlink()
    os.mkfifo(folder / "metrics.jsonl")


def break_yaml_depth(folder):
    (folder / "experiment.yaml").write_text("[" * 100_000)


def break_metrics_depth(folder):
    (folder / "metrics.jsonl").write_text("[" * 100_000 + "\n{}\n")


def linked(link):
    def break_it(folder):
        with h5py.File(rank_path(folder), "r+") as file:
            del file["events"]
            file["events"] = link

    return break_it


BROKEN = {
    break_yaml_depth: "not YAML: exceeded maximum nesting depth",
    break_metrics_depth: "metrics.jsonl:1: not a JSON object: it nests too deeply",
    break_metrics_pipe: "metrics.jsonl: not a file",
    break_newer: "schema 'cadenza-trace/2' is not known here; valid is 'cadenza-trace/1'",
    break_mixed: "belongs to another run",
    break_yaml: "found a list, expected a map",
    break_no_trace: "no trace in it",
    break_no_steps: "no complete step",
}
# Of these the other ranks' files are of use; what is wrong shows when the run is opened, or later.
DAMAGED = {
    break_text: "not an HDF5 file",
    break_empty: "not an HDF5 file",
    break_half: "cannot be read",
    break_other_hdf5: "not a Cadenza trace",
    break_no_events: "no dataset /events",
    break_field: "cannot be read",
    break_count: "the file is damaged",
    break_order: "a step commits fewer events than the one before it",
    break_pipe: "not a file",
    linked(h5py.ExternalLink("rank-00001.h5", "/events")): "/events is a link",
    linked(h5py.SoftLink("/steps")): "/events is a link",
    break_schema: "attribute 'schema' is not one value",
    break_virtual: "/steps is stored in another file",
    changed("events", without("flops")): "/events has no field flops",
    changed("steps", retyped("step", "S4")): "/steps: step has type |S4, expected uint32",
    changed("meta/rank", with_value("rank", -1)): "/meta/rank says rank -1 of 2",
    changed("meta/rank", with_value("world", 2**31 - 1)): "says rank 0 of 2147483647",
    changed("meta/rank", lambda rows: rows[:0]): "/meta/rank has no row",
    changed("clock/sync", with_value("offset_ns", 2**62)): "/clock/sync: offset_ns is out of range",
    changed("steps", with_value("end_ns", -(2**63))): "/steps: end_ns is out of range",
    changed("steps", with_value("step", 0)): "/steps: step 0 is followed by step 0",
    resized("steps", 2**40): "/steps declares 1099511627776 rows, the file holds 16",
    resized("events", 2**40): "/events declares 1099511627776 rows, the file holds 16",
    changed("memory/highwater", retyped("peak_bytes", "<f8")): "/memory/highwater: peak_bytes has",
    changed("memory/highwater", with_value("step", 0)): "step 0 is followed by step 0",
    changed("plan", retyped("step", "<f8")): "/plan: step has type float64",
    changed("plan", lambda rows: np.zeros((2, 2))): "/plan is not a table",
    changed("meta/strings", lambda rows: np.arange(20.0)): "/meta/strings has type",
    resized("memory/highwater", 2**40): "declares 1099511627776 rows",
    changed("events", with_value("begin_ns", 2**62)): "/events: begin_ns is out",
    changed("events", with_value("name_id", 999)): "/events: name_id 999 is not known",
    break_category: "/events: category 77 is not known; valid are 0 to 14",
    changed("events", with_value("flops", float("nan"))): "/events: flops is out of range (-1 to",
    changed("events", with_value("bytes", 2**62)): "/events: bytes is out of range",
    changed("events", with_value("step", 0)): "/events: there are some of another step than",
    changed("plan", with_value("cost", -5.0)): "/plan: cost is out of range",
    changed("memory/highwater", with_value("peak_bytes", 2**62)): "highwater: peak_bytes is out",
    changed("clock/sync", with_value("phase", 2**32 - 1)): "/clock/sync: phase 4294967295 is not",
}


def name_of(break_it):
    return break_it.__name__ if callable(break_it) else ""


@pytest.mark.parametrize("break_it", BROKEN, ids=name_of)
def test_bad_input_is_one_line_and_3(break_it, run_folder, inside):
    break_it(run_folder)
    done = inside("summary", run_folder)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("\n") == 1 and BROKEN[break_it] in done.stderr, done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("break_it", DAMAGED, ids=name_of)
def test_a_damaged_file_is_left_out_with_a_warning(break_it, run_folder, inside):
    whole = cadenza.open(run_folder).events(ranks=[1])
    break_it(run_folder)
    done = inside("summary", run_folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1 and DAMAGED[break_it] in done.stderr, done.stderr
    assert f"{rank_path(run_folder)}: " in done.stderr
    run = cadenza.open(run_folder, whole=True)
    assert list(run.files) == [1] and run.events().equals(whole)


def test_many_damaged_files_are_few_lines(tmp_path):
    folder = write_run(tmp_path / "r", [Rank(r, [], [(0, 0, 9)]) for r in range(8)])
    for rank in range(2, 8):
        rank_path(folder, rank).write_bytes(b"")
    run = cadenza.open(folder)
    assert list(run.files) == [0, 1] and len(run.warnings) == 4
    assert run.warnings[3].endswith("3 more rank files are damaged; continuing without them")


@pytest.mark.parametrize("break_it", DAMAGED, ids=name_of)
def test_a_run_of_damaged_files_is_an_error(break_it, run_folder, inside):
    break_it(run_folder)
    rank_path(run_folder, 1).unlink()
    done = inside("summary", run_folder)
    assert (done.returncode, done.stdout) == (3, "")
    *warnings, error = done.stderr.splitlines()
    assert DAMAGED[break_it] in error and "error: " in error, done.stderr
    assert all("1 of 2 rank files missing" in line for line in warnings), warnings


@pytest.fixture
def four_ranks(tmp_path):
    """Of whose files the second one is damaged in the middle of its compressed events."""
    ranks = [rank for pair in (0, 1) for rank in two_ranks()]
    for number, rank in enumerate(ranks):
        rank.rank = number
        rank.events *= 40  # several chunks
        rank.events.sort(key=lambda event: event[0])
    folder = write_run(tmp_path / "r", ranks)
    path = rank_path(folder, 1)
    with h5py.File(path, "r+") as file:
        rows = file["events"][:]
        del file["events"]
        made = file.create_dataset("events", data=rows, maxshape=(None,), chunks=(64,),
                                   compression="gzip", shuffle=True)
        chunk = made.id.get_chunk_info(made.id.get_num_chunks() // 2)
    with path.open("r+b") as file:
        file.seek(chunk.byte_offset + chunk.size // 3)
        file.write(b"\xff" * 64)
    return folder


LEFT = [0, 2, 3]


def test_damage_in_the_middle_costs_the_rank(four_ranks, inside):
    for command in ("summary", "stragglers", "bubbles", "what-if", "critical-path"):
        done = inside(command, four_ranks, "--json")
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("\n") == 1 and "continuing without it" in done.stderr, done.stderr
        assert f"warning: {rank_path(four_ranks, 1)}: cannot be read: " in done.stderr
        found = json.loads(done.stdout)
        if command == "summary":
            run = found["runs"][0]
            assert [row["rank"] for row in run["per_rank"]] == LEFT and run["ranks"] == 3
        if command == "stragglers":
            assert {row["rank"] for row in found["stragglers"]} <= set(LEFT)
        if command == "bubbles":
            assert sorted(row["rank"] for row in found["per_rank"]) == LEFT


def test_check_names_a_rank_that_is_damaged_in_the_middle(four_ranks, inside):
    done = inside("check", four_ranks, "--json")
    assert done.returncode == 1 and "continuing without it" in done.stderr
    found = json.loads(done.stdout)["findings"]
    missing = [f for f in found if "its trace is missing" in f["what"]]
    assert [finding["rank"] for finding in missing] == [1]


def test_the_page_goes_on_without_the_damaged_rank(four_ranks, inside):
    done = inside("report", four_ranks)
    assert done.returncode == 0 and done.stderr.count("\n") == 1, done.stderr
    page = (four_ranks / "report.html").read_text()
    assert "3 of 4 read" in page and "continuing without it" in page


def test_frames_of_a_run_with_damage_agree(four_ranks):
    """A frame that meets the damage is an error; of a run that was read whole none has the rank."""
    with pytest.raises(cadenza.DataError, match="cannot be read"):
        cadenza.open(four_ranks).events()
    run = cadenza.open(four_ranks, whole=True)
    frames = (run.steps(), run.ranks(), run.memory(), run.events(), cadenza.Study(run).parts)
    assert [sorted(set(frame["rank"])) for frame in frames] == [LEFT] * 5


def test_times_that_are_years_apart(run_folder, inside):
    """Each can be of a clock, both together cannot be of one step."""
    for rank in (0, 1):
        path = rank_path(run_folder, rank)
        with h5py.File(path, "r+") as file:
            rows = file["steps"][:]
            rows["begin_ns"][0], rows["end_ns"][0] = -(2**60), 2**60
            file["steps"][:] = rows
            file["clock/sync"].resize((0,))
    done = inside("summary", run_folder)
    assert done.returncode == 3 and "years apart" in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(run_folder):
    rank_path(run_folder).chmod(0)
    with pytest.raises(cadenza.DataError, match="cannot be read: Permission denied"):
        cadenza.open(run_folder)


def test_a_field_that_only_one_file_has(run_folder):
    """Of a later version of the program: it is left out."""
    whole = cadenza.open(run_folder).memory()

    def wider(rows):
        fields = [(name, rows.dtype[name]) for name in rows.dtype.names]
        found = np.zeros(len(rows), [*fields, ("spare", "<i8")])
        for name in rows.dtype.names:
            found[name] = rows[name]
        return found

    rewrite(run_folder, "/memory/highwater", wider)
    pd.testing.assert_frame_equal(cadenza.open(run_folder).memory(), whole)
