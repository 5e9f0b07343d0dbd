# SPDX-License-Identifier: Apache-2.0
"""Checks of analysis/examples/torch_hook.py that run inside a PyTorch program of two ranks.

    python torch_hook_checks.py CHECK FOLDER        # exits with 0 where it holds
"""

import os
import sys
from pathlib import Path

import pyarrow
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
import torch_hook  # noqa: E402
from torch_hook import TimeHook  # noqa: E402


def rows(folder, rank):
    """What the files of a rank tell, as dicts."""
    files = sorted(folder.glob(f"rank-{rank:05}.*.arrow"))
    return [row for file in files for row in pyarrow.ipc.open_file(file).read_all().to_pylist()]


def restored(rank, folder):
    """After the hook everything is as before it, and nothing is recorded any more."""
    before = dist.all_reduce, dist.isend, dist.P2POp, torch.autograd.backward
    model = torch.nn.Linear(4, 4)
    with TimeHook(folder, model):
        assert dist.all_reduce is not before[0] and dist.all_reduce == before[0]
    assert (dist.all_reduce, dist.isend, dist.P2POp, torch.autograd.backward) == before
    assert dist.all_reduce is before[0] and dist.distributed_c10d.all_reduce is before[0]
    assert not model._forward_hooks and not model._forward_pre_hooks
    model(torch.ones(1, 4)).sum().backward()
    dist.barrier()
    assert rows(folder, rank) == []


def results(rank, folder):
    """Parameters after three steps are the same bits with the hook and without."""
    found = []
    for hooked in (False, True):
        torch.manual_seed(3)
        model = DistributedDataParallel(torch.nn.Sequential(
            torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with TimeHook(folder, model) if hooked else torch.no_grad(), torch.enable_grad():
            random = torch.Generator().manual_seed(rank)
            for _ in range(3):
                model(torch.randn(8, 16, generator=random)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*found)


def batch(rank, folder):
    """A batch of messages made of functions from before the hook, and of those from after it."""
    send, receive = dist.isend, dist.irecv
    with TimeHook(folder):
        for functions in ((send, receive), (dist.isend, dist.irecv)):
            out, into = torch.full((8,), float(rank)), torch.empty(8)
            works = dist.batch_isend_irecv([dist.P2POp(functions[0], out, 1 - rank),
                                            dist.P2POp(functions[1], into, 1 - rank)])
            for work in works:
                work.wait()
            assert into.eq(1 - rank).all()
    told = [(row["kind"], row["peer"], row["bytes"], row["sequence"]) for row in rows(folder, rank)
            if row["kind"] in ("send", "receive")]
    assert sorted(told) == [(kind, 1 - rank, 32, turn) for kind in ("receive", "send")
                            for turn in (0, 1)], told


def groups(rank, folder):
    """Collectives are numbered in their groups, calls within calls count once, objects too."""
    both, each = dist.new_group([0, 1]), [dist.new_group([one]) for one in (0, 1)]
    alone, foreign = each[rank], each[1 - rank]
    with TimeHook(folder):
        dist.all_reduce(torch.ones(1), group=foreign)  # to whose members it does not belong
        for group in (both, alone, both):
            dist.all_reduce(torch.ones(2, dtype=torch.bfloat16), group=group)
        out = [None, None]
        dist.all_gather_object(out, "x" * 100)
        dist.all_gather([torch.empty(3), torch.empty(3)], torch.ones(3), async_op=True).wait()
    told = [row for row in rows(folder, rank) if row["kind"] == "collective"]
    of = [(row["members"], row["sequence"], row["name"]) for row in told]
    assert of[:3] == [("0,1", 0, "all_reduce"), (str(rank), 0, "all_reduce"),
                      ("0,1", 1, "all_reduce")]
    assert told[0]["bytes"] == 4 and told[0]["dtype"] == "bfloat16"
    assert of[-1][2] == "all_gather" and told[-1]["bytes"] == 24
    assert told[-1]["sequence"] == len(of) - 4  # those of the object are before it


class Event:
    """A CUDA event of a device whose clock runs from 0 and is `ahead` ns fast every second."""

    now, ahead, passed = 0, 0, True

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = Event.now * (1 + Event.ahead / 1e9)

    def query(self):
        return Event.passed

    def elapsed_time(self, other):
        return (other.at - self.at) / 1e6


def pretend_a_device():
    torch.cuda.Event = Event
    torch.cuda.synchronize = torch.cuda.current_stream = torch.cuda.get_device_name = lambda: "x"


def late(rank, folder):
    """What a device has not done yet is told by a later file; the hook does not wait."""
    pretend_a_device()
    with TimeHook(folder, every=1) as hook:
        hook._clock = torch_hook.DeviceClock()
        for passed in (False, False, True):
            Event.passed = passed
            with hook.range("dense", "forward", f"file {hook._number}"):
                Event.now += 10**6
            hook.step([5, 3])
            told = [row["name"] for row in rows(folder, rank) if row["kind"] == "dense"]
            assert told == (["file 0", "file 1", "file 2"] if passed else []), told
    steps = [row for row in rows(folder, rank) if row["kind"] == "step"]
    assert [row["step"] for row in steps] == [0, 1, 2]
    assert {row["lengths"] for row in steps} == {"5,3"}


def device_clock(rank, folder):
    """What a device did lies between when it was asked and now, though its clock drifts."""
    pretend_a_device()
    for ahead in (-1e5, 0, 1e5):  # 0.1 ms a second
        Event.now, Event.ahead = 0, ahead
        clock = torch_hook.DeviceClock()
        clock._epoch = 0
        torch_hook.time.perf_counter_ns = lambda: Event.now
        clock._base_ns = 0
        for second in range(1, 6):
            Event.now = second * 10**9
            moments = [clock.now()]
            Event.now += 10**6
            moments += [clock.now(), (Event.now,)]
            begin, end, host = clock.times(moments)
            assert host == Event.now and abs(end - begin - 10**6) < 2000
            assert begin >= second * 10**9 - 2000 and end <= Event.now + 2000


def run(rank, check, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    globals()[check](rank, folder / "trace")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(run, (sys.argv[1], Path(sys.argv[2])), nprocs=2)
