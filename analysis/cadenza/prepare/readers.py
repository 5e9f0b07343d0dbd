# SPDX-License-Identifier: Apache-2.0
"""The reader of a file, by its ending."""

from __future__ import annotations

from pathlib import Path

from cadenza.errors import DataError
from cadenza.prepare.compressed import METHODS
from cadenza.prepare.documents import Reader
from cadenza.prepare.json_lines import JsonLines
from cadenza.prepare.parquet import Parquet
from cadenza.prepare.text import Text

_VALID = ".jsonl, .json and .txt, also with .gz or .zst, and .parquet"


def reader_of(path: Path, column: str) -> Reader:
    """@throws DataError for an unknown ending"""
    plain = path.with_suffix("") if path.suffix in METHODS else path
    if plain.suffix in (".jsonl", ".json"):
        return JsonLines(path, column)
    if plain.suffix == ".txt":
        return Text(path)
    if path.suffix == ".parquet":
        return Parquet(path, column)
    raise DataError(f"{path}: unknown ending; valid are {_VALID}")
