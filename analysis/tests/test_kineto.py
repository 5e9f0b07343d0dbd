# SPDX-License-Identifier: Apache-2.0
"""PyTorch's profiler: what its files tell in the neutral columns."""

import gzip
from pathlib import Path

import kineto_files as k
import pytest

from cadenza.errors import DataError
from cadenza.sources import json_pieces, neutral
from cadenza.sources.kineto import KINETO, events
from cadenza.sources.kineto.ranks import rank_in

RECORDED = Path(__file__).parent / "data/kineto"


def read(path, content):
    (rank,) = KINETO.read(k.write(path, content))
    return rank


@pytest.fixture
def gpu(tmp_path):
    return read(tmp_path / "x.json", k.document(k.training().events))


def rows(rank, *kinds):
    """Times in us of the file's clock, in their order."""
    table = rank.events[rank.events["kind"].isin(kinds)].sort_values(["begin_ns", "end_ns"])
    return table.assign(begin=(table["begin_ns"] - k.BASE) / 1000,
                        end=(table["end_ns"] - k.BASE) / 1000,
                        enqueued=(table["enqueued_ns"] - k.BASE) / 1000)


def test_a_file_is_claimed_by_its_name_and_its_first_bytes(tmp_path):
    sound = k.document([])
    for name, content, claimed in (("x.json", sound, True), ("x.pt.trace.json.gz", sound, True),
                                   ("x.json", [{"ph": "X"}], True), ("x.txt", sound, False),
                                   ("x.json", {"a": 1}, False), ("x.json", "", False)):
        assert KINETO.claims(k.write(tmp_path / name, content)) == claimed
    assert not KINETO.claims(tmp_path)


def test_the_columns_are_those_of_every_source(gpu):
    assert {name: str(kind) for name, kind in gpu.events.dtypes.items()} == \
        {name: kind for name, (kind, _) in neutral.COLUMNS.items()}
    assert set(gpu.events["kind"].unique()) <= set(neutral.KINDS)
    assert set(gpu.events["phase"].unique()) <= set(neutral.PHASES)
    assert (gpu.events["rank"] == 0).all()
    assert (gpu.events["end_ns"] >= gpu.events["begin_ns"]).all()


def test_what_is_known_of_the_rank(gpu):
    assert (gpu.rank, gpu.world, gpu.device) == (0, 2, "NVIDIA H100")
    assert gpu.groups == {"0": ("default_pg", (0, 1))}
    assert gpu.peak_memory == {3: 1000, 4: 1001}
    assert gpu.cannot == []


def test_steps_are_the_profilers(gpu):
    steps = rows(gpu, neutral.STEP)
    assert steps[["step", "begin", "end"]].values.tolist() == [[3, 0, 1000], [4, 1000, 2000]]


def test_kernels_have_class_phase_stream_and_launch(gpu):
    first = rows(gpu, *neutral.COMPUTATION)[lambda table: table["begin"] < 1000]
    assert first[["kind", "phase", "begin", "end", "enqueued"]].values.tolist() == [
        ["copy", "forward", 60, 65, 52],
        ["dense", "forward", 120, 220.5, 105],
        ["attention", "forward", 221, 271, 130],
        ["attention", "backward", 280, 400, 205],
        ["other", "backward", 400, 410.125, 215],
        ["optimizer", "optimizer", 620, 630, 610],
        ["optimizer", "optimizer", 640, 660, 630]]
    assert set(first["stream"]) == {"stream 7"} and first["bytes"].tolist() == [4096] + [-1] * 6


def test_collectives_have_group_size_and_number(gpu):
    found = rows(gpu, *neutral.COMMUNICATION)
    assert found[["kind", "phase", "name", "stream", "group", "members", "sequence", "peer",
                  "bytes", "dtype"]].values.tolist() == [
        ["collective", "backward", "allreduce", "stream 20", "0", "0,1", 40 + at, -1, 2000,
         "BFloat16"] for at in (0, 1)]
    assert found[["begin", "end", "enqueued"]].values.tolist() == [
        [401, 601, 230], [1401, 1601, 1230]]


def test_what_the_process_does(gpu):
    host = rows(gpu, neutral.DATA, neutral.SYNCHRONIZE)
    assert host[["kind", "stream", "begin", "end"]].values.tolist() == [
        ["data", "host", 10, 50], ["synchronize", "host", 720, 750],
        ["data", "host", 1010, 1050], ["synchronize", "host", 1720, 1750]]


