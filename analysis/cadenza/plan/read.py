# SPDX-License-Identifier: Apache-2.0
"""What `cadenza plan --format json` prints (docs/plan.md), as far as a picture needs it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np

from cadenza.errors import DataError
from cadenza.files import read_text
from cadenza.words import shortened

_MOST_RANKS, _MOST_TOKENS, _MOST_IMBALANCE = 1 << 16, 1 << 40, 1e9
_MOST = 1e30  # of any number: what is beyond comes from no plan, and its products overflow
_BINS = 32  # ranges of rows that have a density of their own
_LONGEST = 40  # characters of a value in a line

Range = tuple[int, int]  # half-open


@dataclass
class Task:
    """A rectangle of a document's attention matrix: query i sees key j where low <= j - i <= high,
    in the plan's numbers of tokens."""

    server: int
    document: int
    q: Range
    k: Range
    heads: Range
    low: int
    high: int


@dataclass
class Pattern:
    """The active keys of a sparse document, of head 0: ranges by row of blocks, and columns."""

    block: int
    rows: list[list[Range]]
    columns: np.ndarray


@dataclass
class Plan:
    name: str  # "tick 0, second half"
    stripes: int
    run: int  # tokens of a stripe that follow one another in the text
    tasks: list[Task]
    loads: np.ndarray  # of each rank over what its share of all work is
    sent: np.ndarray  # bytes of each rank
    imbalance_before: float
    imbalance: float
    predicted_seconds: float
    lower_bound_seconds: float
    # Of sparse documents: the share of pairs that is expected to be computed, in ranges of rows.
    densities: dict[int, list[float]] = field(default_factory=dict)


@dataclass
class Step:
    ranks: int
    documents: list[int]  # lengths
    plans: list[Plan]
    patterns: list[Pattern | None] | None  # of each document; None: no index was given
    rates: str


class _Value:
    """A value of the file that knows its place, for messages."""

    def __init__(self, value: object, name: str, parent: _Value | None = None) -> None:
        self._value, self._name, self._parent = value, name, parent  # of the root: the file's name

    def __getitem__(self, key: str) -> _Value:
        if (found := self.get(key)) is None:
            self._refuse("no such value", "what docs/plan.md describes", f".{key}")
        return found

    def get(self, key: str) -> _Value | None:
        if not isinstance(self._value, dict):
            self.refuse("an object")
        return _Value(self._value[key], f".{key}", self) if key in self._value else None

    def items(self, count: int | None = None) -> list[_Value]:
        if not isinstance(self._value, list) or count not in (None, len(self._value)):
            self.refuse("a list" if count is None else f"a list of {count}")
        return [_Value(one, f"[{at}]", self) for at, one in enumerate(self._value)]

    def integer(self, least: int, most: int) -> int:
        if type(self._value) is not int or not least <= self._value <= most:
            self.refuse(f"an integer from {least} to {most}")
        return self._value

    def number(self, least: float = 0, most: float = _MOST) -> float:
        if type(self._value) not in (int, float) or not least <= self._value <= most:
            self.refuse(f"a number from {least:g} to {most:g}")
        return float(self._value)

    def range(self, most: int) -> Range:
        begin, end = (one.integer(0, most) for one in self.items(2))
        if begin > end:
            self.refuse("a range, [begin, end]")
        return begin, end

    def text(self) -> str:
        if not isinstance(self._value, str):
            self.refuse("text")
        return self._value

    @property
    def is_null(self) -> bool:
        return self._value is None

    def refuse(self, valid: str) -> NoReturn:
        self._refuse(shortened(json.dumps(self._value), _LONGEST), valid)

    def _refuse(self, found: str, valid: str, place: str = "") -> NoReturn:
        at = self
        while at._parent is not None:
            place, at = at._name + place, at._parent
        where = f"{place.removeprefix('.')}: " if place else ""
        raise DataError(f"{at._name}: {where}found {found}; valid: {valid}")


