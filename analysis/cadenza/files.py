# SPDX-License-Identifier: Apache-2.0
"""Files and folders that somebody else made: what is read is looked at before it is opened, and
nothing is written where a link leads."""

from __future__ import annotations

import errno
import math
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import yaml

from cadenza.errors import DataError, UsageError

if TYPE_CHECKING:  # it takes a while to load
    from matplotlib.figure import Figure

_MOST_YAML = 1 << 21  # characters: twice what `cadenza` reads, as it adds defaults
_MOST_NODES = 1 << 20  # of a YAML text where an alias counts as what it stands for
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?\d{1,300}")
_FLOAT = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None, ".inf": math.inf,
          "-.inf": -math.inf, ".nan": math.nan}
_OF_RUNS = {"experiment.yaml", "metrics.jsonl", "evaluation.json", "sweep.yaml",
            "sweep.csv"}  # and all .h5
_PICTURES = (".png", ".svg", ".pdf")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text on one line, without what steers a terminal."""
    return text if text.isprintable() else "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def read_text(path: Path) -> str:
    """@throws DataError for anything but a regular file of UTF-8: a pipe would wait for a writer, a
    device need not end."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(f"{path}: not a file")
        # Should a pipe have come there meanwhile, it is not waited for either.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(number, encoding="utf-8", newline="") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def check_picture(output: Path) -> None:
    """@throws UsageError, DataError where `output` is no place for a picture"""
    if output.suffix.lower() not in _PICTURES:
        valid = ", ".join(_PICTURES)
        raise UsageError(f"--output {output}: unknown format; valid endings are {valid}")
    if not output.parent.is_dir():
        raise DataError(f"{output}: no such folder: {output.parent}")


@contextmanager
def written(output: Path) -> Iterator[BinaryIO]:
    """A file that becomes `output` when all of it is written: a new one beside, as what is there
    may be a link, or be read just now. A device or a pipe (/dev/stdout) is written as it is.

    @throws DataError where nothing can be written, or `output` is a link to a file or to nothing,
    or a file that `cadenza` wrote
    """
    try:
        there = output.stat().st_mode if output.exists() else None
        if there is not None and not (stat.S_ISREG(there) or stat.S_ISDIR(there)):
            device = os.open(output, os.O_WRONLY | os.O_NONBLOCK)  # waits for no reader
            os.set_blocking(device, True)
            with open(device, "wb") as file:
                yield file
            return
        _refuse_link(output)
        if there is not None and (output.name in _OF_RUNS or output.suffix == ".h5"):
            raise DataError(f"{output}: is a run's or a sweep's own file; valid: another name")
        if there is not None and stat.S_ISDIR(there):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        new = output.with_name(f".{secrets.token_hex(8)}.unfinished")
        try:
            with new.open("xb") as file:
                if there is not None:
                    os.fchmod(file.fileno(), stat.S_IMODE(there))
                yield file
            new.replace(output)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(f"{output}: cannot be written: {error.strerror}") from error


def made(folder: Path) -> Path:
    """The folder, for output. @throws DataError where it cannot be made, or is a link"""
    try:
        _refuse_link(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror}") from error
    return folder


def _refuse_link(output: Path) -> None:
    if output.is_symlink():
        raise DataError(f"{output}: is a link to {os.readlink(output)}; valid: a place without a "
                        "link")


def read_yaml(source: str, content: str, typed: bool = True) -> dict:
    """A YAML text as a map of text, lists and maps, as `cadenza` reads it.

    @param typed  numbers, booleans and null are those; else everything is the text that stands
                  there, as labels are
    @throws DataError for what is no such map, or more than any experiment
    """
    if len(content) > _MOST_YAML:
        raise DataError(f"{source}: found {len(content)} characters; valid: at most {_MOST_YAML}")
    try:
        root = yaml.compose(content, Loader=_LOADER)
        found = {} if root is None else _Values(source, typed).of(root)[0]
    except yaml.YAMLError as error:
        raise DataError(f"{source}: not YAML: {_problem(error)}") from error
    except RecursionError:
        raise DataError(f"{source}: not YAML as it is written here: it nests too deeply") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise DataError(f"{source}: found a {type(found).__name__}, expected a map of keys")
    return found


def _problem(error: yaml.YAMLError) -> str:
    """One line, with the line of the text if it is known."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    place = f" in line {mark.line + 1}" if mark else ""
    return (problem or str(error).partition("\n")[0]) + place


class _Values:
    """Makes values of YAML nodes, without YAML 1.1's types: dates, sets, numbers to base 60."""

    def __init__(self, source: str, typed: bool) -> None:
        self._source, self._typed = source, typed
        self._known: dict[int, tuple[object, int] | None] = {}  # by node; None: it is being made

    def of(self, node: yaml.Node) -> tuple[object, int]:
        """The value, and how many nodes it takes where every alias is written out."""
        if id(node) in self._known:
            found = self._known[id(node)]
            if found is None:
                raise self._error(node, "an alias inside its own anchor's value")
            return found
        self._known[id(node)] = None
        made, size = self._make(node)
        if size > _MOST_NODES:
            raise self._error(node, f"more than {_MOST_NODES} values, aliases written out")
        self._known[id(node)] = made, size
        return made, size

    def _make(self, node: yaml.Node) -> tuple[object, int]:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node), 1
        if isinstance(node, yaml.SequenceNode):
            items = [self.of(item) for item in node.value]
            return [value for value, _ in items], 1 + sum(size for _, size in items)
        made, size = {}, 1
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, "a key that is a list or a map")
            made[self._text(key)], more = self.of(value)
            size += 1 + more
        return made, size

    def _scalar(self, node: yaml.ScalarNode) -> object:
        text = self._text(node)
        if not self._typed or node.style in ("'", '"', "|", ">"):
            return text
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        if _INTEGER.fullmatch(text):
            return int(text)
        return float(text) if _FLOAT.fullmatch(text) else text

    def _text(self, node: yaml.ScalarNode) -> str:
        if _CONTROL.search(node.value):
            raise self._error(node, "control characters")
        return node.value

    def _error(self, node: yaml.Node, found: str) -> DataError:
        line = node.start_mark.line + 1
        return DataError(f"{self._source}:{line}: found {found}")


def save_figure(figure: Figure, output: Path, **options: object) -> None:
    """Writes a picture whose ending says in which format. Without a date, equal figures have equal
    files."""
    ending = output.suffix[1:].lower()
    with written(output) as file:
        figure.savefig(file, format=ending, facecolor="white",
                       metadata={"Date": None} if ending == "svg" else None, **options)
