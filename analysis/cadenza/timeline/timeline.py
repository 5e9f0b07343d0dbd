# SPDX-License-Identifier: Apache-2.0
"""One step as a picture: rank by time, compute above, communication thinner beneath."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure

from cadenza.errors import DataError
from cadenza.files import check_picture
from cadenza.timeline.panels import choose_step, panel
from cadenza.timeline.picture import draw, save
from cadenza.study import Study

_COLUMNS = 2400  # at most so many pieces per lane: two per pixel of a 1280 pixel picture's axis


def timeline(
    studies: list[Study], output: Path, step: int | None = None, ranks: list[int] | None = None
) -> int:
    """Writes timeline_figure() and returns its step."""
    check_picture(output)
    figure, chosen = timeline_figure(studies, step, ranks)
    save(figure, output)
    return chosen


def timeline_figure(
    studies: list[Study], step: int | None = None, ranks: Iterable[int] | None = None
) -> tuple[Figure, int]:
    """The picture of one step of each run, on one time axis, and the step.

    @param step   default: choose_step()
    @param ranks  to be drawn; default: all
    """
    wanted = None if ranks is None else list(ranks)
    for study in studies:
        if not study.has_events:
            raise DataError(f"{study.run.path}: no events in the trace to draw")
        study.run.chosen_ranks(wanted)
    chosen = choose_step(studies, step)
    durations = []
    for study in studies:
        times = study.step_times.set_index("step")
        durations.append(int(times.loc[chosen, "end_ns"] - times.loc[chosen, "begin_ns"]))
    resolution = max(1.0, max(durations) / _COLUMNS)
    panels = [panel(study, chosen, resolution, wanted) for study in studies]
    return draw(panels), chosen
