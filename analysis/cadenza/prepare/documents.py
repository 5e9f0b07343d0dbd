# SPDX-License-Identifier: Apache-2.0
"""What readers of all kinds of files have in common."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from cadenza.errors import DataError

BLOCK = 1 << 20  # bytes of a file that are encoded at once
LONGEST = 16 << 20  # bytes of a document: tokenizers take 110 times as much to encode it


class Document(NamedTuple):
    place: str  # of the document, for messages
    text: str


class Block(Protocol):
    """Neighbouring documents of a file as they stand there: another process reads them."""

    def documents(self) -> Iterator[Document]:
        """Also empty ones. @throws DataError for what is no text, with its place"""


class Reader(Protocol):
    """A file of documents."""

    def check(self) -> None:
        """@throws DataError where it can be seen at once that the file cannot be read"""

    def blocks(self) -> Iterator[tuple[Block, int]]:
        """The same blocks each time, and how many bytes of the file were read up to the end of
        each. @throws DataError where the file is damaged"""


def check_file(path: Path) -> None:
    """@throws DataError for anything but a regular file: others are not the same when read again"""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if not regular:
        raise DataError(f"{path}: not a file; valid: files, such as FOLDER/*.jsonl")


def decoded(content: bytes, place: str) -> str:
    """@throws DataError for invalid UTF-8"""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: found {content[error.start : error.start + 4]!r} at byte "
                        f"{error.start}; valid: UTF-8") from error
