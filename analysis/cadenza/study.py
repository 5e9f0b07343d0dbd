# SPDX-License-Identifier: Apache-2.0
"""Everything that is computed from a run, once: what the commands, the page and notebooks share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from cadenza import checks
from cadenza.facts import facts
from cadenza.notebook import facts_html
from cadenza.summary import imported, summarize
from cadenza.time import efficiency, memory
from cadenza.time.between import between_steps, gap_windows, outside_steps
from cadenza.time.bubbles import pipeline_bubbles
from cadenza.graph.critical_path import critical_path, mean_shares, path_shares
from cadenza.errors import DataError
from cadenza.graph.graph import StepGraph, build
from cadenza.time.imbalance import (
    attention_imbalance, attention_sparsity, over_passes, pass_imbalance, pipelines_of, stage_work,
)
from cadenza.links.times import group_times, pair_times
from cadenza.links.what_if import with_usual_links
from cadenza.links.slow import SlowLink, slow_links
from cadenza.graph.loads import begins_with_optimizer, host_gaps, operation_loads, operation_times
from cadenza.log import LOG
from cadenza.time.parts import rank_totals, step_times, time_parts
from cadenza.graph.pauses import pauses, unexplained_gaps
from cadenza.time.pieces import lane_pieces
from cadenza.processes import mapped
from cadenza.time.roofline import attention_tasks
from cadenza.read.run import EVENTS_AT_ONCE, Run, chosen, of_step
from cadenza.causes.stragglers import stragglers, wait_causes
from cadenza.time.typical import kinds_of_steps, step_features, typical
from cadenza.causes.repair import Trouble, replayed
from cadenza.causes.operations import verdicts_of_operations
from cadenza.causes.slowdown import steady_operations
from cadenza.causes.slowness import cells
from cadenza.causes import troubles
from cadenza.causes.verdicts import no_verdicts, verdicts
from cadenza.causes.what_if import COMMUNICATION_FREE, network_free, over_steps, what_if
from cadenza.units import with_units

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_REPLAYED = 24  # steps, at most


@with_units
class Study:
    """A run and what follows from it. Every property is computed when first asked for.

    Events of a large run are read some steps at a time, so that it fits into memory: `events` has
    all of them, `step_events(step)` those of one. A run without events (`--trace summary`) has
    empty frames where events are needed.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._step_events: dict[int, pd.DataFrame] = {}
        self._step_pieces: dict[int, pd.DataFrame] = {}
        self._graphs: dict[int, StepGraph] = {}
        self._frames: dict[str, pd.DataFrame] = {}

    def _repr_html_(self) -> str:
        """What the command `summary` says first."""
        summary = summarize(self)
        sentences = [*self.verdicts["sentence"], *summary["warnings"]]
        return facts_html(summary["name"], summary["path"], facts(summary), sentences)

    def plot_parts(self) -> Figure:
        """Mean seconds of a steady step by part, a bar for each rank."""
        from cadenza import plots  # loads matplotlib, which takes a while

        return plots.parts(self)

    def plot_steps(self) -> Figure:
        """Seconds of each step."""
        from cadenza import plots

        return plots.steps(self)

    def plot_timeline(self, step: int | None = None, ranks: Iterable[int] | None = None) -> Figure:
        """What each rank does during a step: the picture of the command `timeline`.

        @param step   default: the typical one
        @param ranks  default: all
        """
        from cadenza.timeline.timeline import timeline_figure

        return timeline_figure([self], step, ranks)[0]

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Run.steps(): complete steps, a row per rank and step."""
        return self.run.steps()

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """Run.ranks(): who took part, a row per rank."""
        return self.run.ranks()

    @cached_property
    def memory(self) -> pd.DataFrame:
        """Run.memory(): high-water marks by rank, step and kind."""
        return self.run.memory()

    @cached_property
    def peak_memory(self) -> pd.Series:
        """Highest bytes of each rank, by rank; empty where the trace has no memory."""
        memory = self.memory
        if memory.empty:
            return pd.Series(dtype="int64")
        return memory[memory["kind"] == "total"].groupby("rank")["peak_bytes"].max()

    @cached_property
    def _machine_seconds(self) -> pd.Series:
        """What the machine gives each rank's computation, by (step, rank); 0: not known."""
        return self.steps.set_index(["step", "rank"])["machine_seconds"]

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Run.metrics(): a row per step of metrics.jsonl."""
        return self.run.metrics()

    @cached_property
    def plan_summary(self) -> pd.DataFrame:
        """Run.plan_summary(): what each server was given."""
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
        begins = self.run.info["producer"] in ("trainer", "evaluator")
        return steps[1:] if begins and len(steps) > 3 else steps

    @cached_property
    def seconds(self) -> float:
        """Of a step: the mean of the steady ones."""
        return float(self.steady(self.step_times)["seconds"].mean())

    @property
    def median_seconds(self) -> float:
        """Of the steady steps."""
        return float(self.steady(self.step_times)["seconds"].median())

    @cached_property
    def step_features(self) -> pd.DataFrame:
        """typical.step_features() of the steady steps."""
        parts = self.parts if self.has_events else pd.DataFrame()
        return step_features(self.steady(self.step_times), parts)

    def steady(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Rows of the steps that means are taken of."""
        return frame[frame["step"].isin(self.steady_steps)]

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
        """Whether the trace says what happened within steps."""
        return self.run.event_count > 0

    def chosen_steps(self, steps: Iterable[int] | None) -> list[int]:
        """These steps, or all that all ranks completed; any other is a UsageError."""
        return chosen(self.run.path, steps, self.step_times["step"], "complete step")

    def step_events(self, step: int) -> pd.DataFrame:
        """Events of one step, of all ranks; those of the last step asked for are kept, or, where
        they have to be read, the typical step's."""
        if step in self._step_events:
            return self._step_events[step]
        self.chosen_steps([step])
        read = not self._in_memory
        found = self.run.events(steps=[step]) if read else of_step(self.events, step)
        if not read or step == self.typical_step:
            self._step_events = {step: found}
        return found

    def step_pieces(self, step: int) -> pd.DataFrame:
        """lane_pieces() of one step, of all ranks; kept, as several pictures show the same step.
        Few steps have a picture."""
        if step not in self._step_pieces:
            self._step_pieces[step] = lane_pieces(self.step_events(step), self.ranks)
        return self._step_pieces[step]

    @property
    def _in_memory(self) -> bool:
        """Whether all events are read once and kept."""
        return self.run.event_count <= EVENTS_AT_ONCE

    def prepare(self, names: Sequence[str] = ()) -> None:
        """Makes these frames that need events in one pass, or all, for who will ask for them."""
        self._make(names or [*_OF_EVENTS, *_OF_PIECES, *_OF_GRAPH])

    def _frame(self, name: str) -> pd.DataFrame:
        """One of those that need all events."""
        if name not in self._frames:
            self._make(_OF_GRAPH if name in _OF_GRAPH else [name])
        if name not in self._frames:
            raise DataError(f"{self.run.path}: no events in the steps that are replayed")
        return self._frames[name]

    def _make(self, names: Sequence[str]) -> None:
        """Without events one pass over none of them makes the frames, with columns but no rows."""
        names = [name for name in names if name not in self._frames]
        made: dict[str, list[pd.DataFrame]] = {}
        for found in self._of_steps(names):
            for name, frame in found.items():
                made.setdefault(name, []).append(frame)
        self._frames |= {name: pd.concat(all_, ignore_index=True) for name, all_ in made.items()}

    def _of_step(
        self, step: int | None, events: pd.DataFrame, names: Sequence[str]
    ) -> dict[str, pd.DataFrame]:
        """The frames of these names of one step."""
        steps = self.steps[(self.steps["step"] == step).to_numpy()]
        found = {name: _OF_EVENTS[name](self, events) for name in names if name in _OF_EVENTS}
        if set(names) & set(_OF_PIECES):
            pieces = lane_pieces(events, self.ranks)
            found |= {name: _OF_PIECES[name](self, events, pieces, steps)
                      for name in names if name in _OF_PIECES}
        if set(names) & set(_OF_GRAPH):
            found |= self._of_graph(step, events)
        return found

    def _steps_of(self, events: pd.DataFrame) -> pd.DataFrame:
        """Rows of `steps` of the step whose events these are."""
        return self.steps[self.steps["step"].isin(events["step"].head(1)).to_numpy()]

    def _of_graph(self, step: int | None, events: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Frames that need the dependencies of a step, which take longer to find."""
        if events.empty:
            return {"stragglers": stragglers(events, self.ranks)}
        LOG.info("%s: causes in step %d", self.run.path, step)
        graph, machine = self.graph(step, events), self.run.machine
        stood = pauses(graph)
        found = {"stragglers": stragglers(events, self.ranks, wait_causes(graph),
                                          self._machine_seconds, stood),
                 "pauses": stood,
                 "pair_times": pair_times(graph, machine),
                 "group_times": group_times(graph, machine)}
        if step in self.replayed_steps:
            found["what_if"] = what_if(graph).assign(step=step)
            found["paths"] = critical_path(graph).assign(step=step)
        return found

    def _of_steps(self, names: Sequence[str]) -> Iterator[dict[str, pd.DataFrame]]:
        """_of_step() of all complete steps."""
        complete = [int(step) for step in self.step_times["step"]]
        if not self.has_events:
            yield self._of_step(None, self.run.events(ranks=[]), names)
            return
        batches = [(complete, self.events)] if self._in_memory else None
        for batch, events in batches or self.run.events_of_steps(complete):
            yield from mapped(partial(self._of_one_step, events, names), batch, len(events))

    def _of_one_step(
        self, events: pd.DataFrame, names: Sequence[str], step: int
    ) -> dict[str, pd.DataFrame]:
        """_of_step() of a step that `events` has among others."""
        return self._of_step(step, of_step(events, step), names)

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
        return self._frame("parts")

    @cached_property
    def _gap_windows(self) -> pd.DataFrame:
        """gap_windows() of the complete steps."""
        return gap_windows(self.steps[self.steps["step"].isin(self.step_times["step"])])

    @cached_property
    def between(self) -> pd.DataFrame:
        """between_steps() of all complete steps but the first: rank, step, window and CAUSES, in
        ns, of what lies between the step and the one before it."""
        return between_steps(self._gap_windows, self._frame("outside"))

    @property
    def steady_between(self) -> pd.DataFrame:
        """between, from the begin of the first steady step to the end of the last."""
        return self.between[self.between["step"].isin(self.steady_steps[1:])]

    @property
    def wall_seconds(self) -> float:
        """From the begin of the first steady step to the end of the last."""
        times = self.steady(self.step_times)
        return float(times["end_ns"].max() - times["begin_ns"].min()) / 1e9

    @property
    def goodput(self) -> float:
        """Tokens of the steady steps per second of wall clock."""
        tokens = self.steady(self.steps).groupby("step")["tokens"].max()
        wall = self.wall_seconds if (tokens >= 0).all() else 0.0
        return float(tokens.sum() / wall) if wall > 0 else float("nan")

    @property
    def bubbles(self) -> pd.DataFrame:
        """pipeline_bubbles() of all complete steps."""
        return self._frame("bubbles")

    @property
    def overlap(self) -> pd.DataFrame:
        """efficiency.overlap(): how much of each rank's communication computing hid."""
        return self._frame("overlap")

    @property
    def attention_tasks(self) -> pd.DataFrame:
        """attention_tasks() of all complete steps: the rate of each kernel call."""
        return self._frame("attention_tasks")

    @property
    def stragglers(self) -> pd.DataFrame:
        """stragglers() of all complete steps, with who waited for whom."""
        return self._frame("stragglers")

    @property
    def operation_times(self) -> pd.DataFrame:
        """operation_times() of all complete steps."""
        return self._frame("operation_times")

    @cached_property
    def totals(self) -> pd.DataFrame:
        """Per rank seconds of each part over the steady steps, and busy_share."""
        return rank_totals(self.steady(self.parts))

    @cached_property
    def imbalance(self) -> pd.DataFrame:
        """attention_imbalance() per step."""
        return attention_imbalance(self.parts, self.ranks)

    @cached_property
    def _pipelines(self) -> pd.Series:
        return pipelines_of(self.ranks, self.run.config)

    def stage_work(self, step: int) -> pd.DataFrame:
        """stage_work() of one step: what each rank computes in each stage."""
        return stage_work(self.step_events(step), self._pipelines)

    @property
    def attention_passes(self) -> pd.DataFrame:
        """pass_imbalance() of all complete steps."""
        return self._frame("attention_passes")

    @cached_property
    def run_imbalance(self) -> pd.DataFrame:
        """over_passes() of all layers, passes and steady steps: one row; none without attention."""
        passes = self.steady(self.attention_passes).assign(run=0)
        return over_passes(passes, ["run"]).drop(columns="run")

    @cached_property
    def layer_imbalance(self) -> pd.DataFrame:
        """over_passes() of the steady steps by layer and phase, and of all layers (layer -1)."""
        passes = self.steady(self.attention_passes)
        both = pd.concat([passes.assign(pipeline=-1, layer=-1), passes])
        return over_passes(both, ["pipeline", "layer", "phase"])

    @cached_property
    def sparsity(self) -> pd.DataFrame:
        """attention_sparsity() by step."""
        return attention_sparsity(self._known_passes, self.steps, ["step"])

    @cached_property
    def layer_sparsity(self) -> pd.DataFrame:
        """The same of the steady steps by layer, and of all layers (layer -1), with the FLOPs."""
        by = ["pipeline", "layer"]
        found = self.steady(attention_sparsity(self._known_passes, self.steps, ["step", *by]))
        both = pd.concat([found.assign(pipeline=-1, layer=-1), found])
        sums = both.groupby(by, as_index=False)[["flops", "dense_flops"]].sum()
        return sums.assign(sparsity=1 - sums["flops"] / sums["dense_flops"])

    @property
    def _known_passes(self) -> pd.DataFrame:
        """None where the files of some ranks are missing: FLOPs would be, too."""
        passes = self.attention_passes
        return passes if len(self.ranks) == self.run.world else passes.head(0)

    @cached_property
    def efficiencies(self) -> pd.DataFrame:
        """POP's; serialization and transfer of the replayed steps."""
        return efficiency.efficiencies(self.parts, self.steps, self._network_free)

    @property
    def _network_free(self) -> dict[int, float]:
        """Seconds of replayed steps on a network without cost; without a replay of all, those of
        the typical one."""
        if not self.has_events:
            return {}
        if "what_if" not in self._frames:
            return {self.typical_step: network_free(self.graph(self.typical_step))}
        found = self._frame("what_if")
        found = found[found["scenario"] == COMMUNICATION_FREE]
        return dict(zip(found["step"].astype(int), found["seconds"], strict=True))

    @cached_property
    def utilization(self) -> pd.DataFrame:
        """utilization() per step: MFU, HFU, and the rates of attention and dense layers."""
        return efficiency.utilization(self.steps, self.ranks, self._frame("work"))

    @cached_property
    def divergence(self) -> pd.DataFrame:
        """memory.divergence(): how differently ranks of a role use memory."""
        return memory.divergence(self.memory, self.ranks)

    @cached_property
    def growth(self) -> pd.DataFrame:
        """memory.growth(): the trend of each rank's high-water marks."""
        return memory.growth(self.memory)

    @cached_property
    def findings(self) -> list[checks.Finding]:
        """checks.check(), with the events of complete steps that the study reads anyway."""
        found = [checks.Finding(*row) for row in self._frame("findings").to_numpy(object)]
        return checks.check(self.run, found, self.step_times["step"])

    @cached_property
    def _clock_errors(self) -> pd.Series:
        return checks.clock_errors(self.run)

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
                             ignore_index=True)
        found = pd.concat([self._frame("what_if"), *self._with_usual_links])
        return over_steps(found, self.seconds)

    @property
    def path_shares(self) -> pd.DataFrame:
        """What the critical paths of the replayed steps are made of: mean_shares()."""
        paths = self._frame("paths").groupby("step")
        return mean_shares(
            pd.concat([path_shares(path).assign(step=step) for step, path in paths])
        )

    @property
    def pair_times(self) -> pd.DataFrame:
        """pair_times() of the steady steps: what each rank sent to each other."""
        return self.steady(self._frame("pair_times"))

    @property
    def group_times(self) -> pd.DataFrame:
        """group_times() of the steady steps: what groups did together."""
        return self.steady(self._frame("group_times"))

    @cached_property
    def slow_links(self) -> list[SlowLink]:
        """Of the steady steps, by what the machine gives or by what other links reach."""
        seconds = self.seconds * len(self.steady_steps)
        known = self.run.machine is not None
        return slow_links(self.pair_times, self.group_times, known, seconds)

    @cached_property
    def _facts(self) -> troubles.Facts:
        """Of the steady steps, what verdicts are found in."""
        loads, paused, gaps = (self.steady(self._frame(name))
                               for name in ("loads", "pauses", "host_gaps"))
        times = self.steady(self.step_times).set_index("step")["seconds"]
        of_ranks = cells(np.sort(self.ranks["rank"].to_numpy()), times.index.to_numpy(), loads,
                         paused, self._machine_seconds)
        theirs = imported(self.run) is not None
        first = theirs and begins_with_optimizer(self.step_events(self.typical_step))
        return troubles.Facts(of_ranks, loads, paused, self.steady(self.steps), times, self.ranks,
                              self.slow_links, self.pair_times, gaps, theirs, first)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """verdicts.verdicts(): who is to be repaired, why, since when, and what it saves."""
        if not self.has_events or self.steady(self._frame("loads")).empty:
            return no_verdicts()
        told = imported(self.run)
        if told and not told["whole"]:
            return verdicts_of_operations(steady_operations(self), self._facts)
        gaps = unexplained_gaps(self._gap_windows, self._frame("outside"), self.steady_steps[1:])
        return verdicts(troubles.find(self._facts), gaps, self._replay, self._facts)

    @property
    def silence(self) -> str:
        """What verdicts cannot tell of: a rank whose work no other does, without a machine file."""
        if not self.has_events or bool((self._machine_seconds > 0).any()):
            return ""
        ranks = self._facts.cells.alone if len(self.steady(self._frame("loads"))) else []
        return " ".join(f"No other rank does the work of rank {rank}, so the trace cannot show "
                        "whether it is always slow." for rank in ranks)

    def _replay(self, found: list[Trouble], cases: np.ndarray) -> np.ndarray:
        """Seconds of all steady steps by case, from those of them that are replayed."""
        active = sorted({step for one in found for step in one.steps})
        places = np.unique(np.linspace(0, len(active) - 1, min(len(active), _REPLAYED)).astype(int))
        chosen = [active[place] for place in places]

        def one(step: int) -> np.ndarray:
            return replayed(self.graph(step), found, cases, self.run.machine)

        seconds = np.array(list(mapped(one, chosen, self.run.event_count)))
        return seconds.sum(axis=0) * len(active) / len(chosen)

    @cached_property
    def _with_usual_links(self) -> list[pd.DataFrame]:
        """Scenarios of slow links, which are known when all steps have been looked at: only then
        are steps replayed once more."""
        if not self.slow_links:
            return []

        def one(step: int) -> pd.DataFrame:
            graph = self.graph(step)
            return with_usual_links(graph, self.run.machine, self.slow_links).assign(step=step)

        return list(mapped(one, self.replayed_steps, self.run.event_count))

    def critical_path(self, step: int | None = None) -> pd.DataFrame:
        """The critical path of a step (default: the typical one)."""
        step = self.typical_step if step is None else step
        if "paths" not in self._frames or step not in self.replayed_steps:
            return critical_path(self.graph(step))
        paths = self._frame("paths")
        return paths[(paths["step"] == step).to_numpy()].drop(columns="step").reset_index(drop=True)


