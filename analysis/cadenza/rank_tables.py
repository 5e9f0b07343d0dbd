# SPDX-License-Identifier: Apache-2.0
"""The tables of a rank file are looked at before they are believed.

Whatever is wrong is a ValueError of one line, which RankFile puts the file's name before.
"""

from __future__ import annotations

import h5py
import numpy as np

from cadenza.schema import ONE_PER_STEP, SINCE_LATER, TABLES, TIMES

_LATEST_NS = 2**61  # 73 years, more than any clock shows, since 1970 too


def open_table(file: h5py.File, name: str) -> h5py.Dataset:
    """The dataset `name`: one dimension, the fields and types of the schema, rows that the file
    holds. Nothing of it has been read yet."""
    _check_links(file, name)
    data = file[name]
    if not isinstance(data, h5py.Dataset) or data.ndim != 1:
        raise ValueError(f"{name} is not a table")
    if data.external or data.is_virtual:
        raise ValueError(f"{name} lies in another file")
    _check_types(name, data.dtype)
    held = _rows_held(data)
    if data.shape[0] > held:
        raise ValueError(f"{name} claims {data.shape[0]} rows, the file holds {held}")
    return data


def checked(name: str, rows: np.ndarray) -> np.ndarray:
    """`rows` of the table `name`: times that a clock can show, steps that ascend."""
    for field in TIMES.get(name, ()):
        times = rows[field]
        if len(times) and (times.min() < -_LATEST_NS or times.max() > _LATEST_NS):
            raise ValueError(f"{name}: {field} is out of range (2^61 ns are 73 years)")
    if name in ONE_PER_STEP:
        steps = rows["step"].astype(np.int64)
        for at in np.flatnonzero(np.diff(steps) <= 0)[:1]:
            raise ValueError(f"{name}: step {steps[at]} is followed by step {steps[at + 1]}")
    return rows


def _check_links(file: h5py.File, name: str) -> None:
    """A link could lead anywhere, out of the file too."""
    parts = name.strip("/").split("/")
    for part in ("/".join(parts[: end + 1]) for end in range(len(parts))):
        if not isinstance(file.get(part, getlink=True), h5py.HardLink):
            raise ValueError(f"/{part} is a link, expected a table of the file itself")


def _check_types(name: str, found: np.dtype) -> None:
    expected = TABLES[name]
    if expected.names is None or found.names is None:
        if found != expected:
            raise ValueError(f"{name} has type {found}, expected {expected}")
        return
    for field in expected.names:
        if field not in found.names:
            if field not in SINCE_LATER.get(name, ()):
                raise ValueError(f"{name} has no field {field}")
        elif found[field] != expected[field]:
            raise ValueError(f"{name}: {field} has type {found[field]}, expected {expected[field]}")


def _rows_held(data: h5py.Dataset) -> int:
    """Rows that there are bytes for: a dataset can be given any size without writing to it."""
    if data.chunks is None:
        return data.id.get_storage_size() // data.dtype.itemsize
    return data.id.get_num_chunks() * data.chunks[0]
