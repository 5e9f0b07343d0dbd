# SPDX-License-Identifier: Apache-2.0
"""The tables of a rank file are looked at before they are believed.

Whatever is wrong is a ValueError of one line, which RankFile puts the file's name before. Runs have
thousands of files with a dozen tables each: this is h5py's low-level interface, which takes a tenth
of the time of the other one, mostly for types, of which there is one per table in all files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import h5py
import numpy as np
from h5py import h5a, h5d, h5l, h5o, h5s, h5t

from cadenza.files import printable
from cadenza.read.codes import Codes, codes_of
from cadenza.read.schema import ONE_PER_STEP, RANGES, SETS, TABLES, TIMES

_LATEST_NS = 2**61  # 73 years, more than any clock shows, since 1970 too


@dataclass(frozen=True)
class Table:
    """A dataset of an open file: one dimension, the fields and types of the schema, rows that the
    file holds. Nothing of it has been read yet."""

    name: str
    data: h5d.DatasetID
    type: h5t.TypeID
    dtype: np.dtype  # the same
    codes: dict[str, Codes]  # by field that has names for its numbers
    chunk: int  # rows; 0: not in chunks
    rows: int

    def read(self, begin: int, end: int) -> np.ndarray:
        """Rows [begin, end): times that a clock can show, steps that ascend, numbers that stand for
        something."""
        found = np.empty(max(end - begin, 0), self.dtype)
        if len(found) == self.rows > 0:
            self.data.read(h5s.ALL, h5s.ALL, found, self.type)
        elif len(found):
            place = self.data.get_space()
            place.select_hyperslab((begin,), (len(found),))
            self.data.read(h5s.create_simple(found.shape), place, found, self.type)
        return _checked(self.name, found, self.codes)

    def texts(self, attribute: str) -> tuple[str, ...]:
        """A list of texts that the file says of the dataset; empty where it does not."""
        if not h5a.exists(self.data, attribute.encode()):
            return ()
        found = h5a.open(self.data, attribute.encode())
        if found.dtype.kind != "S" or len(found.shape) != 1:
            raise ValueError(f"{self.name}: attribute '{attribute}' is not a list of texts")
        values = np.empty(found.shape, found.dtype)
        found.read(values)
        return tuple(printable(value.decode("utf-8", "replace")) for value in values.tolist())


class Tables:
    """The tables and attributes of an open file, each of which is looked at once."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file.id
        self._links = file.id.links
        self._hard: set[bytes] = set()  # links that lead to a place in this file
        self._found: dict[str, Table] = {}

    def find(self, name: str) -> Table:
        """The table `name`."""
        if name not in self._found:
            self._check_links(name)
            self._found[name] = self._look_at(name)
        return self._found[name]

    def attribute(self, name: str) -> object:
        """One value, "" where the file does not have it."""
        if not h5a.exists(self._file, name.encode()):
            return ""
        found = h5a.open(self._file, name.encode())
        if found.shape != ():
            raise ValueError(f"attribute '{name}' is not one value")
        value = np.empty((), found.dtype)
        found.read(value)
        return value[()]

    def _check_links(self, name: str) -> None:
        """A link could lead anywhere, out of the file too."""
        place = b""
        for part in name.strip("/").encode().split(b"/"):
            place += b"/" + part
            if place in self._hard:
                continue
            if not self._links.exists(place):
                raise ValueError(f"no dataset {name}")
            if self._links.get_info(place).type != h5l.TYPE_HARD:
                raise ValueError(f"{place.decode()} is a link, expected a table of the file itself")
            self._hard.add(place)

    def _look_at(self, name: str) -> Table:
        data = h5o.open(self._file, name.encode())
        shape = data.shape if isinstance(data, h5d.DatasetID) else ()
        if len(shape) != 1:
            raise ValueError(f"{name} is not a table")
        form = data.get_create_plist()
        layout = form.get_layout()
        if layout == h5d.VIRTUAL or form.get_external_count():
            raise ValueError(f"{name} is stored in another file")
        type_ = data.get_type()
        dtype, codes = _checked_type(name, bytes(type_.encode()))
        chunk = form.get_chunk()[0] if layout == h5d.CHUNKED else 0
        held = data.get_num_chunks() * chunk if chunk else data.get_storage_size() // dtype.itemsize
        if shape[0] > held:
            raise ValueError(f"{name} declares {shape[0]} rows, the file holds {held}")
        return Table(name, data, type_, dtype, codes, chunk, shape[0])


@lru_cache
def _checked_type(name: str, encoded: bytes) -> tuple[np.dtype, dict[str, Codes]]:
    """The type of table `name` as HDF5 encodes it, as NumPy has it, and what its numbers are."""
    found, expected = h5t.decode(encoded).dtype, TABLES[name]
    if expected.names is None or found.names is None:
        if found != expected:
            raise ValueError(f"{name} has type {found}, expected {expected}")
        return found, {}
    for field in expected.names:
        if field not in found.names:
            raise ValueError(f"{name} has no field {field}")
        if not _is_as(found[field], expected[field]):
            raise ValueError(f"{name}: {field} has type {found[field]}, expected {expected[field]}")
    return found, codes_of(name, found)


def _is_as(found: np.dtype, expected: np.dtype) -> bool:
    """Arrays may have more columns or fewer: the file says what they are."""
    return found.base == expected.base and len(found.shape) == len(expected.shape)


def _checked(name: str, rows: np.ndarray, codes: dict[str, Codes]) -> np.ndarray:
    for field, known in codes.items():
        if field in SETS:
            continue
        try:
            known.index(rows[field])
        except ValueError as error:
            raise ValueError(f"{name}: {field} {error}") from error
    for field in TIMES.get(name, ()):
        times = rows[field]
        if len(times) and (times.min() < -_LATEST_NS or times.max() > _LATEST_NS):
            raise ValueError(f"{name}: {field} is out of range (2^61 ns are 73 years)")
    for field, (least, most) in RANGES.get(name, {}).items():
        values = rows[field]
        if len(values) and not (values.min() >= least and values.max() <= most):  # NaN neither
            raise ValueError(f"{name}: {field} is out of range ({least:g} to {most:g})")
    if name in ONE_PER_STEP:
        steps = rows["step"].astype(np.int64)
        for at in np.flatnonzero(np.diff(steps) <= 0)[:1]:
            raise ValueError(f"{name}: step {steps[at]} is followed by step {steps[at + 1]}")
    return rows
