# SPDX-License-Identifier: Apache-2.0
"""Usage: trace_reader.py TRACE

Writes the rows of /steps as .npy to standard output, after reading every event they commit to.
A process of its own, because HDF5 may wait for ever in a file that its writer left damaged.
"""

import io
import sys

import h5py
import numpy as np


def open_trace(path):
    """A rank's trace, whether its writer closed it or was stopped in the middle."""
    try:
        return h5py.File(path, "r")
    except OSError:
        return h5py.File(path, "r", libver="latest", swmr=True)


def committed_steps(path):
    with open_trace(path) as file:
        steps = file["/steps"][:]
        committed = int(steps["n_events_end"][-1]) if len(steps) else 0
        events = file["/events"][:committed]
        names = file["/meta/strings"].shape[0]
    assert len(events) == committed, f"{committed} events are committed, {len(events)} are there"
    assert np.all(events["end_ns"] >= events["begin_ns"]), "an event ends before it begins"
    assert np.all(events["name_id"] < names), "an event has no name"
    own = np.repeat(steps["step"], np.diff(steps["n_events_end"].astype(int), prepend=0))
    assert np.array_equal(events["step"], own), "an event is written with another step than its own"
    return steps


if __name__ == "__main__":
    buffer = io.BytesIO()  # numpy wants a position, which a pipe has not
    np.save(buffer, committed_steps(sys.argv[1]))
    sys.stdout.buffer.write(buffer.getvalue())
