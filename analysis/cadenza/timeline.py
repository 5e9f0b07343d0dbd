# SPDX-License-Identifier: Apache-2.0
"""One step as a picture: rank by time, compute above, communication thinner beneath."""

from __future__ import annotations

from pathlib import Path

from cadenza import shares as sh
from cadenza.errors import DataError, UsageError
from cadenza.panels import choose_step, panel
from cadenza.picture import draw
from cadenza.run import Run

_COLUMNS = 2400  # at most so many pieces per lane: two per pixel of a 1280 pixel picture's axis
_SUFFIXES = (".png", ".svg", ".pdf")


def check_output(path: Path) -> None:
    if path.suffix.lower() not in _SUFFIXES:
        valid = ", ".join(_SUFFIXES)
        raise UsageError(f"--output {path}: unknown format; valid endings are {valid}")
    if not path.parent.is_dir():
        raise DataError(f"{path}: no such folder: {path.parent}")


def timeline(runs: list[Run], output: Path, step: int | None = None) -> int:
    """Writes the picture of one step of each run, on one time axis, and returns the step."""
    check_output(output)
    chosen = choose_step(runs, step)
    durations = []
    for run in runs:
        times = sh.step_times(run.steps()).set_index("step")
        durations.append(int(times.loc[chosen, "end_ns"] - times.loc[chosen, "begin_ns"]))
    panels = [panel(run, chosen, max(1.0, max(durations) / _COLUMNS)) for run in runs]
    for run, made in zip(runs, panels, strict=True):
        if made.bars.empty:
            raise DataError(f"{run.path}: step {chosen} has no events to draw")

    draw(panels, output)
    return chosen
