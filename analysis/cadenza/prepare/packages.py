# SPDX-License-Identifier: Apache-2.0
"""Packages that only `cadenza-prepare` needs."""

from __future__ import annotations

import importlib
from types import ModuleType

from cadenza.errors import DataError


def package(name: str) -> ModuleType:
    """@throws DataError with what to install"""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(f"the Python package {name.partition('.')[0]} cannot be loaded ({error}); "
                        "valid: pip install pyarrow tokenizers") from error
