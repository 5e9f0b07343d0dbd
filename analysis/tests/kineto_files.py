# SPDX-License-Identifier: Apache-2.0
"""Files in the format of PyTorch's profiler, in which every time can be worked out by hand."""

import gzip
import json

BASE = 1_790_000_000_000_000_000  # ns that are added to all times of a file
MAIN, BACK = 100, 101  # threads: of the model, of the pass back
COMPUTE, MOVE = 7, 20  # streams
NODE = "autograd::engine::evaluate_function: "


class Recording:
    """Events of one rank. Times are microseconds behind BASE."""

    def __init__(self):
        self.events = [
            {"name": "process_name", "ph": "M", "ts": 0, "pid": 9, "tid": 0,
             "args": {"name": "python"}},
            {"name": "process_labels", "ph": "M", "ts": 0, "pid": 0, "tid": 0,
             "args": {"labels": "GPU 0"}}]
        self._launches = 0

    def host(self, name, begin, length, thread=MAIN, kind="cpu_op", **args):
        """Something that the process does."""
        self.events.append({"ph": "X", "cat": kind, "name": name, "pid": 9, "tid": thread,
                            "ts": begin, "dur": length, "args": {"External id": 1, **args}})

    def range(self, name, begin, length, thread=MAIN):
        self.host(name, begin, length, thread, "user_annotation")

    def kernel(self, name, launched, begin, length, thread=MAIN, stream=COMPUTE, kind="kernel",
               **args):
        """Something that a device does, which the process launched."""
        self._launches += 1
        link = {"correlation": self._launches}
        self.host("cudaLaunchKernel", launched, 2, thread, "cuda_runtime", **link)
        self.events += [
            {"ph": "s", "id": self._launches, "pid": 9, "tid": thread, "ts": launched,
             "cat": "ac2g", "name": "ac2g"},
            {"ph": "X", "cat": kind, "name": name, "pid": 0, "tid": stream, "ts": begin,
             "dur": length, "args": {"device": 0, "stream": stream, **link, "grid": [8, 1, 1],
                                     "est. achieved occupancy %": 0, **args}},
            {"ph": "f", "id": self._launches, "pid": 0, "tid": stream, "ts": begin, "bp": "e",
             "cat": "ac2g", "name": "ac2g"}]

    def memory(self, at, allocated, device=1):
        self.events.append({
            "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 9,
            "tid": MAIN, "ts": at, "args": {"Total Allocated": allocated, "Device Type": device}})


def collective(name, elements, group="0", ranks=(0, 1), dtype="BFloat16", **more):
    """What an event says of a collective."""
    return {"Collective name": name, "In msg nelems": elements, "Out msg nelems": elements,
            "Group size": len(ranks), "dtype": dtype, "Process Group Name": group,
            "Process Group Description": "default_pg", "Process Group Ranks": str(list(ranks)),
            **more}


def training(steps=2, first=3):
    """Steps of 1000 us: a product, attention, their passes back, a collective, the optimizer."""
    made = Recording()
    for number in range(steps):
        t = 1000 * number
        made.range(f"ProfilerStep#{first + number}", t, 1000)
        made.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", t + 10, 40)
        made.kernel("Memcpy HtoD (Pageable -> Device)", t + 52, t + 60, 5, kind="gpu_memcpy",
                    bytes=4096)
        made.host("aten::linear", t + 100, 20, **{"Sequence number": 1, "Fwd thread id": 0})
        made.kernel("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", t + 105, t + 120, 100.5)
        made.kernel("void pytorch_flash::flash_fwd_kernel<x{y}>", t + 130, t + 221, 50)
        made.host(NODE + "AddmmBackward0", t + 200, 60, BACK,
                  **{"Sequence number": 1, "Fwd thread id": 1})
        made.kernel("void pytorch_flash::flash_bwd_dq_dk_dv_loop_kernel", t + 205, t + 280, 120,
                    BACK)
        made.kernel("my_own_kernel", t + 215, t + 400, 10.125, BACK)
        said = collective("allreduce", 1000, Seq=40 + number)
        made.host("record_param_comms", t + 225, 20, BACK, **said)
        made.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", t + 230, t + 401, 200, BACK,
                    MOVE, **said)
        made.range("Optimizer.step#AdamW.step", t + 600, 100)
        made.kernel("void at::native::reduce_kernel<512>", t + 610, t + 620, 10)
        made.kernel("multi_tensor_apply_kernel", t + 630, t + 640, 20)
        made.host("cudaDeviceSynchronize", t + 720, 30, kind="cuda_runtime", correlation=10**6 + t)
        made.memory(t + 300, 1000 + number)
        made.memory(t + 500, 500)
    return made


def document(events, rank=0, world=2, **beside):
    return {"schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 1}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world,
                                "pg_config": [{"pg_name": "0", "pg_desc": "default_pg",
                                               "ranks": list(range(world))}]},
            "traceEvents": events, "traceName": "x.json", "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE, **beside}


def write(path, content):
    """@param content  text, or what is written as JSON"""
    text = content if isinstance(content, str) else json.dumps(content)
    data = text.encode("utf-8", "surrogateescape")
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


def layouts(content):
    """The same JSON as different programs write it."""
    yield json.dumps(content, separators=(",", ":"))
    yield json.dumps(content, ensure_ascii=False)
    yield json.dumps(content, indent=2)
    yield json.dumps(content, separators=("\n , \r\n\t", " :\n"))