def test_what_else_the_process_does(tmp_path):
    made = k.Recording()
    made.range("save_checkpoint", 10, 5)
    made.range("gc.collect", 20, 5)
    made.host("<built-in function collect>", 30, 4, kind="python_function")
    made.host("<built-in function len>", 40, 4, kind="python_function")
    made.host("CheckpointFunction", 50, 4)
    made.host("hipStreamSynchronize", 60, 1, kind="cuda_runtime", correlation=1)
    made.host("hipLaunchKernel", 70, 1, kind="cuda_runtime", correlation=2)
    found = rows(read(tmp_path / "x.json", made.events), *neutral.ON_HOST, neutral.SYNCHRONIZE)
    assert found[["kind", "begin_ns"]].values.tolist() == [
        ["checkpoint", 10_000], ["pause", 20_000], ["pause", 30_000], ["synchronize", 60_000]]


def test_steps_from_optimizer_calls_or_none(tmp_path):
    """Two optimizers of one step are called between its pass back and the next one."""
    made = k.Recording()
    for t in (0, 1000):
        made.host(k.NODE + "AddmmBackward0", t + 100, 50, k.BACK)
        made.range("Optimizer.step#Muon.step", t + 400, 100)
        made.range("Optimizer.step#AdamW.step", t + 550, 50)
    made.host("aten::mm", 20, 5)
    rank = read(tmp_path / "rank3.json", made.events)
    steps = rows(rank, neutral.STEP)
    assert steps[["step", "begin_ns", "end_ns"]].values.tolist() == [
        [0, 20_000, 600_000], [1, 600_000, 1_600_000]]
    assert rank.cannot == ["steps are told from optimizer calls: the first may have begun earlier"]
    rank = read(tmp_path / "rank3.json", made.events[:3])
    assert rows(rank, neutral.STEP).empty and "the file does not tell steps" in rank.cannot


def test_recomputed_is_what_goes_forward_within_the_pass_back(tmp_path):
    made = k.training(1)
    made.host("aten::linear", 230, 10, k.BACK, **{"Sequence number": 9, "Fwd thread id": 0})
    made.kernel("ampere_bf16_gemm", 235, 700, 10, k.BACK)
    made.kernel("ampere_bf16_gemm", 245, 720, 10, k.BACK)
    found = rows(read(tmp_path / "x.json", made.events), neutral.DENSE)
    assert found["phase"].tolist() == ["forward", "recompute", "backward"]


@pytest.mark.parametrize("marked", [True, False])
def test_what_follows_the_last_pass_back_of_a_step_is_not_forward(tmp_path, marked):
    """Two microbatches of 100 us in each of two steps; gradients are copied, the optimizer updates,
    and the loss is looked at."""
    made = k.Recording()
    for t in (0, 1000):
        if marked:
            made.range(f"ProfilerStep#{t // 1000}", t, 1000)
        for at in (t, t + 100):
            made.host("aten::linear", at + 10, 10)
            made.host(k.NODE + "AddmmBackward0", at + 30, 40)
            made.host("aten::mm", at + 35, 10)
        made.host("torch.distributed.ddp.reducer::copy_bucket_to_grad", t + 200, 10)
        made.range("Optimizer.step#SGD.step", t + 300, 100)
        made.host("aten::add_", t + 310, 10)
        made.host("aten::sum", t + 500, 10)
    found = rows(read(tmp_path / "x.json", made.events), *neutral.COMPUTATION)
    passes = ["forward", "backward"] * 2
    of_step = [*passes, "backward", "optimizer", "other"]
    # Without marks the first step ends with its optimizer, and what ends the record is not known.
    alone = [*passes, "backward", "optimizer", "forward"]
    assert found["phase"].tolist() == (of_step if marked else alone) * 2


def test_a_file_without_the_process_tells_only_what_kernels_say(tmp_path):
    kernels = [event for event in k.training(1).events if event.get("cat") == "kernel"]
    rank = read(tmp_path / "rank_01.json", kernels)
    found = rows(rank, *neutral.COMPUTATION)
    assert found["phase"].tolist() == [
        "other", "forward", "backward", "other", "other", "optimizer"]
    assert (found["enqueued_ns"] == 0).all() and rank.rank == 1
    assert rank.cannot == ["the file does not tell steps",
                           "the file does not tell forward from backward passes"]


