# SPDX-License-Identifier: Apache-2.0
"""The processes of a run, seen from outside: which they are, how far they are, what takes their
core."""

import contextlib
import ctypes
import os
import select
import threading
import time
from pathlib import Path

from lib.command import TIMEOUT, RunError

_MODIFIED = 2  # IN_MODIFY of inotify


def rank_processes(launcher):
    """Process of each rank below a launcher, by rank."""
    children = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found, below = {}, [launcher]
    for process in below:
        below += children.get(process, [])
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            ranks = [v for v in variables if v.startswith((b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK="))]
            if ranks:
                found[int(ranks[0].partition(b"=")[2])] = process
    return found


def wait_for_steps(process, folder, count):
    """@returns when it was seen that `count` steps are over"""
    metrics = folder / "run/metrics.jsonl"
    end = time.monotonic() + TIMEOUT
    while not metrics.exists() or metrics.read_text().count("\n") < count:
        if process.poll() is not None or time.monotonic() > end:
            raise RunError(f"ended before step {count}")
        time.sleep(0.005)
    return time.monotonic()


class Writes:
    """The files, each as soon as it is written to."""

    def __init__(self, files):
        libc = ctypes.CDLL(None, use_errno=True)
        self._files = {}
        for file in files:
            descriptor = libc.inotify_init1(os.O_CLOEXEC)
            self._files[descriptor] = file
            if libc.inotify_add_watch(descriptor, os.fsencode(file), _MODIFIED) < 0:
                raise RunError(f"{file}: {os.strerror(ctypes.get_errno())}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for descriptor in self._files:
            os.close(descriptor)

    def __iter__(self):
        left = set(self._files)
        while left:
            written = select.select(left, [], [], TIMEOUT)[0]
            if not written:
                raise RunError("a trace is not written to")
            left -= set(written)
            yield from (self._files[descriptor] for descriptor in written)


@contextlib.contextmanager
def at_once():
    """This thread gets a core when it wants one, where that is allowed: a step's trace is written
    in less time than ranks keep a core for."""
    usual = os.sched_getscheduler(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, usual, os.sched_param(0))


class Waits:
    """Watches what share of the time each rank was ready to run, but had no core, as the kernel
    counts it. A rank that waits for messages is ready all the time, too."""

    def __init__(self, process, folder):
        self._seen = {}
        self._thread = threading.Thread(target=self._watch, args=(process, folder), daemon=True)
        self._thread.start()

    def shares(self):
        """By rank, since the first step; at the end of the run."""
        self._thread.join()
        return {rank: round((last[1] - first[1]) / max(sum(last) - sum(first), 1), 4)
                for rank, (first, last) in sorted(self._seen.items())}

    def _watch(self, process, folder):
        with contextlib.suppress(RunError):
            wait_for_steps(process, folder, 1)
        ranks = rank_processes(process.pid)
        while process.poll() is None:
            for rank, number in ranks.items():
                with contextlib.suppress(OSError):
                    text = Path(f"/proc/{number}/schedstat").read_text()
                    times = [int(word) for word in text.split()[:2]]
                    self._seen.setdefault(rank, [times, times])[1] = times
            time.sleep(0.05)
