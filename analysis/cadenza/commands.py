# SPDX-License-Identifier: Apache-2.0
"""What each command of `cadenza-analyze` does with its parsed arguments."""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import reduce
from pathlib import Path

import pandas as pd

from cadenza import checks, comparison, log, tables
from cadenza.causes.slowdown import slowdown as slowdown_of
from cadenza.causes.verdicts import said
from cadenza.links import facts as link_facts
from cadenza.graph.critical_path import (longest_operations, path_shares, rank_switches,
                                         switches_said)
from cadenza.errors import DamagedError, DataError, UsageError
from cadenza.files import check_picture, printable, written
from cadenza.formats.export import export as write_export
from cadenza.links.slow import groups as all_groups
from cadenza.links.slow import links as all_links
from cadenza.log import LOG
from cadenza.time.imbalance import over_passes
from cadenza.time.parts import LOST
from cadenza.plan.read import read_plan
from cadenza.positions import by_depth, by_distance, by_position, last_steps
from cadenza.opening import open_run
from cadenza.read.run import chosen, holds_run
from cadenza.study import Study
from cadenza.summary import identity, labels, summarize
from cadenza.tables import PART_HEADERS
from cadenza.words import counted

FORMATS = ("perfetto", "chrome", "csv", "tensorboard")
_MOST = 40  # rows of a table of steps


@dataclass
class _Attempt:
    """One run of a command: what its readers of runs share."""

    whole: bool = False  # files are read to their end when a run is opened
    told: set[str] = field(default_factory=set)  # warnings


# Outside a command all share one.
_ATTEMPT: ContextVar[_Attempt] = ContextVar("attempt", default=_Attempt())  # noqa: B039


def run_command(arguments: Namespace) -> int | None:
    """A rank whose file is damaged in the middle is left out, and the command begins again: no
    frame has a rank that another one lacks."""
    attempt = _Attempt()
    _ATTEMPT.set(attempt)
    try:
        return arguments.action(arguments)
    except DamagedError:
        attempt.whole = True
        return arguments.action(arguments)


def _open(path: Path) -> Study:
    """The run, with its warnings on stderr."""
    LOG.info("%s: opening", path)
    run = open_run(path, _ATTEMPT.get().whole)
    _warn(run.warnings)
    return Study(run)


def _warn(lines: list[str]) -> None:
    told = _ATTEMPT.get().told
    for line in lines:
        if line not in told:
            LOG.warning("%s", line)
        told.add(line)


def _with_events(study: Study) -> Study:
    if not study.has_events:
        if study.steps.empty:
            raise DataError(f"{study.run.path}: no complete step in the trace: the run ended "
                            "before its first one was written")
        raise DataError(f"{study.run.path}: no events in the trace (trace.events: false, or "
                        "--trace summary), so waits and stragglers are not known")
    return study


def _print_json(value: object) -> None:
    log.hide()
    print(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: object) -> object:
    """JSON has no word for NaN and infinity: null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def records(frame: pd.DataFrame) -> list[dict]:
    """Rows for JSON: NaN becomes null, categories and NumPy's numbers become plain values."""
    return json.loads(frame.to_json(orient="records", double_precision=15))


def report(arguments: Namespace) -> None:
    from cadenza.report import default_output, write_report  # loads Bokeh, which takes a while

    output = arguments.output or default_output(arguments.runs)
    if not output.parent.is_dir():
        raise DataError(f"{output}: no such folder: {output.parent}")
    write_report([_open(path).run for path in arguments.runs], output)
    log.hide()
    print(f"report: {printable(str(output))}")


def import_traces(arguments: Namespace) -> None:
    from cadenza.sources.importing import import_run  # takes a while to load

    said = import_run(arguments.traces, arguments.output, arguments.source, arguments.layout,
                      arguments.lengths)
    log.hide()
    for line in said:
        print(line)
    print(f"run: {printable(str(arguments.output))}")


def summary(arguments: Namespace) -> None:
    studies = [_open(path) for path in arguments.runs]
    runs = [{**summarize(study), "verdicts": records(study.verdicts)} for study in studies]
    log.hide()
    for one in runs:
        _warn(one["warnings"])
    if arguments.json:
        _print_json({"runs": runs})
        return
    out = tables.console()
    for one in runs:
        tables.print_summary(out, one)


