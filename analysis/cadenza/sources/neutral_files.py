# SPDX-License-Identifier: Apache-2.0
"""The neutral format: files of Arrow or parquet with the columns of `neutral`, read and written.

A file may tell of several ranks, and a rank be told of in several files. What a file says once
stands in its key-value metadata, as METADATA names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from cadenza.errors import DataError
from cadenza.files import printable, written
from cadenza.prepare.documents import check_file
from cadenza.prepare.packages import package
from cadenza.sources.columnar import columns_part
from cadenza.sources.metadata import MOST_RANKS, Metadata, metadata_of, metadata_text
from cadenza.sources.neutral import COLUMNS, KINDS, NO_LENGTHS, PHASES, Lengths, RankTrace, Source
from cadenza.words import shortened

if TYPE_CHECKING:
    import pyarrow

PARQUET, ARROW = (".parquet",), (".arrow", ".feather")
REQUIRED = ("rank", "begin_ns", "end_ns", "kind")
_OWN = b"begin_ns"  # a column that files of other kinds do not have
MOST_ROWS = 1 << 24  # of a file, in memory at once
LATEST_NS = 1 << 61  # of both signs: differences of two times are numbers, too
_QUOTED = 120  # letters of what a message quotes
_LONGEST_NAME = 1 << 16  # letters
_LONGEST_LIST = 1 << 23  # letters of numbers, of every rank or document
_MOST_FLOPS = 1e30
_LIST = re.compile(r"\d{1,18}(,\d{1,18})*")
_WORDS = {"kind": KINDS, "phase": PHASES}
_LISTS = ("members", "lengths")
_TIMES = ("begin_ns", "end_ns", "enqueued_ns")
_COUNTS = ("step", "sequence", "bytes", "still_ns", "microbatch", "layer")  # -1: not known


def is_named_so(path: Path) -> bool:
    return path.suffix.lower() in PARQUET + ARROW and path.is_file()


def claims(path: Path) -> bool:
    """Whether its columns are those of a trace; where it is cut short of their names, perhaps."""
    columns = columns_part(path) if is_named_so(path) else None
    return columns == b"" or (columns is not None and _OWN in columns)


def read(path: Path, _: Lengths = NO_LENGTHS) -> list[RankTrace]:
    """One trace per rank, in their order.

    @throws DataError for what is no such file, is cut short, or has values that cannot be
    """
    check_file(path)
    columns = {name: (_Texts if kind == "category" else _Numbers)(path, name)
               for name, (kind, _) in COLUMNS.items()}
    with _opened(path) as (schema, parts):
        _check_schema(path, schema)
        about = metadata_of(str(path), schema.metadata or {})
        for part in parts:
            for name, column in columns.items():
                column.add(part.column(name) if name in schema.names else None, part.num_rows)
    events = pd.DataFrame({name: column.values() for name, column in columns.items()}, copy=False)
    _check_rows(path, events, about.world or MOST_RANKS)
    return _by_rank(events, about)


def write(trace: RankTrace, path: Path) -> None:
    """All of the trace, in a file that is complete when it has its name.

    @param path  its ending says in which format
    @throws DataError where nothing can be written
    """
    table = package("pyarrow").Table.from_pandas(trace.events[list(COLUMNS)], preserve_index=False)
    table = table.replace_schema_metadata(metadata_text(trace))
    with written(path) as file:
        if path.suffix.lower() in PARQUET:
            package("pyarrow.parquet").write_table(table, file)
        else:
            with package("pyarrow.ipc").new_file(file, table.schema) as out:
                out.write_table(table)


# Opening

@contextmanager
def _opened(path: Path) -> Iterator[tuple[pyarrow.Schema, Iterator]]:
    """Schema, and parts of the rows. @throws DataError, also while parts are read"""
    arrow = package("pyarrow")
    try:
        with (_opened_parquet if path.suffix.lower() in PARQUET else _opened_arrow)(path) as file:
            yield file
    except (OSError, arrow.ArrowException, UnicodeDecodeError) as error:
        why = shortened(printable(str(error).partition("\n")[0]), _QUOTED)
        raise DataError(f"{path}: no {path.suffix[1:]} file, cut short or damaged: "
                        f"{why}") from error


@contextmanager
def _opened_parquet(path: Path) -> Iterator[tuple[pyarrow.Schema, Iterator]]:
    parquet = package("pyarrow.parquet")
    metadata = parquet.read_metadata(path)
    _check_count(path, metadata.num_rows)
    there = {metadata.schema.column(at).path for at in range(len(metadata.schema))}
    texts = [name for name, (kind, _) in COLUMNS.items() if kind == "category" and name in there]
    with parquet.ParquetFile(path, metadata=metadata, read_dictionary=texts) as file:
        schema = file.schema_arrow
        names = [name for name in schema.names if name in COLUMNS]
        groups = range(file.metadata.num_row_groups)
        yield schema, (file.read_row_group(group, columns=names, use_threads=False)
                       for group in groups)


@contextmanager
def _opened_arrow(path: Path) -> Iterator[tuple[pyarrow.Schema, Iterator]]:
    ipc = package("pyarrow.ipc")
    with path.open("rb") as file:
        schema = ipc.open_file(file).schema
        wanted = [at for at, name in enumerate(schema.names) if name in COLUMNS]
        options = ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
        yield schema, _batches(path, ipc.open_file(file, options=options))


def _batches(path: Path, reader: pyarrow.RecordBatchFileReader) -> Iterator[pyarrow.RecordBatch]:
    rows = 0
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        batch.validate(full=True)
        rows += batch.num_rows
        _check_count(path, rows)
        yield batch


def _check_count(path: Path, rows: int) -> None:
    if rows > MOST_ROWS:
        raise DataError(f"{path}: has {rows} rows or more; valid: at most {MOST_ROWS} in a file; a "
                        "rank may have several files")


def _check_schema(path: Path, schema: pyarrow.Schema) -> None:
    types = package("pyarrow").types
    missing = [name for name in REQUIRED if name not in schema.names]
    if missing:
        raise DataError(f"{path}: has no column '{missing[0]}'; valid: the columns of "
                        "docs/other_traces.md")
    for name, (kind, _) in COLUMNS.items():
        if schema.names.count(name) > 1:
            raise DataError(f"{path}: has column '{name}' {schema.names.count(name)} times")
        if name not in schema.names:
            continue
        found = schema.field(name).type
        inner = found.value_type if types.is_dictionary(found) else found
        fits = types.is_integer(found) if kind.startswith("int") else \
            types.is_integer(found) or types.is_floating(found) if kind == "float64" else \
            types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner)
        if not fits:
            raise DataError(f"{path}: column '{name}' is {shortened(str(found), _QUOTED)}; valid: "
                            f"{'text' if kind == 'category' else kind}")


# Values

class _Numbers:
    """A column of numbers, part by part."""

    def __init__(self, path: Path, name: str) -> None:
        self._place, self._required = f"{path}: column '{name}'", name in REQUIRED
        self._kind, self._default = COLUMNS[name]
        self._parts: list[np.ndarray] = []

    def add(self, values: pyarrow.ChunkedArray | None, rows: int) -> None:
        """@throws DataError where a number is missing or too large"""
        if values is None:
            self._parts.append(np.full(rows, self._default, self._kind))
            return
        if values.null_count and self._required:
            raise DataError(f"{self._place} lacks {values.null_count} values")
        try:
            values = values.cast(self._kind)
        except package("pyarrow").ArrowInvalid:
            raise DataError(f"{self._place} has a number that is no {self._kind}") from None
        self._parts.append(values.fill_null(self._default).to_numpy())

    def values(self) -> np.ndarray:
        return np.concatenate(self._parts) if self._parts else np.empty(0, self._kind)


class _Texts:
    """A column of texts, part by part, as codes of the different ones."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._codes: dict[str, int] = {}
        self._parts: list[np.ndarray] = []

    def add(self, values: pyarrow.ChunkedArray | None, rows: int) -> None:
        if values is None:
            self._parts.append(np.full(rows, self._code(None), np.int32))
            return
        types = package("pyarrow").types
        for part in getattr(values, "chunks", [values]):
            part = part if types.is_dictionary(part.type) else part.dictionary_encode()
            texts = [*part.dictionary.to_pylist(), None]
            codes = np.array([self._code(text) for text in texts], np.int32)
            at = part.indices.cast("int64").fill_null(len(texts) - 1).to_numpy()
            self._parts.append(codes[at])

    def _code(self, text: str | None) -> int:
        text = COLUMNS[self._name][1] if text is None else text
        return self._codes.setdefault(text, len(self._codes))

    def values(self) -> pd.Categorical:
        """@throws DataError for a text that this column cannot have"""
        codes = np.concatenate([np.empty(0, np.int32), *self._parts])
        texts = list(self._codes)
        for code in np.flatnonzero(np.bincount(codes, minlength=len(texts))):
            valid = _wrong(self._name, texts[code])
            if valid:
                row = int(np.argmax(codes == code))
                shown = shortened(printable(texts[code]), _QUOTED)
                raise DataError(f"{self._path}: row {row}: found {self._name} '{shown}'; valid: "
                                f"{valid}")
        return pd.Categorical.from_codes(codes, texts)


