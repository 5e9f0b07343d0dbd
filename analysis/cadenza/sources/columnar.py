# SPDX-License-Identifier: Apache-2.0
"""Parquet and Arrow files at the first look: which columns they name, without a library's help."""

from __future__ import annotations

import os
from pathlib import Path

_PARQUET, _ARROW = b"PAR1", b"ARROW1\0\0"
_MOST = 1 << 27  # bytes of what names the columns, beside which a file may list its groups


def columns_part(path: Path) -> bytes | None:
    """The part of the file that names its columns; b"" where the file is cut short of it; None: it
    is no such file, or cannot be opened."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(_ARROW))
            if begin == _ARROW:  # then a mark and the length of the schema
                length, at = int.from_bytes(file.read(8)[4:], "little"), len(_ARROW) + 8
            elif begin.startswith(_PARQUET):
                end = file.seek(0, os.SEEK_END)
                file.seek(max(end - 8, 0))
                tail = file.read(8)
                length = int.from_bytes(tail[:4], "little") if tail.endswith(_PARQUET) else 0
                at = end - 8 - length
            else:
                return None
            if not 0 < length <= _MOST or at < 0:
                return b""
            file.seek(at)
            part = file.read(length)
    except OSError:
        return None
    return part if len(part) == length else b""
