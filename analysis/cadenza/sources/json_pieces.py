# SPDX-License-Identifier: Apache-2.0
"""Chrome traces as JSON of any size, read in pieces of some megabytes.

A piece ends where an event ends. Whether a place is such an end is left to the parser: text from
one end of an event up to a wrong place is no list of values. Only where the first guess is wrong
are all quotes and brackets of a piece looked at.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from cadenza.errors import DataError
from cadenza.words import counted

PIECE = 2 << 20  # bytes of text that are parsed at once: what they say stays in a cache
LONGEST = 48 << 20  # bytes of one event, and of what stands before or behind all events
MOST = 50_000_000  # events of a file, of any kind

_NEXT = re.compile(rb"\}(\s*,\s*)\{")  # perhaps between two events
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
# Microseconds of which a float64 would lose nanoseconds.
_LONG_TIME = re.compile(rb'("ts"\s*:\s*\d{14,})\.(\d+)')
_NO_NUMBER = re.compile(rb"([:\[,]\s*)-?(?:NaN|nan|Infinity|inf)\b")
# What stands behind a backslash: two halves of a letter, one half (group 1), or anything else.
_ESCAPED = re.compile(rb"\\(?:u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|(u[dD][89a-fA-F]\w\w)|.)")
_CONTROL = bytes(range(32))
_SPACES = bytes.maketrans(_CONTROL, b" " * 32)
_BETWEEN = b", \t\r\n"
_MARKS = np.zeros(256, bool)
_MARKS[list(b'"\\{}[]')] = True


class ChromeTrace:
    """The events of a file, as `for events in trace.pieces()`.

    `beside` has what stands beside the events and is complete when they have been read, as is
    `lost`: sentences about what could not be read. Of long times ("ts": 1712195495519689.125) the
    part behind the point is given as a value of its own ("ts_part": 0.125).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.beside: dict[str, Any] = {}
        self.lost: list[str] = []
        self._broken = 0  # events that are no JSON
        self._long_times = False

    def pieces(self) -> Iterator[list[Any]]:
        """Values of the list of events, each list at most PIECE bytes of text or one event.

        @throws DataError: the file cannot be read, or has no list of events
        """
        try:
            with self.path.open("rb") as file:
                yield from self._read(_Text(file, self.path.suffix == ".gz"))
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        if self._broken:
            self.lost.append(f"{counted(self._broken, 'event')} left out: no JSON")

    def _read(self, text: _Text) -> Iterator[list[Any]]:
        rest, in_object = self._begin(text)
        count, ended = 0, False
        while not ended:
            more = text.read(max(PIECE, len(rest)))  # of a long event ever more
            rest += more
            self._long_times = self._long_times or bool(_LONG_TIME.search(rest, 0, 1 << 16))
            events, rest, ended = self._parse(rest, last=not more)
            count += len(events)
            if events:
                yield events
            if not more and not ended:
                self.lost.append(text.damage or "the file is cut short: read as far as it goes")
                return
            if count > MOST:
                self.lost.append(f"only the first {count:,} events were read")
                return
            if len(rest) > LONGEST:
                self.lost.append(f"an event of more than {LONGEST >> 20} MiB: read as far as there")
                return
        self._end(rest, text, in_object)

    def _begin(self, text: _Text) -> tuple[bytes, bool]:
        """The text behind the bracket that opens the list of events, and whether the list is a
        part of an object."""
        head = b""
        while True:
            more = text.read(PIECE)
            head = (head + more).removeprefix(b"\xef\xbb\xbf").lstrip(_BETWEEN)
            if head.startswith(b"["):
                return head[1:], False
            matches = list(islice(_LIST.finditer(head), 8))
            for match in matches:
                found = _object(head[: match.start()].rstrip(_BETWEEN) + b"}")
                if found is not None:
                    self.beside.update(found)
                    return head[match.end() :], True
            if matches and head.startswith(b"{"):
                self.lost.append("what stands before the events cannot be read")
                return head[matches[0].end() :], True
            if not more or len(head) > LONGEST or (head and not head.startswith(b"{")):
                raise DataError(f"{self.path}: found no list traceEvents; valid: a Chrome trace")

    def _parse(self, text: bytes, last: bool) -> tuple[list[Any], bytes, bool]:
        """Complete events, the text behind them, and whether the list ends there."""
        if not last:
            tail = max(0, len(text) - (1 << 16))
            guess = None
            for guess in _NEXT.finditer(text, tail):  # noqa: B007  the last one
                pass
            if guess:
                try:
                    events = self._list(memoryview(text)[: guess.start() + 1])
                    return events, text[guess.end(1) :], False
                except orjson.JSONDecodeError:
                    pass
        ends, close = _ends(text)
        if close < 0 and not ends.size:
            return [], text, False
        stop = close if close >= 0 else int(ends[-1])
        events = self._values(text, ends, stop)
        return events, text[stop + (close >= 0) :].lstrip(_BETWEEN), close >= 0

    def _values(self, text: bytes, ends: np.ndarray, stop: int) -> list[Any]:
        """Of the text up to `stop`, in which values end at `ends`: what can be parsed of it."""
        for mend in (bytes, _mended):
            try:
                return self._list(mend(text[:stop]).strip(_BETWEEN))
            except orjson.JSONDecodeError:
                pass
        events, begin = [], 0
        for end in ends.tolist():
            try:
                events += self._list(_mended(text[begin:end]).strip(_BETWEEN))
            except orjson.JSONDecodeError:
                self._broken += 1
            begin = end
        return events

    def _list(self, text: bytes | memoryview) -> list[Any]:
        """Values that commas separate."""
        text = b"".join((b"[", text, b"]"))
        if self._long_times:
            words = _LONG_TIME.split(text)  # text, "ts": whole, part, text, "ts": whole, ...
            words[1::3] = [word + b',"ts_part":0.' for word in words[1::3]]
            text = b"".join(words)
        return orjson.loads(text)

    def _end(self, rest: bytes, text: _Text, in_object: bool) -> None:
        while len(rest) <= LONGEST and (more := text.read(PIECE)):
            rest += more
        begin = b"{" if in_object else b"{}"  # behind a list alone stands nothing
        found = _object(begin + rest.strip(_BETWEEN)) if len(rest) <= LONGEST else None
        if found is None:
            self.lost.append("what stands behind the events cannot be read")
        else:
            self.beside.update(found)
        if text.damage:
            self.lost.append(text.damage)