def test_layers_and_microbatches_of_ranges(tmp_path):
    made = k.Recording()
    made.range("microbatch 3", 0, 200)
    made.range("TransformerLayer_12", 10, 50)
    made.range("layers.7.mlp", 100, 50)
    for at in (5, 20, 120, 300):
        made.kernel("ampere_bf16_gemm", at, at + 1000, 1)
    found = rows(read(tmp_path / "x.json", made.events), neutral.DENSE)
    assert found[["microbatch", "layer"]].values.tolist() == [[3, -1], [3, 12], [3, 7], [-1, -1]]


def test_collectives_without_numbers_are_counted_in_turn(tmp_path):
    made = k.Recording()
    for at, group in enumerate("0100"):
        made.kernel("ncclDevKernel_AllGather_RING_LL(x)", 10 * at, 500 - 10 * at, 5,
                    **k.collective("_allgather_base", 8, group, dtype="Float"))
    found = rows(read(tmp_path / "x.json", k.document(made.events)), neutral.COLLECTIVE)
    assert found[["group", "sequence", "bytes"]].values.tolist() == [
        ["0", 2, 32], ["0", 1, 32], ["1", 0, 32], ["0", 0, 32]]


def test_the_call_says_what_an_old_kernel_does_not(tmp_path):
    made = k.Recording()
    said = k.collective("allreduce", 6, dtype="Double")
    made.host("record_param_comms", 100, 20, **said)
    made.kernel("ncclKernel_AllReduce_RING_LL_Sum_double(x)", 110, 130, 5)
    made.kernel("ncclKernel_Broadcast_RING_LL_Sum_int8_t(x)", 140, 150, 5)
    rank = read(tmp_path / "x.json", made.events)
    found = rows(rank, neutral.COLLECTIVE)
    assert found[["name", "group", "members", "bytes", "sequence"]].values.tolist() == [
        ["allreduce", "0", "0,1", 48, 0], ["broadcast", "", "", -1, 0]]
    assert rank.groups == {"0": ("default_pg", (0, 1))}


def test_messages_have_peers_and_a_batch_is_all_of_its_messages(tmp_path):
    made = k.Recording()
    for t in (0, 100):
        made.host("record_param_comms", t, 5, **k.collective("send", 4, ranks=(4, 6)),
                  **{"Dst Rank": 6})
        made.host("record_param_comms", t + 10, 5, **k.collective("recv", 8, ranks=(4, 6)),
                  **{"Src Rank": 6})
        made.kernel("ncclDevKernel_SendRecv(x)", t + 20, t + 30, 7)
    said = k.collective("send", 2, ranks=(4, 6))
    made.kernel("ncclDevKernel_SendRecv(x)", 220, 230, 7, **said, **{"Dst Rank": 6})
    made.kernel("ncclDevKernel_SendRecv(x)", 320, 330, 7, **k.collective("all_to_allv", 2))
    found = rows(read(tmp_path / "x.json", made.events), *neutral.COMMUNICATION)
    found = found.astype({"kind": str}).sort_values(["begin_ns", "kind"])
    assert found[["kind", "begin_ns", "peer", "bytes", "sequence"]].values.tolist() == [
        ["receive", 30_000, 6, 16, 0], ["send", 30_000, 6, 8, 0],
        ["receive", 130_000, 6, 16, 1], ["send", 130_000, 6, 8, 1],
        ["send", 230_000, 6, 4, 2], ["collective", 330_000, -1, 4, 0]]


def test_ranks_of_a_group_that_is_too_long_to_list(tmp_path):
    made = k.Recording()
    words = {"Process Group Ranks": "[1, 3, 5, ...]", "Group size": 5, "Global rank start": 1,
             "Global rank stride": 2}
    made.kernel("ncclDevKernel_AllReduce(x)", 5, 10, 5, **{**k.collective("allreduce", 1), **words})
    found = rows(read(tmp_path / "x.json", made.events), neutral.COLLECTIVE)
    assert found["members"].tolist() == ["1,3,5,7,9"]


@pytest.mark.parametrize(("name", "rank"), [
    ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34), ("rank3_trace.json", 3),
    ("rank_07.json", 7), ("step_rank[12]_x.json.gz", 12), ("1718-TP-5.trace.json.gz", 5),
    ("1718-TP-0-PP-0-DP-3.trace.json.gz", 3), ("1718-TP-1-PP-2.trace.json.gz", -1),
    ("worker3.1718000000000.pt.trace.json", 3), ("host_1718.1718000000000.pt.trace.json", -1),
    ("iteration_100.json", -1), ("frank.json", -1), ("trace.json", -1)])
