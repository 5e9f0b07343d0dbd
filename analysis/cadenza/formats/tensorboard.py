# SPDX-License-Identifier: Apache-2.0
"""Scalars as TensorBoard reads them: a file of records, each an `Event` as a protocol buffer.

A record is its length (8 bytes), a checksum of these, the event, and a checksum of the event;
numbers are little-endian. Formats: tensorflow/core/lib/io/record_writer.h, core/util/event.proto
and core/framework/summary.proto, of which this writes `Event` {1: seconds, 2: step, 3: version of
the file, 5: `Summary` {1: `Value` {1: tag, 2: number}}}.
"""

from __future__ import annotations

import numbers
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from cadenza.errors import DataError
from cadenza.files import made, written
from cadenza.read.run import Run

_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # how the value of a field is written
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, bits reversed


def write_tensorboard(run: Run, folder: Path, steps: Iterable[int]) -> Path:
    """Writes every number of metrics.jsonl of these steps, named as there, at the time at which the
    step ended; what is null, text or a list is left out. Written again, the file has the same
    name."""
    frame = run.metrics()
    if "step" not in frame or frame.empty:
        raise DataError(f"{run.path / 'metrics.jsonl'}: has no steps")
    begin, ends = _times(run)
    path = made(folder) / f"events.out.tfevents.{begin:010.0f}.cadenza"
    with written(path) as file:
        file.write(_record(_field(1, _DOUBLE, begin) + _field(3, _BYTES, b"brain.Event:2")))
        for row in frame[frame["step"].isin(list(steps))].to_dict("records"):
            step = int(row.pop("step"))
            summary = b"".join(_values(row))
            file.write(_record(_field(1, _DOUBLE, ends[step]) + _field(2, _VARINT, step)
                               + _field(5, _BYTES, summary)))
    return path


def _times(run: Run) -> tuple[float, dict[int, float]]:
    """When the run began and its steps ended, in seconds since 1970."""
    started, steps = run.started, run.steps()
    begin = started.timestamp() if started else 0.0
    ends = (steps.groupby("step")["end_ns"].max() - steps["begin_ns"].min()) / 1e9
    return begin, (begin + ends).to_dict()


def _values(row: dict[str, object]) -> Iterator[bytes]:
    for tag, value in row.items():
        if isinstance(value, numbers.Real) and not isinstance(value, bool) and value == value:
            number = _field(1, _BYTES, tag.encode()) + _field(2, _FLOAT, value)
            yield _field(1, _BYTES, number)


def _field(number: int, kind: int, value: float | bytes) -> bytes:
    key = _varint(number << 3 | kind)
    if kind == _VARINT:
        return key + _varint(value)
    if kind == _BYTES:
        return key + _varint(len(value)) + value
    if kind == _DOUBLE:
        return key + struct.pack("<d", value)
    with np.errstate(over="ignore"):  # what is too large for 32 bits is infinite
        return key + np.array(value, "<f4").tobytes()


def _varint(value: int) -> bytes:
    """Seven bits in a byte, the lowest first; the eighth says that more follow."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _checksum(length) + event + _checksum(event)


def _checksum(content: bytes) -> bytes:
    """CRC-32C, masked so that a checksum of what holds one is as good as any other."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _shifted(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_shifted(byte) for byte in range(256)]
