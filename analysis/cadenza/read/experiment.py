# SPDX-License-Identifier: Apache-2.0
"""What the analysis takes from an experiment: where a key is there, it is what `cadenza` writes."""

from __future__ import annotations

from cadenza.errors import DataError

_MOST = 2**53
# Least value of the numbers that are used, by section.
_NUMBERS = {
    "attention": {},
    "batch": {"tokens": 1, "microbatch": 1},
    "cluster": {"bandwidth": 1e-9, "ranks_per_node": 0},
    "parallel": {"data": 1, "pipeline": 1, "chunks": 1},
    "run": {"memory": 0},
}


def checked(source: str, experiment: dict) -> dict:
    """The experiment; those of its sections that are there are maps. @throws DataError"""
    for name, numbers in _NUMBERS.items():
        if experiment.get(name, {}) is None:
            experiment[name] = {}
        section = experiment.get(name, {})
        if not isinstance(section, dict):
            raise DataError(f"{source}: {name}: found {section!r}; valid: a map of keys")
        for key, least in numbers.items():
            value = section.get(key, least)
            if not is_number(value, least):
                raise DataError(f"{source}: {name}.{key}: found {value!r}; valid: a number of at "
                                f"least {least}")
    return experiment


def is_number(value: object, least: float) -> bool:
    """Of which sums and products are no overflow."""
    return type(value) in (int, float) and least <= value <= _MOST
