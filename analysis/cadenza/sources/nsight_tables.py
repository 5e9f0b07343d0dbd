# SPDX-License-Identifier: Apache-2.0
"""Tables of an export of Nsight Systems: an SQLite file, or a folder with a parquet file of each.

    nsys export -t sqlite report.nsys-rep        nsys export -t parquetdir report.nsys-rep
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import numpy as np

from cadenza.errors import DataError
from cadenza.files import printable
from cadenza.prepare.documents import check_file
from cadenza.prepare.packages import package
from cadenza.words import shortened

MOST_ROWS = 1 << 24  # of a table
LONGEST = 1 << 20  # bytes of a text
_MAGIC = b"SQLite format 3\0"
_ENDINGS = (".sqlite", ".sqlite3", ".db")
_STRINGS = "StringIds"
_QUOTED = 120  # letters of what a message quotes
_OPERATIONS = 1 << 32  # of SQLite's machine for one file: some minutes


class Tables(Protocol):
    def read(
        self, table: str, numbers: Sequence[str], texts: Sequence[str] = ()
    ) -> dict[str, np.ndarray]:
        """Columns of a table: int64, and objects that are str. Where a column or a value is missing
        it is -1 or ""; of a table that is missing they have no rows.

        @throws DataError for other values, or too many rows
        """


def claims(path: Path) -> bool:
    """Whether it may be an export, by its name and first bytes."""
    if path.is_dir():
        return (path / f"{_STRINGS}.parquet").is_file()
    if path.suffix.lower() not in _ENDINGS or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


@contextmanager
def opened(path: Path) -> Iterator[Tables]:
    """@throws DataError, also while tables are read"""
    arrow = package("pyarrow")
    try:
        if path.is_dir():
            yield _Folder(path)
        else:
            check_file(path)
            with closing(_connected(path)) as database:
                yield _Database(path, database)
    except (sqlite3.Error, OSError, arrow.ArrowException, UnicodeDecodeError) as error:
        why = shortened(printable(str(error).partition("\n")[0]), _QUOTED)
        raise DataError(f"{path}: no export of Nsight Systems, cut short or damaged: "
                        f"{why}") from error


def _connected(path: Path) -> sqlite3.Connection:
    """Nothing is written, not even a journal, and the file's own SQL may call no function that
    could do harm."""
    database = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    database.text_factory = lambda text: text.decode(errors="replace")
    for setting in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
        database.execute(f"PRAGMA {setting}")
    if hasattr(database, "setlimit"):  # Python 3.11
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    turns = iter(range(_OPERATIONS >> 20))
    database.set_progress_handler(lambda: next(turns, None) is None, 1 << 20)
    return database


class _Database:
    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._path, self._database = path, database

    def read(
        self, table: str, numbers: Sequence[str], texts: Sequence[str] = ()
    ) -> dict[str, np.ndarray]:
        there = self._columns(table, [*numbers, *texts])
        rows = self._rows(table, there) if there else []
        given = dict(zip(there, zip(*rows, strict=True))) if rows else {}
        return _completed(f"{self._path}: {table}", len(rows), given, numbers, texts)

    def _columns(self, table: str, names: Sequence[str]) -> list[str]:
        """Those that a table has, without generated ones: neither they nor a view are stored, but
        computed as the file says."""
        stored = self._database.execute(
            "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ? AND rootpage > 0",
            (table,)).fetchone()
        known = {row[1] for row in self._database.execute(f'PRAGMA table_info("{table}")')}
        return [name for name in names if name in known] if stored else []

    def _rows(self, table: str, names: Sequence[str]) -> list[tuple]:
        columns = ", ".join(f'"{name}"' for name in names)
        cursor = self._database.execute(f'SELECT {columns} FROM "{table}"')
        rows = cursor.fetchmany(MOST_ROWS + 1)
        _check_count(f"{self._path}: {table}", len(rows))
        return rows


class _Folder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(
        self, table: str, numbers: Sequence[str], texts: Sequence[str] = ()
    ) -> dict[str, np.ndarray]:
        path = self._path / f"{table}.parquet"
        if not path.exists():
            return _completed(str(path), 0, {}, numbers, texts)
        check_file(path)
        with package("pyarrow.parquet").ParquetFile(path) as file:
            _check_count(str(path), file.metadata.num_rows)
            names = file.schema_arrow.names
            there = [name for name in (*numbers, *texts) if name in names]
            if any(names.count(name) > 1 for name in there):
                raise DataError(f"{path}: has a column several times")
            found = file.read(columns=there, use_threads=False)
        given = {name: found.column(name).to_pylist() for name in there}
        return _completed(str(path), found.num_rows, given, numbers, texts)


def _completed(
    place: str, rows: int, given: Mapping[str, Sequence], numbers: Sequence[str],
    texts: Sequence[str],
) -> dict[str, np.ndarray]:
    found = {name: _whole(f"{place}.{name}", given[name]) if name in given
             else np.full(rows, -1, np.int64) for name in numbers}
    return found | {name: _words(given[name]) if name in given else np.full(rows, "", object)
                    for name in texts}


def _whole(place: str, values: Sequence) -> np.ndarray:
    found = np.array([-1 if value is None else value for value in values] or np.zeros(0, np.int64))
    if found.dtype.kind != "i" or found.ndim != 1:
        raise DataError(f"{place} holds values that are no whole numbers")
    return found


def _words(values: Sequence) -> np.ndarray:
    found = np.empty(len(values), object)
    found[:] = [value if isinstance(value, str) else "" for value in values]
    return found


def _check_count(place: str, rows: int) -> None:
    if rows > MOST_ROWS:
        raise DataError(f"{place} has {rows} rows or more; valid: at most {MOST_ROWS}")
