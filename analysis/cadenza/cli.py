# SPDX-License-Identifier: Apache-2.0
"""The program `cadenza-analyze`. Exit codes: 0 ok, 2 usage, 3 data or file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from cadenza import tables
from cadenza.errors import CadenzaError, DataError, UsageError
from cadenza.run import Run, open_run
from cadenza.summary import compare, summarize


class _Parser(argparse.ArgumentParser):
    """Errors are one line, like every other error of Cadenza."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="cadenza-analyze", description="Tables and pictures from Cadenza runs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    summary = commands.add_parser("summary", help="facts of runs, time and memory per rank",
                                  description="Facts of each run; several runs are compared "
                                              "with the first.")  # fmt: skip
    summary.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder")
    summary.add_argument("--json", action="store_true", help="print JSON instead of tables")
    summary.set_defaults(action=_summary)
    picture = commands.add_parser("timeline", help="a picture of one step, rank by time",
                                  description="Draws one step of each run on one time "
                                              "axis.")  # fmt: skip
    picture.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder")
    picture.add_argument("--step", type=int, metavar="N",
                         help="step to draw; default: the first run's median step")  # fmt: skip
    picture.add_argument("--output", type=Path, metavar="FILE",
                         help=".png, .svg or .pdf; default: timeline.png in the first "
                              "RUN")  # fmt: skip
    picture.set_defaults(action=_timeline)
    sweep = commands.add_parser("sweep", help="a sweep's views: pictures, checks, a table",
                                description="Draws the views of each sweep into its folder and "
                                            "compares them with published numbers.")  # fmt: skip
    sweep.add_argument("sweeps", nargs="+", type=Path, metavar="DIR", help="folder of a sweep")
    sweep.add_argument("--markdown", type=Path, metavar="FILE",
                       help="write the table of all checks there; default: print it")  # fmt: skip
    sweep.set_defaults(action=_sweep)
    return parser


def _warn(lines: list[str]) -> None:
    for line in lines:
        print(f"cadenza-analyze: warning: {line}", file=sys.stderr)


def _summary(arguments: argparse.Namespace) -> None:
    summaries = [summarize(open_run(path)) for path in arguments.runs]
    for one in summaries:
        _warn(one["warnings"])
    comparison = compare(summaries) if len(summaries) > 1 else []
    if arguments.json:
        print(json.dumps({"runs": summaries, "comparison": comparison}, indent=2, allow_nan=False))
        return
    out = tables.console()
    for one in summaries:
        tables.print_summary(out, one)
    if comparison:
        tables.print_comparison(out, comparison)


def _timeline(arguments: argparse.Namespace) -> None:
    from cadenza.timeline import check_output, timeline  # loads matplotlib, which takes a while

    output = arguments.output or arguments.runs[0] / "timeline.png"
    if arguments.output:
        check_output(output)
    runs: list[Run] = [open_run(path) for path in arguments.runs]
    for run in runs:
        _warn(run.warnings)
    step = timeline(runs, output, arguments.step)
    print(f"step {step}: {output}")


def _sweep(arguments: argparse.Namespace) -> None:
    from cadenza.sweep import open_sweep
    from cadenza.sweep_plot import draw_view  # loads matplotlib, which takes a while
    from cadenza.sweep_report import counts, markdown

    sweeps = [open_sweep(path) for path in arguments.sweeps]
    for sweep in sweeps:
        print(f"{sweep.title}\n  {counts(sweep)}")
        for number, view in enumerate(sweep.views):
            output = sweep.path / f"{sweep.name}-{number}.png"
            draw_view(sweep, view, output)
            print(f"  {output}: {view.title}")
    table = markdown(sweeps)
    if arguments.markdown is None:
        print(table)
        return
    try:
        arguments.markdown.write_text(table)
    except OSError as error:
        raise DataError(f"{arguments.markdown}: cannot be written: {error.strerror}") from error


def main(words: list[str] | None = None) -> int:
    """Runs the command in `words` (default: the process's own) and returns the exit code."""
    try:
        arguments = _parser().parse_args(words)
        arguments.action(arguments)
        sys.stdout.flush()
    except CadenzaError as error:
        print(f"cadenza-analyze: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
