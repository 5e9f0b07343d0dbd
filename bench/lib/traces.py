# SPDX-License-Identifier: Apache-2.0
"""What traces hold (docs/trace.md)."""

import h5py
import numpy as np

FORWARD, BACKWARD = 0, 1  # phases
NESTED = "tensor_"  # begins the names of collectives inside dense computation


def ranks(run):
    """Steps, events and the names of the events, of every rank of the run in a folder."""
    for path in sorted((run / "trace").glob("rank-*.h5")):
        with h5py.File(path, "r") as file:
            yield (file["/steps"][:], file["/events"][:],
                   [text.decode() for text in file["/meta/strings"][:]])


def peak_memory(run):
    """Of every rank, the peak bytes in the run: in all, and by part."""
    found = []
    for path in sorted((run / "trace").glob("rank-*.h5")):
        with h5py.File(path, "r") as file:
            table = file["/memory/highwater"]
            parts = [name.decode() for name in table.attrs["kinds"]]
            rows = table[:]
            by_part = dict(zip(parts, rows["peak_bytes"].max(axis=0).tolist()))
            found.append((int(rows["peak_total_bytes"].max()), by_part))
    return found


def seconds_of(rows):
    """Of a step or an event, or of each of many."""
    return (rows["end_ns"] - rows["begin_ns"]) * 1e-9


def named(events, names, chosen):
    """Which events have a name that is `chosen`."""
    return np.isin(events["name_id"], [i for i, name in enumerate(names) if chosen(name)])
