# SPDX-License-Identifier: Apache-2.0
"""What a command says beside its results, on stderr: warnings, and what it is doing.

Everybody who works for long says so with LOG.info(). With --verbose these are lines; without, the
latest of them stands on a terminal until the command is over; with --quiet there are none.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from cadenza.files import printable

LOG = logging.getLogger("cadenza")
_PATIENCE = 1.0  # seconds of silence


class _Lines(logging.StreamHandler):
    def __init__(self, program: str) -> None:
        super().__init__(sys.stderr)
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        return f"{self._program}: {record.levelname.lower()}: {printable(record.getMessage())}"


class _StatusLine(logging.Handler):
    """The latest line, with a mark that moves, from when a command is found to take long."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._status = Status("starting", console=console)
        self._start = threading.Timer(_PATIENCE, self._status.start)
        self._start.daemon = True
        self._start.start()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            self._status.update(escape(record.getMessage()))

    def close(self) -> None:
        self._start.cancel()
        self._start.join()
        self._status.stop()
        super().close()


def hide() -> None:
    """Takes the line away: results follow."""
    for handler in LOG.handlers:
        if isinstance(handler, _StatusLine):
            handler.close()


@contextmanager
def shown(program: str, quiet: bool, verbose: bool) -> Iterator[None]:
    """While a command runs, warnings and as much of the rest as the options ask for."""
    lines = _Lines(program)
    lines.setLevel(logging.INFO if verbose else logging.WARNING)
    handlers: list[logging.Handler] = [lines]
    terminal = Console(stderr=True)
    if terminal.is_terminal and not quiet and not verbose:
        handlers.append(_StatusLine(terminal))
    LOG.handlers = handlers
    LOG.setLevel(logging.WARNING if quiet else logging.INFO)
    LOG.propagate = False
    begin, used = time.monotonic(), time.process_time()
    try:
        yield
        LOG.info("took %.1f s, %.1f s of processor time", time.monotonic() - begin,
                 time.process_time() - used)
    finally:
        for handler in handlers:
            handler.close()
        LOG.handlers = []
