# SPDX-License-Identifier: Apache-2.0
"""JSON Lines: a line is an object, whose `column` is the text of a document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cadenza.errors import DataError
from cadenza.prepare.compressed import opened
from cadenza.prepare.documents import BLOCK, Document, check_file, decoded
from cadenza.words import shortened

_LONGEST = 32 << 20  # bytes of a line: as objects it may take 30 times as much
_NAMED = 120  # characters of names
_WORDS = {list: "a list", str: "text", int: "a number", float: "a number", bool: "a boolean",
          type(None): "null", dict: "an object"}


@dataclass(frozen=True)
class JsonLines:
    path: Path
    column: str

    def check(self) -> None:
        check_file(self.path)

    def blocks(self) -> Iterator[tuple[_Lines, int]]:
        line, rest = 1, b""
        with opened(self.path) as (content, file):
            while part := content.read(BLOCK):
                lines, newline, after = part.rpartition(b"\n")
                if newline:
                    block = _Lines(self.path, self.column, line, rest + lines)
                    yield block, file.tell()
                    line += block.content.count(b"\n") + 1
                    rest = b""
                rest += after
                if len(rest) > _LONGEST:
                    raise DataError(f"{self.path}:{line}: found a line of more than {_LONGEST} "
                                    "bytes; valid: a shorter one")
            if rest:
                yield _Lines(self.path, self.column, line, rest), file.tell()


@dataclass(frozen=True)
class _Lines:
    path: Path
    column: str
    first: int  # number of the first line
    content: bytes  # without the last line's end

    def documents(self) -> Iterator[Document]:
        """A line without anything on it is an empty document, and so is null."""
        for number, line in enumerate(self.content.split(b"\n"), self.first):
            place = f"{self.path}:{number}"
            text = decoded(line, place)
            yield Document(place, self._text(text, place) if text.strip() else "")

    def _text(self, line: str, place: str) -> str:
        try:
            value = json.loads(line)
        except RecursionError:
            raise DataError(f"{place}: not JSON as it is written here: it nests too deeply") \
                from None
        except ValueError as error:
            raise DataError(f"{place}: not JSON: {error}") from error
        if not isinstance(value, dict):
            raise DataError(f"{place}: found {_WORDS[type(value)]}; valid: a JSON object, with the "
                            f"text in '{self.column}'")
        if self.column not in value:
            raise DataError(f"{place}: has no column '{self.column}'; valid: --column with one of "
                            f"{shortened(', '.join(value), _NAMED) or 'its names (it has none)'}")
        text = value[self.column]
        if not isinstance(text, str | None):
            raise DataError(f"{place}: column '{self.column}' is {_WORDS[type(text)]}; valid: text")
        return text or ""
