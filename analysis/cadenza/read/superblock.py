# SPDX-License-Identifier: Apache-2.0
"""Opening a trace file in any state that its writer can have left it in.

A file whose writer was killed has the mark of an open writer in its first bytes, and an end-of-file
address from before it grew. HDF5 opens such a file as a reader beside a living writer only, and
then tries damaged metadata again and again, with pauses that grow: a file that was cut off holds it
up forever. Here HDF5 is given the file's bytes with a corrected superblock instead, so that it
reads what is there and fails at once where something is missing. The file itself is not touched.

Format: HDF5 File Format Specification 3.0, section II.A.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from pathlib import Path

import h5py

from cadenza.errors import DamagedError, DataError

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_HEAD = 96  # bytes that hold a superblock of any version
_CHECKED = 44  # bytes of a version 2 or 3 superblock that its checksum covers
_END_AT = {0: 40, 1: 44, 2: 28, 3: 28}  # version: place of the end-of-file address


@dataclass(frozen=True)
class Superblock:
    head: bytes
    version: int
    open_for_writing: bool
    end: int  # bytes that the file should have
    size: int  # bytes that it has

    @property
    def sound(self) -> bool:
        """Whether HDF5 opens the file plainly."""
        return not self.open_for_writing and self.end <= self.size

    def corrected(self) -> bytes:
        """The superblock without a writer's mark, of a file that ends where this one does."""
        head = bytearray(self.head)
        struct.pack_into("<Q", head, _END_AT[self.version], self.size)
        if self.version >= 2:
            head[11] = 0
            struct.pack_into("<I", head, _CHECKED, lookup3(bytes(head[:_CHECKED])))
        return bytes(head)


def read_superblock(path: Path) -> Superblock:
    if path.exists() and not path.is_file():
        raise DamagedError(f"{path}: not a file")
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            size = file.seek(0, io.SEEK_END)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if not head.startswith(_SIGNATURE):
        raise DamagedError(f"{path}: not an HDF5 file")
    if len(head) < _HEAD:
        raise DamagedError(f"{path}: cut off after {size} bytes: nothing of it can be read")
    version = head[8]
    wide = head[13] if version < 2 else head[9]
    if version not in _END_AT or wide != 8:
        raise DataError(f"{path}: superblock version {version} of HDF5 is not known here")
    (end,) = struct.unpack_from("<Q", head, _END_AT[version])
    return Superblock(head, version, version >= 2 and bool(head[11] & 5), end, size)


def open_hdf5(path: Path) -> tuple[h5py.File, bool]:
    """The open file, and whether its writer ended it: false where it was killed or still runs."""
    block = read_superblock(path)
    if block.sound:
        return h5py.File(path, "r"), True
    return h5py.File(_Corrected(path, block.corrected(), block.size), "r"), False


class _Corrected(io.RawIOBase):
    """A file's bytes behind a superblock of our own."""

    def __init__(self, path: Path, head: bytes, size: int) -> None:
        self._file = path.open("rb", buffering=0)
        self._head, self._size, self._at = head, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer) -> int:
        wanted = memoryview(buffer).cast("B")[: max(0, self._size - self._at)]
        if not wanted:  # damaged addresses may lie beyond what a file's position can be
            return 0
        self._file.seek(self._at)
        count = self._file.readinto(wanted) or 0
        if self._at < len(self._head):
            part = self._head[self._at : self._at + count]
            wanted[: len(part)] = part
        self._at += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def lookup3(data: bytes) -> int:
    """Bob Jenkins' hash lookup3 (hashlittle, 2006), the checksum of HDF5's metadata."""
    mask = 0xFFFFFFFF

    def rotated(x: int, k: int) -> int:
        return ((x << k) | (x >> (32 - k))) & mask

    a = b = c = (0xDEADBEEF + len(data)) & mask
    words = struct.unpack(f"<{-(-len(data) // 4)}I", data + b"\0" * (-len(data) % 4))
    blocks = [[*words[i : i + 3], 0, 0][:3] for i in range(0, len(words), 3)]
    for x, y, z in blocks[:-1]:
        a, b, c = (a + x) & mask, (b + y) & mask, (c + z) & mask
        for k, swap in ((4, 0), (6, 1), (8, 2), (16, 0), (19, 1), (4, 2)):
            if swap == 0:
                a, c = ((a - c) & mask) ^ rotated(c, k), (c + b) & mask
            elif swap == 1:
                b, a = ((b - a) & mask) ^ rotated(a, k), (a + c) & mask
            else:
                c, b = ((c - b) & mask) ^ rotated(b, k), (b + a) & mask
    if not blocks:
        return c
    x, y, z = blocks[-1]
    a, b, c = (a + x) & mask, (b + y) & mask, (c + z) & mask
    c = ((c ^ b) - rotated(b, 14)) & mask
    a = ((a ^ c) - rotated(c, 11)) & mask
    b = ((b ^ a) - rotated(a, 25)) & mask
    c = ((c ^ b) - rotated(b, 16)) & mask
    a = ((a ^ c) - rotated(c, 4)) & mask
    b = ((b ^ a) - rotated(a, 14)) & mask
    return ((c ^ b) - rotated(b, 24)) & mask
