# SPDX-License-Identifier: Apache-2.0
"""How much longer a run takes than if all operations of a type took equally long, and which
operations, ranks and stages that is due to: the what-if analysis of arXiv 2505.05713.

T is the time of all steps, replayed with the recorded durations; T* with ideal ones, which are per
type the mean of computations and the median of transfers, over all ranks and steps. What lies
between operations is left out of both. S = T / T*. S of x = T(all ideal but x) / T*. The share of
the loss that x has: (T - T(only x ideal)) / (T - T*).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from cadenza.errors import DataError
from cadenza.graph.levels import Arrivals, levels, split_places
from cadenza.graph.operations import COMPUTATION, dependencies, operations
from cadenza.processes import mapped
from cadenza.read.columns import one_of
from cadenza.summary import imported

if TYPE_CHECKING:
    from cadenza.study import Study

PASSES = ("forward", "backward")
LEAST = 1.03  # a smaller slowdown is not divided among causes
WORST_SHARE = 0.03  # of the workers
_AT_ONCE = 1 << 23  # durations, of all cases that are replayed together


@dataclass(frozen=True)
class Slowdown:
    """Of some steps. Where S is below LEAST the frames are empty and the shares NaN. Frames are
    sorted by slowdown, the highest first."""

    steps: int
    recorded_seconds: float  # of a step, as the next two
    seconds: float  # T
    ideal_seconds: float  # T*
    types: pd.DataFrame  # type, slowdown
    replicas: pd.DataFrame  # data, slowdown
    stages: pd.DataFrame  # pipeline, slowdown
    # data, pipeline, ranks (a tuple: a tensor group is one worker), slowdown: the lesser of its
    # replica's and its stage's
    workers: pd.DataFrame
    worst: tuple[int, ...]  # ranks of the worst workers
    of_worst: float  # share of the loss
    of_last_stage: float  # NaN also without a pipeline

    @property
    def total(self) -> float:
        """S"""
        return self.seconds / self.ideal_seconds

    @property
    def waste(self) -> float:
        """Share of the time that ideal durations would save."""
        return 1 - 1 / self.total


def slowdown(study: Study) -> Slowdown:
    """Of the steady steps. @throws DataError where the run's operations are not of the kind"""
    made = steady_operations(study)
    passes = (made["kind"] == COMPUTATION) & made["phase"].isin(PASSES)
    untold = bool((made["microbatch"][passes] < 0).any())
    if untold and imported(study.run) is not None and study.ranks["pipeline"].nunique() > 1:
        raise DataError(f"{study.run.path}: does not say of which microbatch computations are, so "
                        "that passes of a pipeline cannot be told apart; valid: traces that do "
                        "(what-if replays all runs)")
    return divided(made, study.ranks, study.seconds)


def steady_operations(study: Study) -> pd.DataFrame:
    """operations() of the steady steps. @throws DataError as slowdown()"""
    def one(step: int) -> pd.DataFrame:
        events = study.step_events(step)
        _check(study, events)
        return operations(events, study.steps[(study.steps["step"] == step).to_numpy()],
                          study.ranks)

    found = mapped(one, study.steady_steps, study.run.event_count)
    return pd.concat(list(found), ignore_index=True)


def _check(study: Study, events: pd.DataFrame) -> None:
    if one_of(events["category"], "attention_dispatch", "attention_return").any():
        raise DataError(f"{study.run.path}: ranks exchange attention within computations, which "
                        "this analysis takes as one; valid: runs of pipelines and data parallelism "
                        "(what-if replays all runs)")


def divided(made: pd.DataFrame, ranks: pd.DataFrame, recorded_seconds: float = math.nan) \
        -> Slowdown:
    """@param made   operations() of some steps
    @param ranks  Run.ranks()
    @param recorded_seconds  of a step
    """
    cases = _Cases(made)
    place = ranks.set_index("rank")[["data", "pipeline"]].loc[made["rank"].to_numpy()]
    replicas, stages = (cases.alone(name, place[name].to_numpy()) for name in place)
    workers = _workers(ranks[ranks["rank"].isin(made["rank"])], replicas, stages)
    worst = tuple(sorted(sum(workers["ranks"].head(math.ceil(WORST_SHARE * len(workers))), ())))
    last = (place["pipeline"] == place["pipeline"].max()).to_numpy()
    steps = made["step"].nunique()
    return Slowdown(
        steps, recorded_seconds, cases.total / steps, cases.least / steps,
        cases.alone("type", made["type"].to_numpy(object)), replicas, stages, workers, worst,
        cases.share(made["rank"].isin(worst).to_numpy()),
        math.nan if last.all() else cases.share(last))