def stragglers(arguments: Namespace) -> None:
    study = _with_events(_open(arguments.run))
    if arguments.json:
        _print_json({"verdicts": records(study.verdicts), "stragglers": records(study.stragglers)})
        return
    out = tables.console()
    for line in filter(None, (*said(study.verdicts, len(study.ranks)), study.silence)):
        out.print(line, markup=False)
    names = ["step", "phase", "rank", "seconds", "late_seconds", "score", "why", "explanation"]
    late = study.stragglers[study.stragglers["late_seconds"] > 0]
    if late.empty:  # as of one rank
        return
    worst = late.sort_values("late_seconds", ascending=False, kind="stable").head(_MOST)
    tables.print_frame(out, worst.sort_values("step", kind="stable")[names],
                       f"the slowest rank of each step and phase; {len(worst)} of "
                       f"{counted(len(late), 'row')} (--json: all)")


def what_if(arguments: Namespace) -> None:
    study = _with_events(_open(arguments.run))
    found = study.what_if(_step_of(study, arguments.step))
    if arguments.json:
        steps = study.replayed_steps if arguments.step is None else [arguments.step]
        _print_json({"steps": steps, "scenarios": records(found)})
        return
    recorded = found["seconds"] + found["saved_seconds"]
    found.insert(4, "saved_share", found["saved_seconds"] / recorded)
    whose = f"step {arguments.step}"
    if arguments.step is None:
        whose = f"mean of {len(study.replayed_steps)} of {counted(len(study.steady_steps), 'step')}"
    tables.print_frame(tables.console(), found, f"step time under changed conditions; {whose}")


def slowdown(arguments: Namespace) -> None:
    found = slowdown_of(_with_events(_open(arguments.run)))
    if arguments.json:
        frames = {name: records(getattr(found, name))
                  for name in ("types", "replicas", "stages", "workers")}
        _print_json({"steps": found.steps, "recorded_seconds": found.recorded_seconds,
                     "seconds": found.seconds, "ideal_seconds": found.ideal_seconds,
                     "slowdown": found.total, "waste": found.waste, **frames,
                     "worst_workers": {"ranks": found.worst, "share": found.of_worst},
                     "last_stage": {"share": found.of_last_stage}})
        return
    tables.print_slowdown(tables.console(), found, _MOST)


def links(arguments: Namespace) -> None:
    study = _with_events(_open(arguments.run))
    each, of_groups = all_links(study.pair_times), all_groups(study.group_times)
    if arguments.json:
        _print_json({**link_facts.as_values(study), "pairs": records(each),
                     "groups": records(of_groups),
                     "matrix": records(link_facts.matrix(study))})
        return
    out = tables.console()
    for line in link_facts.verdict(study):
        out.print(line, markup=False)
    steps = len(study.steady_steps)
    if len(each):
        tables.print_links(out, each.head(_MOST), len(each), steps)
    if len(of_groups):
        tables.print_groups(out, of_groups.head(_MOST), len(of_groups), steps)


def critical_path(arguments: Namespace) -> None:
    study = _with_events(_open(arguments.run))
    asked = _step_of(study, arguments.step)
    step = study.typical_step if asked is None else asked
    path = study.critical_path(step)
    steps = study.replayed_steps if asked is None else [step]
    shares = study.path_shares if asked is None else path_shares(path)
    if arguments.json:
        _print_json({"step": step, "rank_switches": rank_switches(path), "path": records(path),
                     "steps": steps, "shares": records(shares)})
        return
    out = tables.console()
    whose = f"step {step}" if asked is not None else f"mean of {counted(len(steps), 'step')}"
    tables.print_frame(out, shares, f"the critical path by operation; {whose}")
    tables.print_frame(out, longest_operations(path),
                       f"the longest operations on the path of step {step}, which "
                       f"{switches_said(path)}")


def _step_of(study: Study, step: int | None) -> int | None:
    """`step`, which all ranks must have completed."""
    return None if step is None else study.chosen_steps([step])[0]


def bubbles(arguments: Namespace) -> None:
    study = _with_events(_open(arguments.run))
    lost = (study.steady(study.parts).groupby("rank")[["window", *LOST]].mean() / 1e9).reset_index()
    pipeline = study.bubbles
    if arguments.json:
        _print_json({"per_rank": records(lost), "pipeline": records(pipeline)})
        return
    out = tables.console()
    heads = {name: f"{head}_seconds" for name, head in PART_HEADERS.items()}
    tables.print_frame(out, lost.rename(columns={"window": "step_seconds", **heads}),
                       "time of a step in which a rank does not compute (mean)")
    names = [name for name in pipeline if name.endswith("_ns")]
    if pipeline["bubble_ns"].sum() > 0:
        means = study.steady(pipeline).groupby("rank")
        means = means[[*names, "fraction", "ideal_fraction"]].mean()
        means[names] /= 1e9
        means.columns = [name.replace("_ns", "_seconds") for name in means]
        tables.print_frame(out, means.reset_index(), "pipeline bubble of a step (mean), its "
                           "fraction of the step, and 1F1B's ideal")