def read_plan(path: Path) -> Step:
    """@throws DataError for what `cadenza plan` does not print"""
    try:
        root = _Value(json.loads(read_text(path), parse_constant=_no_constant), str(path))
    except (ValueError, RecursionError) as error:
        why = "it nests too deeply" if isinstance(error, RecursionError) else error
        raise DataError(f"{path}: not the JSON of cadenza plan: {why}") from error
    ranks = root["ranks"].integer(1, _MOST_RANKS)
    documents = [length.integer(0, _MOST_TOKENS) for length in root["documents"].items()]
    capacities = root.get("capacities")
    shares = np.array([1] * ranks if capacities is None else
                      [one.integer(1, _MOST_RANKS) for one in capacities.items(ranks)])
    values = root["plans"].items()
    if not values:
        root["plans"].refuse("a list of one plan or more")
    plans = [_plan(value, documents, shares) for value in values]
    for plan, sparse in zip(plans, _sparse(values, documents), strict=True):
        plan.densities = sparse
    patterns, rates = root.get("patterns"), root["summary"].get("rates")
    return Step(ranks, documents, plans, patterns and _patterns(patterns, documents),
                rates.text() if rates else "")


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"found {word}")


def _plan(value: _Value, documents: list[int], shares: np.ndarray) -> Plan:
    stages = value["stages"].items()
    costs, sent, tasks = np.zeros(len(shares)), np.zeros(len(shares)), []
    for one in (one for stage in stages for one in stage["tasks"].items()):
        tasks.append(_task(one, documents, len(shares)))
        costs[tasks[-1].server] += one["cost"].number()
    rounds = value.get("index")
    for stage in stages + (rounds.items() if rounds else []):
        for move in stage["moves"].items():
            sent[move["from"].integer(0, len(shares) - 1)] += move["bytes"].number()
    order, imbalance = value["order"], value["imbalance"].number(0.5, _MOST_IMBALANCE)
    ratios = costs / shares  # of which the largest is `imbalance` times what is fair
    return Plan(
        name=_name(value),
        stripes=order["stripes"].integer(1, _MOST_TOKENS),
        run=order["run"].integer(1, _MOST_TOKENS),
        tasks=tasks,
        loads=ratios * imbalance / max(ratios.max(), 1e-30),
        sent=sent,
        imbalance_before=value["imbalance_before"].number(0, _MOST_IMBALANCE),
        imbalance=imbalance,
        predicted_seconds=value["predicted_seconds"].number(),
        lower_bound_seconds=value["lower_bound_seconds"].number(),
    )


def _name(value: _Value) -> str:
    layers = value.get("layers")
    text = f"tick {value['tick'].integer(0, _MOST_TOKENS)}"
    if layers:
        numbers = ", ".join(str(one.integer(0, _MOST_TOKENS)) for one in layers.items())
        text += f", layers {shortened(numbers, _LONGEST)}"
    return text + (", second half" if value["half"].integer(0, 1) else "")


def _task(value: _Value, documents: list[int], ranks: int) -> Task:
    document = value["document"].integer(0, len(documents) - 1)
    length, endless = documents[document], 2 * _MOST_TOKENS

    def edge(name: str) -> int:
        return value[name].integer(-endless, endless)

    rule, low, high = value["rule"].text(), -endless, endless
    if rule == "causal":
        high = edge("diagonal")
    elif rule == "band":
        low, high = edge("low"), edge("high") if value.get("high") else endless
    elif rule != "full":
        value["rule"].refuse("causal, band, full")
    return Task(value["server"].integer(0, ranks - 1), document, value["q"].range(length),
                value["k"].range(length), value["heads"].range(_MOST_RANKS), low, high)


def _sparse(plans: list[_Value], documents: list[int]) -> list[dict[int, list[float]]]:
    """Of each plan the shares by sparse document. Documents of a tick follow those of the ticks
    before, and a plan has the shares of its own tick."""
    firsts: dict[int, int] = {}
    found, end = [], 0
    for plan in plans:
        density, shares = plan.get("density"), {}
        first = firsts.setdefault(plan["tick"].integer(0, _MOST_TOKENS), end)
        for number, one in enumerate(density.items() if density else [], start=first):
            if number >= len(documents):
                density.refuse(f"the documents of a tick, {len(documents)} in all")
            if not one.is_null:
                shares[number] = [share.number(0, 1) for share in one.items(_BINS)]
        found.append(shares)
        end = max(end, first + (len(density.items()) if density else 0))
    return found


def _patterns(value: _Value, documents: list[int]) -> list[Pattern | None]:
    found: list[Pattern | None] = []
    for length, one in zip(documents, value.items(len(documents)), strict=True):
        if one.is_null:
            found.append(None)
            continue
        block = one["block"].integer(1, _MOST_TOKENS)
        rows = [[keys.range(length) for keys in row.items()]
                for row in one["rows"].items(-(-length // block))]
        columns = [column.integer(0, length - 1) for column in one["columns"].items()]
        found.append(Pattern(block, rows, np.array(columns, dtype=int)))
    return found
