# SPDX-License-Identifier: Apache-2.0
"""What the numbers of a trace stand for. A file says it by the HDF5 enumerations of its fields; the
first files of schema cadenza-trace/1 have none, and a table says it for them."""

from __future__ import annotations

import h5py
import numpy as np

from cadenza.files import printable


def _counted(*names: str) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


_PHASES = _counted("forward", "backward", "recompute", "optimizer", "other")
# Frozen: files that name their numbers are not looked up here.
SCHEMA_1 = {
    ("/events", "cat"): _counted(
        "step", "compute_dense", "compute_attention", "compute_other", "p2p_send", "p2p_receive",
        "collective", "attention_dispatch", "attention_return", "wait", "data", "optimizer",
        "checkpoint", "host", "plan", "trace_overhead"),
    ("/events", "phase"): _PHASES,
    ("/events", "lane"): {"compute": 0, "compute2": 1, "communication": 2, "host": 15},
    ("/events", "flags"): {"device_timed": 1, "simulated": 2, "non_blocking": 4, "sends": 8},
    ("/plan_summary", "phase"): _PHASES,
    ("/clock/sync", "phase"): _counted("start", "periodic", "end"),
    ("/meta/rank", "role"): _counted("trainer", "attention_server", "both"),
    ("/meta/status", "state"): _counted("open", "clean", "signalled", "error"),
}  # fmt: skip
KINDS_1 = ("parameters", "gradients", "optimizer", "activations", "communication", "attention",
           "other")  # of memory: the columns of arrays  # fmt: skip


class Codes:
    """Names of the numbers of one field."""

    def __init__(self, numbers: dict[str, int]) -> None:
        ordered = sorted(numbers.items(), key=lambda item: item[1])
        self.names = tuple(printable(name) for name, _ in ordered)
        self._numbers = np.array([number for _, number in ordered], np.int64)
        self._counted = bool((self._numbers == np.arange(len(ordered))).all())

    def index(self, values: np.ndarray) -> np.ndarray:
        """Which of `names` each value is; a value that has none is a ValueError."""
        if self._counted:
            found, unknown = values, values[:0]
            if len(values) and values.max() >= len(self.names):
                unknown = values
        else:
            last = max(len(self.names) - 1, 0)
            found = np.searchsorted(self._numbers, values).clip(max=last)
            unknown = values[self._numbers[found] != values]
        if len(unknown):
            raise ValueError(f"{unknown.max()} is not known; valid are {self._valid()}")
        return found

    def named(self, values: np.ndarray) -> np.ndarray:
        """The name of each value."""
        return np.array(self.names, object)[self.index(values)]

    def name(self, value: int) -> str:
        return str(self.named(np.array([value]))[0])

    def bit(self, name: str) -> int:
        """Of a set of bits; 0 where it has none of this name: no value has it set."""
        return int(self._numbers[self.names.index(name)]) if name in self.names else 0

    def _valid(self) -> str:
        if self._counted:
            return f"0 to {len(self.names) - 1}"
        return ", ".join(map(str, self._numbers.tolist()))


def codes_of(table: str, found: np.dtype) -> dict[str, Codes]:
    """By field of a table that a file has."""
    return {
        field: Codes(h5py.check_enum_dtype(found[field]) or numbers)
        for (name, field), numbers in SCHEMA_1.items()
        if name == table and field in (found.names or ())
    }