def imbalance(arguments: Namespace) -> None:
    study = _with_events(_open(arguments.run))
    if study.attention_passes.empty:
        raise DataError(f"{study.run.path}: no rank computes core attention in the trace")
    if arguments.json:
        by_step = over_passes(study.attention_passes, ["step"])
        _print_json({"run": records(study.run_imbalance)[0],
                     "layers": records(study.layer_imbalance), "steps": records(by_step),
                     "passes": records(study.attention_passes),
                     "sparsity": {"steps": records(study.sparsity),
                                  "layers": records(study.layer_sparsity)}})
        return
    layers = study.layer_imbalance.merge(study.layer_sparsity, how="left")
    # Where no layer is told, the rows of each stage are of all layers, too.
    layers = layers[(layers["layer"] >= 0) | (layers["pipeline"] < 0)]
    tables.print_imbalance(tables.console(), layers, len(study.steady_steps), _MOST)


def positions(arguments: Namespace) -> None:
    if arguments.plot:
        check_picture(arguments.plot)
    studies = [_open(path) for path in arguments.runs]
    found = [_learned(study, arguments.steps) for study in studies]
    if arguments.json:
        runs = [{"steps": steps, "positions": records(places), "answers": records(depths),
                 "recall": records(distances)} for steps, places, depths, distances in found]
        several = {"runs": [{"path": str(path), **run}
                            for path, run in zip(arguments.runs, runs, strict=True)]}
        _print_json(several if len(runs) > 1 else runs[0])
    else:
        _print_learned(found, [f"{study.run.path}" for study in studies])
    if not arguments.plot:
        return
    if all(depths.empty for _, _, depths, _ in found):
        raise DataError(f"{arguments.runs[0]}: no answers to draw; valid: runs of source retrieval")
    from cadenza.answers_picture import draw  # loads matplotlib, which takes a while

    draw([depths for _, _, depths, _ in found], [str(study.run.path) for study in studies],
         arguments.plot)
    if not arguments.json:
        log.hide()
        print(printable(str(arguments.plot)))


