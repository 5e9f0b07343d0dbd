# SPDX-License-Identifier: Apache-2.0
"""Exports as Nsight Systems 2026.2 writes them, of two processes with a device each.

Per process and step of 10 ms: a product of the forward pass, one of the backward pass that another
thread launches, a sum of gradients, a message from rank 0 to rank 1, a copy, a wait.
"""

import json
import sqlite3

import pyarrow
import pyarrow.parquet

MS = 1_000_000
VM = 1 << 48  # number of the virtual machine, in ids of processes and threads
PIDS = (901, 902)
COMMUNICATOR = 1234567890123456789
UTC, SYSTEM = 1_779_782_330_000_000_000, 28_000_000_000  # of the moment when the session began

ON_DEVICE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (*ON_DEVICE, "demangledName", "shortName", "gridX"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (*ON_DEVICE, "bytes", "copyKind"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "globalTid", "textId", "domainId",
                    "jsonText"),
    "StringIds": ("id", "value"),
    "TARGET_INFO_GPU": ("id", "name"),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs", "systemClockNs"),
    "TARGET_INFO_SYSTEM_ENV": ("name", "value"),
}
TEXTS = {"text", "jsonText", "value", "name"}
NAMES = ("sm90_xmma_gemm_bf16bf16", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)",
         "ncclDevKernel_SendRecv(ncclDevKernelArgs)", "cudaLaunchKernel_v7000",
         "cudaStreamSynchronize_v3020", "ncclAllReduce", "ncclSend", "ncclRecv",
         "ncclCommInitRank", "cudaMemcpyAsync_v3020", "ncclGroupStart", "ncclGroupEnd",
         "flash_fwd_kernel")


def tables(steps=2, payloads=True):
    """Rows by table."""
    rows = {name: [] for name in COLUMNS}
    rows["StringIds"] = list(enumerate(NAMES))
    rows["TARGET_INFO_GPU"] = [(0, "NVIDIA H100"), (1, "NVIDIA H100")]
    rows["TARGET_INFO_SESSION_START_TIME"] = [(UTC, SYSTEM)]
    rows["TARGET_INFO_SYSTEM_ENV"] = [("CpuCores", "18"), ("Hostname", "n1")]
    for rank in (0, 1):
        _Process(rows, rank, payloads).run(steps)
    return rows


class _Process:
    def __init__(self, rows, rank, payloads):
        self.rows, self.rank, self.payloads = rows, rank, payloads
        self.pid = VM | PIDS[rank] << 24
        self.main, self.autograd = self.pid | PIDS[rank], self.pid | 77
        self.launched = 0

    def run(self, steps):
        self.nccl("ncclCommInitRank", SYSTEM, SYSTEM + 10, {
            "NCCL communicator ID": COMMUNICATOR, "No. of ranks": 2, "Rank": self.rank,
            "CUDA device": self.rank})
        for step in range(steps):
            self.step(step, SYSTEM + MS + 10 * MS * step)

    def step(self, step, at):
        self.range(f"iteration {step}", at, at + 9 * MS)
        self.range("next_batch", at, at + MS // 2)
        self.range("forward_step, op_id = 7", at + MS, at + 2 * MS)
        self.kernel(0, at + MS + 1000, at + 2 * MS, 3 * MS, self.main)
        self.range("backward", at + 3 * MS, at + 6 * MS)
        self.kernel(0, at + 4 * MS, at + 5 * MS + self.rank * MS, MS, self.autograd)
        self.nccl("ncclAllReduce", at + 5 * MS, at + 5 * MS + 9000, {
            "NCCL communicator ID": COMMUNICATOR, "Message size [bytes]": 4096,
            "Reduction operation": "Sum"}, self.autograd)
        self.kernel(1, at + 5 * MS + 5000, at + 6 * MS + self.rank * MS, at + 8 * MS, self.autograd,
                    stream=20, ends=True)
        self.message(at + 6 * MS + 100_000)
        self.copy(at + 7 * MS)
        self.call("cudaStreamSynchronize_v3020", at + 7 * MS, at + 8 * MS, self.main)

    def message(self, at):
        self.nccl("ncclGroupStart", at, at + 10, {})
        self.nccl("ncclRecv" if self.rank else "ncclSend", at + 20, at + 30, {
            "NCCL communicator ID": f"{COMMUNICATOR:,}", "Message size [bytes]": "1,024",
            "Peer rank": 1 - self.rank})
        self.nccl("ncclGroupEnd", at + 40, at + 9000, {})
        self.kernel(2, at + 5000, at + 10_000, MS // 10, self.main, stream=21)

    def range(self, text, begin, end):
        self.rows["NVTX_EVENTS"].append((begin, end, 59, text, self.main, None, 0, None))

    def nccl(self, name, begin, end, said, thread=None):
        self.rows["NVTX_EVENTS"].append((begin, end, 59, None, thread or self.main,
                                         NAMES.index(name), 1,
                                         json.dumps(said) if self.payloads else None))

    def call(self, name, begin, end, thread):
        self.launched += 1
        self.rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append(
            (begin, end, thread, self.launched, NAMES.index(name)))

    def kernel(self, name, asked, begin, length, thread, stream=7, ends=False):
        self.call("cudaLaunchKernel_v7000", asked, asked + 2000, thread)
        self.rows["CUPTI_ACTIVITY_KIND_KERNEL"].append(
            (begin, length if ends else begin + length, self.rank, stream, self.launched, self.pid,
             name, name, 128))

    def copy(self, at):
        self.call("cudaMemcpyAsync_v3020", at, at + 1000, self.main)
        self.rows["CUPTI_ACTIVITY_KIND_MEMCPY"].append(
            (at + 2000, at + 4000, self.rank, 7, self.launched, self.pid, 512, 1))


def write_sqlite(path, rows):
    with sqlite3.connect(path) as database:
        for name, of in rows.items():
            columns = ", ".join(f'"{column}" {"TEXT" if column in TEXTS else "INTEGER"}'
                                for column in COLUMNS[name])
            database.execute(f'CREATE TABLE "{name}" ({columns})')
            marks = ", ".join("?" for _ in COLUMNS[name])
            database.executemany(f'INSERT INTO "{name}" VALUES ({marks})', of)
    database.close()
    return path


def write_folder(path, rows):
    path.mkdir()
    for name, of in rows.items():
        columns = dict(zip(COLUMNS[name], zip(*of, strict=True), strict=True)) if of \
            else {column: [] for column in COLUMNS[name]}
        table = pyarrow.table({column: pyarrow.array(values, "string" if column in TEXTS
                                                     else "int64")
                               for column, values in columns.items()})
        pyarrow.parquet.write_table(table, path / f"{name}.parquet")
    return path
