# SPDX-License-Identifier: Apache-2.0
"""Plain text: a file is a document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cadenza.errors import DataError
from cadenza.prepare.compressed import opened
from cadenza.prepare.documents import LONGEST, Document, check_file, decoded


@dataclass(frozen=True)
class Text:
    path: Path

    def check(self) -> None:
        check_file(self.path)

    def blocks(self) -> Iterator[tuple[_Whole, int]]:
        with opened(self.path) as (content, file):
            found = content.read(LONGEST + 1)
            if len(found) > LONGEST:
                raise DataError(f"{self.path}: found more than {LONGEST} bytes; valid: a file is a "
                                "document, so split it, or give JSON Lines")
            yield _Whole(self.path, found), file.tell()


@dataclass(frozen=True)
class _Whole:
    path: Path
    content: bytes

    def documents(self) -> Iterator[Document]:
        yield Document(str(self.path), decoded(self.content, str(self.path)))
