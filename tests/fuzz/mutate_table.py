# SPDX-License-Identifier: Apache-2.0
"""Changed copies of parquet, Arrow and SQLite files: of their values, types, columns, metadata."""

import io
import json
import sqlite3

import mutate_text
import pyarrow
import pyarrow.parquet

NUMBERS = (0, 1, -1, -2, 7, 255, 2**31, 2**53, 2**60, 2**61, 2**62, 2**63 - 1, -2**63, 0.5,
           float("nan"), float("inf"), None, b"\xff\0")
TYPES = ("int8", "uint64", "float64", "string", "large_string", "binary", "bool", "timestamp[ns]")
SQL = ("DELETE FROM {t}", "DROP TABLE {t}", "ALTER TABLE {t} RENAME TO other",
       "UPDATE {t} SET {c} = ?", "UPDATE {t} SET {c} = ? WHERE rowid % 3 = 1",
       "INSERT INTO {t} SELECT * FROM {t}", "ALTER TABLE {t} RENAME COLUMN {c} TO other",
       "CREATE INDEX i ON {t} ({c} DESC)", "ALTER TABLE {t} ADD COLUMN g AS ({c} / 0)",
       "CREATE VIEW CUPTI_ACTIVITY_KIND_MEMSET AS SELECT * FROM {t}")


def mutate(kind, content, rng):
    """@returns None where the content is no such file, or cannot be changed this way"""
    try:
        return _database(content, rng) if kind == ".sqlite" else _table(kind, content, rng)
    except (pyarrow.ArrowException, sqlite3.Error, OSError, ValueError, TypeError, KeyError,
            OverflowError, UnicodeError, MemoryError):
        return None


def _table(kind, content, rng):
    table = pyarrow.parquet.read_table(io.BytesIO(content)) if kind == ".parquet" \
        else pyarrow.ipc.open_file(content).read_all()
    for _ in range(rng.choice((1, 1, 2, 4))):
        table = _changed(table, rng)
    out = io.BytesIO()
    if kind == ".parquet":
        pyarrow.parquet.write_table(table, out, row_group_size=rng.choice((1, 7, 1000)),
                                    compression=rng.choice(("none", "zstd")))
    else:
        with pyarrow.ipc.new_file(out, table.schema) as file:
            file.write_table(table, rng.choice((1, 7, 1000)))
    return out.getvalue()


def _changed(table, rng):
    at = rng.randrange(table.num_columns)
    name, column = table.column_names[at], table.column(at)
    action = rng.randrange(8)
    if action == 0:
        return table.remove_column(at)
    if action == 1:
        return table.append_column(name, column)
    if action == 2:
        return table.set_column(at, name, column.cast(rng.choice(TYPES)))
    if action == 3:
        return table.slice(rng.randrange(len(table) + 1))
    if action == 4:
        metadata = dict(table.schema.metadata or {})
        key = rng.choice([*metadata, b"cadenza.groups", b"cadenza.cannot", b"cadenza.peak_memory"])
        metadata[key] = rng.choice((*map(str, NUMBERS), *mutate_text.WORDS, *mutate_text.RAW,
                                    json.dumps({"0": [["x"], [1, 1]]}))).encode()
        return table.replace_schema_metadata(metadata)
    values = column.to_pylist()
    if action == 5 and len(values) > 1:
        values[rng.randrange(len(values))] = values[rng.randrange(len(values))]
    elif values:
        words = pyarrow.types.is_dictionary(column.type) or pyarrow.types.is_string(column.type)
        values[rng.randrange(len(values))] = rng.choice(mutate_text.WORDS if words else NUMBERS)
    return table.set_column(at, name, pyarrow.array(values))


def _database(content, rng):
    database = sqlite3.connect(":memory:")
    database.deserialize(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        tables = [name for (name,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = rng.choice(tables)
        column = rng.choice([row[1] for row in database.execute(f'PRAGMA table_info("{table}")')])
        statement = rng.choice(SQL).format(t=f'"{table}"', c=f'"{column}"')
        value = rng.choice(NUMBERS + mutate_text.WORDS)
        database.execute(statement, (value,) if "?" in statement else ())
    database.commit()
    return database.serialize()
