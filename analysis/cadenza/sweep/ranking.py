# SPDX-License-Identifier: Apache-2.0
"""Which point of a sweep is best, and what each of its axes does.

Points are compared by tokens per second: where all steps have as many tokens, by their times.
Only points of the same workload are compared: those with equal labels on the axes that set model,
data, cluster or size of a step."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from cadenza.sweep.points import SIMULATED, Sweep
from cadenza.words import byte_count, number, seconds, share

_EQUAL = 1e-3  # points closer than this are equally fast
_SHOWN = 30  # points of a ranking, over all workloads; all points are in sweep.csv
_LEAST_SHOWN = 3  # of each workload


@dataclass
class Table:
    names: list[str]
    rows: list[list[str]]
    caption: str


def ranked(sweep: Sweep) -> pd.DataFrame:
    """Simulated points, those that fit into memory first and then by tokens per second, with their
    `_place` and how much `_slower` they are than the first of their `_workload`."""
    table = sweep.table[sweep.table["status"].isin(SIMULATED)]
    table = table.assign(_fits=table["status"] == "ok", _workload=_joined(table, sweep.workload))
    table = table.sort_values(["_fits", "tokens_per_second"], ascending=False, kind="stable")
    rates = table.groupby("_workload")["tokens_per_second"]
    return table.assign(_place=rates.cumcount() + 1, _slower=rates.transform("first")
                        / table["tokens_per_second"])


def _joined(table: pd.DataFrame, axes: list[str]) -> pd.Series:
    """ "length 128K, nodes 8" of every point."""
    text = pd.Series("", index=table.index)
    for axis in axes:
        text = text + (", " if axis != axes[0] else "") + f"{axis} " + table[axis]
    return text


def headlines(sweep: Sweep) -> list[str]:
    """The best point of each workload, the best of a rank where ranks differ, and the points that
    were not simulated."""
    points = ranked(sweep)
    lines = [line for _, of_one in points.groupby("_workload", sort=False)
             for line in _best(sweep, of_one)]
    return [*(lines or ["No point was simulated."]), *_left_out(sweep)]


def _best(sweep: Sweep, points: pd.DataFrame) -> list[str]:
    workload = points["_workload"].iloc[0]
    place = f" of {workload}" if workload else ""
    fitting = points[points["_fits"]]
    if fitting.empty:
        least = points.loc[points["largest_memory_bytes"].idxmin()]
        return [f"No point{place} fits into memory. {_name(sweep, least)} needs least: "
                f"{byte_count(least['largest_memory_bytes'])} on a rank."]
    best = fitting.iloc[0]
    lines = [f"Best{place}: {_described(sweep, best)}{_equals(fitting)}."]
    per_rank = fitting["tokens_per_second"] / fitting["ranks"]
    if per_rank.max() > (1 + _EQUAL) * per_rank.loc[best.name]:
        frugal = fitting.loc[per_rank.idxmax()]
        lines.append(f"Most tokens/s per rank{place}: {_described(sweep, frugal)}.")
    return lines


def _described(sweep: Sweep, point: pd.Series) -> str:
    return (f"{_name(sweep, point)}: {seconds(point['seconds'])} a step, "
            f"{point['tokens_per_second']:,.0f} tokens/s on {point['ranks']:.0f} "
            f"rank{'' if point['ranks'] == 1 else 's'}")


def _name(sweep: Sweep, point: pd.Series) -> str:
    """Its labels, without those of its workload."""
    axes = [axis for axis in sweep.axes if axis not in sweep.workload]
    return ", ".join(f"{axis} {point[axis]}" for axis in axes or sweep.axes)


def _equals(fitting: pd.DataFrame) -> str:
    others = int((fitting["_slower"] <= 1 + _EQUAL).sum()) - 1
    if not others:
        return ""
    return f"; {others} other{' is' if others == 1 else 's are'} as fast, within {_EQUAL:.1%}"


def _left_out(sweep: Sweep) -> list[str]:
    """A line per status of points that were not simulated, with the first one's reason."""
    lines = []
    for status, points in sweep.table.groupby("status", sort=False):
        if status not in SIMULATED:
            first = points.iloc[0]
            name = ", ".join(f"{axis} {first[axis]}" for axis in sweep.axes)
            lines.append(f"{len(points)} {status}, the first of them {name}: {first['reason']}.")
    return lines


def ranking(sweep: Sweep) -> Table:
    """The points, best first; those that do not fit into memory come last."""
    points = ranked(sweep)
    shown = max(_LEAST_SHOWN, _SHOWN // max(1, points["_workload"].nunique()))
    chosen = points[points["_place"] <= shown]
    chosen = chosen.sort_values([*sweep.workload], kind="stable", key=_order_of(sweep))
    varying = [name for name in ("ranks", "tokens") if points[name].nunique() > 1]
    axes = [*sweep.workload, *(axis for axis in sweep.axes if axis not in sweep.workload)]
    names = [*axes, "place", "step", "slower", "tokens/s", "MFU", "imbalance", "memory", *varying]
    rows = [[*(point[axis] for axis in axes), *_cells(point),
             *(number(point[name], ",.0f") for name in varying)]
            for _, point in chosen.iterrows()]
    left = len(points) - len(chosen)
    return Table(names, rows, f"{left} more in sweep.csv" if left else "")


def _order_of(sweep: Sweep):
    """A sort key: labels in the order of the sweep."""
    return lambda column: column.map(list(dict.fromkeys(sweep.table[column.name])).index)


def _cells(point: pd.Series) -> list[str]:
    return [str(point["_place"]) if point["_fits"] else "too large",
            seconds(point["seconds"]), f"{number(point['_slower'], '.2f')} x",
            number(point["tokens_per_second"], ",.0f"), share(point["model_flops_utilization"]),
            number(point["attention_imbalance"], ".2f"),
            byte_count(point["largest_memory_bytes"])]


def effects(sweep: Sweep) -> Table:
    """A row per label of each axis: among points that fit into memory and differ in this axis
    alone, how often it is (as good as) the fastest, and how much slower than the fastest."""
    points = ranked(sweep)
    fitting = points[points["_fits"]]
    rows = [row for axis in sweep.axes for row in _effects_of(sweep, fitting, axis)]
    names = ["axis", "label", "fastest in", "slower, median", "at most"]
    return Table(names, rows, "of points that differ in this axis alone and fit into memory")


def _effects_of(sweep: Sweep, fitting: pd.DataFrame, axis: str) -> list[list[str]]:
    others = [fitting[name] for name in sweep.axes if name != axis] or [fitting["_fits"]]
    rates = fitting["tokens_per_second"].groupby(others)
    slower = rates.transform("max") / fitting["tokens_per_second"]
    slower = slower[rates.transform("size") > 1]  # a point alone is compared with nothing
    rows = []
    for label in dict.fromkeys(sweep.table[axis]):
        ratios = slower[fitting[axis] == label]
        if not ratios.empty:
            fastest = int((ratios <= 1 + _EQUAL).sum())
            rows.append([axis, label, f"{fastest} of {len(ratios)}", f"{ratios.median():.2f} x",
                         f"{ratios.max():.2f} x"])
    return rows
