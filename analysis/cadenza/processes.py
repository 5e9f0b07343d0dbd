# SPDX-License-Identifier: Apache-2.0
"""Work that is shared out to processes, and comes back in order.

The processes are forked, so that they have what was read before and nothing is copied to them;
what they make is small and comes back.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import TypeVar

from cadenza.log import LOG

LARGE = 500_000  # events: of fewer, starting processes takes as long as it saves
_MOST = 4  # processes: each needs memory for a step
_AHEAD = 2  # items of each process that wait for it or for their turn
_MAKE: list[Callable] = []  # in a process that was started here: what it is to do

Item, Made = TypeVar("Item"), TypeVar("Made")


def mapped(make: Callable[[Item], Made], items: Sequence[Item], events: int) -> Iterator[Made]:
    """make(item) of each of `items`, in their order.

    @param events  how many are looked at in all
    """
    count = min(len(items), processors(), _MOST)
    if events < LARGE or count < 2 or "fork" not in multiprocessing.get_all_start_methods():
        yield from map(make, items)
        return
    done = 0
    try:
        for made in in_order(make, items, count):
            done += 1
            yield made
    except BrokenProcessPool:
        LOG.info("a worker process was killed, probably for lack of memory: continuing with one "
                 "process")
    yield from map(make, items[done:])


def in_order(
    make: Callable[[Item], Made], items: Iterable[Item], count: int
) -> Iterator[Made]:
    """make(item) of each of `items`, in their order, by `count` processes: as many items are held
    as keep them busy.

    @throws BrokenProcessPool where a process was killed, and what make() and `items` throw
    """
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(count, fork, _start, (make,)) as pool:
        waiting = deque()
        try:
            for item in items:
                waiting.append(pool.submit(_call, item))
                if len(waiting) > _AHEAD * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def processors() -> int:
    """That this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def _start(make: Callable) -> None:
    """The terminal's status line is a thread of the parent's, which a fork leaves behind."""
    LOG.handlers = []
    _MAKE.append(make)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed cannot say so, and this process would wait for work forever."""
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _call(item: Item) -> object:
    return _MAKE[-1](item)