class _Cases:
    """Replays in which some operations have their own durations, and the others ideal ones."""

    def __init__(self, made: pd.DataFrame) -> None:
        self._own, self._ideal = made["seconds"].to_numpy(float), ideal_seconds(made)
        if not self._ideal.any():
            raise DataError("no operation of the steps takes time")
        self._replay = Replay(made)
        both = np.stack([self._own, self._ideal], axis=1)
        self.total, self.least = map(float, self._replay.seconds(both))
        self._small = self.total / self.least < LEAST

    def alone(self, name: str, label: np.ndarray) -> pd.DataFrame:
        """`name`, slowdown: for each label, were only its operations as recorded."""
        labels = [] if self._small else pd.unique(label).tolist()
        some = max(1, _AT_ONCE // len(label))
        seconds = [self._replay.seconds(np.where(label[:, None] == labels[at : at + some],
                                                 self._own[:, None], self._ideal[:, None]))
                   for at in range(0, len(labels), some)]
        found = np.concatenate([np.empty(0), *seconds]) / self.least
        return _sorted(pd.DataFrame({name: labels, "slowdown": found}), name)

    def share(self, chosen: np.ndarray) -> float:
        """Of the loss, what would not be there were the chosen operations ideal."""
        if self._small:
            return math.nan
        without = self._replay.seconds(np.where(chosen, self._ideal, self._own)[:, None])[0]
        return float((self.total - without) / (self.total - self.least))


def ideal_seconds(made: pd.DataFrame) -> np.ndarray:
    """Per operation the mean (of communication the median) of all that are alike; of a piece of a
    computation its share of that."""
    alike = made.groupby(["type", "sends"], sort=False)
    mean = alike["seconds"].transform("sum") / alike["share"].transform("sum")
    computes = (made["kind"] == COMPUTATION).to_numpy()
    return np.where(computes, made["share"] * mean, alike["seconds"].transform("median"))


def _workers(ranks: pd.DataFrame, replicas: pd.DataFrame, stages: pd.DataFrame) -> pd.DataFrame:
    place = ["data", "pipeline"]
    cells = ranks.sort_values("rank").groupby(place)["rank"].agg(tuple).rename("ranks")
    both = cells.reset_index().merge(replicas, on="data").merge(stages, on="pipeline")
    both["slowdown"] = both[["slowdown_x", "slowdown_y"]].min(axis=1)
    return _sorted(both[[*place, "ranks", "slowdown"]], "ranks")


def _sorted(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    return frame.sort_values(["slowdown", name], ascending=[False, True], ignore_index=True)


class Replay:
    """Operations of some steps, to be replayed with any durations."""

    def __init__(self, made: pd.DataFrame) -> None:
        """@param made  operations() of the steps
        @throws DataError where they wait for one another in a circle"""
        count = len(made)
        meets = np.flatnonzero(made["kind"] != COMPUTATION)
        number = made.groupby(["step", "meeting"], sort=False).ngroup().to_numpy()
        # Vertices are the ends of operations, where ranks meet, and the begin of every step. An
        # operation ends at its duration after what it waits for: of a communication the meeting.
        begin, lasts = np.arange(count), np.arange(count)
        begin[meets], lasts[meets] = count + number[meets], count  # a duration of 0 is put there
        start = count + number.max() + 1
        first, second = dependencies(made)
        free = np.setdiff1d(np.arange(count), second)
        source = np.concatenate([first, np.full(len(free), start), begin[meets]])
        target = np.concatenate([begin[second], begin[free], meets])
        duration = np.concatenate([lasts[second], lasts[free], meets])
        found, whole = levels(start + 1, source, target)
        if not whole:
            raise DataError("the operations of a step wait for one another in a circle")
        places, _ = split_places(found, start + 1)
        self._arrivals = Arrivals(places.place[target], places.place[source], places.bounds)
        self._duration = duration[self._arrivals.order]
        self._ends = places.place[:count]
        self._levels, self._vertices = len(found), start + 1
        self._steps = np.flatnonzero(np.diff(made["step"], prepend=made["step"].iloc[0] - 1))

    def seconds(self, durations: np.ndarray) -> np.ndarray:
        """Of all steps. @param durations  (operations, cases) in s @returns (cases,)"""
        return self.of_steps(durations).sum(axis=0)

    def of_steps(self, durations: np.ndarray) -> np.ndarray:
        """@param durations  as of seconds() @returns (steps, cases), in the order of the rows"""
        delay = np.vstack([durations, np.zeros((1, durations.shape[1]))])[self._duration]
        time = np.zeros((self._vertices, durations.shape[1]))
        for number in range(self._levels):
            vertex, there = self._arrivals.of_level(number, time, delay)
            time[vertex] = there
        return np.maximum.reduceat(time[self._ends], self._steps)
