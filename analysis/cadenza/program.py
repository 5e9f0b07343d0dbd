# SPDX-License-Identifier: Apache-2.0
"""What the command lines of this package share: whatever goes wrong is one line and an exit code.

Exit codes: 0 ok, 1 the program has a fault, 2 usage, 3 data or file.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from cadenza import log
from cadenza.errors import CadenzaError, DataError, UsageError
from cadenza.files import printable

_LONGEST = 200  # characters of a library's message


class Parser(argparse.ArgumentParser):
    """Errors are one line, like every other error of Cadenza, and say what was probably meant."""

    commands: argparse._SubParsersAction | None = None

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def parse_args(self, words: list[str] | None = None) -> argparse.Namespace:
        found, unknown = self.parse_known_args(words)
        if unknown:
            of = self.commands.choices[found.command] if self.commands else self
            meant = _meant(unknown[0].partition("=")[0], of._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        return found

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            names = ", ".join(map(str, action.choices))
            meant = _meant(str(value), action.choices)
            message = f"invalid choice: {str(value)!r}{meant} (choose from {names})"
            raise argparse.ArgumentError(action, message)


def _meant(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f": did you mean {near[0]}?" if near else ""


def whole_number(most: int) -> Callable[[str], int]:
    """What reads a whole number from 1 to `most`."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= most:
            raise argparse.ArgumentTypeError(f"found '{text}'; valid: an integer from 1 to {most}")
        return int(text)

    return read


def add_detail(to: argparse.ArgumentParser) -> None:
    """The options that every command has."""
    detail = to.add_mutually_exclusive_group()
    detail.add_argument("--quiet", action="store_true",
                        help="print only results, warnings and errors")
    detail.add_argument("--verbose", action="store_true", help="report progress on stderr")


def ended(
    parser: Parser, words: list[str] | None, run: Callable[[argparse.Namespace], int | None],
    less: str,
) -> int:
    """Does run(arguments) with the arguments in `words` (default: the process's own) and returns
    the exit code.

    @param less  what needs less memory
    """
    verbose = False

    def failed(why: str, code: int) -> int:
        print(f"{parser.prog}: error: {printable(why)}", file=sys.stderr)
        return code

    try:
        _prepare_output()
        arguments = parser.parse_args(words)
        verbose = arguments.verbose
        shown = log.shown(parser.prog, arguments.quiet, arguments.verbose)
        with warnings.catch_warnings(), shown:
            if not sys.warnoptions:  # of libraries, about numbers that a trace may hold
                warnings.simplefilter("ignore")
            code = run(arguments)
        sys.stdout.flush()
    except CadenzaError as error:
        return failed(str(error), error.exit_code)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        _drop_output()
        return 0
    except OSError as error:
        if not error.filename:
            _drop_output()
        return failed(f"{error.filename or 'standard output'}: {error.strerror or error}", 3)
    except KeyboardInterrupt:
        return 130
    except MemoryError:
        return failed(f"not enough memory; valid: {less}", 1)
    except Exception as error:  # a fault of this program, or a damaged file that it believes
        if verbose:
            traceback.print_exc()
        return failed(_fault(error), 1)
    return code or 0


def _prepare_output() -> None:
    """Every name can be shown, whatever characters the terminal has."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        raise DataError("standard output: it is closed")


def _drop_output() -> None:
    """What has not been written yet has nowhere to go; else the interpreter tries again."""
    with contextlib.suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fault(error: Exception) -> str:
    """What nobody foresaw, and where."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    reason = str(error).partition("\n")[0]
    return (f"internal: {type(error).__name__}: {reason[:_LONGEST]} "
            f"({Path(place.filename).name}:{place.lineno}); --verbose says more")
