# SPDX-License-Identifier: Apache-2.0
"""What ranks do between two steps: every nanosecond from the end of one to the begin of the next
belongs to exactly one cause."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.errors import DataError
from cadenza.read.columns import one_of, rows_of
from cadenza.time import intervals

CAUSES = ("checkpoint", "data", "plan", "trace", "late_start", "other")
CAUSE_NAMES = {"checkpoint": "checkpoints", "data": "data", "plan": "plans", "trace": "the trace",
               "late_start": "late starts", "other": "other"}
_CATEGORIES = {"checkpoint": "checkpoint", "data": "data", "plan": "plan",
               "trace_overhead": "trace"}
_CLOCK = "measure_clock"  # for the trace, too
_COLUMNS = ["rank", "step", "cause", "name", "begin_ns", "end_ns", "still_ns"]
_WIDEST = 2**62  # ns, of all gaps one behind the other


def gap_windows(steps: pd.DataFrame) -> pd.DataFrame:
    """When each rank was in no step.

    @param steps  Run.steps() of steps that all ranks completed
    @returns per rank and step but the first: rank, step, begin_ns (where its last step ended),
             end_ns (where this one begins), first_ns (where it begins on the first rank)
    """
    found = steps.sort_values(["rank", "step"], kind="stable")[
        ["rank", "step", "begin_ns", "end_ns"]]
    before = found.groupby("rank")["end_ns"].shift(fill_value=-1)
    first = found.groupby("step")["begin_ns"].transform("min")
    follows = found["rank"].duplicated().to_numpy()
    found = found.assign(begin_ns=before, first_ns=first, end_ns=found["begin_ns"])[follows]
    # A step that begins before the last ended is a finding of check, and no time between them.
    found["begin_ns"] = np.minimum(found["begin_ns"], found["end_ns"])
    found["first_ns"] = np.maximum(found["first_ns"], found["begin_ns"])
    return found.reset_index(drop=True)


def outside_steps(events: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Events whose cause is known and that begin before their rank's step.

    @param events  of one step or more
    @param steps   Run.steps()
    @returns rank, step, cause, name, begin_ns, end_ns, still_ns
    """
    clock = one_of(events["name"], _CLOCK)
    rows = np.flatnonzero(one_of(events["category"], *_CATEGORIES) | clock)
    columns = ["rank", "step", "category", "name", "begin_ns", "end_ns", "still_ns"]
    found = rows_of(events, rows, columns)
    found["name"] = found["name"].astype(object)
    found["cause"] = found["category"].astype(object).map(_CATEGORIES).mask(clock[rows], "trace")
    opens = steps[["rank", "step", "begin_ns"]].rename(columns={"begin_ns": "opens_ns"})
    found = found.merge(opens, on=["rank", "step"])
    return found[found["begin_ns"] < found["opens_ns"]][_COLUMNS].reset_index(drop=True)


def between_steps(windows: pd.DataFrame, outside: pd.DataFrame) -> pd.DataFrame:
    """Every nanosecond of the windows, assigned once: to the first of CAUSES that has an event
    then, to `late_start` where another rank had begun the step, else to `other`.

    @param windows  gap_windows()
    @param outside  outside_steps()
    @returns rank, step, window and one column per name of CAUSES, in ns, which sum to the window
    """
    begin, end = (windows[name].to_numpy(np.int64) for name in ("begin_ns", "end_ns"))
    length = end - begin
    if float(length.sum(dtype=float)) > _WIDEST:
        raise DataError("steps of a rank lie years apart: its trace is damaged")
    shift = np.cumsum(length) - length - begin  # one window behind the other
    frame = windows[["rank", "step"]].assign(window=length)
    row = pd.MultiIndex.from_frame(windows[["rank", "step"]]).get_indexer(
        pd.MultiIndex.from_frame(outside[["rank", "step"]]))
    pieces, row = outside[row >= 0], row[row >= 0]
    pairs = np.clip(pieces[["begin_ns", "end_ns"]].to_numpy(np.int64), begin[row, None],
                    end[row, None]) + shift[row, None]
    late = intervals.make(windows["first_ns"].to_numpy(np.int64) + shift, end + shift)
    covered, before = intervals.EMPTY, np.zeros(len(windows), np.int64)
    for cause in CAUSES[:-1]:
        mine = late if cause == "late_start" else pairs[(pieces["cause"] == cause).to_numpy()]
        covered = intervals.union(covered, mine)
        total = intervals.covered_within(covered, begin + shift, end + shift)
        frame[cause], before = total - before, total
    frame[CAUSES[-1]] = length - before
    return frame
