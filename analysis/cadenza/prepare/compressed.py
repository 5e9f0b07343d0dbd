# SPDX-License-Identifier: Apache-2.0
"""Files that may be compressed, as streams of bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from cadenza.errors import DataError
from cadenza.prepare.packages import package

METHODS = {".gz": "gzip", ".zst": "zstd"}


class Opened(NamedTuple):
    content: BinaryIO  # without the compression
    file: BinaryIO  # as it is, for how far it was read


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """@throws DataError, also while it is read: the file is damaged or cut short"""
    method = METHODS.get(path.suffix)
    arrow = package("pyarrow") if method else None
    try:
        with path.open("rb") as file:
            if method is None:
                yield Opened(file, file)
                return
            with arrow.CompressedInputStream(file, method) as content:
                # Arrow's own read() loses its memory where it fails.
                yield Opened(io.BufferedReader(content), file)
    except OSError as error:  # also Arrow's
        damaged = f"{method} is damaged or cut short: " if method and not error.errno else ""
        why = error.strerror or str(error).partition("\n")[0]
        raise DataError(f"{path}: {damaged or 'cannot be read: '}{why}") from error
