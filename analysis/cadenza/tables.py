# SPDX-License-Identifier: Apache-2.0
"""What the commands print on a terminal."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cadenza.causes.slowdown import Slowdown
from cadenza.facts import facts
from cadenza.files import printable
from cadenza.log import hide
from cadenza.time.imbalance import LEVELS
from cadenza.time.parts import PARTS
from cadenza.words import (NONE, byte_count, byte_rate, counted, number, ranks_named, ranks_of,
                           role_name, seconds, share)

PART_HEADERS = {"compute_attention": "core attn", "compute_dense": "dense",
                "compute_other": "other cmp", "optimizer": "optim.", "no_core": "no core",
                "communication": "comm.", "attention_wait": "attn wait",
                "pipeline_bubble": "bubble", "tensor_parallel_wait": "tp wait",
                "data_parallel_wait": "dp wait", "host_gap": "host gap",
                "other": "other"}
_TEXT_WIDTH = 28  # least width of a column of text, which wraps
_NOTHING = 1e-12  # of any unit: what is less is left over from rounding
_WHICH = ("rank", "step", "layer", "microbatch")  # numbers of things; -1: none of them
_UNITS = {"seconds": seconds, "share": share, "fraction": share, "bytes": byte_count}
_BETWEEN = 2  # columns between two of a table
_FULL_WIDTH = 132  # of lines into files and pipes, where no terminal says how wide it is
_FAR = 0.1  # of a step: a replay that differs by more is worth a word
_RANKS = 32  # of a table; of more ranks, the least and the most busy are shown


def console() -> Console:
    """Standard output, for results: names are shown as they are, without rich's markup."""
    hide()
    plain = {"highlight": False, "markup": False, "emoji": False}
    found = Console(**plain)
    return found if found.is_terminal else Console(**plain, width=_FULL_WIDTH)


def print_facts(out: Console, title: str, path: str, lines: Sequence[tuple[str, str]]) -> None:
    out.print(Text.assemble((printable(title), "bold"), f"  {printable(path)}"))
    for name, value in lines:
        _print_fact(out, name, value)


def _print_fact(out: Console, name: str, value: str) -> None:
    line = Table.grid(padding=(0, 1))
    line.add_row(f"  {name:<20}", printable(value))
    out.print(line)


def print_summary(out: Console, summary: dict) -> None:
    print_facts(out, summary["name"], summary["path"], facts(summary))
    for verdict in summary["verdicts"]:
        out.print(verdict["sentence"], markup=False)
    _print_ranks(out, summary)


