# SPDX-License-Identifier: Apache-2.0
"""The peers' side of the line protocol of bench/measure.hpp: one repetition whenever asked."""

import ctypes
import json
import re
import sys
import time

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # <malloc.h>


def keep_big_blocks():
    """glibc gives blocks of more than some MiB back to the system at once, and gets them again
    page by page; a program that trains is better off when it keeps them."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)  # M_MMAP_THRESHOLD ends at 32 MiB, logits are larger
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def peak_rss_bytes():
    """Largest resident memory of this process so far; 0 where the system does not say."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            found = re.search(r"^VmHWM:\s+(\d+) kB", file.read(), re.MULTILINE)
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0


def answer(request, works, make_work, finish):
    """A work is (repeat, flops, report): a function to time, its FLOPs, what else there is to say
    after it."""
    if "prepare" in request:
        works.pop(request["prepare"], None)  # its memory first
        repeat, flops, report = make_work(request["work"])
        works[request["prepare"]] = repeat, report
        return {"flops": flops, **report()}
    if "run" in request:
        repeat, report = works[request["run"]]
        calls = request.get("calls", 1)
        begin = time.perf_counter()
        for _ in range(calls):
            repeat()
        finish()
        seconds = time.perf_counter() - begin
        return {"seconds": seconds / calls, "peak_rss_bytes": peak_rss_bytes(), **report()}
    if "release" in request:
        works.pop(request["release"], None)
        return {}
    raise ValueError(f"valid requests: prepare, run, release; found {request}")


def serve(make_work, finish=lambda: None):
    """Answers requests, one JSON object a line, until standard input ends. finish() waits for what
    repetitions have begun, as devices let them."""
    works = {}
    for line in sys.stdin:
        try:
            result = answer(json.loads(line), works, make_work, finish)
        except Exception as error:  # whoever asked decides what a failure means
            result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), flush=True)
