# SPDX-License-Identifier: Apache-2.0
"""The page's first tables: the runs' facts, whether their traces can be trusted, efficiencies."""

from __future__ import annotations

from cadenza.checks import clock_errors
from cadenza.facts import facts, of_trace, that_apply
from cadenza.read.run import Run
from cadenza.report.blocks import Table
from cadenza.report.places import started
from cadenza.study import Study
from cadenza.time.efficiency import efficiency_of_run
from cadenza.words import NONE, number, ranks_named, seconds, share

_CLOCKS = 3  # wrong ones that are named
_EFFICIENCIES = {
    "parallel_efficiency": "mean time computing / step time",
    "load_balance": "mean / max time computing, over ranks",
    "communication_efficiency": "max time computing / step time",
    "serialization_efficiency": "max time computing / step time on a network without cost",
    "transfer_efficiency": "step time on a network without cost / step time",
}
_RATES = {
    "mfu": ("model-FLOPs utilisation", "model FLOPs / (step time x peak of all ranks)"),
    "hfu": ("hardware-FLOPs utilisation", "executed FLOPs / (step time x peak of all ranks)"),
    "attention_of_peak": ("attention, of peak", "rate of core attention / peak"),
    "dense_of_peak": ("dense, of peak", "rate of dense layers / peak"),
}


def overview(studies: list[Study], names: list[str], summaries: list[dict]) -> Table:
    """A column per run, a row per fact."""
    columns = [[*facts(summary), *that_apply(summary, _origin(study, summary))]
               for study, summary in zip(studies, summaries, strict=True)]
    return Table("Runs", ["", *names], _side_by_side(columns), wide=len(names) > 1)


def _side_by_side(columns: list[list[tuple[str, str]]]) -> list[list[str]]:
    """A row for each name that a column has."""
    values = [dict(column) for column in columns]
    return [[name, *(of.get(name, NONE) for of in values)]
            for name in dict.fromkeys(name for of in values for name in of)]


def _origin(study: Study, summary: dict) -> list[tuple[str, str]]:
    revision = f" ({summary['code_revision']})" if summary["code_revision"] else ""
    return [
        ("made by", f"{summary['producer']}, version {summary['code_version']}{revision}"),
        ("build", str(summary["build"] or NONE)),
        ("started", started(study)),
        ("folder", summary["path"]),
    ]


def health(studies: list[Study], names: list[str], summaries: list[dict]) -> Table:
    """Whether the traces are whole, and how far their clocks and their cost can matter."""
    columns = [that_apply(summary, _health(study, summary))
               for study, summary in zip(studies, summaries, strict=True)]
    warnings = [line for summary in summaries for line in summary["warnings"]]
    return Table("Can the traces be trusted?", ["", *names], _side_by_side(columns),
                 wide=len(names) > 1,
                 note=" ".join(f"{line[:1].upper()}{line[1:]}." for line in warnings))


def _health(study: Study, summary: dict) -> list[tuple[str, str]]:
    run = study.run
    files = run.files.values()
    errors = clock_errors(run)
    simulated = run.info["producer"] == "simulator"
    one_clock = not run.wrong_clocks and (simulated or errors.empty)
    return [
        ("ended cleanly", "no: cut off" if run.truncated else "yes"),
        ("events dropped", f"{sum(file.dropped_events for file in files):,}"),
        ("promises of docs/trace.md", of_trace(summary["findings"], summary["worst_finding"])),
        ("clocks off by at most", "0 s (one clock)" if one_clock else _clocks(run, errors.max())),
        ("cost of writing the trace", NONE if simulated else _overhead(study)),
    ]


def _clocks(run: Run, error_ns: float) -> str:
    """What they may be off by, and which were off by more."""
    wrong = [f"rank {one.rank}'s {one.what}" for one in run.wrong_clocks[:_CLOCKS]]
    if len(run.wrong_clocks) > _CLOCKS:
        wrong.append(f"{len(run.wrong_clocks) - _CLOCKS} more")
    unknown = tuple(sorted(set(run.files) - set(run.clock()["rank"])))
    if unknown:
        wrong.append(f"not known of {ranks_named(unknown)}")
    return "; ".join([seconds(error_ns / 1e9), *wrong])


def _overhead(study: Study) -> str:
    """Of the slowest writer's steps, between which it writes."""
    lasted = (study.step_times["end_ns"].max() - study.step_times["begin_ns"].min()) / 1e9
    cost = study.ranks["writer_ns"].max() / 1e9
    return f"{seconds(cost)}, {cost / lasted:.2%} of the run"


def efficiencies(studies: list[Study], names: list[str]) -> Table:
    """POP's efficiencies of the replayed steps, and utilisations, the median of the steady ones:
    those that some run has, and in a line those that none has."""
    measured = [efficiency_of_run(study.efficiencies) for study in studies]
    rates = [study.steady(study.utilization).median(numeric_only=True) for study in studies]
    rows = [
        [key.replace("_", " "), *(number(one.get(key), ".3f") for one in measured), meaning]
        for key, meaning in _EFFICIENCIES.items()
    ]
    rows += [
        [title, *(share(one.get(key)) for one in rates), meaning]
        for key, (title, meaning) in _RATES.items()
    ]
    told = [row for row in rows if set(row[1:-1]) != {NONE}]
    lacking = "; ".join(row[0] for row in rows if row not in told)
    return Table("Efficiencies", ["", *names, "what it is"], told,
                 numbers=set(range(1, len(names) + 1)), wide=True,
                 note=f"Not told by the traces: {lacking}." if lacking else "")