def test_ranks_in_names(name, rank):
    assert rank_in(name) == rank


def test_the_file_says_its_rank_or_its_name_or_its_folder_or_nothing(tmp_path):
    made = k.training(1).events
    (tmp_path / "rank_5").mkdir()
    assert read(tmp_path / "rank7.json", k.document(made, rank=3)).rank == 3
    assert read(tmp_path / "rank7.json", made).rank == 7
    assert read(tmp_path / "rank_5/trace.json", made).rank == 5
    rank = read(tmp_path / "node1_12.1718000000000.pt.trace.json", made)
    assert (rank.rank, rank.host) == (0, "node1")
    assert "neither the file nor its name says a rank: taken for rank 0" in rank.cannot


def test_a_merged_file_is_several_ranks(tmp_path):
    """As SGLang's merger writes processes, and as others label them."""
    merged, labelled = [], []
    for rank in (0, 1):
        for event in k.training(1).events:
            merged.append({**event, "pid": f"[TP{rank:02}] {event['pid']}"})
            event = {**event, "pid": event["pid"] + 1000 * rank}
            if event["name"] == "process_name":
                event["args"] = {"name": f"rank {rank}"}
            elif event["name"] == "process_labels":
                event["args"] = {"labels": f"GPU 0 of rank {rank}"}
            labelled.append(event)
    for content in (merged, labelled):
        first, second = KINETO.read(k.write(tmp_path / "merged.json", content))
        assert (first.rank, second.rank) == (0, 1)
        assert len(first.events) == len(second.events) == 11
        assert second.events["bytes"].tolist() == first.events["bytes"].tolist()


def test_times_are_exact(tmp_path):
    """Of times that a float64 cannot hold, as text, and beside a base as long."""
    text = ('[{"ph":"X","cat":"kernel","name":"x","pid":0,"tid":7,"ts":1712195495519689.123,'
            '"dur":4.001,"args":{}}]')
    assert read(tmp_path / "x.json", text).events[["begin_ns", "end_ns"]].values.tolist() == [
        [1712195495519689123, 1712195495519693124]]
    other = '{"ph":"X","cat":"kernel","name":"x","pid":0,"tid":7,"ts":5,"dur":1}'
    text = text.replace("[{", f"[{other},{{")
    assert read(tmp_path / "x.json", text).events["begin_ns"].tolist() == [
        5000, 1712195495519689123]
    text = text.replace("1712195495519689.123", "5257054646076.354")
    text = f'{{"traceEvents":{text},"baseTimeNanoseconds":1790857026000000000}}'
    assert read(tmp_path / "x.json", text).events["begin_ns"].tolist() == [
        1790857026000005000, 1796114080646076354]


@pytest.mark.parametrize(("number", "lost"), [
    (0, []), (1, ["1 communication left out: still going on when the record ended"])])
def test_a_recorded_file(number, lost):
    """Two steps of data parallel training with PyTorch 2.8, without a GPU."""
    (rank,) = KINETO.read(RECORDED / f"rank{number}_trace.json.gz")
    assert (rank.rank, rank.world, rank.cannot) == (number, 2, lost)
    table = rank.events
    assert table[table["kind"] == neutral.STEP]["step"].tolist() == [2, 3]
    count = table.groupby(["kind", "phase"], observed=True).size().to_dict()
    # Per step: three products, of which two are computed again, as is attention.
    assert count["attention", "forward"] == count["attention", "recompute"] == 2
    assert count["dense", "forward"] == 6 and count["dense", "recompute"] == 4
    assert count["dense", "backward"] > 0 and count["optimizer", "optimizer"] > 0
    moved = table[table["kind"] == neutral.COLLECTIVE]
    assert moved[["name", "phase", "group", "members", "sequence", "bytes"]].values.tolist() == [
        ["all_reduce", "backward", "0", "0,1", at, 5440] for at in range(2 - len(lost))]
    assert (moved["enqueued_ns"] <= moved["begin_ns"]).all() and (moved["enqueued_ns"] > 0).all()


