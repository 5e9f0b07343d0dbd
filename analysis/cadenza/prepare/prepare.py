# SPDX-License-Identifier: Apache-2.0
"""From files of documents to a folder of tokens."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from cadenza.errors import DataError
from cadenza.files import made, written
from cadenza.log import LOG
from cadenza.prepare.documents import Block, Reader
from cadenza.prepare.encode import Encoded, Encoder, dtype_of
from cadenza.prepare.packages import package
from cadenza.prepare.readers import reader_of
from cadenza.prepare.state import NAME, Source, State, shard_path
from cadenza.prepare.tokenizer import Tokenizer, read_tokenizer
from cadenza.processes import in_order

SHARD = 100_000_000  # tokens: a shard ends with the block that reaches them
_UNFINISHED = re.compile(r"\.[0-9a-f]{16}\.unfinished")  # files of written() that a kill left
_PATTERN = re.compile(r"[*?\[\]]")  # what `data.path` does not take as it is
_PATIENCE = 1.0  # seconds between two lines of progress
_LOCKED = 10.0  # seconds that another process may need to end


@dataclass(frozen=True)
class Prepared:
    summary: dict  # Statistics.summary()
    experiment: str  # the keys of an experiment that reads the tokens, as YAML


@dataclass(frozen=True)
class _Piece:
    """A block, and where the next one begins."""

    source: int
    block: int
    read: int  # bytes of all sources
    content: Block | Encoded


def prepare(
    inputs: Sequence[Path], tokenizer: Path, output: Path, column: str, workers: int
) -> Prepared:
    """Writes the documents of `inputs`, in this order, as tokens into shards of `output`, and goes
    on where an earlier call with equal arguments was interrupted. The number of workers does not
    change what is written.

    @param column  of JSON Lines and parquet: what has the text
    @throws DataError where an input or the folder cannot be used; of the shard that was being
            written nothing is left
    """
    readers = [reader_of(path, column) for path in inputs]
    found = read_tokenizer(tokenizer)
    for reader in readers:
        reader.check()
    with _own(output):
        state = _begun(inputs, found, column, output)
        try:
            if not state.complete:
                _write_shards(state, readers, found, output, workers)
            if not state.shards:
                raise _nothing(output)
            return _finished(state, found, output)
        finally:
            if not state.shards:
                (output / NAME).unlink()


def _nothing(folder: Path) -> DataError:
    return DataError(f"{folder}: nothing to write: no input has a document with text")


@contextmanager
def _own(folder: Path) -> Iterator[None]:
    """The folder for this process alone. One that was made for nothing does not stay."""
    name = str(folder.resolve())
    if _PATTERN.search(name) or not name.isprintable():
        raise DataError(f"{folder}: data.path cannot name it; valid: a path without *, ?, [, ] and "
                        "what cannot be printed")
    there = folder.exists()
    number = os.open(made(folder), os.O_RDONLY)
    try:
        _lock(number, folder)
        yield
    finally:
        os.close(number)
        if not there and not any(folder.iterdir()):
            folder.rmdir()


def _lock(number: int, folder: Path) -> None:
    """Workers of a process that was killed have its lock until they end, too, soon after it."""
    end = time.monotonic() + _LOCKED
    while True:
        try:
            return fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise DataError(f"{folder}: another cadenza-prepare writes there") from None
        time.sleep(0.05)


def _begun(inputs: Sequence[Path], tokenizer: Tokenizer, column: str, folder: Path) -> State:
    """A new state, or that of the folder."""
    for path in folder.iterdir():
        if _UNFINISHED.fullmatch(path.name):
            path.unlink()
    others = sorted(path.name for path in folder.iterdir())
    if others and NAME not in others:
        raise DataError(f"{folder}: holds {others[0]}, which cadenza-prepare did not write; valid: "
                        "an empty folder, or a new one")
    arguments = {"the tokenizer (a digest)": tokenizer.digest, "--column": column,
                 "tokens of a shard": str(SHARD),
                 "the package tokenizers": package("tokenizers").__version__}
    sources = []
    for path in inputs:
        found = path.stat()
        sources.append(Source(str(path.resolve()), found.st_size, found.st_mtime_ns))
    state = State(arguments, sources).continued(folder)
    state.write(folder)  # before its shards: it says whose they are
    LOG.info("%s: going on after %d shards", folder, len(state.shards))
    return state


def _write_shards(
    state: State, readers: Sequence[Reader], tokenizer: Tokenizer, folder: Path, workers: int
) -> None:
    encoder = Encoder(tokenizer)

    def encode(piece: _Piece) -> _Piece:
        return _Piece(piece.source, piece.block, piece.read, encoder(piece.content))

    pieces = _pieces(state, readers)
    encoded = in_order(encode, pieces, workers) if workers > 1 else map(encode, pieces)
    progress = _Progress(state.sources)
    try:
        piece = next(encoded, None)
        while piece is not None:
            piece = _write_shard(state, piece, encoded, folder, progress)
    except BrokenProcessPool as error:
        raise DataError(f"{folder}: a worker was killed, probably for lack of memory; valid: fewer "
                        "--workers (what is complete stays)") from error


def _pieces(state: State, readers: Sequence[Reader]) -> Iterator[_Piece]:
    """The blocks that are in no shard yet."""
    before = sum(one.size for one in state.sources[: state.source])
    for source in range(state.source, len(readers)):
        skipped = state.block if source == state.source else 0
        for number, (block, read) in enumerate(readers[source].blocks(), 1):
            if number > skipped:
                yield _Piece(source, number, before + read, block)
        before += state.sources[source].size


def _write_shard(
    state: State, piece: _Piece, others: Iterator[_Piece], folder: Path, progress: _Progress
) -> _Piece | None:
    """Writes `piece` and as many of the others as a shard holds, and returns the next one. A block
    without documents goes with those before it, so that no shard is empty."""
    tokens = 0
    with written(shard_path(folder, len(state.shards))) as file:
        while piece is not None and (tokens < SHARD or not len(piece.content.lengths)):
            file.write(piece.content.tokens)
            more = int(piece.content.lengths.sum())
            tokens += more
            state.source, state.block = piece.source, piece.block
            state.statistics.add(piece.content)
            progress.add(piece.read, more)
            piece = next(others, None)
        if not tokens:
            raise _nothing(folder)
        size = file.tell()
    state.shards.append(size)
    state.write(folder)
    return piece


class _Progress:
    """Says from time to time how much of the inputs was read, and how long the rest takes."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._size = max(sum(one.size for one in sources), 1)
        self._begin = self._said = time.monotonic()
        self._first: int | None = None  # byte that was read at the begin
        self._tokens = 0

    def add(self, read: int, tokens: int) -> None:
        """@param read    bytes of all inputs up to here
        @param tokens  that are new"""
        now = time.monotonic()
        self._first = read if self._first is None else self._first
        self._tokens += tokens
        if now - self._said < _PATIENCE:
            return
        self._said, passed, share = now, now - self._begin, read / self._size
        done = (read - self._first) / self._size
        left = f", {passed / done * (1 - share) / 60:.0f} min left" if done > 0 else ""
        LOG.info("%.1f %% of the inputs, %.3g million tokens, %.3g million a second%s", 100 * share,
                 self._tokens / 1e6, self._tokens / 1e6 / passed, left)


def _finished(state: State, tokenizer: Tokenizer, folder: Path) -> Prepared:
    """Writes what belongs to the shards, and says last that they are complete."""
    summary = state.statistics.summary()
    keys = {"model": {"vocab": tokenizer.vocab},
            "data": {"source": "tokens", "path": f"{folder.resolve()}/*.bin",
                     "dtype": dtype_of(tokenizer.vocab), "document_end": tokenizer.document_end}}
    experiment = yaml.safe_dump(keys, sort_keys=False, allow_unicode=True, width=float("inf"))
    for name, content in (("statistics.json", json.dumps(summary, indent=2) + "\n"),
                          ("lengths.json", json.dumps(state.statistics.histogram) + "\n"),
                          ("data.yaml", experiment)):
        with written(folder / name) as file:
            file.write(content.encode())
    state.complete = True
    state.write(folder)
    return Prepared(summary, experiment)
