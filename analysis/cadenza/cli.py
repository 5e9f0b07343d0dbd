# SPDX-License-Identifier: Apache-2.0
"""The program `cadenza-analyze`.

Exit codes: 0 ok, 1 `check` found something wrong, `compare --fail-if-slower` a slower run, `watch`
had an alarm, or the program has a fault, 2 usage, 3 data or file.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from cadenza import commands
from cadenza.program import Parser, add_detail, ended, whole_number
from cadenza.version import VERSION

_MOST_NUMBERS = 1 << 20  # of a list of ranks or steps
_MOST_STEPS = 10_000  # of `data`, each with plans of its own
_EXAMPLES = """examples:
  cadenza-analyze report runs/colocated runs/cad      one page: who was late, why, what CAD saved
  cadenza-analyze summary runs/cad                    facts, and time and memory per rank
  cadenza-analyze stragglers runs/cad --json          which rank was late in which step, and why
  cadenza-analyze what-if runs/colocated              what balanced ranks would save
  cadenza-analyze links runs/cad                      which links are slow, and what that costs
  cadenza-analyze watch runs/cad                      a run that goes on: alarms
  cadenza-analyze compare runs/colocated runs/cad     what changed, part by part
  cadenza-analyze export runs/cad --format perfetto --steps 3   for ui.perfetto.dev
  cadenza-analyze import traces --output runs/theirs  from PyTorch's profiler, Nsight and others
"""
_SLOWDOWN = """Divides what a run loses because equal operations take unequally long among these
(arXiv 2505.05713). Of one type are the computations of one pass of a microbatch, the messages of
one pass, and the collectives of one name.
  T     seconds of all steps, replayed with the recorded durations of operations: without what lies
        between them, and of a communication without the wait for its last rank
  T*    the same with ideal durations: per type the mean of computations, the median of transfers
  S     T / T*: how much longer the run takes; waste = 1 - 1 / S of its time
  S(x)  T(x as recorded, all else ideal) / T*, for x a type, a replica or a stage of the pipeline;
        of a worker the lesser of its replica's and its stage's
  M     share of the loss: (T - T(x ideal, all else as recorded)) / (T - T*), for x the 3 % of
        workers with the highest S(x), or the last stage; above 1 where the others are faster
        than the mean