# What is made of the events of a step: (study, events) -> frame.
_OF_EVENTS = {
    "work": lambda s, e: efficiency.work_rates(e),
    "findings": lambda s, e: pd.DataFrame(
        map(astuple, checks.of_events(e, s._steps_of(e), s._clock_errors)),
        columns=checks.FIELDS),
    "outside": lambda s, e: outside_steps(e, s._steps_of(e)),
    "loads": lambda s, e: operation_loads(e, s.ranks),
    "host_gaps": lambda s, e: host_gaps(e),
    "operation_times": lambda s, e: operation_times(e),
    "attention_tasks": lambda s, e: attention_tasks(e, s.ranks),
    "attention_passes": lambda s, e: pass_imbalance(stage_work(e, s._pipelines), s._pipelines),
}
# What needs their pieces, too: (study, events, pieces, rows of `steps`) -> frame.
_OF_PIECES = {
    "parts": lambda s, e, p, steps: time_parts(e, steps, s.ranks, p),
    "bubbles": lambda s, e, p, steps: pipeline_bubbles(e, steps, s.ranks, s.run.config, p),
    "overlap": lambda s, e, p, steps: efficiency.overlap(p, steps),
}
_OF_GRAPH = ("stragglers", "pauses", "pair_times", "group_times", "what_if", "paths")
