# SPDX-License-Identifier: Apache-2.0
"""Which pictures and tables the page has, in the order in which they answer questions."""

from __future__ import annotations

from collections.abc import Callable

from cadenza.colours import (
    BUBBLE_COLOURS, LABEL_COLOURS, MEMORY_COLOURS, PART_COLOURS, PART_NAMES, PHASE_COLOURS,
    RUN_COLOURS,
)
from cadenza.log import LOG
from cadenza.report import causes, figures_attention, figures_memory, figures_time, health, links
from cadenza.report.balance import balance_blocks
from cadenza.report.between import between_table
from cadenza.report.blocks import Figure, Section, Table
from cadenza.report.comparisons import comparison_blocks
from cadenza.report.figures_timeline import timelines
from cadenza.report.style import Plot
from cadenza.report.tree import system_tree
from cadenza.study import Study
from cadenza.words import byte_count, change, number, role_name, seconds

_DIFFERENT = 0.01  # of a step: less is not worth naming
_RUNS = 6  # of consecutive steps
_PARTS = [(PART_NAMES[part], colour) for part, colour in PART_COLOURS.items()]


def sections(
    studies: list[Study], names: list[str], summaries: list[dict], comparisons: list[dict]
) -> list[Section]:
    """All sections that have something to show."""
    runs = list(zip(studies, names, strict=True))
    known = [(study, name) for study, name in runs if study.has_events]
    LOG.info("drawing")
    made = [
        Section("overview", "Overview", "", [health.overview(studies, names, summaries),
                                             health.health(studies, names, summaries)]),
        Section("steps", "Step times", "From the first rank's start to the last rank's end.",
                [Figure("Seconds of each step", {"": figures_time.step_times(*_split(runs))[0]},
                        wide=True), *(_step_kinds(study, name) for study, name in known)],
                list(zip(names, RUN_COLOURS * (1 + len(names) // len(RUN_COLOURS)),
                         strict=False))),
        Section("comparison", "Comparison", _COMPARISON,
                comparison_blocks(studies, names, comparisons), _PARTS),
        _with_legend("time", "Where the time went", _TIME,
                     [*(_figure(name, figures_time.parts_by_rank, study) for study, name in known),
                      *(between_table(study, name) for study, name in known)], LABEL_COLOURS),
        Section("heat", "Rank by step", _HEAT,
                [Figure(name, figures_time.heat_maps(study)[0]) for study, name in known]),
        _with_legend("bubbles", "Pipeline bubbles", _BUBBLES,
                     [_figure(name, figures_time.bubbles_by_stage, study) for study, name in known],
                     BUBBLE_COLOURS),
        Section("stragglers", "Stragglers", _STRAGGLERS, causes.straggler_tables(known)),
        Section("links", "Links", _LINKS, links.link_blocks(known)),
        Section("what-if", "What if", _WHAT_IF, causes.what_if_blocks(known)),
        Section("system", "System", _SYSTEM, [system_tree(study, name) for study, name in runs]),
        _with_legend("path", "Critical path", _PATH, causes.path_blocks(known), LABEL_COLOURS),
        _with_legend("timeline", "Timeline", _TIMELINE, _timelines(known), LABEL_COLOURS),
        _with_legend("memory", "Memory", _MEMORY, _memory(runs), MEMORY_COLOURS),
        _with_legend("attention", "Rate of attention", _ROOFLINE,
                     [_figure(name, figures_attention.roofline, study) for study, name in known],
                     PHASE_COLOURS),
        _with_legend("balance", "Balance of attention", _BALANCE, balance_blocks(known),
                     PHASE_COLOURS),
        Section("plan", "Plan", _PLAN, _plans(runs)),
        Section("efficiency", "Efficiency", _EFFICIENCY,
                [health.efficiencies(*_split(known))] if known else []),
    ]
    return [section for section in made if section.blocks]


def _split(runs: list[tuple[Study, str]]) -> tuple[list[Study], list[str]]:
    return [study for study, _ in runs], [name for _, name in runs]


def _figure(name: str, make: Callable, study: Study) -> Figure | None:
    """The picture that `make` draws of a run; None where it has nothing to draw."""
    found = make(study)
    if found is None:
        return None
    drawn: Plot | dict[str, Plot] = found[0]
    return Figure(name, drawn if isinstance(drawn, dict) else {"": drawn})


def _with_legend(
    anchor: str, title: str, intro: str, blocks: list[Figure | Table | None],
    colours: dict[str, str],
) -> Section:
    """With the labels and colours of what the blocks' pictures show, in the palette's order."""
    figures = [figure for block in blocks if isinstance(block, Figure)
               for figure in block.choices.values()]
    names = {drawn.name for figure in figures for drawn in figure.renderers}
    legend = [(label, colour) for label, colour in colours.items() if label in names]
    return Section(anchor, title, intro, blocks, legend)


def _timelines(runs: list[tuple[Study, str]]) -> list[Figure]:
    if not runs:
        return []
    times = [study.step_times.set_index("step").loc[study.typical_step] for study, _ in runs]
    longest = int(max(time["end_ns"] - time["begin_ns"] for time in times))
    made = []
    for study, name in runs:
        choices = timelines(study, longest)
        more = f" Others: cadenza-analyze timeline {study.run.path} --step N --ranks N-M."
        made.append(Figure(name, choices, more.strip() if len(choices) > 1 else "", wide=True,
                           dense=True))
    return made


def _step_kinds(study: Study, name: str) -> Table | None:
    """Where steps fall into groups: which, and where the time of the others goes instead."""
    kinds = study.step_kinds
    if kinds.nunique() < 2:
        return None
    usual = study.step_features.groupby(kinds.to_numpy()).median()
    rows = []
    for kind, mine in kinds.groupby(kinds):
        off = (usual.loc[kind] - usual.loc[0]).drop("seconds") * study.median_seconds
        told = [f"{PART_NAMES[part]} {change(off[part])}"
                for part in off.abs().sort_values(ascending=False).index[:3]
                if abs(off[part]) > _DIFFERENT * study.median_seconds]
        rows.append([_numbers(list(mine.index)), str(len(mine)),
                     seconds(usual.loc[kind, "seconds"] * study.median_seconds),
                     ", ".join(told) if kind else "most steps"])
    return Table(f"{name}: kinds of steps", ["steps", "how many", "median", "against most steps"],
                 rows, numbers={1, 2}, wide=True)


def _numbers(steps: list[int]) -> str:
    """ "0, 2 to 5": the first few runs of consecutive numbers."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][-1] + 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    told = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return ", ".join(told[:_RUNS]) + (", ..." if len(told) > _RUNS else "")


def _memory(runs: list[tuple[Study, str]]) -> list[Figure | Table | None]:
    """The runs' pictures of a kind stand side by side."""
    return [
        *(_figure(f"{name}: peak of each rank", figures_memory.memory_by_rank, study)
          for study, name in runs),
        *(_figure(f"{name}: by step", figures_memory.memory_by_step, study)
          for study, name in runs if len(study.step_times) > 1),
        *(_divergence(study, name) for study, name in runs),
    ]


def _divergence(study: Study, name: str) -> Table | None:
    frame = study.divergence
    if frame.empty or len(study.ranks) < 2:
        return None
    worst = frame.loc[frame.groupby(["role", "kind"], observed=True)["max_bytes"].idxmax()]
    worst = worst.sort_values("max_bytes", ascending=False)
    several = worst["role"].nunique() > 1
    rows = [[f"{row.kind}, {role_name(row.role)}" if several else str(row.kind),
             byte_count(row.max_bytes), byte_count(row.mean_bytes),
             number(row.divergence, ".3f"), f"rank {row.rank}, step {row.step}"]
            for row in worst.itertuples()]
    return Table(f"{name}: divergence between ranks",
                 ["kind", "max", "mean", "max / mean", "largest on"], rows, numbers={1, 2, 3},
    )


def _plans(runs: list[tuple[Study, str]]) -> list[Figure | Table | None]:
    made = {"servers by tick": figures_attention.plan_by_tick,
            "documents by server": figures_attention.tasks_by_document}
    return [
        _figure(f"{name}: {title}, step {study.typical_step}", make, study)
        for title, make in made.items()
        for study, name in runs
    ]


_COMPARISON = (
    "From the first run's step time to the other's, part by part: means over ranks and over the "
    "steps of both runs, so that the bars sum exactly. The first step of a real run is warm-up and "
    "is left out. Ratio and interval are of equal steps: a t interval of the logs of their ratios."
)
_TIME = (
    "Every nanosecond of every rank's step belongs to exactly one part. Cool colours are work, "
    "warm ones are time in which the rank could not work."
)
_HEAT = (
    "Seconds above (red) or below (blue) the median of all ranks and steps. A persistent straggler "
    "is a row, a heavy batch is a column."
)
_BUBBLES = (
    "Time in which a stage waits for its neighbours: before its own first microbatch (warm-up), "
    "after its last (cool-down) and between. The 1F1B formula beside it assumes that microbatches "
    "and stages are equal. A real bubble can be smaller: if the first and last microbatches of a "
    "step are shorter than the mean, the pipeline fills and drains faster."
)
_STRAGGLERS = (
    "For each phase, the rank that lost the most time: it had more work than its peers "
    "(same role and pipeline stage), or it ran slower than the ranks that do the same "
    "operations. What a repair saves is found by replaying the steps with it and those above it."
)
_LINKS = (
    "Which rank sends to which. Times are those of the transfers alone, without waiting for the "
    "other end. The usual rate is the machine file's in simulated runs, else that of other links "
    "of the same kind."
)
_WHAT_IF = (
    "Each step is replayed with changed durations and the same dependencies. Bars are means over "
    "steps, largest saving first. The first bar is the recorded step."
)
_SYSTEM = (
    "The job, its nodes, their ranks and what these do: a metric of a step, the mean of all steps "
    "but warm-up. Mean and largest are of ranks. Waits count as communication."
)
_PATH = (
    "The chain of operations and messages that decides how long a step takes: making anything else "
    "shorter does not help. The picture shows the typical step: the one whose parts are nearest to "
    "the median of all steps."
)
_TIMELINE = (
    "What each rank does, and its messages in a thinner line beneath. The typical step is the one "
    "whose parts are nearest to the median of all steps. Drag over a span to zoom in, "
    "double-click to see all again. Pieces narrower than a pixel are merged."
)
_MEMORY = (
    "High-water marks by kind. Kinds peak at different moments, so the stack may be higher than "
    "the peak of the sum (diamond or line). By step: the fullest rank (solid), the mean (dashed), "
    "the emptiest (dotted)."
)
_ROOFLINE = (
    "Each point is a kernel call: its work and the rate it reached. The dashed line is the peak "
    "of matrix products. Small calls reach less."
)
_BALANCE = (
    "Worker: the slowest rank's time in a layer's pass over the mean rank's. Step level: a rank's "
    "longest stage over its mean one, of the rank where that is largest; short stages hide less of "
    "the transfers. Lockstep: the time with a barrier after every stage over the mean rank's "
    "(dotted). "
    "Making a sparse index counts. 1 is perfect balance."
)
_PLAN = "Which rank computed which attention in the typical step."
_EFFICIENCY = (
    "POP's efficiencies of the replayed steps. Parallel efficiency is load balance x communication "
    "efficiency; communication efficiency is serialization x transfer efficiency. 0.8 or more is "
    "commonly called acceptable."
)
