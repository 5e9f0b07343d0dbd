# SPDX-License-Identifier: Apache-2.0
"""Files of the neutral format: what is written is read, what cannot be is refused in one line."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from cadenza.errors import DataError
from cadenza.sources.neutral import COLUMNS, COMPUTATION, RankTrace, frame
from cadenza.sources.neutral_files import NEUTRAL, write

ENDINGS = (".parquet", ".arrow", ".feather")
ROWS = {"rank": [1, 1, 1], "begin_ns": [0, 10, 20], "end_ns": [30, 15, 20],
        "kind": ["step", "dense", "collective"]}


def some_trace(rows=50):
    random = np.random.default_rng(1)
    begin = random.integers(-10**18, 10**18, rows)
    columns = {
        "rank": 2, "begin_ns": begin, "end_ns": begin + random.integers(0, 10**9, rows),
        "kind": pd.Categorical(random.choice(COMPUTATION, rows)),
        "name": pd.Categorical(random.choice(["gemm", "Wärme", "a\nb", ""], rows)),
        "phase": "backward", "stream": "7", "members": "0,2", "lengths": "4096,512",
        "flops": random.random(rows) * 1e15, "still_ns": random.integers(-1, 10**6, rows),
    }
    return RankTrace(2, 4, frame(columns, rows), host="n1", device="H200", place={"data": 1},
                     groups={"0": ("dp", (0, 2))}, peak_memory={3: 1 << 40}, cannot=["No flops."])


def stored(path, columns=ROWS, metadata=None):
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    table = table.replace_schema_metadata(metadata)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=2)
    else:
        pyarrow.feather.write_feather(table, path, chunksize=2)
    return path


def as_texts(events):
    return events.astype({name: str for name, (kind, _) in COLUMNS.items() if kind == "category"})


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_written_is_read(tmp_path, ending):
    trace, path = some_trace(), tmp_path / f"rank{ending}"
    write(trace, path)
    assert NEUTRAL.claims(path)
    (found,) = NEUTRAL.read(path)
    pd.testing.assert_frame_equal(as_texts(found.events), as_texts(trace.events))
    assert vars(found) | {"events": None} == vars(trace) | {"events": None}


@pytest.mark.parametrize("ending", ENDINGS)
def test_four_columns_are_enough(tmp_path, ending):
    (trace,) = NEUTRAL.read(stored(tmp_path / f"x{ending}", ROWS | {"mood": ["a", "b", None]}))
    assert (trace.rank, trace.world) == (1, 0)
    assert as_texts(trace.events).equals(as_texts(frame(ROWS, 3)))


@pytest.mark.parametrize("ending", ENDINGS)
def test_texts_and_numbers_of_any_width(tmp_path, ending):
    kinds = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1], "int8"), ["dense", "step"])
    names = pa.array(["x", None, "y"], "large_string")
    columns = {"rank": pa.array([1, 1, 1], "uint8"), "begin_ns": pa.array([0, 1, 2], "uint64"),
               "end_ns": pa.array([3, 4, 5], "int16"), "kind": kinds, "name": names,
               "step": pa.array([7, None, -1], "int8"), "flops": pa.array([1, 2, 3], "int32")}
    (trace,) = NEUTRAL.read(stored(tmp_path / f"x{ending}", columns))
    assert trace.events["kind"].tolist() == ["step", "dense", "step"]
    assert trace.events["name"].tolist() == ["x", "", "y"]
    assert trace.events["step"].tolist() == [7, -1, -1]
    assert {name: str(kind) for name, kind in trace.events.dtypes.items()} \
        == {name: kind for name, (kind, _) in COLUMNS.items()}


def test_ranks_of_a_file_are_told_apart(tmp_path):
    columns = ROWS | {"rank": [3, 0, 3]}
    said = {"cadenza.world": "4", "cadenza.place": '{"data": 1}', "cadenza.host": "n1"}
    first, second = NEUTRAL.read(stored(tmp_path / "x.parquet", columns, said))
    assert (first.rank, second.rank, second.world, second.host) == (0, 3, 4, "n1")
    assert first.events["kind"].tolist() == ["dense"] and second.events.index.tolist() == [0, 1]
    assert first.place == {}  # of which of them is not known


def test_a_rank_without_rows(tmp_path):
    write(RankTrace(3, 4, frame({}, 0)), tmp_path / "x.arrow")
    (trace,) = NEUTRAL.read(tmp_path / "x.arrow")
    assert trace.rank == 3 and trace.events.empty
    assert NEUTRAL.read(stored(tmp_path / "y.arrow", pa.table(ROWS).slice(0, 0))) == []


def changed(name, values):
    return {**ROWS, name: values}


BAD_COLUMNS = {
    "no kind": ({k: v for k, v in ROWS.items() if k != "kind"}, "has no column 'kind'"),
    "text for a time": (changed("begin_ns", ["a", "b", "c"]), "column 'begin_ns' is string"),
    "fraction for a time": (changed("begin_ns", [0.5, 1, 2]), "column 'begin_ns' is double"),
    "date for a time": (changed("end_ns", pa.array([1, 2, 3], "timestamp[ns]")), "'end_ns' is ti"),
    "number for a kind": (changed("kind", [1, 2, 3]), "column 'kind' is int64; valid: text"),
    "list of names": (changed("name", [["a"], [], []]), "column 'name' is list"),
    "too wide": (changed("rank", [1, 1 << 40, 1]), "column 'rank' has a number that is no int32"),
    "beyond int64": (changed("end_ns", pa.array([1 << 63, 15, 20], "uint64")), "no int64"),
    "a time lacks": (changed("end_ns", [30, None, 20]), "column 'end_ns' lacks 1 values"),
    "a kind lacks": (changed("kind", ["step", None, "data"]), "row 1: found kind ''; valid: step"),
    "unknown kind": (changed("kind", ["step", "data", "nap\x1b"]), "row 2: found kind 'nap\\x1b'"),
    "unknown phase": (changed("phase", ["x", "other", "other"]), "row 0: found phase 'x'; valid"),
    "ends early": (changed("end_ns", [30, 9, 20]), "row 1: ends at 9, before its begin 10"),
    "absurd time": (changed("end_ns", [30, 15, 1 << 62]), "row 2: found end_ns 46116860184273879"),
    "negative rank": (changed("rank", [1, -1, 1]), "row 1: found rank -1; valid: 0 to"),
    "absurd rank": (changed("rank", [1, 1 << 30, 1]), "row 1: found rank 1073741824"),
    "negative bytes": (changed("bytes", [0, -2, 0]), "row 1: found bytes -2; valid: -1 to"),
    "not a number": (changed("flops", [0, float("nan"), 0]), "row 1: found flops nan"),
    "infinite": (changed("flops", [0, float("inf"), 0]), "row 1: found flops inf"),
    "members": (changed("members", ["0,1", "0,,1", ""]), "row 1: found members '0,,1'; valid: num"),
    "lengths": (changed("lengths", ["4096", "-1", ""]), "row 1: found lengths '-1'"),
    "long name": (changed("name", ["", "a" * 70000, ""]), "valid: at most 65536 letters"),
}
BAD_METADATA = {
    "world": ("4.5", "1e9", "null", "-1", "2097152", ""),
    "place": ("[]", '{"data": -1}', '{"floor": 1}', '{"data": true}', "[" * 100_000),
    "groups": ('{"0": [0, 1]}', '{"0": ["dp", [0, 0]]}', '{"0": ["dp", []]}', '{"0": ["dp", "01"]}',
               "7"),
    "peak_memory": ('{"x": 1}', '{"1": 1e999}', "[]"),
    "cannot": ('"x"', "[1]"),
    "host": ("x" * 5000, b"\xff"),
    "rank": ("-1", '"1"'),
}


def refusal(path):
    with pytest.raises(DataError) as error:
        NEUTRAL.read(path)
    said = str(error.value)
    assert said.startswith(f"{path}: ") and said.isprintable()
    return said


@pytest.mark.parametrize("ending", ENDINGS[:2])
@pytest.mark.parametrize("columns, why", BAD_COLUMNS.values(), ids=BAD_COLUMNS)
def test_values_that_cannot_be(tmp_path, ending, columns, why):
    assert why in refusal(stored(tmp_path / f"x{ending}", columns))


@pytest.mark.parametrize("name", BAD_METADATA)
def test_metadata_that_cannot_be(tmp_path, name):
    for value in BAD_METADATA[name]:
        path = stored(tmp_path / "x.arrow", metadata={f"cadenza.{name}": value})
        assert f"found cadenza.{name} '" in refusal(path)


def test_ranks_beyond_the_world(tmp_path):
    columns = ROWS | {"peer": [-1, 4, 1]}
    path = stored(tmp_path / "x.parquet", columns, {"cadenza.world": "4"})
    assert "row 1: found peer 4; valid: -1 to 3" in refusal(path)


def test_a_column_twice(tmp_path):
    table = pa.table(ROWS)
    path = stored(tmp_path / "x.arrow", pa.Table.from_arrays(
        [*table.columns, table["kind"]], names=[*table.column_names, "kind"]))
    assert "has column 'kind' 2 times" in refusal(path)


def test_too_many_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("cadenza.sources.neutral_files.MOST_ROWS", 2)
    for ending in ENDINGS:
        assert "valid: at most 2 in a file" in refusal(stored(tmp_path / f"x{ending}"))


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_that_are_cut_short(tmp_path, ending):
    path = tmp_path / f"rank{ending}"
    write(some_trace(), path)
    content = path.read_bytes()
    for size in (0, 3, 8, 100, len(content) // 2, len(content) - 9, len(content) - 1):
        path.write_bytes(content[:size])
        assert "cut short or damaged" in refusal(path)


def test_what_is_no_such_file(tmp_path):
    (tmp_path / "x.parquet").write_text(json.dumps({}))
    assert "no parquet file" in refusal(tmp_path / "x.parquet")
    (tmp_path / "y.parquet").mkdir()
    assert not NEUTRAL.claims(tmp_path / "y.parquet") and not NEUTRAL.claims(tmp_path / "z.arrow")
    assert "cannot be read" in refusal(tmp_path / "z.arrow")


def test_a_file_is_claimed_by_its_columns(tmp_path):
    for ending in ENDINGS:
        path = stored(tmp_path / f"x{ending}")
        content = path.read_bytes()
        assert NEUTRAL.claims(path)
        assert NEUTRAL.claims(stored(tmp_path / f"y{ending}", changed("mood", ["a", "b", "c"])))
        assert not NEUTRAL.claims(stored(tmp_path / f"z{ending}", {"begin": [1], "text": ["a"]}))
        for size in range(0, len(content), 7):  # of what is cut short only the begin is known
            path.write_bytes(content[:size])
            assert NEUTRAL.claims(path) == (size >= 8 or (ending == ".parquet" and size >= 4))


def test_a_text_that_is_no_utf8(tmp_path):
    name = pa.StringArray.from_buffers(3, pa.py_buffer(np.array([0, 1, 2, 3], np.int32)),
                                       pa.py_buffer(b"a\xffb"))
    for ending in ENDINGS[:2]:
        assert "damaged" in refusal(stored(tmp_path / f"x{ending}", ROWS | {"name": name}))


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(DataError, match="cannot be written"):
        write(some_trace(), tmp_path / "none" / "x.arrow")
    assert list(tmp_path.iterdir()) == []
