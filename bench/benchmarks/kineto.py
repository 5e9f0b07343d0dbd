# SPDX-License-Identifier: Apache-2.0
"""Traces of PyTorch's profiler: time and memory of reading a large file, or a run of many ranks."""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lib import options, tables

ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
sys.path[:0] = [str(ANALYSIS), str(ANALYSIS / "tests")]

import kineto_files  # noqa: E402

from cadenza.sources.kineto import KINETO  # noqa: E402

KERNELS = 4000  # of a step
STEP = 1_000_000  # us
BEGIN = 5_257_054_646_076.354  # us, since the time that the file adds
# What the profiler says of each kernel, beside its link.
OF_KERNEL = {"External id": 57541, "queued": 0, "device": 0, "context": 1,
             "registers per thread": 40, "shared memory": 400, "blocks per SM": 4.740741,
             "warps per SM": 75.851852, "grid": [512, 1, 1], "block": [512, 1, 1],
             "est. achieved occupancy %": 75}
NAMES = ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT",
         "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, "
         "64, 4, false, false, cutlass::bfloat16_t>>(pytorch_flash::Flash_fwd_params)",
         "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float,"
         " float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int)",
         "triton_poi_fused_add_mul_7")


def parse():
    parser = options.parser("kineto", __doc__)
    parser.add_argument("--megabytes", type=int, default=500, help="of the file, uncompressed")
    parser.add_argument("--file", type=Path, help="a trace that is there already")
    parser.add_argument("--ranks", type=int, default=1,
                        help="more than 1: that many files, imported, and the report")
    return parser.parse_args()


def a_step():
    """Events of a step, about as many of each kind for a kernel as in traces of training."""
    made = kineto_files.Recording()
    made.range("ProfilerStep#1", BEGIN, STEP)
    for number in range(KERNELS):
        at = BEGIN + number * STEP / KERNELS
        thread = kineto_files.BACK if number > KERNELS // 2 else kineto_files.MAIN
        outer = kineto_files.NODE + "MmBackward0" if thread == kineto_files.BACK else "aten::linear"
        for depth, name in enumerate((outer, "aten::mm", "aten::empty", "aten::view", "aten::t")):
            made.host(name, at + depth, 100 - 10 * depth, thread,
                      **{"Record function id": number, "Ev Idx": number, "Sequence number": number,
                         "Fwd thread id": int(thread == kineto_files.BACK)})
        for call in ("cudaStreamIsCapturing", "cudaOccupancyMaxActiveBlocks"):
            made.host(call, at + 20, 1, thread, "cuda_runtime", correlation=-1, cbid=317)
        if number % 40:
            made.kernel(NAMES[number % len(NAMES)], at + 30, at + 60, 150, thread, **OF_KERNEL)
        else:
            said = kineto_files.collective("allreduce", 26214400, ranks=tuple(range(64)),
                                           Seq=number)
            made.host("record_param_comms", at + 25, 20, thread, **said)
            made.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)",
                        at + 30, at + 60, 150, thread, kineto_files.MOVE, **OF_KERNEL, **said)
    return made.events


def write(path, megabytes, rank=0):
    """One step again and again, later each time."""
    text = ",\n  ".join(json.dumps(event) for event in a_step())
    numbers = re.compile(r'("ts": |"correlation": |ProfilerStep#|"Seq": )(\d+)')
    later = {'"ts": ': STEP, '"correlation": ': KERNELS, "ProfilerStep#": 1, '"Seq": ': KERNELS}
    document = kineto_files.document([])
    document["distributedInfo"] |= {"rank": rank, "world_size": 64}
    head, tail = json.dumps(document).split("[], \"traceName\"")
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{head}[\n  ")
        number = 0
        while file.tell() < megabytes * 1e6:
            file.write(",\n  " * bool(number) + numbers.sub(
                lambda match, n=number: f"{match[1]}{int(match[2]) + n * later[match[1]]}", text))
            number += 1
        file.write(f'\n], "traceName"{tail}')


def of_run(folder, ranks, megabytes):
    """What a user waits for: the import of all ranks, and the report."""
    traces, run = folder / "traces", folder / "run"
    traces.mkdir()
    write(traces / "rank0_trace.json", megabytes)
    head, _, rest = (traces / "rank0_trace.json").read_text().partition('"rank": 0')
    for rank in range(1, ranks):
        (traces / f"rank{rank}_trace.json").write_text(f'{head}"rank": {rank}{rest}')
    rows = []
    for words in (("import", str(traces), "--output", str(run)), ("report", str(run))):
        begin = time.monotonic()
        command = [sys.executable, "-m", "cadenza.cli", *words]
        running = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ANALYSIS)})
        most = 0.0
        while running.poll() is None:
            most = max(most, sum(map(own_megabytes, family(running.pid))))
            time.sleep(0.1)
        assert running.returncode == 0, words
        rows.append([words[0], f"{time.monotonic() - begin:.1f}", f"{most:.0f}"])
    total = sum(file.stat().st_size for file in traces.glob("*.json")) / 1e9
    print(f"{ranks} files, {total:.2f} GB")
    tables.show(*tables.head(["", "wall s", "most MB of all processes"]),
                *(tables.row(row) for row in rows))


def family(pid):
    """The process and its children."""
    found = [pid]
    for one in found:
        try:
            text = Path(f"/proc/{one}/task/{one}/children").read_text()
        except OSError:
            continue
        found += [int(child) for child in text.split()]
    return found


def own_megabytes(pid):
    """Of a process, what it shares divided by those that share it."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1]) / 1024


def main():
    chosen = parse()
    if chosen.ranks > 1:
        with tempfile.TemporaryDirectory() as folder:
            of_run(Path(folder), chosen.ranks, chosen.megabytes)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = chosen.file or Path(folder) / "rank0_trace.json"
        if not chosen.file:
            write(path, chosen.megabytes)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        wall, processor = time.monotonic(), time.process_time()
        ranks = KINETO.read(path)
        wall, processor = time.monotonic() - wall, time.process_time() - processor
        megabytes = path.stat().st_size / 1e6
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        tables.show(
            *tables.head(["file MB", "rows", "wall s", "processor s", "MB per processor second",
                          "MB of memory before", "most MB"]),
            tables.row([f"{megabytes:.0f}", sum(len(rank.events) for rank in ranks),
                        f"{wall:.1f}", f"{processor:.1f}", f"{megabytes / processor:.0f}",
                        f"{before:.0f}", f"{memory:.0f}"]))


if __name__ == "__main__":
    main()
