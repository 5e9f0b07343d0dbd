# SPDX-License-Identifier: Apache-2.0
"""The units of all columns that `Run` and `Study` give: `frame.attrs["units"]`."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import TypeVar

import pandas as pd

from cadenza.time.between import CAUSES
from cadenza.time.pieces import PARTS

_Kind = TypeVar("_Kind")

# The first pattern that a column's whole name fits says its unit. Names and numbers of things, such
# as `rank` and `layer`, have none.
_UNITS = [(re.compile(pattern), unit) for pattern, unit in (
    (r"(worker|step_level|lockstep)_flops|r_squared|robust_z", "1"),
    (r"(.+_)?ns", "ns"),
    (r"tokens_per_second", "1/s"),
    (r"(.+_)?seconds", "s"),
    (r"bytes_per_step|(.+_)?bytes(_in|_out|_moved|_sent|_received)?", "B"),
    (r"peak_flops|(attention_|dense_)?rate", "FLOP/s"),
    (r"(.+_)?flops|cost", "FLOP"),
    (r"(.+_)?(share|ratio|fraction|loss|of_peak|utilization|efficiency|balance|imbalance|sparsity|"
     r"recall)", "1"),
    (r"worker|step_level|lockstep|attention_imbalance_by_layer|mfu|hfu|score|work|as_late|"
     r"divergence|max_over_median|saves|hit|kept|attention|gradient_norm|learning_rate", "1"),
    (r"(n|tail)_events(_end)?|documents|tokens|sum_length2|threads|tasks|messages(_in)?|layers|"
     r"stages|passes|ranks|steps|count|collectives|answers|hits|targets|keys|unseen", "1"),
    (r"length|fact|position|distance|[qk]_(begin|end)", "1"),  # tokens
)]
# Where a name alone does not say it.
_OF_FRAMES = {
    "parts": dict.fromkeys(("window", *PARTS), "ns"),
    "between": dict.fromkeys(("window", *CAUSES), "ns"),
    "steady_between": dict.fromkeys(("window", *CAUSES), "ns"),
    "totals": dict.fromkeys(("window", *PARTS), "s"),
    "step_features": dict.fromkeys(("seconds", *PARTS), "1"),  # in units of the median step
    "imbalance": {"max": "s", "mean": "s"},
}


@functools.cache
def unit_of(column: str, frame: str) -> str | None:
    """ns, s, B, FLOP, FLOP/s, 1/s or 1; None of what has no unit.

    @param frame  the method or property of Run or Study that gives the column
    """
    if column in _OF_FRAMES.get(frame, {}):
        return _OF_FRAMES[frame][column]
    return next((unit for name, unit in _UNITS if name.fullmatch(column)), None)


def with_units(kind: type[_Kind]) -> type[_Kind]:
    """A class whose public methods and properties say the units of the frames they give. Those that
    are given a frame give rows of it, whose units pandas keeps."""
    for name, member in list(vars(kind).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, functools.cached_property) and _gives_frame(member.func):
            member.func = _told(member.func)
        elif isinstance(member, property) and _gives_frame(member.fget):
            setattr(kind, name, property(_told(member.fget)))
        elif inspect.isfunction(member) and _gives_frame(member):
            setattr(kind, name, _told(member))
    return kind


def _gives_frame(function: Callable) -> bool:
    annotations = dict(function.__annotations__)
    return annotations.pop("return", "") == "pd.DataFrame" and "pd.DataFrame" not in \
        annotations.values()


def _told(function: Callable[..., pd.DataFrame]) -> Callable[..., pd.DataFrame]:
    @functools.wraps(function)
    def call(*arguments: object, **options: object) -> pd.DataFrame:
        frame = function(*arguments, **options)
        units = {column: unit_of(str(column), function.__name__) for column in frame}
        frame.attrs["units"] = {column: unit for column, unit in units.items() if unit}
        return frame

    return call
