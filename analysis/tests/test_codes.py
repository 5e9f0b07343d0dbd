# SPDX-License-Identifier: Apache-2.0
"""Numbers of a trace are what its enumerations say."""

import h5py
import numpy as np
import pandas as pd
import pytest
from trace_files import (
    ATTENTION,
    DENSE,
    HOST,
    HOST_LANE,
    KINDS,
    NON_BLOCKING,
    SEND,
    SIMULATED,
    WAIT,
    Rank,
    write_run,
)

import cadenza
from cadenza.read.codes import Codes
from cadenza.read.schema import CODES

FRAMES = ("events", "steps", "ranks", "memory", "memory_samples", "plans", "plan_summary", "clock")


def some_ranks():
    events = [
        (0, DENSE, 0, 10), (0, ATTENTION, 10, 30, {"phase": 1, "flags": SIMULATED}),
        (0, SEND, 30, 40, {"peer": 1, "flow": 5, "flags": NON_BLOCKING}),
        (0, WAIT, 40, 50, {"phase": 2, "name": "wait"}),
        (0, HOST, 50, 60, {"lane": HOST_LANE, "phase": 4}),
    ]
    summary = [(0, 3, 1, phase, 2, 0, 4, 2, 5e9, 100, 50, 0.25, 0.01) for phase in (0, 1)]
    return [
        Rank(0, events, [(0, 0, 60)], role=0, summary=summary),
        Rank(1, [(0, DENSE, 0, 20)], [(0, 0, 60)], role=1, state=2, signal=15),
    ]


def renumbered(folder, number_of):
    """All files with other numbers, and columns of memory, of the same names.

    @param number_of  what becomes of the numbers of a field, given all of them
    """
    for path in (folder / "trace").glob("rank-*.h5"):
        with h5py.File(path, "r+") as file:
            for table in CODES:
                renumber(file, table, number_of)
            for table, field in (("/memory/samples", "bytes"), ("/memory/highwater", "peak_bytes")):
                rows = file[table][:]
                rows[field] = rows[field][:, ::-1]
                file[table][:] = rows
                file[table].attrs["kinds"] = np.array(KINDS[::-1], "S16")
    return folder


def renumber(file, table, number_of):
    rows = file[table][:]
    types, values = [], {}
    for field in rows.dtype.names:
        kind, values[field] = rows.dtype[field], rows[field]
        if field in CODES[table] and field != "flags":
            numbers = h5py.check_enum_dtype(kind)
            new = number_of(numbers)
            back = {old: new[name] for name, old in numbers.items()}
            values[field] = [back[int(value)] for value in rows[field]]
            kind = h5py.enum_dtype(new, kind.str)
        types.append((field, kind))
    found = np.zeros(len(rows), types)
    for field, column in values.items():
        found[field] = column
    del file[table]
    file.create_dataset(table, data=found, maxshape=(None,), chunks=(max(len(rows), 16),))


def same(numbers):
    return numbers


def turned(numbers):
    """Other numbers, with gaps."""
    last = max(numbers.values())
    return {name: 3 + 2 * (last - number) for name, number in numbers.items()}


def test_names_decide_whatever_the_numbers_are(tmp_path):
    first = cadenza.open(write_run(tmp_path / "first", some_ranks()))
    other = cadenza.open(renumbered(write_run(tmp_path / "other", some_ranks()), turned))
    for frame in FRAMES:
        expected, found = getattr(first, frame)(), getattr(other, frame)()
        for column in expected:  # categories may come in another order
            if isinstance(expected[column].dtype, pd.CategoricalDtype):
                expected[column] = expected[column].astype(object)
                found[column] = found[column].astype(object)
        if "kind" in expected:
            keys = ["rank", "step", "kind"]
            expected, found = (f.sort_values(keys, ignore_index=True) for f in (expected, found))
        pd.testing.assert_frame_equal(found, expected)
    assert [file.state for file in other.files.values()] == ["clean", "signalled"]
    assert other.files[1].ending == first.files[1].ending


def test_numbers_have_their_names(tmp_path):
    run = cadenza.open(write_run(tmp_path / "r", some_ranks()))
    events = run.events(ranks=[0])
    assert events["category"].tolist() == [
        "compute_dense", "compute_attention", "p2p_send", "wait", "host"]
    assert events["phase"].tolist() == ["forward", "backward", "forward", "recompute", "other"]
    assert events["lane"].tolist() == ["compute", "compute", "communication", "compute", "host"]
    assert events["simulated"].tolist() == [False, True, False, False, False]
    assert events["non_blocking"].tolist() == events["sends"].tolist()
    assert run.ranks()["role"].tolist() == ["trainer", "attention_server"]
    assert run.plan_summary()["phase"].tolist() == ["forward", "backward"]
    assert set(run.clock()["phase"]) == {"start"}
    assert run.memory()["kind"].tolist()[:8] == [*KINDS, "total"]


def test_a_category_that_is_new_has_the_name_that_its_file_gives_it(tmp_path):
    def with_more(numbers):
        return {**numbers, "compression": 77}

    folder = renumbered(write_run(tmp_path / "r", some_ranks()), with_more)
    with h5py.File(folder / "trace/rank-00000.h5", "r+") as file:
        rows = file["events"][:]
        rows["category"][0] = 77
        file["events"][:] = rows
    assert cadenza.open(folder).events(ranks=[0])["category"][0] == "compression"


def test_a_number_without_a_name_is_an_error(tmp_path):
    folder = renumbered(write_run(tmp_path / "r", some_ranks()), turned)
    with h5py.File(folder / "trace/rank-00000.h5", "r+") as file:
        rows = file["events"][:]
        rows["lane"][0] = 4
        file["events"][:] = rows
    run = cadenza.open(folder, whole=True)
    assert list(run.files) == [1]
    assert run.warnings[0].endswith(
        "/events: lane 4 is not known; valid are 3, 5, 7; continuing without it")


@pytest.mark.parametrize("damage, said", [
    (np.array(["a", "b"], "S4"), "/memory/highwater: peak_bytes has 7 columns, and names for 2"),
    (np.arange(7), "/memory/highwater: attribute 'kinds' is not a list of texts"),
])
def test_kinds_of_memory_that_do_not_fit_are_an_error(tmp_path, damage, said):
    folder = renumbered(write_run(tmp_path / "r", some_ranks()), same)
    with h5py.File(folder / "trace/rank-00000.h5", "r+") as file:
        file["memory/highwater"].attrs["kinds"] = damage
    assert said in cadenza.open(folder).warnings[0]


def test_a_field_without_an_enumeration_is_an_error(tmp_path):
    folder = write_run(tmp_path / "r", some_ranks())
    with h5py.File(folder / "trace/rank-00000.h5", "r+") as file:
        rows = file["events"][:]
        plain = [(name, "u1" if name == "lane" else rows.dtype[name]) for name in rows.dtype.names]
        del file["events"]
        file.create_dataset("events", data=rows.astype(plain), maxshape=(None,), chunks=(16,))
    assert "/events: lane has no names for its numbers" in cadenza.open(folder).warnings[0]


def test_bits_without_a_name_are_not_set():
    codes = Codes({"sends": 8})
    assert (codes.bit("sends"), codes.bit("simulated")) == (8, 0)