def _wrong(name: str, text: str) -> str:
    """What would be right in this column where the text is not; else ""."""
    if name in _WORDS:
        return "" if text in _WORDS[name] else ", ".join(_WORDS[name])
    if name in _LISTS:
        right = len(text) <= _LONGEST_LIST and (not text or _LIST.fullmatch(text))
        return "" if right else "numbers with commas between them"
    return "" if len(text) <= _LONGEST_NAME else f"at most {_LONGEST_NAME} letters"


def _check_rows(path: Path, events: pd.DataFrame, world: int) -> None:
    ranges = dict.fromkeys(_TIMES, (-LATEST_NS, LATEST_NS)) \
        | dict.fromkeys(_COUNTS, (-1, LATEST_NS)) \
        | {"rank": (0, world - 1), "peer": (-1, world - 1), "flops": (0, _MOST_FLOPS)}
    for name, (least, most) in ranges.items():
        values = events[name].to_numpy()
        wrong = ~((values >= least) & (values <= most))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(f"{path}: row {row}: found {name} {values[row]}; valid: {least} to "
                            f"{most}")
    begin, end = events["begin_ns"].to_numpy(), events["end_ns"].to_numpy()
    if (end < begin).any():
        row = int(np.argmax(end < begin))
        raise DataError(f"{path}: row {row}: ends at {end[row]}, before its begin {begin[row]}")


def _by_rank(events: pd.DataFrame, about: Metadata) -> list[RankTrace]:
    """What is of one rank (place, memory) is known where the file has no other."""
    ranks = np.unique(events["rank"].to_numpy())
    if len(ranks) < 2:
        rank = int(ranks[0]) if len(ranks) else about.rank
        return [] if rank < 0 else [RankTrace(events=events, **(vars(about) | {"rank": rank}))]
    return [RankTrace(rank=int(rank), world=about.world, events=rows.reset_index(drop=True),
                      host=about.host, device=about.device, groups=about.groups,
                      cannot=about.cannot)
            for rank, rows in events.groupby("rank", sort=True)]


NEUTRAL = Source("neutral", "parquet or Arrow files with the columns of docs/other_traces.md",
                 claims, read)
