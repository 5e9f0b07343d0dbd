# SPDX-License-Identifier: Apache-2.0
"""Exports of Nsight Systems: what a rank did, in both formats; damage in one line."""

import sqlite3

import numpy as np
import nsight_files as files
import pyarrow.parquet
import pytest

from cadenza.errors import DataError
from cadenza.sources.nsight import NSIGHT
from cadenza.sources.nsight_nccl import kernel_says
from cadenza.sources.nsight_ranges import Ranges

MS = files.MS
ORIGIN = files.UTC + MS  # of step 0


@pytest.fixture(params=["sqlite", "folder"])
def export(request, tmp_path):
    """Writes rows as an export."""
    if request.param == "sqlite":
        return lambda rows: files.write_sqlite(tmp_path / "report.sqlite", rows)
    return lambda rows: files.write_folder(tmp_path / "report_pqtdir", rows)


def told(path):
    assert NSIGHT.claims(path)
    return NSIGHT.read(path)


def rows(trace, kind, *columns):
    """Of a kind, in order of begin; times in ms since step 0 began."""
    events = trace.events[trace.events["kind"] == kind].sort_values("begin_ns")
    events = events.assign(begin=(events["begin_ns"] - ORIGIN) / MS,
                           end=(events["end_ns"] - ORIGIN) / MS)
    return list(events[list(columns)].itertuples(index=False, name=None))


def test_both_formats_tell_the_same_of_every_rank(export):
    traces = told(export(files.tables()))
    assert [(one.rank, one.world, one.host, one.device) for one in traces] \
        == [(0, 2, "n1", "NVIDIA H100"), (1, 2, "n1", "NVIDIA H100")]
    for rank, one in enumerate(traces):
        assert one.groups == {str(files.COMMUNICATOR): ("", (0, 1))} and one.cannot == []
        assert (one.events["rank"] == rank).all()
        assert rows(one, "step", "step", "begin", "end") == [(0, 0, 10), (1, 10, 19)]
        assert rows(one, "data", "begin", "end", "stream")[0] == (0, 0.5, "host")
        assert rows(one, "copy", "name", "bytes", "phase")[0] == ("memcpy HtoD", 512, "other")
        assert rows(one, "synchronize", "begin", "end", "stream")[0] == (7, 8, "host")


def test_phases_are_those_in_which_a_kernel_was_launched(export):
    _, one = told(export(files.tables(steps=1)))
    assert rows(one, "dense", "begin", "end", "phase", "stream") \
        == [(2, 5, "forward", "stream 7"), (6, 7, "backward", "stream 7")]
    launched = one.events.loc[one.events["kind"] == "dense", "enqueued_ns"]
    assert launched.tolist() == [ORIGIN + MS + 1000, ORIGIN + 4 * MS]


def test_what_nccl_says_of_its_calls(export):
    first, second = told(export(files.tables(steps=1)))
    columns = ("begin", "end", "name", "group", "members", "bytes", "dtype", "phase")
    group = str(files.COMMUNICATOR)
    assert rows(first, "collective", *columns) \
        == [(6, 8, "allreduce", group, "0,1", 4096, "bf16", "backward")]
    assert rows(second, "collective", "begin", "end") == [(7, 8)]  # it comes later
    assert rows(first, "send", "peer", "bytes", "group", "members") == [(1, 1024, group, "0,1")]
    assert rows(second, "receive", "peer", "bytes") == [(0, 1024)]
    assert rows(first, "receive", "peer") == []


def test_without_payloads_kernels_tell_what_they_can(export):
    first, second = told(export(files.tables(payloads=False)))
    assert [one.rank for one in (first, second)] == [0, 1] and first.groups == {}
    assert rows(first, "collective", "name", "group", "bytes", "dtype")[0] \
        == ("allreduce", "", -1, "bf16")
    assert rows(first, "send", "peer")[0] == (-1,)
    assert any("which ranks it holds" in line for line in first.cannot)
    assert any("--include-json=true" in line for line in first.cannot)


