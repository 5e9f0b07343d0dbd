# SPDX-License-Identifier: Apache-2.0
"""A run in other programs' formats: Perfetto and Chrome's trace viewer, TensorBoard, CSV."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from cadenza.errors import UsageError
from cadenza.files import made, written
from cadenza.read.run import Run
from cadenza.formats.tensorboard import write_tensorboard
from cadenza.formats.trace_json import write_trace_json

FORMATS = ("perfetto", "csv", "tensorboard")


def export(
    run: Run,
    format: str,
    output: Path,
    ranks: Iterable[int] | None = None,
    steps: Iterable[int] | None = None,
) -> list[Path]:
    """Writes the run, or some ranks and steps of it.

    @param format  perfetto: trace events in JSON, which ui.perfetto.dev and chrome://tracing open;
                   csv: every frame of `run`; tensorboard: the numbers of its metrics
    @param output  perfetto: a file, compressed where its name ends in .gz; else a folder
    @param ranks, steps  default: all
    @returns the files written
    @throws UsageError where a rank or step is not in the run, or ranks are chosen of metrics,
            which are of all, DataError where nothing can be written
    """
    if format not in FORMATS:
        raise UsageError(f"unknown format '{format}'; valid are {', '.join(FORMATS)}")
    chosen_ranks = run.chosen_ranks(ranks)
    chosen_steps = run.chosen_steps(steps)
    if format == "tensorboard":
        if ranks is not None:
            raise UsageError("--ranks: found with format tensorboard, whose numbers are of all "
                             "ranks; valid: --steps alone")
        return [write_tensorboard(run, output, chosen_steps)]
    if format == "csv":
        return _write_csv(run, output, chosen_ranks, chosen_steps)
    write_trace_json(run, output, chosen_ranks, chosen_steps)
    return [output]


def _write_csv(run: Run, folder: Path, ranks: list[int], steps: list[int]) -> list[Path]:
    """One file for each frame; events are written step by step, as they may be large."""
    made(folder)
    frames = {
        "steps": run.steps,
        "ranks": run.ranks,
        "memory": run.memory,
        "memory_samples": run.memory_samples,
        "plans": run.plans,
        "plan_summary": run.plan_summary,
        "positions": run.positions,
        "answers": run.answers,
        "recall": run.recall,
        "metrics": run.metrics,
        "clock": run.clock,
    }
    paths = [folder / "events.csv"]
    with written(paths[0]) as file:
        run.events(ranks=[]).to_csv(file, index=False)
        for step in steps:
            run.events(ranks=ranks, steps=[step]).to_csv(file, index=False, header=False)
    for name, make in frames.items():
        paths.append(folder / f"{name}.csv")
        with written(paths[-1]) as file:
            _part(make(), ranks, steps).to_csv(file, index=False)
    return paths


def _part(frame: pd.DataFrame, ranks: list[int], steps: list[int]) -> pd.DataFrame:
    """Rows of these ranks and steps, as far as the frame tells them apart."""
    for column, wanted in (("rank", ranks), ("step", steps)):
        if column in frame:
            frame = frame[frame[column].isin(wanted)]
    return frame
