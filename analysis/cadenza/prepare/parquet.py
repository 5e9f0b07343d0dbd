# SPDX-License-Identifier: Apache-2.0
"""Parquet: a row is a document, `column` its text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cadenza.errors import DataError
from cadenza.prepare.documents import BLOCK, Document, check_file, decoded
from cadenza.prepare.packages import package
from cadenza.words import shortened

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

_ROWS = 16  # that are read at once: each may be a long document
_BUFFER = 1 << 20  # bytes: without one, a column of a row group is read whole
_NAMED = 120  # characters of names and messages


@dataclass(frozen=True)
class Parquet:
    path: Path
    column: str

    def check(self) -> None:
        check_file(self.path)
        with self._opened() as file:
            schema = file.schema_arrow
            if self.column not in schema.names:
                names = shortened(", ".join(schema.names), _NAMED)
                raise DataError(f"{self.path}: has no column '{self.column}'; valid: --column with "
                                f"one of {names or 'its names (it has none)'}")
            found = schema.field(schema.names.index(self.column)).type
            if not _is_text(found):
                raise DataError(f"{self.path}: column '{self.column}' is "
                                f"{shortened(str(found), _NAMED)}; valid: text")

    def blocks(self) -> Iterator[tuple[_Rows, int]]:
        binary = package("pyarrow").large_binary()
        text = package("pyarrow").large_string()
        size = self.path.stat().st_size
        first, rows, held = 1, [], 0
        with self._opened() as file:
            count = max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(_ROWS, columns=[self.column], use_threads=False):
                for value in batch.column(0).cast(text).cast(binary).to_pylist():
                    rows.append(value)
                    held += len(value or b"")
                    if held >= BLOCK:
                        block = _Rows(self.path, first, rows)
                        first, rows, held = first + len(rows), [], 0
                        yield block, min(size * first // count, size)
            if rows:
                yield _Rows(self.path, first, rows), size

    @contextmanager
    def _opened(self) -> Iterator[ParquetFile]:
        """@throws DataError, also while it is read"""
        arrow = package("pyarrow")
        try:
            with package("pyarrow.parquet").ParquetFile(self.path, buffer_size=_BUFFER) as file:
                yield file
        except (OSError, arrow.ArrowException, UnicodeDecodeError) as error:
            why = shortened(str(error).partition("\n")[0], _NAMED)
            raise DataError(f"{self.path}: not a parquet file, or damaged: {why}") from error


def _is_text(found: object) -> bool:
    types = package("pyarrow").types
    if types.is_dictionary(found):
        found = found.value_type
    return types.is_string(found) or types.is_large_string(found) or types.is_string_view(found)


@dataclass(frozen=True)
class _Rows:
    path: Path
    first: int  # number of the first row
    values: list[bytes | None]

    def documents(self) -> Iterator[Document]:
        """A row without a value is an empty document."""
        for number, value in enumerate(self.values, self.first):
            place = f"{self.path}: row {number}"
            yield Document(place, decoded(value or b"", place))