Where S is below 1.03, only S is said."""


def _parser() -> Parser:
    parser = Parser(
        prog="cadenza-analyze",
        description="Analyzes the traces of Cadenza runs: tables, pictures, an HTML page.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cadenza-analyze {VERSION}")
    to = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parser.commands = to
    report = _command(to, "report", commands.report, "one HTML page about one or more runs",
                      "Writes one self-contained HTML page; several runs are compared with the "
                      "first.", "report runs/colocated runs/cad --output both.html", "+",
    )
    report.add_argument("--output", type=Path, metavar="FILE",
                        help="default: report.html in RUN, or in the folder that holds all "
                             "RUNs")
    summary = _command(to, "summary", commands.summary, "facts, time and memory per rank",
                       "Prints facts about each run, and per rank the seconds of each part.",
                       "summary runs/cad --json", "+")
    stragglers = _command(to, "stragglers", commands.stragglers, "who was late, by how much, why",
                          "Names the slowest rank of each step and phase, and says how often each "
                          "rank is the slowest.", "stragglers runs/cad")
    bubbles = _command(to, "bubbles", commands.bubbles, "where ranks had to wait",
                       "Prints the seconds of a step that each rank could not work, by cause, "
                       "and compares pipeline bubbles with 1F1B's formula.",
                       "bubbles runs/cad")
    imbalance = _command(to, "imbalance", commands.imbalance, "how evenly attention is shared",
                         "Prints, by layer and pass, how evenly the ranks share core attention: "
                         "between workers, between a worker's stages, and in lockstep; and which "
                         "share of it was left out.", "imbalance runs/cad --json")
    what_if = _command(to, "what-if", commands.what_if, "what removing one cause would save",
                       "Replays the steps with balanced ranks, without attention imbalance, with "
                       "free communication, and with one slow rank at the usual rate.",
                       "what-if runs/colocated")
    slowdown = _command(to, "slowdown", commands.slowdown, "what unequal operations cost",
                        _SLOWDOWN, "slowdown runs/pipeline")
    links = _command(to, "links", commands.links, "which links are slow, and what that costs",
                     "Prints bytes and rates of pairs and groups of ranks, and the usual "
                     "rate: the machine file's in simulated runs, else that of other links of the "
                     "same kind. --json has the matrix of all pairs.",
                     "links runs/cad")
    path = _command(to, "critical-path", commands.critical_path, "what decides a step's length",
                    "Prints the chain of operations and messages that sums to the step time.",
                    "critical-path runs/cad --step 3")
    for one, default in ((what_if, "mean of all steps"),
                         (path, "mean of all steps, and the typical step's operations")):
        one.add_argument("--step", type=int, metavar="N", help=f"which step; default: {default}")
    positions = _command(to, "positions", commands.positions, "what the model learned, by place",
                         "Prints the loss and the share of right first choices by place in the "
                         "document and, for source retrieval, of answers by depth and length; "
                         "several runs side by side.",
                         "positions runs/retrieval --steps 900-999", "+")
    positions.add_argument("--plot", type=Path, metavar="FILE",
                           help="draw answers by depth and length: .png, .svg or .pdf")
    positions.add_argument("--steps", type=_numbers, metavar="N,M-K",
                           help="default: the last tenth of a training run, all steps of an "
                                "evaluation")
    compare = _command(to, "compare", commands.compare, "what differs between runs",
                       "Compares runs with the first one: changed keys, step time with its 95 % "
                       "interval, parts, phases. It judges runs of equal work on as many ranks, by "
                       "8 equal steps or more.",
                       "compare runs/before runs/after --fail-if-slower 3%", "+")
    compare.add_argument("--fail-if-slower", type=_percentage, metavar="N%",
                         help="exit code 1 if a run's steps take more than N%% longer than the "
                              "first one's with 95 %% confidence: the interval lies above; else "
                              "0, with a line that says why, also where this is not decided")
    check = _command(to, "check", commands.check, "whether a trace is consistent",
                     "Checks a trace against docs/trace.md; exit code 1 if it finds an error.",
                     "check runs/cad")
    watch = _command(to, "watch", commands.watch, "alarms of a run that goes on",
                     "Reads the steps of a run as they come, and says who is slow, paused, without "
                     "a core or late, which link is slow, or that no step comes any more. A run "
                     "that has ended is watched from its begin. Exit code 1 after an alarm.",
                     "watch runs/cad --until-alarm")
    watch.add_argument("--every", type=whole_number(_MOST_NUMBERS), default=10, metavar="N",
                       help="a verdict about every N steps; default: 10")
    watch.add_argument("--until-alarm", action="store_true", help="end with the first alarm")
    for one in (summary, stragglers, bubbles, imbalance, what_if, slowdown, links, path, positions,
                compare, check):
        one.add_argument("--json", action="store_true", help="print JSON instead of tables")
    _add_import(to)
    _add_export(to)
    _add_pictures(to)
    return parser


def _command(
    to: argparse._SubParsersAction, name: str, action: Callable, short: str, long: str,
    example: str, runs: str | None = None,
) -> argparse.ArgumentParser:
    """A command on one run, or on one or more where `runs` is "+"."""
    made = to.add_parser(name, help=short, description=long,
                         epilog=f"example:\n  cadenza-analyze {example}",
                         formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("runs" if runs else "run", nargs=runs, type=Path, metavar="RUN",
                      help="run folder")
    made.set_defaults(action=action)
    add_detail(made)
    return made


def _add_import(to: argparse._SubParsersAction) -> None:
    made = to.add_parser(
        "import", help="a run folder from traces of other programs",
        description="Reads the traces of other programs (PyTorch's profiler, Nsight Systems, "
                    "StragglerAnalysis, the neutral format), aligns the ranks' clocks by what "
                    "they did together, and writes a run folder that every command reads. Prints "
                    "what the traces cannot tell. Commands open such traces directly, too.",
        epilog="example:\n  cadenza-analyze import traces --output runs/theirs\n"
               "  cadenza-analyze report runs/theirs",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("traces", nargs="+", type=Path, metavar="TRACES",
                      help="file, or folder of files: one or more of each rank")
    made.add_argument("--output", type=Path, required=True, metavar="RUN", help="new run folder")
    made.add_argument("--from", dest="source", metavar="SOURCE",
                      help="kineto, nsight, straggler_analysis or neutral; default: each file "
                           "says it")
    made.add_argument("--layout", metavar="NAME=SIZE,...",
                      help="sizes of data, pipeline, tensor, context, as data=4,tensor=2: ranks "
                           "count through tensor first, then context, data and pipeline; "
                           "default: what the process groups tell")
    made.add_argument("--lengths", type=Path, metavar="FILE",
                      help="tokens of each document, of every step and rank a line: step rank "
                           "length length ...")
    made.set_defaults(action=commands.import_traces)
    add_detail(made)


def _add_export(to: argparse._SubParsersAction) -> None:
    made = _command(to, "export", commands.export, "events for Perfetto, Chrome or other programs",
                    "Writes events as trace JSON (open it in ui.perfetto.dev or chrome://tracing; "
                    "ending .gz compresses), all tables as CSV files, or the metrics for "
                    "TensorBoard. Viewers are slow beyond a million events: choose ranks and "
                    "steps.",
                    "export runs/cad --format perfetto --ranks 0-7 --steps 3")
    made.add_argument("--format", required=True, choices=commands.FORMATS)
    made.add_argument("--output", type=Path, metavar="PATH",
                      help="file, or folder of CSV files or for TensorBoard; default: "
                           "trace.json.gz, csv/ or tensorboard/ in RUN")
    made.add_argument("--ranks", type=_numbers, metavar="N,M-K", help="default: all")
    made.add_argument("--steps", type=_numbers, metavar="N,M-K", help="default: all")


def _numbers(text: str) -> list[int]:
    """ "0,2,5-7" as [0, 2, 5, 6, 7]."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or part.endswith("-"):
            raise argparse.ArgumentTypeError(f"'{text}' is not a list such as 0,2,5-7")
        chosen = range(int(first), int(last or first) + 1)
        if not chosen:
            raise argparse.ArgumentTypeError(f"'{part}' ends before it begins")
        if len(found) + len(chosen) > _MOST_NUMBERS:
            raise argparse.ArgumentTypeError(f"'{text}' is more than {_MOST_NUMBERS} numbers")
        found.update(chosen)
    return sorted(found)


