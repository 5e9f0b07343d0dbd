# SPDX-License-Identifier: Apache-2.0
"""One step as a picture: rank by time, compute above, communication thinner beneath."""

from __future__ import annotations

from pathlib import Path

from cadenza.errors import DataError
from cadenza.files import check_picture
from cadenza.timeline.panels import choose_step, panel
from cadenza.timeline.picture import draw
from cadenza.study import Study

_COLUMNS = 2400  # at most so many pieces per lane: two per pixel of a 1280 pixel picture's axis


def timeline(
    studies: list[Study], output: Path, step: int | None = None, ranks: list[int] | None = None
) -> int:
    """Writes the picture of one step of each run, on one time axis, and returns the step.

    @param ranks  to be drawn; default: all
    """
    check_picture(output)
    for study in studies:
        if not study.has_events:
            raise DataError(f"{study.run.path}: no events in the trace to draw")
        study.run.chosen_ranks(ranks)
    chosen = choose_step(studies, step)
    durations = []
    for study in studies:
        times = study.step_times.set_index("step")
        durations.append(int(times.loc[chosen, "end_ns"] - times.loc[chosen, "begin_ns"]))
    resolution = max(1.0, max(durations) / _COLUMNS)
    panels = [panel(study, chosen, resolution, ranks) for study in studies]
    draw(panels, output)
    return chosen