def test_rows_of_a_processor_follow_one_another():
    (rank,) = KINETO.read(RECORDED / "rank0_trace.json.gz")
    host = rows(rank, *neutral.COMPUTATION, neutral.DATA)
    assert set(host["stream"]) == {"host"}
    assert (host["begin_ns"].to_numpy()[1:] >= host["end_ns"].to_numpy()[:-1]).all()


def test_the_two_ranks_meet_in_their_collectives():
    ends = [rows(KINETO.read(RECORDED / f"rank{rank}_trace.json.gz")[0], neutral.COLLECTIVE)
            for rank in (0, 1)]
    for first, second in zip(ends[0].itertuples(), ends[1].itertuples(), strict=False):
        assert max(first.begin_ns, second.begin_ns) < min(first.end_ns, second.end_ns)


def test_gloo_messages(tmp_path):
    made = k.Recording()
    said = {"Input Dims": [[[4, 8]], [], [], []], "Input type": ["TensorList", "", "Scalar", ""],
            "Concrete Inputs": ["", "", "1", "0"]}
    sent = {"Input Dims": [[4, 8]], "Input type": ["float"], "Concrete Inputs": [""]}
    for begin in (100, 110):
        made.host("c10d::send", begin, 5, **said)
        made.host("gloo:send", begin + 4, 30, kind="user_annotation", **sent)
    assert any("messages of gloo do not say" in sentence for sentence in read(
        tmp_path / "rank0.json", made.events).cannot)
    found = rows(read(tmp_path / "x.json", k.document(made.events)), neutral.SEND)
    assert found[["begin", "end", "enqueued", "peer", "bytes", "sequence", "stream"]
                 ].values.tolist() == [[104, 134, 100, 1, 128, 0, "gloo send 1"],
                                       [134, 144, 110, 1, 128, 1, "gloo send 1"]]


@pytest.mark.parametrize(("dims", "kind", "size"), [
    ([[]], "double", 8), ([[3, 5]], "c10::BFloat16", 30), ([[0]], "float", 0),
    ([[[2], [3, 4]]], "long int", 112), ([[[2]]], "TensorList", -1), ([7], "float", -1),
    ([[2**62, 2**62]], "float", -1)])
def test_bytes_of_shapes(dims, kind, size, tmp_path):
    made = k.Recording()
    made.host("gloo:all_reduce", 5, 5, kind="user_annotation",
              **{"Input Dims": dims, "Input type": [kind]})
    found = rows(read(tmp_path / "x.json", k.document(made.events)), neutral.COLLECTIVE)
    assert found["bytes"].tolist() == [size]


def test_gloo_groups_by_the_order_of_threads(tmp_path):
    """Three threads are of two groups, which run at most two each."""
    made = k.Recording()
    for thread, begin in ((200, 100), (290, 200), (291, 300)):
        made.host("c10d::allreduce_", begin, 5)
        made.host("gloo:all_reduce", begin + 10, 30, thread, "user_annotation")
    groups = [{"pg_name": name, "pg_desc": "undefined", "ranks": ranks}
              for name, ranks in (("0", [0, 1, 2, 3]), ("5", [0, 1]), ("6", [2, 3]))]
    told = {"rank": 0, "world_size": 4, "pg_config": groups}
    rank = read(tmp_path / "x.json", k.document(made.events, distributedInfo=told))
    found = rows(rank, neutral.COLLECTIVE)
    assert found[["group", "sequence", "enqueued"]].values.tolist() == [
        ["0", 0, 100], ["5", 0, 200], ["5", 1, 300]]
    made.events = [event for event in made.events if event["tid"] != 200]
    found = rows(read(tmp_path / "x.json", k.document(made.events, distributedInfo=told)),
                 neutral.COLLECTIVE)
    assert found[["group", "sequence"]].values.tolist() == [["", -1], ["", -1]]


@pytest.mark.parametrize("name", ["rank0_trace.json", "rank0_trace.json.gz"])
def test_a_file_that_is_cut_short(name, tmp_path):
    content = (RECORDED / "rank0_trace.json.gz").read_bytes()
    if not name.endswith("gz"):
        content = gzip.decompress(content)
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    (rank,) = KINETO.read(tmp_path / name)
    assert 0 < len(rank.events) < 210
    assert any("cut short: read as far as it goes" in sentence for sentence in rank.cannot)


HOSTILE = [None, True, -1, 2**63, -(2**70), 1e308, -1e18, "", "x" * 10_000, "nan", [], {},
           [[[]]], {"a": {"b": []}}]