def _learned(study: Study, steps: list[int] | None) \
        -> tuple[list[int], pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The steps, losses by place, answers by depth and recall by distance of a run."""
    losses, answers, recall = study.run.positions(), study.run.answers(), study.run.recall()
    if losses.empty:
        raise DataError(f"{study.run.path}: no losses by position in the trace of a "
                        "simulated run")
    evaluates = study.run.info["producer"] == "evaluator"
    if steps is None and not evaluates:
        steps = last_steps(losses["step"])
    steps = chosen(study.run.path, steps, losses["step"].unique(), "complete step")
    return (steps, by_position(losses[losses["step"].isin(steps)]),
            by_depth(answers[answers["step"].isin(steps)]),
            by_distance(recall[recall["step"].isin(steps)]))


def _print_learned(found: list[tuple], names: list[str]) -> None:
    """Tables of one run, or of several with a column of each."""
    out = tables.console()
    whose = " | ".join(f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
                       for steps, _, _, _ in found)
    if len(found) > 1:
        whose = "; ".join(f"run {i}: {name}" for i, name in enumerate(names)) + f"; {whose}"
    places = _side_by_side([places for _, places, _, _ in found], ["position"],
                           ["loss", "accuracy"])
    tables.print_frame(out, places, f"loss by place in the document; {whose}")
    depths = _side_by_side([depths for _, _, depths, _ in found], ["length", "depth"],
                           ["answers", "loss", "accuracy"])
    if len(depths):
        tables.print_frame(out, depths, f"answers by length of the document and depth of the fact; "
                           f"{whose}")
    distances = _side_by_side([distances for _, _, _, distances in found], ["distance"],
                              ["attention", "recall", "unseen"])
    if len(distances):
        tables.print_frame(out, distances, f"what sparse attention keeps, by distance; {whose}")


def _side_by_side(frames: list[pd.DataFrame], keys: list[str], values: list[str]) -> pd.DataFrame:
    """One frame as it is; of several the columns `values`, numbered by frame."""
    if len(frames) == 1:
        return frames[0]
    numbered = [frame[keys + values].rename(columns={name: f"{name} {i}" for name in values})
                for i, frame in enumerate(frames)]
    return reduce(lambda one, other: one.merge(other, on=keys, how="outer"), numbered).sort_values(
        keys, ignore_index=True)


def compare(arguments: Namespace) -> int:
    if len(arguments.runs) < 2:
        raise UsageError("compare needs at least two runs (see cadenza-analyze compare --help)")
    studies = [_open(path) for path in arguments.runs]
    names = labels([identity(study.run) for study in studies])
    found = [comparison.compare(studies[0], study, (names[0], name))
             for study, name in zip(studies[1:], names[1:], strict=True)]
    if arguments.json:
        _print_json({"comparisons": found})
    else:
        out = tables.console()
        for one in found:
            tables.print_comparison(out, one)
    if arguments.fail_if_slower is None:
        return 0
    gates = [comparison.slower_than(one, arguments.fail_if_slower) for one in found]
    for _, line in gates:
        print(printable(line), file=sys.stderr if arguments.json else sys.stdout)
    return int(any(slower for slower, _ in gates))


def check(arguments: Namespace) -> int:
    study = _open(arguments.run)
    found = checks.check(study.run)
    log.hide()
    if arguments.json:
        _print_json({"findings": [asdict(finding) for finding in found]})
    else:
        for finding in found:
            print(finding)
        print(f"{printable(str(study.run.path))}: {counted(len(found), 'finding')}")
    return 1 if found else 0


def watch(arguments: Namespace) -> int:
    from cadenza.watch.loop import Watch
    from cadenza.watch.neutral_feed import FirstFeed, NeutralFeed
    from cadenza.watch.trace_feed import TraceFeed

    path = arguments.run
    if path.exists() and not path.is_dir():
        raise DataError(f"{path}: not a run folder; pass the folder that holds trace/")
    if not path.absolute().parent.is_dir():
        raise DataError(f"{path}: no such folder: {path.parent}")
    if path.is_dir() and not holds_run(path):
        from cadenza.sources.finding import sources_in  # loads all that reads other traces

        others = sources_in(path) - {"neutral"}
        if others:
            raise DataError(f"{path}: holds traces of {', '.join(sorted(others))}, which are "
                            "written at the end; valid: a run, or files of the neutral format")
    log.hide()
    name = printable(str(path))
    feed = FirstFeed(TraceFeed(path), NeutralFeed(path))
    return Watch(feed, name, arguments.every, arguments.until_alarm).run()


def export(arguments: Namespace) -> None:
    run = _open(arguments.run).run
    # Perfetto reads Chrome's format; the two names are of the same file.
    form = "perfetto" if arguments.format == "chrome" else arguments.format
    output = arguments.output or arguments.run / ("trace.json.gz" if form == "perfetto" else form)
    written = write_export(run, form, output, arguments.ranks, arguments.steps)
    log.hide()
    for path in written:
        print(path)


def timeline(arguments: Namespace) -> None:
    from cadenza.timeline.timeline import timeline  # loads matplotlib, which takes a while

    output = arguments.output or arguments.runs[0] / "timeline.png"
    if arguments.output:
        check_picture(output)
    step = timeline([_open(path) for path in arguments.runs], output, arguments.step,
                    arguments.ranks)
    log.hide()
    print(f"step {step}: {printable(str(output))}")


def plan(arguments: Namespace) -> None:
    from cadenza.plan.picture import draw  # loads matplotlib, which takes a while

    output = arguments.output or arguments.file.with_suffix(".png")
    check_picture(output)
    both = output.is_file() and arguments.file.is_file() and not output.is_symlink()
    if both and output.samefile(arguments.file):  # a link is refused as one
        raise UsageError(f"--output {output}: is the plan; valid: another file")
    LOG.info("%s: reading", arguments.file)
    draw(read_plan(arguments.file), output)
    log.hide()
    print(printable(str(output)))


def data(arguments: Namespace) -> None:
    from cadenza.packing import effects, plans, report

    if arguments.output:
        check_picture(arguments.output)
    experiment = plans.read_experiment(arguments.experiment)
    found = effects.survey(experiment, arguments.steps)
    if arguments.json:
        _print_json(report.records(found))
    else:
        report.print_survey(tables.console(), found, experiment.data)
    if arguments.output:
        report.draw(found, arguments.output)


def sweep(arguments: Namespace) -> None:
    from cadenza.sweep.points import open_sweep
    from cadenza.sweep.plot import draw_view  # loads matplotlib, which takes a while
    from cadenza.sweep.report import counts, markdown

    sweeps = [open_sweep(path) for path in arguments.sweeps]
    for one in sweeps:
        print(f"{one.title}\n  {counts(one)}")
        for number, view in enumerate(one.views):
            output = one.path / f"{one.name}-{number}.png"
            draw_view(one, view, output)
            print(f"  {printable(str(output))}: {view.title}")
    table = markdown(sweeps)
    if arguments.markdown is None:
        print(table)
        return
    with written(arguments.markdown) as file:
        file.write(table.encode())
