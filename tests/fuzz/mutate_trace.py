# SPDX-License-Identifier: Apache-2.0
"""Changed copies of files: of bytes, of the objects of HDF5 files, and of the values of texts."""

import io
import struct

import h5py
import mutate_table
import mutate_text
import numpy as np

from cadenza.read.schema import CODES

NUMBERS = (0, 1, -1, 2, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, -2**63)
FLOATS = (0.0, -1.0, 1e-300, 1e300, float("inf"), float("nan"))
TYPES = ("<f8", "<i8", ">i4", "u1", "S5", "<f4", [("step", "<u4"), ("peak_bytes", "<f8")],
         [("step", "S4")], "V7")


def mutate(kind, content, rng):
    if kind == ".h5" and rng.random() < 0.8:
        try:
            return objects(content, rng)
        except (OSError, RuntimeError, ValueError, TypeError, KeyError):
            pass  # a file that cannot be changed this way any more
    changed = None
    if kind != ".h5" and rng.random() < 0.8:
        change = mutate_table if kind in (".parquet", ".arrow", ".sqlite") else mutate_text
        changed = change.mutate(kind, content, rng)
    return some_bytes(content, rng) if changed is None else changed


def some_bytes(content, rng):
    data = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(data))
        action = rng.randrange(6)
        if action == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif action == 1:
            data[at] = rng.randrange(256)
        elif action == 2:
            width = rng.choice((2, 4, 8))
            number = rng.choice(NUMBERS) % 2 ** (8 * width)
            data[at : at + width] = struct.pack("<Q", number)[:width]
        elif action == 3:
            begin = rng.randrange(len(data))
            part = data[begin : begin + rng.randrange(1, 64)]
            data[at : at + len(part)] = part
        elif action == 4:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
        else:
            del data[at : at + rng.choice((1, 4, 64, len(data)))]
            data = data or bytearray(b"\0")
    return bytes(data)


def objects(content, rng):
    memory = io.BytesIO(content)
    with h5py.File(memory, "r+") as file:
        for _ in range(rng.choice((1, 1, 2, 3))):
            change(file, rng)
    return memory.getvalue()


def change(file, rng):
    names = []
    file.visit(names.append)
    name = rng.choice(names)
    action = rng.randrange(9)
    if action == 0:
        del file[name]
    elif action == 1:
        del file[name]
        file[name] = (h5py.SoftLink("/nothing"), h5py.SoftLink(f"/{name}"), h5py.SoftLink("/steps"),
                      h5py.ExternalLink("rank-00000.h5", "/steps"))[rng.randrange(4)]
    elif action == 2:
        del file[name]
        shape = tuple(rng.choice((0, 1, 2, 5)) for _ in range(rng.randrange(4)))
        file.create_dataset(name, shape=shape, dtype=rng.choice(TYPES))
    elif action == 3:
        change_attribute(file, rng)
    elif action == 8 and rng.random() < 0.5:
        rename_codes(file, name, rng)
    elif isinstance(file[name], h5py.Dataset):
        change_rows(file, name, action, rng)


def change_attribute(file, rng):
    name = rng.choice([*file.attrs, "schema"])
    value = rng.choice((b"", b"\xff\n\0x", "text", 7, -1.5, [1, 2, 3], np.zeros((2, 2)),
                        h5py.Empty("f8"), [b"a", b"b"]))
    del file.attrs[name]
    file.attrs[name] = value


def rename_codes(file, name, rng):
    """A table whose numbers have other names: an enumeration of its fields, or of events."""
    if name == "meta/strings":
        rows = file[name][:]
        rows[rng.randrange(len(rows))] = rng.choice(mutate_text.WORDS).encode()[:96]
        file[name][:] = rows
        return
    dtype = getattr(file[name], "dtype", np.dtype("u1"))
    named = {field: h5py.check_enum_dtype(dtype[field]) for field in CODES.get(f"/{name}", ())
             if field in (dtype.names or ())}
    fields = [field for field, names in named.items() if names]
    if not fields:
        return
    chosen, rows = rng.choice(fields), file[name][:]
    names = dict(named[chosen])
    old = rng.choice(list(names))
    number = names.pop(old)
    if rng.random() < 0.8:
        names[rng.choice(mutate_text.WORDS) or "x"] = number
    types = [(field, h5py.enum_dtype(names, dtype[field].str) if field == chosen else dtype[field])
             for field in dtype.names]
    other = np.zeros(len(rows), types)
    for field in dtype.names:
        other[field] = rows[field]
    del file[name]
    file.create_dataset(name, data=other, maxshape=(None,), chunks=(max(len(other), 16),))


def change_rows(file, name, action, rng):
    data = file[name]
    if data.shape[:1] > (2**20,):  # by an earlier change: HDF5 would walk all its chunks
        return
    if action == 4 and data.maxshape and data.maxshape[0] is None:
        data.resize(rng.choice((0, 1, 3, data.shape[0] + 5, 2**20, 2**40)), axis=0)
        return
    rows = data[:1000]
    if action == 5 and rows.dtype.names:  # a table that lacks a field, or has it in another type
        kept = [(field, rows.dtype[field]) for field in rows.dtype.names]
        at = rng.randrange(len(kept))
        kept[at : at + 1] = [] if len(kept) > 1 and rng.random() < 0.5 else [
            (kept[at][0], rng.choice(("<f8", "S3", "<i8", "u1")))]
        other = np.zeros(len(rows), kept)
        for field in other.dtype.names:
            if other.dtype[field].kind in "iuf" and rows.dtype[field].kind in "iu":
                other[field] = rows[field].astype(other.dtype[field])
        del file[name]
        file.create_dataset(name, data=other, maxshape=(None,), chunks=(max(len(other), 16),))
        return
    if len(rows) == 0:
        return
    if action == 6 and data.maxshape and data.maxshape[0] is None:  # other rows of the same
        chosen = sorted(rng.choices(range(len(rows)), k=rng.choice((1, 2, len(rows)))))
        data.resize(len(chosen), axis=0)
        data[:] = rows[chosen]
        return
    for _ in range(rng.choice((1, 1, 3, 20))):
        change_number(rows, rng)
    data[: len(rows)] = rows


def change_number(rows, rng):
    row = rng.randrange(len(rows))
    if rows.dtype.names is None:
        if rows.dtype.kind in "iu":
            rows[row] = np.array(rng.choice(NUMBERS)).astype(rows.dtype)
        elif rows.dtype.kind == "S":
            rows[row] = bytes(rng.randrange(256) for _ in range(rng.randrange(9)))
        return
    field = rng.choice(rows.dtype.names)
    kind = rows.dtype[field].kind
    if rng.random() < 0.6:  # each is a sound value, together they may be none
        values = [rows[field][rng.randrange(len(rows))] for _ in rows]
        rows[field][row if rng.random() < 0.5 else slice(None)] = rng.choice((
            values[0], 0 * values[0] if kind in "iuf" else values[0]))
        if rng.random() < 0.3:
            rows[field] = values
        return
    value = np.array(rng.choice(FLOATS if kind == "f" else NUMBERS))
    target = rng.choice((row, slice(None), slice(row, None)))
    if kind == "f" or rows.dtype[field].subdtype:
        rows[field][target] = value
    elif kind in "iu":
        rows[field][target] = value.astype(rows.dtype[field])
    elif kind == "S":
        rows[field][target] = b"\xff\n" * 3
