# SPDX-License-Identifier: Apache-2.0
"""Summaries as lines of text: what a terminal and the page both show."""

from __future__ import annotations

from cadenza.time.between import CAUSE_NAMES
from cadenza.time.imbalance import DENSE
from cadenza.words import NONE, byte_count, count, counted, number, seconds, share

_WORTH = 0.0005  # of wall time: a share that is not shown as 0.0%
_LATE = 0.1  # of the time to the first step: by which a process may begin later than others


# Rows of what Cadenza's own recorder tells of a run, and no program's traces.
_OWN = frozenset((
    "between steps", "made by", "build", "ended cleanly", "events dropped",
    "promises of docs/trace.md", "cost of writing the trace"))


def facts(summary: dict) -> list[tuple[str, str]]:
    """(what, value) of a summarized run."""
    imbalance = summary["attention_imbalance"]
    ranks = str(summary["ranks"])
    if summary["ranks"] != summary["world"]:
        ranks = f"{summary['ranks']} of {summary['world']} read"
    servers = NONE if summary["servers"] is None else str(summary["servers"]).replace("_", "-")
    planned = ""
    if imbalance["planned"] is not None:
        planned = f"; planned {imbalance['planned']:.3f}"
    cut = " complete; the run was cut off" if summary["truncated"] else ""
    found = [
        ("placement", f"{summary['placement'] or NONE} (servers: {servers})"),
        ("ranks", ranks),
        ("steps", f"{summary['steps']}{cut}"),
        ("step time", f"{seconds(summary['mean_step_seconds'])} (mean of "
                      f"{summary['steady_steps']}), {seconds(summary['step_seconds'])} (median)"),
        ("tokens per second", f"{number(summary['tokens_per_second'], ',.0f')} (median of steps), "
                              f"{number(summary['goodput'], ',.0f')} of wall clock (goodput)"),
        ("start-up", _start_up(summary["start_up"])),
        ("between steps", between_said(summary["between_steps"])),
        ("loss", _loss(summary)),
        ("memory", _memory(summary["memory"])),
        ("attention kernel", _kernels(summary["attention_kernels"])),
        ("MFU", f"{share(summary['model_flops_utilization'])} (median)"),
        ("attention imbalance", f"{number(imbalance['median'], '.3f')} (median of steps, max / "
                                f"mean), {number(imbalance['run'], '.3f')} over the run, "
                                f"{number(imbalance['by_layer'], '.3f')} by layer{planned}"),
        ("attention FLOPs", _sparsity(summary["attention_sparsity"])),
        ("trace", of_trace(summary["findings"], summary["worst_finding"])),
    ]
    return found if summary["imported"] is None else \
        [*_imported(summary["imported"]), *that_apply(summary, found)]


def that_apply(summary: dict, rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What other programs' traces never say needs no row."""
    if summary["imported"] is None:
        return rows
    return [(name, value) for name, value in rows if name not in _OWN and value[:1] != NONE]


def _imported(found: dict) -> list[tuple[str, str]]:
    off = found["offset_seconds"]
    clocks = "taken as they are" if off == 0.0 else f"up to {seconds(off)} apart"
    if found["drift_ppm"]:
        clocks += f", drifting by up to {found['drift_ppm']:.3g} ppm"
    return [("imported from", ", ".join(found["from"])),
            ("a step", found["step"]),
            ("not in the traces", " ".join(found["cannot_tell"]) or NONE),
            ("clocks", f"{clocks}{'' if off == 0 else ': aligned'}")]


def _start_up(found: dict) -> str:
    if found["seconds"] is None:
        return NONE
    apart = found["last_began_after"]
    late = f"; rank {found['last_rank']} began {seconds(apart)} after the first"
    return seconds(found["seconds"]) + (late if apart > _LATE * found["seconds"] else "")


def between_said(found: dict, lies: str = "") -> str:
    """The share of wall time that is summary.between_steps(), and its largest cause."""
    if (found["share"] or 0.0) < _WORTH:
        return share(found["share"])
    cause = max(found["causes"], key=found["causes"].__getitem__)
    most, name = found["causes"][cause] / found["wall_seconds"], CAUSE_NAMES[cause]
    return f"{share(found['share'])} of wall time{lies}, mainly {name} ({share(most)})"


def of_trace(findings: list[dict], worst: str) -> str:
    """How often it breaks a promise, and which it breaks most."""
    count = sum(one["count"] for one in findings)
    if not count:
        return "sound (no finding)"
    return f"{count} finding{'' if count == 1 else 's, most often'}: {worst}"


def _sparsity(found: dict) -> str:
    if found["flops"] is None:  # the trace is an older one
        return NONE
    said = f"{count(found['flops'])} a step"
    if found["left_out"] < DENSE:
        return f"{said} (dense)"
    return f"{said} of {count(found['dense_flops'])} (sparsity {share(found['left_out'])})"


def _memory(need: dict) -> str:
    if need["largest_bytes"] is None:
        return NONE
    most = f"{byte_count(need['largest_bytes'])} on rank {need['rank']}"
    if need["limit_bytes"] is None:
        return most
    fits = "does not fit" if need["ranks_beyond"] else "fits"
    return f"{most}; {fits} in {byte_count(need['limit_bytes'])}"


def _kernels(ranks_of: dict[str, int]) -> str:
    if len(ranks_of) < 2:
        return next(iter(ranks_of), NONE)  # a simulation has none
    return ", ".join(f"{name} on {counted(many, 'rank')}" for name, many in ranks_of.items())


def _loss(summary: dict) -> str:
    if summary["loss_first"] is None:  # a simulation has none
        return NONE
    if summary["producer"] == "evaluator":
        return f"{summary['loss_first']:.4f}, of all targets"
    text = f"{summary['loss_first']:.4f} -> {number(summary['loss_last'], '.4f')}"
    if summary.get("validation_loss_first") is None:
        return text
    return (f"{text}; validation {summary['validation_loss_first']:.4f} -> "
            f"{number(summary['validation_loss_last'], '.4f')}")