def test_the_rank_of_one_process_may_be_in_the_name(tmp_path):
    content = files.tables(payloads=False)
    pid = files.VM | files.PIDS[1] << 24
    content["CUPTI_ACTIVITY_KIND_KERNEL"] = [row for row in content["CUPTI_ACTIVITY_KIND_KERNEL"]
                                             if row[5] == pid]
    content["CUPTI_ACTIVITY_KIND_MEMCPY"] = []
    (one,) = told(files.write_sqlite(tmp_path / "job_rank13.sqlite", content))
    assert one.rank == 13 and not any("which ranks" in line for line in one.cannot)


def test_a_mark_of_mpi_tells_the_rank(export):
    content = files.tables(payloads=False)
    for rank, pid in enumerate(files.PIDS):
        thread = files.VM | pid << 24 | pid
        content["NVTX_EVENTS"].append((5, None, 39, f"MPI Rank {7 - rank}", thread, None, 0, None))
    assert [one.rank for one in told(export(content))] == [6, 7]


def test_an_exchange_of_all_is_a_collective(export):
    content = files.tables(steps=1)
    at = [index for index, row in enumerate(content["NVTX_EVENTS"])
          if row[5] in (files.NAMES.index("ncclSend"), files.NAMES.index("ncclRecv"))]
    for index in at:
        row = content["NVTX_EVENTS"][index]
        more = [(row[0] + turn, row[0] + turn, *row[2:5], files.NAMES.index(name), *row[6:])
                for turn, name in enumerate(("ncclSend", "ncclRecv", "ncclSend"), start=1)]
        content["NVTX_EVENTS"] += more if row[5] == files.NAMES.index("ncclRecv") else \
            [(*one[:5], files.NAMES.index("ncclRecv" if one[5] == files.NAMES.index("ncclSend")
                                          else "ncclSend"), *one[6:]) for one in more]
    first, _ = told(export(content))
    assert ("alltoall", 2048) in rows(first, "collective", "name", "bytes")
    assert rows(first, "send", "peer") == []


def test_a_graph_is_one_kernel_and_said(tmp_path):
    path = files.write_sqlite(tmp_path / "x.sqlite", files.tables(steps=1))
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE AS SELECT start, end, "
                         "deviceId, streamId, correlationId, globalPid "
                         "FROM CUPTI_ACTIVITY_KIND_MEMCPY")
    first, _ = told(path)
    assert rows(first, "other", "name") == [("CUDA graph",)]
    assert any("--cuda-graph-trace=node" in line for line in first.cannot)


PHASES = {
    "forward": "forward", "DistributedDataParallel.forward": "forward", "forward_step": "forward",
    "backward": "backward", "MulBackward0": "backward", "FlashAttnFuncBackward": "backward",
    "autograd::engine::evaluate_function: X": "backward", "Optimizer.step#AdamW.step": "optimizer",
    "optimizer": "optimizer", "recompute_forward": "recompute", "forward_backward": "other",
    "aten::mul": "other", "straightforward": "other",
}


@pytest.mark.parametrize("name", PHASES)
def test_names_of_phases(name):
    assert _phase_of([(0, 10, name)], 5) == PHASES[name]


def test_the_innermost_phase_counts():
    nested = [(0, 100, "forward"), (20, 60, "backward"), (30, 40, "recompute")]
    assert [_phase_of(nested, at) for at in (-1, 0, 25, 35, 45, 60, 100)] \
        == ["other", "forward", "backward", "recompute", "backward", "forward", "other"]


def _phase_of(ranges, at):
    begin, end, names = zip(*sorted(ranges), strict=True)
    of = Ranges(np.array(begin), np.array(end), np.zeros(len(begin), np.int64),
                np.array(names, object))
    return of.phase_at(np.array([at]))[0]


