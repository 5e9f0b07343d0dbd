# SPDX-License-Identifier: Apache-2.0
"""Errors that a person reads: one line each, with the exit code of the `cadenza` program."""


class CadenzaError(Exception):
    """What this package raises: `DataError` or `UsageError`."""

    exit_code = 1


class UsageError(CadenzaError):
    """What was asked for is wrong: an option, or a rank, step or column that a run lacks."""

    exit_code = 2


class DataError(CadenzaError):
    """A file or folder is missing, unreadable or not what it should be."""

    exit_code = 3


class DamagedError(DataError):
    """Of one file of many: the others may be of use without it."""