class _Text:
    """A file without its compression, as far as it is sound."""

    def __init__(self, file: BinaryIO, compressed: bool) -> None:
        self._file = file
        self._inflate = zlib.decompressobj(31) if compressed else None
        self._raw = b""
        self.damage = ""

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end, or where the file is damaged."""
        if self._inflate is None:
            return self._file.read(size)
        parts, have = [], 0
        while have < size and not self.damage:
            raw = self._raw or self._file.read(1 << 14)
            if not raw:
                if not self._inflate.eof:
                    self.damage = "the compressed file is cut short: read as far as it goes"
                break
            if self._inflate.eof:  # another member follows
                self._inflate = zlib.decompressobj(31)
            try:
                part = self._inflate.decompress(raw, size - have)
            except zlib.error as error:
                self.damage = f"the compressed file is damaged ({error}): read up to there"
                break
            self._raw = self._inflate.unconsumed_tail or self._inflate.unused_data
            parts.append(part)
            have += len(part)
        return b"".join(parts)


def first_bytes(path: Path, size: int) -> bytes:
    """The first bytes of a file without its compression. @throws DataError: it cannot be read"""
    try:
        with path.open("rb") as file:
            return _Text(file, path.suffix == ".gz").read(size)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _object(text: bytes) -> dict[str, Any] | None:
    for mend in (bytes, _mended):
        try:
            return orjson.loads(mend(text))
        except orjson.JSONDecodeError:
            pass
    return None


def _mended(text: bytes) -> bytes:
    """As JSON, what programs write instead: numbers that are none, bytes that are no UTF-8, halves
    of letters, and control characters within texts."""
    text = text.translate(_SPACES).decode(errors="replace").encode()
    text = _ESCAPED.sub(lambda found: rb"\ufffd" if found[1] else found[0], text)
    return _NO_NUMBER.sub(rb"\1null", text)


def _ends(text: bytes) -> tuple[np.ndarray, int]:
    """Offsets behind each object of the list whose content `text` begins with, and the offset of
    the bracket that closes the list (-1: it is not in the text)."""
    letters = np.frombuffer(text, np.uint8)
    at = np.flatnonzero(_MARKS[letters])
    kind = letters[at]
    quotes = (kind == ord('"')) & ~_escaped(at, kind)
    inside = np.logical_xor.accumulate(quotes) if at.size else quotes
    steps = np.zeros(at.size, np.int8)
    steps[(kind == ord("{")) | (kind == ord("["))] = 1
    steps[(kind == ord("}")) | (kind == ord("]"))] = -1
    steps[inside] = 0
    depth = np.cumsum(steps, dtype=np.int32)
    closed = np.flatnonzero(depth < 0)
    stop = int(closed[0]) if closed.size else at.size
    ends = at[:stop][(steps[:stop] < 0) & (depth[:stop] == 0)] + 1
    return ends, int(at[stop]) if closed.size else -1


def _escaped(at: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Which marks stand behind an odd number of backslashes."""
    slash = kind == ord("\\")
    if not slash.any():
        return np.zeros(at.size, bool)
    index = np.arange(at.size)
    follows = np.zeros(at.size, bool)  # on a backslash, without a gap
    follows[1:] = slash[:-1] & (at[1:] == at[:-1] + 1)
    first = np.maximum.accumulate(np.where(slash & follows, 0, index))  # of a run of backslashes
    run = np.zeros(at.size, np.int64)
    run[1:] = np.where(follows[1:], index[:-1] - first[:-1] + 1, 0)
    return run % 2 == 1
