# SPDX-License-Identifier: Apache-2.0
"""The plan of a batch, by the C library of this package (src/library/plan.h in the source)."""

import ctypes
import functools
import operator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_LIBRARY = Path(__file__).parent / "lib" / "cadenza.so"
_MESSAGE_BYTES = 4096
_OUTPUT = ("q", "k", "v", "o", "lse")

# Columns of the tables, in the library's order; 8 bytes each.
_PLACE = ["tick", "half"]
_TOKENS = ["token_begin", "token_end"]
_HEADS = ["head_begin", "head_end"]
_TABLES = [
    ("tasks", [*_PLACE, "stage", "server", "document", "q_begin", "q_end", "k_begin", "k_end",
               *_HEADS, "low", "high", "flops"]),
    ("moves", [*_PLACE, "stage", "from", "to", "what", "document", *_TOKENS, *_HEADS, "bytes"]),
    ("merges", [*_PLACE, "owner", "contributor", "document", *_TOKENS, *_HEADS]),
    ("homes", ["tick", "rank", "document", *_TOKENS]),
    ("documents", ["tick", "document", "phase", "stage", "microbatch", "index", "length"]),
    ("pools", ["pool", "rank", "world_rank"]),
]
_FLOATS = {"flops"}

# Keys of a layout that stand for keys of an experiment.
_SHORT = {
    **{key: f"parallel.{key}" for key in ("data", "pipeline", "tensor", "context", "chunks",
                                          "schedule")},
    **{key: f"attention.{key}" for key in ("placement", "tolerance", "block", "servers", "mixed",
                                           "overlap", "kind")},
    "heads": "model.heads", "kv_heads": "model.kv_heads", "dtype": "run.dtype",
}


@dataclass(frozen=True)
class Plan:
    """The forward plans of a step, a structured array for each kind of thing.

    Ranks are those of a pool: `pools` has the world ranks. Documents are counted over the step,
    tick by tick: `documents` says which is which. Ranges are half-open and count from the start of
    a document; heads of K and V are key-value heads.
    """

    tasks: np.ndarray  #: query i sees key j where i + low <= j <= i + high
    moves: np.ndarray  #: rows that travel; `what` is Plan.Q, K, V, O or LSE
    merges: np.ndarray  #: a row for each contributor to a range of outputs
    homes: np.ndarray  #: tokens that live on a rank
    documents: np.ndarray  #: `index` in the lengths of `microbatch`; `phase` 1: a backward pass's
    pools: np.ndarray

    Q, K, V, O, LSE = range(len(_OUTPUT))  # noqa: E741


def _dtype(columns):
    return np.dtype([(name, "f8" if name in _FLOATS else "i8") for name in columns])


@functools.cache
def _library():
    library = ctypes.CDLL(str(_LIBRARY))
    numbers, pointer = ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p
    library.cadenza_plan_make.argtypes = [
        ctypes.POINTER(ctypes.c_char_p), ctypes.c_int64, ctypes.c_char_p, numbers, ctypes.c_int64,
        numbers, ctypes.POINTER(pointer), ctypes.c_char_p, ctypes.c_int64]
    library.cadenza_plan_table.argtypes = [pointer, ctypes.c_int, ctypes.POINTER(pointer)]
    library.cadenza_plan_table.restype = ctypes.c_int64
    library.cadenza_plan_free.argtypes = [pointer]
    library.cadenza_plan_free.restype = None
    return library


def _lengths(lengths):
    """(number of documents of each microbatch, all lengths), as arrays."""
    try:
        every = [[operator.index(length) for length in microbatch] for microbatch in lengths]
        counts = np.array([len(microbatch) for microbatch in every], "i8")
        return counts, np.array([length for microbatch in every for length in microbatch], "i8")
    except (TypeError, OverflowError):
        raise ValueError("lengths: found something else than a list of whole numbers for each "
                         "microbatch") from None


def _settings(layout):
    layout = dict(layout)
    heads = layout.get("heads", layout.get("model.heads", 1))
    head_dim = layout.pop("head_dim", 128)
    try:
        width = operator.index(heads) * operator.index(head_dim)
    except TypeError:
        raise ValueError(f"layout: found heads {heads!r} and head_dim {head_dim!r}; "
                         "valid: whole numbers") from None
    layout.setdefault("model.d_model", width)
    layout.setdefault("kv_heads", heads)
    # What a token costs beside attention, with which documents are shared: as Llama 3 has it.
    tensor = max(1, int(layout.get("tensor", layout.get("parallel.tensor", 1))))
    layout.setdefault("model.ffn", -(-7 * width // (2 * tensor)) * tensor)
    settings = []
    for key, value in layout.items():
        if key not in _SHORT and "." not in key:
            raise ValueError(f"layout: found the key {key!r}; valid: head_dim, "
                             f"{', '.join(_SHORT)}, or a key of an experiment, as "
                             "'attention.window'")
        word = str(value).lower() if isinstance(value, bool) else str(value)
        settings.append(f"{_SHORT.get(key, key)}={word}".encode())
    return settings


def _table(library, handle, number, columns):
    rows = ctypes.c_void_p()
    count = library.cadenza_plan_table(handle, number, ctypes.byref(rows))
    dtype = _dtype(columns)
    if count == 0:
        return np.empty(0, dtype)
    raw = ctypes.string_at(rows, count * dtype.itemsize)
    return np.frombuffer(raw, dtype)


def plan(lengths, layout, machine=None):
    """Plans the core attention of a step.

    lengths  for each microbatch the tokens of its documents; microbatch i is data rank
             i mod data's
    layout   data, pipeline, tensor, context; heads, kv_heads and head_dim of the model; dtype;
             placement (cad), tolerance (0.1), block (128) and what else a placement takes; any key
             of an experiment as "attention.window". A context group shares documents by their cost,
             beside that of their tokens elsewhere: "model.ffn" is 7/2 heads x head_dim
    machine  a machine file's path: the rates of placements that ask for them

    Returns a Plan. Raises ValueError, one line, for lengths or a layout that do not fit. Releases
    the interpreter's lock while it plans.
    """
    counts, flat = _lengths(lengths)
    settings = _settings(layout)
    text = None if machine is None else Path(machine).read_bytes()
    library, handle = _library(), ctypes.c_void_p()
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    numbers = ctypes.POINTER(ctypes.c_int64)
    code = library.cadenza_plan_make(
        (ctypes.c_char_p * len(settings))(*settings), len(settings), text,
        counts.ctypes.data_as(numbers), len(counts), flat.ctypes.data_as(numbers),
        ctypes.byref(handle), message, _MESSAGE_BYTES)
    if code != 0:
        error = ValueError if code in (2, 3) else RuntimeError
        raise error(message.value.decode(errors="replace"))
    try:
        return Plan(**{name: _table(library, handle, number, columns)
                       for number, (name, columns) in enumerate(_TABLES)})
    finally:
        library.cadenza_plan_free(handle)
