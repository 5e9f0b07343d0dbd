# SPDX-License-Identifier: Apache-2.0
"""Changed copies of parquet files: of their columns, types, rows and values."""

import io

import pyarrow as pa
import pyarrow.parquet

NUMBERS = (0, 1, -1, 2, 7, 127, 255, 2**15, 2**31 - 1, 2**31, 2**53, 2**62, 2**63 - 1, -2**63)
FLOATS = (0.0, -1.0, 0.5, 1e-300, 1e9, 1e300, float("inf"), float("-inf"), float("nan"), -0.0)
TEXTS = ("", "gc", "forward-compute", "forward-send", "backward-recv", "\x1b[31m",
         "é\n", "a" * 3000)


def mutate(content, rng):
    """@returns None where the content is no such file, or cannot be changed this way"""
    try:
        table = pa.parquet.read_table(io.BytesIO(content))
        for _ in range(rng.choice((1, 1, 2, 5))):
            table = _changed(table, rng)
        memory = io.BytesIO()
        pa.parquet.write_table(table, memory, row_group_size=rng.choice((1, 7, 1 << 20)))
        return memory.getvalue()
    except (OSError, pa.ArrowException, ValueError, OverflowError):
        return None


def _changed(table, rng):
    if not table.num_columns:
        return table
    at = rng.randrange(table.num_columns)
    name, column = table.column_names[at], table.column(at)
    action = rng.randrange(10)
    if action == 0:
        return table.remove_column(at)
    if action == 1:
        return table.set_column(at, rng.choice((*table.column_names, "x")), column)
    if action == 2:
        kind = rng.choice((pa.float64(), pa.float32(), pa.int64(), pa.uint64(), pa.string(),
                           pa.bool_(), pa.null()))
        values = pa.nulls(len(column)) if kind == pa.null() else column.cast(kind, safe=False)
        return table.set_column(at, name, values)
    if action == 3:
        rows = [rng.randrange(table.num_rows) for _ in range(rng.randrange(2 * table.num_rows))]
        return table.take(rows)
    if action == 4:
        begin = rng.randrange(table.num_rows + 1)
        return table.slice(begin, rng.randrange(table.num_rows + 1))
    return table.set_column(at, name, _with_others(column, rng))


def _with_others(column, rng):
    """Some values, or all, replaced."""
    kind = column.type
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    values = column.to_pylist()
    others = FLOATS if pa.types.is_floating(inner) else NUMBERS if pa.types.is_integer(inner) \
        else TEXTS
    if rng.random() < 0.1:
        values = [rng.choice(others)] * len(values)
    for _ in range(rng.choice((1, 1, 3)) if values else 0):
        place = rng.randrange(len(values))
        values[place] = rng.choice((None, rng.choice(values), rng.choice(others)))
    if pa.types.is_integer(inner):  # a wider one where they do not fit
        inner = kind = pa.int64()
    return pa.array(values, inner).dictionary_encode() if inner != kind else pa.array(values, inner)