def _print_ranks(out: Console, summary: dict) -> None:
    rows, steps = summary["per_rank"], counted(summary["steady_steps"], "step")
    caption = f"seconds over {steps}; between = between steps; busy = computing / all"
    if len(rows) > _RANKS:
        ordered = sorted(rows, key=lambda row: row["busy_share"] or 0.0)
        caption += f"; the {_RANKS // 2} least and most busy of {len(rows)} ranks (--json: all)"
        rows = ordered[: _RANKS // 2] + ordered[-_RANKS // 2 :]
    # A run without a pipeline has no bubbles: what no rank spent time on has no column.
    parts = [part for part in PARTS if any(row[f"{part}_seconds"] for row in summary["per_rank"])]
    names = ["rank", "role", *(PART_HEADERS[part] for part in parts), "between", "busy", "peak mem"]
    cells = [
        [str(row["rank"]), role_name(row["role"]),
         *(number(row[f"{part}_seconds"], ".3f") for part in (*parts, "between")),
         share(row["busy_share"]), byte_count(row["peak_memory_bytes"])]
        for row in rows
    ]
    print_table(out, names, cells, {"role"}, caption)


def print_table(
    out: Console, names: Sequence[str], rows: Sequence[Sequence[str]], text: set[str],
    caption: str,
) -> None:
    """A plain table; columns that find no room follow in another one, beside the first column."""
    for block in _blocks(names, rows, text, out.width):
        out.print(_table([names[i] for i in block], [[row[i] for i in block] for row in rows],
                         text))
    out.print(caption, style="table.caption")
    out.print()


def _blocks(
    names: Sequence[str], rows: Sequence[Sequence[str]], text: set[str], room: int
) -> list[list[int]]:
    """Which columns stand side by side: the first one and those that fit beside it."""
    widths = [max(map(len, cells)) for cells in zip(names, *rows, strict=True)]
    widths = [min(width, _TEXT_WIDTH) if name in text else width
              for name, width in zip(names, widths, strict=True)]
    blocks, used = [[0]], widths[0]
    for i in range(1, len(names)):
        if used + _BETWEEN + widths[i] > room and len(blocks[-1]) > 1:
            blocks.append([0])
            used = widths[0]
        blocks[-1].append(i)
        used += _BETWEEN + widths[i]
    return blocks


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], text: set[str]) -> Table:
    """The columns in `text` are set flush left, numbers flush right."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in names:
        made.add_column(printable(name), justify="left" if name in text else "right",
                        overflow="fold", no_wrap=name not in text)
    for row in rows:
        made.add_row(*map(printable, row))
    return made


def print_links(out: Console, frame: pd.DataFrame, count: int, steps: int) -> None:
    """@param frame  links.links() of so many steps, slowest first"""
    rows = [[f"{row.low}-{row.high}", "inside" if row.one_node else "between",
             byte_count(row.bytes), str(row.messages), seconds(row.seconds),
             byte_rate(row.achieved),
             byte_rate(row.usual), number(row.share, ".2f")]
            for row in frame.itertuples()]
    names = ["link", "node", "bytes", "messages", "moving", "rate", "usual", "share"]
    print_table(out, names, rows, {"link", "node"},
                f"{len(frame)} of {counted(count, 'pair')} of ranks, slowest first; sums over "
                f"{counted(steps, 'step')}; "
                "moving: transfer time without waiting, if the trace shows it, of all messages, "
                "also side by side, so that it may be longer than the run; share: of the "
                "usual rate (--json: all, by direction)")


def print_groups(out: Console, frame: pd.DataFrame, count: int, steps: int) -> None:
    """@param frame  links.groups() of so many steps, slowest first"""
    rows = [[ranks_of(row.members), byte_count(row.bytes), str(row.collectives),
             seconds(row.seconds), seconds(row.usual_seconds), number(row.share, ".2f")]
            for row in frame.itertuples()]
    names = ["ranks", "bytes", "collectives", "moving", "usual", "share"]
    print_table(out, names, rows, {"ranks"},
                f"{len(frame)} of {counted(count, 'group')} with collectives, slowest first; "
                f"sums over {counted(steps, 'step')}; moving: time after the last rank arrived")


def print_slowdown(out: Console, found: Slowdown, most: int) -> None:
    """@param most  rows of a table that are shown"""
    _print_fact(out, "replayed step", f"T = {seconds(found.seconds)}, recorded "
                f"{seconds(found.recorded_seconds)}; mean of {counted(found.steps, 'step')}")
    left_out = 1 - found.seconds / found.recorded_seconds
    if left_out > _FAR:
        _print_fact(out, "left out", f"{share(left_out)} of a step: what lies between operations")
    elif left_out < -_FAR:
        _print_fact(out, "not known", "what ran side by side: the replay takes longer")
    _print_fact(out, "ideal step", f"T* = {seconds(found.ideal_seconds)}")
    _print_fact(out, "slowdown", f"S = T / T* = {number(found.total, '.3f')}, which wastes "
                f"{share(found.waste)} of the time")
    if found.types.empty:
        out.print("Too little to divide among causes.")
        return
    _print_fact(out, "worst workers", f"{share(found.of_worst)} of the loss: "
                f"{ranks_named(found.worst)}")
    if not math.isnan(found.of_last_stage):
        _print_fact(out, "last stage", f"{share(found.of_last_stage)} of the loss")
    workers = found.workers.assign(ranks=found.workers["ranks"].map(ranks_of))
    for one, what in ((found.types, "type of operation"), (found.replicas, "data-parallel replica"),
                      (found.stages, "stage"), (workers, "worker")):
        cut = f"; the worst {most} of {len(one)} (--json: all)" if len(one) > most else ""
        print_frame(out, one.head(most),
                    f"S where one {what} is as recorded and all else ideal{cut}")


def print_imbalance(out: Console, frame: pd.DataFrame, steps: int, most: int) -> None:
    """@param frame  Study.layer_imbalance of so many steps with the layers' sparsity
    @param most   rows that are shown"""
    several = frame["pipeline"].nunique() > 2  # -1: all
    layers = [str(row.layer) if row.layer >= 0 else "all" for row in frame.itertuples()]
    if several:
        layers = [name if name == "all" else f"{stage}: {name}"
                  for name, stage in zip(layers, frame["pipeline"], strict=True)]
    levels = [f"{level}{suffix}" for suffix in ("", "_flops") for level in LEVELS]
    rows = [[layer, str(row["phase"]), str(row["stages"]), seconds(row["mean_seconds"] / steps),
             *(number(row[level], ".3f") for level in levels), share(row["sparsity"])]
            for layer, row in zip(layers, frame.to_dict("records"), strict=True)]
    names = ["stage: layer" if several else "layer", "phase", "stages", "mean rank", "worker",
             "step level", "lockstep", "FLOPs: worker", "step level", "lockstep",
             "sparsity"]
    cut = f", the first {most} of {len(rows)} rows" if len(rows) > most else ""
    print_table(out, names, rows[:most], {"phase"},
                f"core attention of a step, mean of {steps}{cut}; worker: slowest / mean rank; "
                "step level: a rank's longest / mean stage; lockstep: with a barrier after every "
                "stage, over the mean rank; by time and by FLOPs (--json: all)")


def print_comparison(out: Console, comparison: dict) -> None:
    """One run of comparison.compare() against the first."""
    times, first, other = comparison["step_time"], comparison["first"], comparison["other"]
    interval = ""
    if times["low"] is not None:
        interval = f", 95 % interval {times['low']:.3f} to {times['high']:.3f}"
    out.print(Text.assemble((printable(other), "bold"), " against ", (printable(first), "bold")))
    _print_fact(out, "mean step time", f"{first} {seconds(times['first'])}, {other} "
                f"{seconds(times['other'])}, x {times['other'] / times['first']:.3f}")
    _print_fact(out, "equal steps", f"x {times['ratio']:.3f}{interval}")
    why = f": {times['reason']}" if times["reason"] else ""
    _print_fact(out, "verdict", f"{times['verdict']}{why}")
    dense, products = comparison["rate_ratio"]["dense"], comparison["other_products"]
    if dense is not None:
        why = f"; its products differ ({', '.join(products)})" if products else ""
        _print_fact(out, "dense layers", f"{other} at {dense:.3f} x the rate{why}")
    _print_fact(out, "attention imbalance", "median of steps: " + ", ".join(
        f"{label} {number(comparison['attention_imbalance'][label], '.3f')}"
        for label in (first, other)))
    error = comparison["simulation_error"]
    if error:
        _print_fact(out, "simulated / real", f"median error {share(error['median_error'])}, bias "
                    f"{error['bias']:+.1%}, rank correlation of busy times "
                    f"{number(error['rank_correlation'], '.2f')}")
    _print_changes(out, comparison)


def _print_changes(out: Console, comparison: dict) -> None:
    first, other = comparison["first"], comparison["other"]
    keys = [[row["key"], row["first"], row["other"]] for row in comparison["changed_keys"]]
    if keys:
        print_table(out, ["key", first, other], keys, {"key", first, other}, "changed keys")
    form = "+.4f" if comparison["step_time"]["first"] < 1 else "+.3f"
    rows = [[row["name"], number(row["first"], form[1:]), number(row["other"], form[1:]),
             number(row["change"], form)] for row in comparison["waterfall"]]
    rows.append(["step time", *(
        number(sum(row[key] for row in comparison["waterfall"]), form if key == "change" else
               form[1:]) for key in ("first", "other", "change"))])
    print_table(out, ["part", first, other, "change"], rows, {"part"},
                "seconds of a step, mean over ranks and steps")
    phases = [[row["phase"], number(row["first"], form[1:]), number(row["other"], form[1:]),
               number(row["change"], form)] for row in comparison["phases"]]
    if phases:
        print_table(out, ["phase", first, other, "change"], phases, {"phase"},
                    "seconds of operations per rank and step")


def print_frame(out: Console, frame: pd.DataFrame, caption: str = "") -> None:
    """Any small frame of text and numbers. Names of columns say units: what a reader sees has its
    unit beside the number."""
    columns = [(str(name), *_shown(str(name))) for name in frame]
    numeric = {str(name) for name in frame if pd.api.types.is_numeric_dtype(frame[name])}
    rows = [[_cell(value, form) for value, (_, _, form) in zip(row, columns, strict=True)]
            for row in frame.itertuples(index=False)]
    text = {head for name, head, _ in columns if name not in numeric}
    print_table(out, [head for _, head, _ in columns], rows, text, caption)


def _shown(name: str) -> tuple[str, Callable[[float], str]]:
    """The head of a column, and how its numbers are written."""
    if name in _WHICH:
        return name, lambda value: NONE if value < 0 else str(value)
    for unit, write in _UNITS.items():
        if name == unit or name.endswith(f"_{unit}"):
            head = name.removesuffix(unit).strip("_") or "time" if write is seconds else name
            return head.replace("_", " "), write
    return name.replace("_", " "), _plain


def _plain(value: float) -> str:
    return str(value) if isinstance(value, numbers.Integral) else number(value, ".4g")


def _cell(value: object, form: Callable[[float], str]) -> str:
    if not isinstance(value, numbers.Real):
        return str(value)
    return form(0 if abs(value) < _NOTHING else value)
