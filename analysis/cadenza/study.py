# SPDX-License-Identifier: Apache-2.0
"""Everything that is computed from a run, once: what the commands, the page and notebooks share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import pandas as pd

from cadenza import checks, efficiency, memory
from cadenza.alone import Alone, lone_ranks, sentence
from cadenza.bubbles import pipeline_bubbles
from cadenza.critical_path import critical_path, mean_shares, path_shares
from cadenza.errors import DataError
from cadenza.graph import StepGraph, build
from cadenza.imbalance import attention_imbalance
from cadenza.link_times import group_times, pair_times
from cadenza.link_what_if import with_usual_links
from cadenza.links import SlowLink, slow_links
from cadenza.loads import operation_times
from cadenza.log import LOG
from cadenza.parts import rank_totals, step_times, time_parts
from cadenza.pauses import pauses
from cadenza.pieces import lane_pieces
from cadenza.roofline import attention_tasks
from cadenza.run import Run
from cadenza.stragglers import persistent, stragglers, wait_causes
from cadenza.typical import kinds_of_steps, step_features, typical
from cadenza.what_if import network_free, over_steps, what_if

_REPLAYED = 24  # steps, at most
_EVENTS_AT_ONCE = 4_000_000  # in memory: about 100 bytes each


class Study:
    """A run and what follows from it. Every property is computed when first asked for.

    Events are read step by step, so that a run of hundreds of ranks fits into memory: `events` has
    all of them, `step_events(step)` those of one. A run without events (`--trace summary`) has
    empty frames where events are needed.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._step_events: dict[int, pd.DataFrame] = {}
        self._graphs: dict[int, StepGraph] = {}

    @cached_property
    def steps(self) -> pd.DataFrame:
        return self.run.steps()

    @cached_property
    def ranks(self) -> pd.DataFrame:
        return self.run.ranks()

    @cached_property
    def memory(self) -> pd.DataFrame:
        return self.run.memory()

    @cached_property
    def _machine_seconds(self) -> pd.Series:
        """What the machine gives each rank's computation, by (step, rank); 0: not known."""
        return self.steps.set_index(["step", "rank"])["machine_seconds"]

    @cached_property
    def metrics(self) -> pd.DataFrame:
        return self.run.metrics()

    @cached_property
    def plan_summary(self) -> pd.DataFrame:
        return self.run.plan_summary()

    @cached_property
    def step_times(self) -> pd.DataFrame:
        """step, begin_ns, end_ns, seconds of the steps that all ranks completed."""
        times = step_times(self.steps) if len(self.steps) else pd.DataFrame()
        if times.empty:
            raise DataError(f"{self.run.path}: no complete step in the trace")
        return times

    @cached_property
    def steady_steps(self) -> list[int]:
        """Steps that means are taken of: all complete ones, but of a real run of more than three
        not the first, which also pays for memory that is touched for the first time."""
        steps = [int(step) for step in self.step_times["step"]]
        real = self.run.info["producer"] == "trainer"
        return steps[1:] if real and len(steps) > 3 else steps

    @cached_property
    def seconds(self) -> float:
        """Of a step: the mean of the steady ones."""
        return float(self.step_times.set_index("step").loc[self.steady_steps, "seconds"].mean())

    @property
    def median_seconds(self) -> float:
        """Of the steady steps: the unit of step_features."""
        times = self.step_times.set_index("step").loc[self.steady_steps, "seconds"]
        return float(times.median())

    @cached_property
    def step_features(self) -> pd.DataFrame:
        """typical.step_features() of the steady steps."""
        times = self.step_times[self.step_times["step"].isin(self.steady_steps)]
        return step_features(times, self.parts if self.has_events else pd.DataFrame())

    @cached_property
    def typical_step(self) -> int:
        """The steady step whose time went where that of most steps goes."""
        return typical(self.step_features)

    @cached_property
    def step_kinds(self) -> pd.Series:
        """typical.kinds_of_steps() of the steady steps."""
        return kinds_of_steps(self.step_features)

    @cached_property
    def events(self) -> pd.DataFrame:
        """Of all steps. Large: of a big run ask for step_events()."""
        return self.run.events()

    @property
    def has_events(self) -> bool:
        return self.run.event_count > 0

    def step_events(self, step: int) -> pd.DataFrame:
        """Events of one step, of all ranks; the typical step's are kept."""
        if step in self._step_events:
            return self._step_events[step]
        found = self.run.events(steps=[step])
        if step == self.typical_step:
            self._step_events[step] = found
        return found

    @cached_property
    def _by_step(self) -> dict[str, pd.DataFrame]:
        """Frames that need all events, made in one pass over the steps."""

        def make(events: pd.DataFrame, steps: pd.DataFrame) -> dict[str, pd.DataFrame]:
            pieces = lane_pieces(events, self.ranks)
            return {name: one(self, events, pieces, steps) for name, one in _PASSES.items()}

        return self._each_step(make)

    @cached_property
    def _by_graph(self) -> dict[str, pd.DataFrame]:
        """Frames that need the dependencies of each step, which take longer to find."""
        replayed = set(self.replayed_steps)

        def make(events: pd.DataFrame, steps: pd.DataFrame) -> dict[str, pd.DataFrame]:
            if events.empty:
                return {"stragglers": stragglers(events, self.ranks)}
            step = int(steps["step"].iloc[0])
            LOG.info("%s: causes in step %d", self.run.path, step)
            graph = self.graph(step, events)
            machine = self.run.machine
            found = {"stragglers": stragglers(events, self.ranks, wait_causes(graph),
                                              self._machine_seconds, pauses(graph)),
                     "pair_times": pair_times(graph, machine),
                     "group_times": group_times(graph, machine)}  # fmt: skip
            if step in replayed:
                found["what_if"] = what_if(graph).assign(step=step)
                found["path_shares"] = path_shares(critical_path(graph)).assign(step=step)
            return found

        return self._each_step(make)

    def _each_step(self, make: Callable) -> dict[str, pd.DataFrame]:
        """What `make` makes of the events and the rows of /steps of each complete step, by name.

        Without events one pass over none of them makes the frames, with columns but no rows."""
        made: dict[str, list[pd.DataFrame]] = {}
        for step, events in self._events_by_step():
            steps = self.steps[(self.steps["step"] == step).to_numpy()]
            for name, frame in make(events, steps).items():
                made.setdefault(name, []).append(frame)
        return {name: pd.concat(frames, ignore_index=True) for name, frames in made.items()}

    def _events_by_step(self) -> Iterator[tuple[int | None, pd.DataFrame]]:
        """Complete steps with their events; several steps are read at once, as opening hundreds of
        files takes longer than reading them."""
        complete = [int(step) for step in self.step_times["step"]]
        if not self.has_events:
            yield None, self.run.events(ranks=[])
            return
        at_once = max(1, _EVENTS_AT_ONCE * len(complete) // self.run.event_count)
        for first in range(0, len(complete), at_once):
            batch = complete[first : first + at_once]
            events = self.run.events(steps=batch)
            for step in batch:
                mine = (events["step"] == step).to_numpy()
                yield step, events[mine].reset_index(drop=True)

    @property
    def replayed_steps(self) -> list[int]:
        """Steps that are replayed to say what would have been: all steady ones, or of many some
        that are spread evenly over the order of their times."""
        ordered = self.step_times.sort_values("seconds", kind="stable")["step"]
        ordered = ordered[ordered.isin(self.steady_steps)].to_numpy()
        count = min(len(ordered), _REPLAYED)
        places = ((np.arange(count) + 0.5) * len(ordered) / max(count, 1)).astype(int)
        return sorted(int(step) for step in ordered[places])

    @property
    def parts(self) -> pd.DataFrame:
        """time_parts() of all complete steps: rank, step, window and PARTS in ns."""
        return self._by_step["parts"]

    @property
    def bubbles(self) -> pd.DataFrame:
        return self._by_step["bubbles"]

    @property
    def overlap(self) -> pd.DataFrame:
        return self._by_step["overlap"]

    @property
    def attention_tasks(self) -> pd.DataFrame:
        return self._by_step["attention_tasks"]

    @property
    def stragglers(self) -> pd.DataFrame:
        """stragglers() of all complete steps, with who waited for whom."""
        return self._by_graph["stragglers"]

    @property
    def operation_times(self) -> pd.DataFrame:
        """operation_times() of all complete steps."""
        return self._by_step["operation_times"]

    @cached_property
    def persistent(self) -> pd.DataFrame:
        """persistent() over the steady steps."""
        found = self.stragglers
        return persistent(found[found["step"].isin(self.steady_steps)], self.ranks)

    @cached_property
    def totals(self) -> pd.DataFrame:
        """Per rank seconds of each part over all steps, and busy_share."""
        return rank_totals(self.parts)

    @cached_property
    def imbalance(self) -> pd.DataFrame:
        """attention_imbalance() per step."""
        return attention_imbalance(self.parts, self.ranks)

    @cached_property
    def efficiencies(self) -> pd.DataFrame:
        """POP's; serialization and transfer of the typical step, which is replayed."""
        free = None
        if self.has_events:
            free = {self.typical_step: network_free(self.graph(self.typical_step))}
        return efficiency.efficiencies(self.parts, self.steps, free)

    @cached_property
    def utilization(self) -> pd.DataFrame:
        return efficiency.utilization(self.steps, self.ranks, self._by_step["work"])

    @cached_property
    def divergence(self) -> pd.DataFrame:
        return memory.divergence(self.memory, self.ranks)

    @cached_property
    def growth(self) -> pd.DataFrame:
        return memory.growth(self.memory)

    @cached_property
    def findings(self) -> list[checks.Finding]:
        return checks.check(self.run)

    def graph(self, step: int, events: pd.DataFrame | None = None) -> StepGraph:
        """The dependency graph of a step; the typical step's is kept.

        @param events  of the step, where the caller has them; then nothing is kept
        """
        if events is not None:
            return build(events, self.steps, self.ranks, step)
        if step in self._graphs:
            return self._graphs[step]
        made = build(self.step_events(step), self.steps, self.ranks, step)
        if step == self.typical_step:
            self._graphs[step] = made
        return made

    def what_if(self, step: int | None = None) -> pd.DataFrame:
        """Scenarios of a step, or, by default, what_if.over_steps() of all replayed ones."""
        if step is not None:
            graph = self.graph(step)
            links = with_usual_links(graph, self.run.machine, self.slow_links)
            return pd.concat([frame for frame in (what_if(graph), links) if len(frame)],
                             ignore_index=True)  # fmt: skip
        found = pd.concat([self._by_graph["what_if"], *self._with_usual_links])
        return over_steps(found, self.seconds)

    @property
    def path_shares(self) -> pd.DataFrame:
        """What the critical paths of the replayed steps are made of: mean_shares()."""
        return mean_shares(self._by_graph["path_shares"])

    @cached_property
    def lone_ranks(self) -> list[Alone]:
        """Ranks whose work no other rank does, beside their own steps."""
        return lone_ranks(self._by_step["work"])

    @property
    def said_of_lone_ranks(self) -> str:
        known = bool((self._machine_seconds > 0).any())
        return " ".join(filter(None, (sentence(one, known) for one in self.lone_ranks)))

    @property
    def pair_times(self) -> pd.DataFrame:
        """pair_times() of all complete steps: what each rank sent to each other."""
        return self._by_graph["pair_times"]

    @property
    def group_times(self) -> pd.DataFrame:
        """group_times() of all complete steps: what groups did together."""
        return self._by_graph["group_times"]

    @cached_property
    def slow_links(self) -> list[SlowLink]:
        """Of the steady steps, by what the machine gives or by what other links reach."""
        steady = set(self.steady_steps)
        pairs, groups = (frame[frame["step"].isin(steady)]
                         for frame in (self.pair_times, self.group_times))  # fmt: skip
        seconds = self.seconds * len(steady)
        return slow_links(pairs, groups, self.run.machine is not None, seconds)

    @cached_property
    def _with_usual_links(self) -> list[pd.DataFrame]:
        """Scenarios of slow links, which are known when all steps have been looked at: only then
        are steps replayed once more."""
        if not self.slow_links:
            return []
        return [
            with_usual_links(self.graph(step), self.run.machine, self.slow_links).assign(step=step)
            for step in self.replayed_steps
        ]

    def critical_path(self, step: int | None = None) -> pd.DataFrame:
        """The critical path of a step (default: the typical one)."""
        return critical_path(self.graph(self.typical_step if step is None else step))


# What is made of the events of a step: (study, events, pieces, rows of `steps`) -> frame.
_PASSES = {
    "parts": lambda s, e, p, steps: time_parts(e, steps, s.ranks, p),
    "bubbles": lambda s, e, p, steps: pipeline_bubbles(e, steps, s.ranks, s.run.config, p),
    "overlap": lambda s, e, p, steps: efficiency.overlap(p, steps),
    "work": lambda s, e, p, steps: efficiency.work_rates(e),
    "operation_times": lambda s, e, p, steps: operation_times(e),
    "attention_tasks": lambda s, e, p, steps: attention_tasks(e, s.ranks),
}
