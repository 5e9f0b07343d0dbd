# SPDX-License-Identifier: Apache-2.0
"""What every source tells of a rank: rows of twenty columns, the neutral format.

A source reads its files and judges nothing: it does not align clocks, cut steps, or guess. What it
cannot tell has the column's default. docs/other_traces.md describes the same columns as parquet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

# What a row is.
STEP = "step"  # from when the rank's process begins a step until it begins the next, or ends
ATTENTION, DENSE, OTHER, OPTIMIZER, COPY = COMPUTATION = (
    "attention", "dense", "other", "optimizer", "copy")  # a kernel, or what a processor computes
COLLECTIVE, SEND, RECEIVE = COMMUNICATION = ("collective", "send", "receive")
DATA, CHECKPOINT, PAUSE = ON_HOST = ("data", "checkpoint", "pause")  # what the process did instead
SYNCHRONIZE = "synchronize"  # the process waits until a device, or a communication, is done
KINDS = (STEP, *COMPUTATION, *COMMUNICATION, *ON_HOST, SYNCHRONIZE)
DIMENSIONS = ("data", "pipeline", "tensor", "context")  # of a layout, a rank's place in which
PHASES = ("forward", "backward", "recompute", "optimizer", "other")
HOST = "host"  # the stream of the process's main thread, "host ..." that of others; any other text
# is a queue of a device

Lengths = Mapping[int, Mapping[int, Sequence[int]]]  # by rank and step: tokens of each document
NO_LENGTHS: Lengths = MappingProxyType({})

# name: (type, default). Times are of the rank's own clock.
COLUMNS: dict[str, tuple[str, object]] = {
    "rank": ("int32", -1),
    "step": ("int64", -1),  # number; -1: not known, as of most rows: the rank's STEP rows tell
    "begin_ns": ("int64", 0),
    "end_ns": ("int64", 0),
    "kind": ("category", ""),  # one of KINDS
    "phase": ("category", "other"),  # one of PHASES
    "name": ("category", ""),  # of the kernel, operation or collective
    "stream": ("category", HOST),  # on which rows follow one another
    "group": ("category", ""),  # of communication: the process group's name
    "members": ("category", ""),  # its world ranks, "0,1,2,3"; "": not known
    "sequence": ("int64", -1),  # number of the communication in its group, equal on all members
    "peer": ("int32", -1),  # of a message: world rank of the other end
    "bytes": ("int64", -1),  # payload
    "dtype": ("category", ""),  # element type, in the source's words
    "flops": ("float64", 0.0),  # a multiply-add counts as two; 0: not known
    "enqueued_ns": ("int64", 0),  # when the process launched it; 0: not known, or on the host
    "still_ns": ("int64", -1),  # for which the process did not have its processor; -1: not known
    "microbatch": ("int32", -1),
    "layer": ("int32", -1),
    "lengths": ("category", ""),  # of a STEP row: tokens of the rank's documents, "4096,512"
}


@dataclass
class RankTrace:
    """What one file tells of one rank. Several files may tell of the same rank."""

    rank: int
    world: int  # ranks of the run; 0: the file does not say
    events: pd.DataFrame  # COLUMNS, in any order of rows
    host: str = ""
    device: str = ""
    place: dict[str, int] = field(default_factory=dict)  # of data, pipeline, tensor, context
    groups: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    # by the group's name: what its program calls it ("dp_cp", "default_pg"; "" if nothing), and its
    # world ranks
    peak_memory: dict[int, int] = field(default_factory=dict)  # by step: bytes of the allocator
    cannot: list[str] = field(default_factory=list)  # sentences: what the file cannot tell, or lost
    # Whether times are on one clock of all ranks, and the STEP rows of all ranks the same.
    one_clock: bool = False
    # Whether a gap between rows is one: else the rank may have done what the file does not record.
    whole: bool = True


@dataclass(frozen=True)
class Source:
    """How files of one kind are read. A new source is one of these, in one file."""

    name: str  # as --from takes it
    what: str  # for a person
    # Whether a file, or a folder that is one export, is of this kind: by its name and first bytes.
    claims: Callable[[Path], bool]
    # Of one that it claims, with what the user says of documents. DataError: it is damaged.
    read: Callable[[Path, Lengths], list[RankTrace]]


def began(rows: pd.DataFrame) -> np.ndarray:
    """When the process asked for each row, ns: when it launched it, or began it itself."""
    return np.where(rows["enqueued_ns"] > 0, rows["enqueued_ns"], rows["begin_ns"])


def frame(columns: dict[str, object], rows: int) -> pd.DataFrame:
    """COLUMNS of `rows` rows: those given (values of all rows, or one of them all), and defaults.

    Texts may be given as lists of str or as categoricals.
    """
    unknown = set(columns) - set(COLUMNS)
    if unknown:
        raise KeyError(f"no such column: {sorted(unknown)}")
    made = {}
    for name, (kind, default) in COLUMNS.items():
        values = columns.get(name, default)
        if kind != "category":
            made[name] = np.full(rows, values, kind) if np.isscalar(values) \
                else np.asarray(values, kind)
        elif isinstance(values, str):
            made[name] = pd.Categorical.from_codes(np.zeros(rows, np.int8), [values])
        else:
            made[name] = values if isinstance(values, pd.Categorical) else pd.Categorical(values)
    return pd.DataFrame(made, copy=False)