def _percentage(text: str) -> float:
    """ "3%" as 0.03."""
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,9})?%", text) or float(text[:-1]) > 100:
        raise argparse.ArgumentTypeError(f"found '{text}'; valid: 0% to 100%, such as 3%")
    return float(text[:-1]) / 100


def _add_pictures(to: argparse._SubParsersAction) -> None:
    picture = _command(to, "timeline", commands.timeline, "a picture of one step, ranks over time",
                       "Draws one step of each run on one time axis.",
                       "timeline runs/colocated runs/cad --output both.png", "+")
    picture.add_argument("--step", type=int, metavar="N",
                         help="step to draw; default: the typical one of all runs")
    picture.add_argument("--ranks", type=_numbers, metavar="N,M-K", help="default: all")
    picture.add_argument("--output", type=Path, metavar="FILE",
                         help=".png, .svg or .pdf; default: timeline.png in the first "
                              "RUN")
    plan = to.add_parser("plan", help="a picture of a step's plans: who computes which attention",
                         description="Draws what cadenza plan --format json printed: loads of the "
                                     "ranks, and pairs of queries and keys of each document in "
                                     "the colour of the rank that computes them.",
                         epilog="example:\n  cadenza-analyze plan step.json --output step.svg",
                         formatter_class=argparse.RawDescriptionHelpFormatter)
    plan.add_argument("file", type=Path, metavar="FILE", help="output of cadenza plan")
    plan.add_argument("--output", type=Path, metavar="FILE",
                      help=".png, .svg or .pdf; default: beside FILE, with the ending "
                           ".png")
    plan.set_defaults(action=commands.plan)
    add_detail(plan)
    data = to.add_parser("data", help="lengths of documents, and what each packing makes of them",
                         description="Prints, before anything is trained, how long the documents "
                                     "of an experiment are, and for each packing how many are "
                                     "cut, which share of pairs is left, and how unevenly ranks "
                                     "share attention. cadenza plan makes the batches.",
                         epilog="example:\n  cadenza-analyze data inputs/quickstart.yaml",
                         formatter_class=argparse.RawDescriptionHelpFormatter)
    data.add_argument("experiment", type=Path, metavar="EXPERIMENT", help="its YAML file")
    data.add_argument("--steps", type=whole_number(_MOST_STEPS), default=16, metavar="N",
                      help="how many steps to look at, from the first one on; default: 16")
    data.add_argument("--output", type=Path, metavar="FILE", help="also draw: .png, .svg or .pdf")
    data.add_argument("--json", action="store_true", help="print JSON instead of tables")
    data.set_defaults(action=commands.data)
    add_detail(data)
    sweep = to.add_parser("sweep", help="a sweep's best points, or its views and checks",
                          description="Names the best points of each sweep. If the sweep defines "
                                      "views, draws them into its folder and compares them with "
                                      "published numbers.")
    sweep.add_argument("sweeps", nargs="+", type=Path, metavar="DIR", help="folder of a sweep")
    sweep.add_argument("--markdown", type=Path, metavar="FILE",
                       help="write the tables to FILE; default: print them")
    sweep.set_defaults(action=commands.sweep)
    add_detail(sweep)


def main(words: list[str] | None = None) -> int:
    """Runs the command in `words` (default: the process's own) and returns the exit code. Whatever
    goes wrong is one line."""
    return ended(_parser(), words, commands.run_command, less="fewer ranks or steps")


if __name__ == "__main__":
    sys.exit(main())
