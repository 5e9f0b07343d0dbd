# SPDX-License-Identifier: Apache-2.0
"""Steps of a large run are looked at side by side, in as many processes as there are processors.

The processes are forked, so that they have what was read before and nothing is copied to them;
what they make of a step is small and comes back.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from cadenza.log import LOG

LARGE = 500_000  # events: of fewer, starting processes takes as long as it saves
_MOST = 4  # processes: each needs memory for a step
_MAKE: list[Callable] = []  # in a process that was started here: what it is to do

Item, Made = TypeVar("Item"), TypeVar("Made")


def mapped(make: Callable[[Item], Made], items: Sequence[Item], events: int) -> Iterator[Made]:
    """make(item) of each of `items`, in their order.

    @param events  how many are looked at in all
    """
    count = min(len(items), _processors(), _MOST)
    if events < LARGE or count < 2 or "fork" not in multiprocessing.get_all_start_methods():
        yield from map(make, items)
        return
    done = 0
    with ProcessPoolExecutor(count, multiprocessing.get_context("fork"), _start, (make,)) as pool:
        try:
            for made in pool.map(_call, items):
                done += 1
                yield made
        except BrokenProcessPool:
            LOG.info("a worker process was killed, probably for lack of memory: continuing with "
                     "one process")
    yield from map(make, items[done:])


def _processors() -> int:
    """That this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def _start(make: Callable) -> None:
    """The terminal's status line is a thread of the parent's, which a fork leaves behind."""
    LOG.handlers = []
    _MAKE.append(make)


def _call(item: Item) -> object:
    return _MAKE[-1](item)