KERNELS = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)":
        ("allreduce", "bf16"),
    "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL": ("reducescatter", "f32"),
    "ncclDevKernel_AllGather_RING_LL": ("allgather", ""),
    "ncclDevKernel_SendRecv": ("sendrecv", ""),
    "ncclKernel_AllReduce_TREE_LL_Sum_half(ncclDevComm*)": ("allreduce", ""),
    "ncclDevKernel_Broadcast_RING_LL": ("broadcast", ""),
    "oneShotAllReduceKernel": ("", ""),
}


@pytest.mark.parametrize("name", KERNELS)
def test_names_of_kernels(name):
    assert kernel_says(name) == KERNELS[name]


def refusal(path):
    with pytest.raises(DataError) as error:
        NSIGHT.read(path)
    said = str(error.value)
    assert said.startswith(str(path)) and said.isprintable()
    return said


def test_other_files_are_not_claimed(tmp_path):
    for name, content in (("a.sqlite", b"SQLite format 3"), ("b.sqlite", b""), ("c.txt", b"")):
        (tmp_path / name).write_bytes(content)
        assert not NSIGHT.claims(tmp_path / name)
    (tmp_path / "d").mkdir()
    assert not NSIGHT.claims(tmp_path / "d") and not NSIGHT.claims(tmp_path / "none.sqlite")


def test_an_export_without_kernels(export):
    assert "no table of kernels or copies" in refusal(export({"StringIds": [(0, "x")]}))


BAD = {
    "text for a time": ((4, "x"), "whole numbers"),
    "fraction for a time": ((0, 0.5), "whole numbers"),
    "absurd time": ((1, 1 << 61), "times that cannot be"),
    "ends early": ((1, 5), "no end before its start"),
}


@pytest.mark.parametrize("fault", BAD)
def test_values_that_cannot_be(tmp_path, fault):
    (column, value), why = BAD[fault]
    content = files.tables(steps=1)
    row = list(content["CUPTI_ACTIVITY_KIND_KERNEL"][0])
    row[column] = value
    content["CUPTI_ACTIVITY_KIND_KERNEL"][0] = row
    assert why in refusal(files.write_sqlite(tmp_path / "x.sqlite", content))


def test_an_export_of_too_many_devices(tmp_path):
    content = files.tables(steps=40)
    content["CUPTI_ACTIVITY_KIND_KERNEL"] = [
        (*row[:2], number, *row[3:])
        for number, row in enumerate(content["CUPTI_ACTIVITY_KIND_KERNEL"])]
    assert "valid: at most 256" in refusal(files.write_sqlite(tmp_path / "x.sqlite", content))


def test_a_column_twice(tmp_path):
    path = files.write_folder(tmp_path / "export", files.tables(steps=1))
    kernels = path / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    table = pyarrow.parquet.read_table(kernels)
    pyarrow.parquet.write_table(table.append_column("start", table["start"]), kernels)
    assert "has a column several times" in refusal(path)


def test_files_that_are_cut_short(tmp_path):
    path = files.write_sqlite(tmp_path / "x.sqlite", files.tables())
    content = path.read_bytes()
    for size in (16, 100, 3000, len(content) // 2):
        path.write_bytes(content[:size])
        assert "cut short or damaged" in refusal(path) or "no table" in refusal(path)


def test_a_view_is_no_table(tmp_path):
    """Its text would be run; so would the expression of a generated column."""
    path = files.write_sqlite(tmp_path / "x.sqlite", files.tables(steps=1))
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO other")
        database.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT * FROM other")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET "
                         "(start INT, end INT AS (start / 0), bytes INT)")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (1, 2)")
    first, _ = told(path)
    assert rows(first, "dense", "name") == []


def test_a_table_of_too_many_rows(export, monkeypatch):
    monkeypatch.setattr("cadenza.sources.nsight_tables.MOST_ROWS", 5)
    assert "valid: at most 5" in refusal(export(files.tables()))


def test_nothing_is_written_beside_an_export(tmp_path):
    path = files.write_sqlite(tmp_path / "x.sqlite", files.tables())
    before = path.read_bytes()
    told(path)
    assert [one.name for one in tmp_path.iterdir()] == ["x.sqlite"] and path.read_bytes() == before
