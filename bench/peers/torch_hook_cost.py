# SPDX-License-Identifier: Apache-2.0
"""A rank of a DDP training with gloo that analysis/examples/torch_hook.py times, every other turn;
prints as JSON the processor seconds of its steps, and those that the hook's own code took.

    python torch_hook_cost.py RANK WORLD MEETING_FILE WIDTH LAYERS ROWS STEPS TURNS
"""

import functools
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).resolve().parents[2] / "analysis/examples"))
import torch_hook  # noqa: E402
from torch_hook import TimeHook, Timed  # noqa: E402


class Account:
    """Processor seconds of all threads in some functions, without those of others that they
    call."""

    def __init__(self):
        self.seconds, self._local = 0.0, threading.local()

    def of(self, function, counts=True):
        @functools.wraps(function)
        def counted(*args, **kwargs):
            self._switch(counts)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch(None)
        return counted

    def _switch(self, counts):
        now = time.thread_time()
        stack = self._local.__dict__.setdefault("stack", [])
        if stack and stack[-1]:
            self.seconds += now - self._local.since
        if counts is None:
            stack.pop()
        else:
            stack.append(counts)
        self._local.since = time.thread_time()


def account():
    """Of all code of the hook; a gradient's mean, too, which DDP would take otherwise."""
    found = Account()
    for module, name in ((dist, "all_reduce"), (dist, "barrier"), (torch.autograd, "backward")):
        original = found.of(getattr(module, name), counts=False)
        setattr(module, name, original)
        if module is dist:
            setattr(dist.distributed_c10d, name, original)
    for owner, names in ((TimeHook, ("_enter", "_leave", "_cut", "_add", "step", "_write")),
                         (Timed, ("__call__",)), (torch_hook, ("mean_of_ranks",))):
        for name in names:
            setattr(owner, name, found.of(getattr(owner, name)))
    return found


def made(width, layers):
    torch.manual_seed(1)
    parts = [part for _ in range(layers) for part in (torch.nn.Linear(width, width),
                                                      torch.nn.GELU())]
    model = DistributedDataParallel(torch.nn.Sequential(*parts))
    return model, torch.optim.AdamW(model.parameters())


def steps(count, model, optimizer, batch, hook):
    """@returns processor seconds of all threads of this process, a step"""
    dist.barrier()
    begin = time.process_time()
    for _ in range(count):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if hook is not None:
            hook.step()
    return (time.process_time() - begin) / count


def main(rank, world, meet, width, layers, rows, count, turns):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    kept = account()
    training = {hooked: made(width, layers) for hooked in (False, True)}  # DDP keeps its hook
    batch = torch.randn(rows, width)
    found = {"without": [], "with": [], "hook": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns + 1):
            for hooked in (turn % 2 == 0, turn % 2 == 1):
                model, optimizer = training[hooked]
                before = kept.seconds
                if hooked:
                    with TimeHook(folder, model, first=turn * count) as hook:
                        seconds = steps(count, model, optimizer, batch, hook)
                        found["hook"].append((kept.seconds - before) / count)
                else:
                    seconds = steps(count, model, optimizer, batch, None)
                found["with" if hooked else "without"].append(seconds)
        sizes = [entry.stat().st_size for entry in os.scandir(folder)]
    dist.barrier()
    dist.destroy_process_group()
    warm = {name: seconds[1:] for name, seconds in found.items()}
    print(json.dumps(warm | {"bytes": sum(sizes) / (count * (turns + 1))}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))