@pytest.mark.parametrize("place", ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"])
def test_wrong_types_cost_one_event(place, tmp_path):
    sound = k.document(k.training().events)
    count = len(read(tmp_path / "x.json", sound).events)
    for value in HOSTILE:
        event = {"ph": "X", "cat": "kernel", "name": "x", "pid": 0, "tid": 7, "ts": 10, "dur": 1,
                 "args": {"correlation": 1}, place: value}
        rank = read(tmp_path / "x.json", {**sound, "traceEvents": [event, *sound["traceEvents"]]})
        assert count <= len(rank.events) <= count + 1


def test_wrong_types_of_what_is_said(tmp_path):
    keys = [*k.collective("x", 1), "Seq", "Src Rank", "Global rank start", "Global rank stride",
            "correlation", "bytes", "Input Dims", "Input type", "Concrete Inputs",
            "Sequence number", "Fwd thread id", "Total Allocated", "Device Type"]
    for key in keys:
        for value in HOSTILE:
            made = k.training(1)
            for event in made.events:
                if event.get("cat") in ("kernel", "cpu_op", "cpu_instant_event", "gpu_memcpy"):
                    event["args"][key] = value
            made.host("c10d::send", 5, 5, **{key: value})
            made.range("gloo:send", 6, 5)
            assert len(read(tmp_path / "x.json", k.document(made.events)).events) > 10


@pytest.mark.parametrize("key", ["distributedInfo", "deviceProperties", "baseTimeNanoseconds",
                                 "host_name"])
def test_wrong_types_beside_the_events(key, tmp_path):
    for value in HOSTILE:
        read(tmp_path / "x.json", k.document(k.training(1).events, **{key: value}))
    for rank in HOSTILE:
        told = {"rank": rank, "world_size": rank, "pg_config": [rank, {"ranks": [rank]}]}
        read(tmp_path / "x.json", k.document(k.training(1).events, distributedInfo=told))
    with pytest.raises(DataError, match="found rank 2097152; valid: less than"):
        read(tmp_path / "x.json", k.document([*k.training(1).events], rank=2**21))


def test_absurd_times_are_left_out_and_counted(tmp_path):
    made = k.training()
    count = len(read(tmp_path / "x.json", k.document(made.events)).events)
    for ts, dur in ((5e15, 1), (-1e300, 1), (5, -1), (5, 1e17), ("x", 1), (5, None)):
        made.events.append({"ph": "X", "cat": "kernel", "name": "x", "pid": 0, "tid": 7, "ts": ts,
                            "dur": dur, "args": {}})
    rank = read(tmp_path / "x.json", k.document(made.events))
    assert len(rank.events) == count
    assert rank.cannot == ["6 events left out: no sound times or words"]


@pytest.mark.parametrize("key", ["ts", "ts_part", "args", "name"])
def test_memory_at_no_time_is_left_out(key, tmp_path):
    for value in HOSTILE:
        made = k.training(1)
        for event in made.events:
            if event["name"] == "[memory]":
                event[key] = value
        rank = read(tmp_path / "x.json", k.document(made.events))
        assert rank.peak_memory in ({}, {3: 1000})


def test_nothing_of_the_profiler(tmp_path):
    for content in ([], k.document([]), k.document([{"ph": "X"}, 7, None, [], "x"])):
        with pytest.raises(DataError, match="found no events of PyTorch's profiler"):
            read(tmp_path / "x.json", content)


def test_a_bomb_ends_with_the_events_that_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "MOST", 3000)
    monkeypatch.setattr(json_pieces, "PIECE", 1 << 14)
    made = [{"ph": "X", "cat": "cpu_op", "name": f"op {at}", "pid": 1, "tid": 1, "ts": at, "dur": 1}
            for at in range(20_000)]
    rank = read(tmp_path / "x.json.gz", made)
    assert 3000 <= len(rank.events) < 4000
    assert any("only the first" in sentence for sentence in rank.cannot)


def test_many_names_and_threads(tmp_path):
    made = [{"ph": "X", "cat": "cpu_op", "name": f"op {at}", "pid": at, "tid": at, "ts": at,
             "dur": 1} for at in range(20_000)]
    rank = read(tmp_path / "x.json", made)
    assert len(rank.events) == 20_000 and rank.events["name"].nunique() == 20_000

