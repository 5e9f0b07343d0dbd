# SPDX-License-Identifier: Apache-2.0
"""Summaries as text for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from cadenza.shares import SHARES

_HEADERS = {"attention": "core attn", "dense": "dense", "other_compute": "other cmp",
            "optimizer": "optimizer", "communicating": "communic.", "waiting": "waiting",
            "other": "other", "idle": "idle"}  # fmt: skip
_NONE = "-"
_FULL_WIDTH = 132  # of lines into files and pipes, where no terminal says how wide it is


def console() -> Console:
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_FULL_WIDTH)


def print_summary(out: Console, summary: dict) -> None:
    out.print(f"[bold]{summary['name']}[/bold]  {summary['path']}")
    for name, value in _facts(summary):
        out.print(f"  {name:<20} {value}", markup=False)
    out.print(_rank_table(summary))


def print_comparison(out: Console, rows: list[dict]) -> None:
    first = rows[0]["label"]
    times = ", ".join(f"{r['label']} {seconds(r['step_seconds'])}" for r in rows)
    ratios = ", ".join(
        f"{r['label']} / {first} = {number(r['step_time_ratio'], '.3f')}" for r in rows[1:]
    )
    skews = ", ".join(f"{r['label']} {number(r['attention_imbalance'], '.3f')}" for r in rows)
    out.print("[bold]comparison[/bold]")
    out.print(f"  {'step time':<20} {times}; {ratios}", markup=False)
    out.print(f"  {'attention imbalance':<20} {skews}", markup=False)


def _facts(s: dict) -> list[tuple[str, str]]:
    imbalance = s["attention_imbalance"]
    ranks = str(s["ranks"]) if s["ranks"] == s["world"] else f"{s['ranks']} of {s['world']} read"
    servers = _NONE if s["servers"] is None else str(s["servers"]).replace("_", "-")
    planned = ""
    if imbalance["planned"] is not None:
        planned = f"; planned {imbalance['planned']:.3f}"
    return [
        ("placement", f"{s['placement'] or _NONE} (servers: {servers})"),
        ("ranks", ranks),
        ("steps", f"{s['steps']}{' complete; the run was cut off' if s['truncated'] else ''}"),
        ("step time", f"{seconds(s['step_seconds'])} (median)"),
        ("tokens per second", f"{number(s['tokens_per_second'], ',.0f')} (median)"),
        ("loss", f"{number(s['loss_first'], '.4f')} -> {number(s['loss_last'], '.4f')}"),
        ("model-FLOPs used", f"{number(s['model_flops_utilization'], '.1%')} (median)"),
        ("attention imbalance", f"{number(imbalance['median'], '.3f')} (median of steps, max / "
                                f"mean), {number(imbalance['run'], '.3f')} over the run{planned}"),
    ]  # fmt: skip


def _rank_table(summary: dict) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False,
                  caption=f"seconds over {summary['steps']} steps; busy = computing / all",
                  caption_justify="left")  # fmt: skip
    table.add_column("rank", justify="right")
    table.add_column("role", no_wrap=True)
    for name in SHARES:
        table.add_column(_HEADERS[name], justify="right")
    table.add_column("busy", justify="right")
    table.add_column("peak mem", justify="right")
    for row in summary["per_rank"]:
        times = [number(row[f"{name}_seconds"], ".3f") for name in SHARES]
        busy, memory = number(row["busy_share"], ".1%"), byte_count(row["peak_memory_bytes"])
        table.add_row(str(row["rank"]), role_name(row["role"]), *times, busy, memory)
    return table


def role_name(role: str) -> str:
    return {"attention_server": "server", "both": "trainer+server"}.get(role, role)


def number(value: float | None, form: str) -> str:
    return _NONE if value is None else format(value, form)


def seconds(value: float | None) -> str:
    """Three digits or more with the unit that suits."""
    if value is None:
        return _NONE
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.3f} {unit}"
    return f"{value * 1e9:.0f} ns"


def byte_count(value: int | None) -> str:
    if value is None:
        return _NONE
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
