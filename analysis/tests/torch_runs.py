#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small PyTorch training on processors, over gloo, with a fault in it, and its trace.

    python torch_runs.py --world 4 --mode ddp --trace hook --fault backward --rank 2 --output DIR

needs torch, and pyarrow for `--trace hook` (analysis/examples/torch_hook.py); the parent process
needs neither. `ddp`: every rank has the whole model. `pipeline`: every rank has a part of it, and
sends microbatches on, all forward before all backward. Step 0 is also the warm-up.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LAYERS, WIDTH, ROWS, MICROBATCHES = 4, 256, 64, 4  # a few ms of one core for a step
# What stands for a device's kernel, in each pass of a step: asleep, so that ranks that share a core
# do not disturb one another; or, for the hook, which sees who sleeps, computing.
KERNEL_MS = 10
# What is planted, in milliseconds of one step: of processor time, or asleep.
FAULTS = {
    "none": 0,
    "slow": 40,  # half of it in each pass
    "pause": 300,  # in one step, the middle one, asleep in the forward pass
    "data": 60,  # asleep, before the batch is there
    "backward": 40,  # in the backward pass alone
}


def burn(seconds):
    """Computes for so much processor time, in the operation around it: nothing that a profiler
    counts as more work."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Fault:
    """What goes wrong on this rank; other ranks have the fault `none`."""

    def __init__(self, kind, milliseconds, steps, burns):
        self.kind, self.seconds, self.paused = kind, milliseconds / 1000, steps // 2
        self.burns = burns

    def data(self):
        if self.kind == "data":
            time.sleep(self.seconds)

    def kernel(self, share):
        (burn if self.burns else time.sleep)(KERNEL_MS / 1000 * share)

    def forward(self, step, share):
        """@param share  of the step, that one call is"""
        self.kernel(share)
        if self.kind == "slow":
            burn(self.seconds / 2 * share)
        if self.kind == "pause" and step == self.paused:
            time.sleep(self.seconds * share)

    def backward(self, share):
        self.kernel(share)
        if self.kind in ("slow", "backward"):
            burn(self.seconds / (2 if self.kind == "slow" else 1) * share)


def make_part(layers, fault, share):
    """The layers of a rank, in whose middle the fault is; `part.step` is the step's number."""
    import torch

    # Operations that a profiler knows, as it does those of a library of kernels.
    library = torch.library.Library("cadenza", "DEF")
    for name, cost in (("middle", lambda: fault.forward(part.step, share)),
                       ("middle_backward", lambda: fault.backward(share))):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x, cost=cost: [cost(), x.clone()][1], "CPU")

    class Middle(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return torch.ops.cadenza.middle(x)

        @staticmethod
        def backward(context, gradient):
            return torch.ops.cadenza.middle_backward(gradient)

    class Part(torch.nn.Module):
        step = 0

        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers))

        def forward(self, x):
            for number, layer in enumerate(self.layers):
                if number == layers // 2:
                    x = Middle.apply(x)
                x = torch.nn.functional.gelu(layer(x))
            return x

    part = Part()
    part.library = library  # which forgets its operations when it is gone
    return part


def batches(options, fault):
    import torch

    class Batches(torch.utils.data.IterableDataset):
        def __iter__(self):
            random = torch.Generator().manual_seed(options.seed)
            for _ in range(options.steps):
                fault.data()
                yield torch.randn(ROWS, WIDTH, generator=random)

    return torch.utils.data.DataLoader(Batches(), batch_size=None)


def whole_step(model, batch):
    model(batch).square().mean().backward()


def pipeline_step(model, batch, rank, world):
    import torch
    import torch.distributed as dist
    parts = batch.chunk(MICROBATCHES)
    inputs, outputs, sent = [], [], []
    for part in parts:
        if rank > 0:
            part = torch.empty_like(part)
            dist.recv(part, rank - 1)
            part.requires_grad_()
        inputs.append(part)
        outputs.append(model(part))
        if rank + 1 < world:
            sent.append(dist.isend(outputs[-1].detach(), rank + 1))
    for part, output in zip(inputs, outputs):
        if rank + 1 < world:
            gradient = torch.empty_like(output)
            dist.recv(gradient, rank + 1)
            output.backward(gradient)
        else:
            output.square().mean().backward()
        if rank > 0:
            sent.append(dist.isend(part.grad, rank - 1))
    for message in sent:
        message.wait()


def train(options, rank):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    dist.init_process_group("gloo", init_method=f"file://{options.meet}", rank=rank,
                            world_size=options.world)
    mine = rank == options.rank
    fault = Fault(options.fault if mine else "none", options.milliseconds, options.steps,
                  options.trace == "hook")
    whole = options.mode == "ddp"
    part = make_part(LAYERS, fault, 1 if whole else 1 / MICROBATCHES)
    model = torch.nn.parallel.DistributedDataParallel(part, bucket_cap_mb=1) if whole else part
    optimizer = torch.optim.AdamW(model.parameters())
    dist.barrier()
    with tracer(options, rank, model) as trace:
        for step, batch in enumerate(trace.data(batches(options, fault))):
            part.step = step
            if whole:
                whole_step(model, batch)
            else:
                pipeline_step(model, batch, rank, options.world)
            optimizer.step()
            optimizer.zero_grad()
            trace.step()
    dist.barrier()
    dist.destroy_process_group()


def tracer(options, rank, model):
    if options.trace == "hook":
        sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
        from torch_hook import TimeHook
        return TimeHook(options.output, model)
    return Kineto(options.output / f"rank-{rank}.pt.trace.json") if options.trace == "kineto" \
        else Nothing()


class Nothing:
    """No trace, with the methods of one."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def data(self, loader):
        return loader

    def step(self):
        pass


class Kineto(Nothing):
    def __init__(self, path):
        from torch.profiler import ProfilerAction, ProfilerActivity, profile
        # With a schedule, steps have ranges.
        self.path, self.profile = path, profile(activities=[ProfilerActivity.CPU],
                                                schedule=lambda _: ProfilerAction.RECORD,
                                                record_shapes=True)

    def __enter__(self):
        self.profile.start()
        return self

    def __exit__(self, *_):
        self.profile.stop()
        self.profile.export_chrome_trace(str(self.path))

    def step(self):
        self.profile.step()


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--mode", choices=("ddp", "pipeline"), default="ddp")
    parser.add_argument("--trace", choices=("hook", "kineto", "none"), default="hook")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--milliseconds", type=float, help=f"size of the fault; default: {FAULTS}")
    parser.add_argument("--rank", type=int, default=0, help="that has the fault")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--own", type=int, help=argparse.SUPPRESS)  # of a child: its rank
    parser.add_argument("--meet", type=Path, help=argparse.SUPPRESS)  # where ranks find each other
    options = parser.parse_args(words)
    if options.milliseconds is None:
        options.milliseconds = FAULTS[options.fault]
    if options.own is not None:
        return train(options, options.own)
    options.output.mkdir(parents=True, exist_ok=True)
    alone = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *(sys.argv[1:] if words is None else words),
                   "--meet", f"{folder}/meet"]
        ranks = [subprocess.Popen([*command, "--own", str(rank)], env=alone)
                 for rank in range(options.world)]
        return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
