# SPDX-License-Identifier: Apache-2.0
"""Usage: torchrun --nproc-per-node 2 record.py FOLDER

Made the files beside it, with PyTorch 2.8 on two processes without a GPU: data parallel training,
of which the profiler recorded two steps.
"""

import gzip
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint

WIDTH = 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.block = nn.Linear(WIDTH, WIDTH), Block()

    def forward(self, x):
        return checkpoint(self.block, self.first(x), use_reentrant=False)


def main(folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = iter(torch.utils.data.DataLoader(torch.randn(16, 8, WIDTH), batch_size=4))
    path = folder / f"rank{rank}_trace.json"
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True,
                 schedule=schedule(wait=1, warmup=1, active=2),
                 on_trace_ready=lambda done: done.export_chrome_trace(str(path))) as profiler:
        for batch in batches:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
    path.unlink()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
