# SPDX-License-Identifier: Apache-2.0
"""How sure the constants of the stacks and machine files are.

Every constant below is changed alone; near its value the seconds of a step are linear in it. With
these slopes the constants are fitted again to all rows of their class (least sum of absolute
errors), and to all groups but one, whose error then is that of rows which no constant has seen."""

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from benchmarks.published import rows, runs
from benchmarks.published.experiments import experiment, obstacle
from benchmarks.published.rows import Row
from lib import tables
from lib.host import ROOT
from scipy.optimize import minimize


@dataclass(frozen=True)
class Constant:
    """A number of a machine file (`block.key`) or of a stack (`key`). The seconds of a step are
    linear in it or, where `inverse`, in one over it."""

    path: str
    inverse: bool = False

    @property
    def is_of_machine(self) -> bool:
        return "." in self.path


_LAYER = Constant("layer_seconds")
_SHARE = Constant("links.compute_share")
_ATTENTION = Constant("attention_rate", inverse=True)
_ELEMENT_WISE = Constant("element_wise_rate", inverse=True)
_LOSS = Constant("loss_rate", inverse=True)
_PRODUCTS = Constant("products.flops_per_second", inverse=True)
_INSIDE = Constant("links.inside.bytes_per_second", inverse=True)

# What was fitted to each class; a constant of a machine file is shared by the classes on it.
_FITTED = {
    "A1": [_LAYER, _SHARE, _PRODUCTS],
    "A3 ": [_LAYER, _PRODUCTS, _INSIDE],
    "B": [_ATTENTION, _ELEMENT_WISE, _LOSS, _PRODUCTS],
}
_STEP = 1.5  # factor by which a constant is changed, towards more seconds


def report(program: Path, jobs: int) -> None:
    """Prints the table of all groups."""
    known = [row for row in rows.read() if row.pub_tps and not obstacle(row)]
    tables.show(*tables.head(["class", "group", "rows", "median error", "fitted to all",
                              "fitted to the other groups"]))
    for section, constants in _FITTED.items():
        taken = [row for row in known if row.section.startswith(section)]
        _show(taken, constants, *_slopes(taken, constants, program, jobs))


def _slopes(taken: list[Row], constants: list[Constant], program: Path,
            jobs: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds per token as the files have it, and by row and constant the relative change."""
    with tempfile.TemporaryDirectory() as folder:
        def seconds(constant: Constant | None) -> np.ndarray:
            """Per token of a processor, with one constant changed."""
            def made(row: Row) -> dict:
                found = experiment(row)
                return found if constant is None else _changed(found, constant, Path(folder))
            steps = runs.simulate_all(taken, program, jobs, made)
            return np.array([1 / step.tps for step in steps])
        base = seconds(None)
        changed = [seconds(one) for one in constants]
    return base, np.stack([seconds / base - 1 for seconds in changed], 1)


def _changed(made: dict, constant: Constant, folder: Path) -> dict:
    cluster = made["cluster"]
    if constant.is_of_machine:
        file = ROOT / cluster["machine"]
        machine = yaml.safe_load(file.read_text(encoding="utf-8"))
        _scale(machine, constant)
        changed = folder / f"machine-{made['name']}.yaml"  # others are read meanwhile
        changed.write_text(yaml.safe_dump(machine), encoding="utf-8")
        return made | {"cluster": cluster | {"machine": str(changed)}}
    stack = ROOT / f"inputs/software/{cluster['software']['file']}.yaml"
    software = {constant.path: 1, **yaml.safe_load(stack.read_text(encoding="utf-8")),
                **cluster["software"]}
    _scale(software, constant)
    return made | {"cluster": cluster | {"software": software}}


def _scale(tree: dict, constant: Constant) -> None:
    *blocks, name = constant.path.split(".")
    for block in blocks:
        tree = tree[block]
    value = float(tree[name])
    tree[name] = value / _STEP if constant.inverse else value * _STEP


def _show(taken: list[Row], constants: list[Constant], base: np.ndarray,
          change: np.ndarray) -> None:
    published = np.array([1 / row.pub_tps for row in taken])
    none = np.zeros(len(constants))
    best = _fit(base, change, published, np.ones(len(taken), bool))
    for group in dict.fromkeys(row.group for row in taken):
        mine = np.array([row.group == group for row in taken])
        unseen = none if mine.all() else _fit(base, change, published, ~mine)
        errors = [_errors(base, change, published, shift)[mine] for shift in (none, best, unseen)]
        tables.show(tables.row([taken[0].section, group, mine.sum(), *map(_median, errors)]))


def _errors(base, change, published, shift) -> np.ndarray:
    """Of the rate; `shift` is in changes as they were simulated."""
    return published / (base * (1 + change @ shift)) - 1


def _fit(base, change, published, mask) -> np.ndarray:
    def loss(shift):
        seconds = np.maximum(base * (1 + change @ shift), 0.05 * base)
        return np.abs(np.log(seconds / published))[mask].mean() + 1e-4 * np.abs(shift).sum()
    start = np.zeros(change.shape[1])
    return minimize(loss, start, method="Nelder-Mead", options={"maxiter": 4000}).x


def _median(errors) -> str:
    return f"{100 * statistics.median(abs(errors)):.1f} %"
