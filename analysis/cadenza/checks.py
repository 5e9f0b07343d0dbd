# SPDX-License-Identifier: Apache-2.0
"""Whether a trace keeps the promises of docs/trace.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import pandas as pd

from cadenza.time.intervals import crossings
from cadenza.read.columns import one_of, rows_of
from cadenza.read.partners import message_ends
from cadenza.processes import mapped
from cadenza.read.run import Run, of_step

_NAMED = 8  # ranks; more are counted
_COLUMNS = ("rank", "step", "begin_ns", "end_ns", "category", "name", "lane", "peer", "flow",
            "bytes", "non_blocking", "sends")
_CLOCK_ERROR_NS = 1000  # of times that are measured on one clock


@dataclass(frozen=True)
class Finding:
    """A promise that a trace does not keep: `what` is wrong, how often, and `where` first."""

    rank: int  # -1: no single one
    what: str
    where: str
    count: int = 1

    def __str__(self) -> str:
        return f"{f'rank {self.rank}: ' if self.rank >= 0 else ''}{self.where}: {self.what}"


FIELDS = tuple(field.name for field in fields(Finding))


def check(
    run: Run, in_events: Iterable[Finding] = (), looked_at: Iterable[int] = ()
) -> list[Finding]:
    """What is wrong with a run's trace; nothing for a sound one.

    Looked at: ranks without a readable trace, or with one that was cut off, events that did not
    fit, numbers and windows of steps, bytes sent and received, events that end before they begin,
    lie outside their step or cross another one of their lane, ends of messages that do not fit
    together, messages that arrive before they are sent (by more than the error of the clocks),
    high-water marks of memory, plans and their summaries, clocks that are off by more than that.

    @param in_events  of_events() of the steps `looked_at`, which are not read again
    """
    steps = run.steps()
    whole = run.info["producer"] != "importer"
    found = [*_missing(run), *_cut(run), *_dropped(run), *_steps(steps, whole),
             *_bytes(run, steps)]
    found += [*_memory(run), *_plans(run), *_clocks(run)]
    numbers = np.setdiff1d(steps["step"], list(looked_at)) if run.event_count else []
    return _merged([*found, *in_events, *_in_events(run, steps, numbers)])


def _in_events(run: Run, steps: pd.DataFrame, numbers: Iterable[int]) -> Iterator[Finding]:
    """of_events() of the steps with these numbers."""
    errors = clock_errors(run)
    for batch, events in run.events_of_steps(numbers, _COLUMNS):
        one = partial(_of_step, events, steps, errors)
        for wrong in mapped(one, batch, len(events)):
            yield from wrong


def clock_errors(run: Run) -> pd.Series:
    """ns by which a rank's times may be off, by rank."""
    errors = run.clock().groupby("rank")["error_ns"].max()
    corrected = {one.rank: one.error_ns for one in run.wrong_clocks}
    return errors.add(pd.Series(corrected, dtype=float), fill_value=0.0)


def _of_step(
    all_: pd.DataFrame, steps: pd.DataFrame, errors: pd.Series, step: int
) -> list[Finding]:
    """of_events() of a step, of `all_` events."""
    return of_events(of_step(all_, step), steps[(steps["step"] == step).to_numpy()], errors)


def of_events(events: pd.DataFrame, steps: pd.DataFrame, errors: pd.Series) -> list[Finding]:
    """What is wrong with the events of a step.

    @param steps   Run.steps(): rows of the step
    @param errors  clock_errors()
    """
    return [*_times(events, steps), *_lanes(events), *_messages(events, errors)]


def _merged(found: list[Finding]) -> list[Finding]:
    """The same of several steps is one finding, with the first of its places."""
    places: dict[tuple[int, str], list[str]] = {}
    for finding in found:
        places.setdefault((finding.rank, finding.what), []).append(finding.where)
    return [
        Finding(rank, what, where[0] + (f" and {len(where) - 1} more" if len(where) > 1 else ""),
                len(where))
        for (rank, what), where in places.items()
    ]


def _missing(run: Run) -> Iterator[Finding]:
    missing = np.setdiff1d(np.arange(run.world), list(run.files))
    where = str(run.path / "trace")
    for rank in missing[:_NAMED]:
        yield Finding(int(rank), "its trace is missing or cannot be read", where)
    if len(missing) > _NAMED:
        what = f"the traces of {len(missing) - _NAMED} more ranks are missing or cannot be read"
        yield Finding(-1, what, where)


def _cut(run: Run) -> Iterator[Finding]:
    for file in run.files.values():
        if not file.ended:
            yield Finding(file.rank, f"the run {file.ending}", file.path.name)


def _dropped(run: Run) -> Iterator[Finding]:
    for file in run.files.values():
        if file.dropped_events:
            yield Finding(file.rank, f"{file.dropped_events} events were not recorded", "/events")


def _clocks(run: Run) -> Iterator[Finding]:
    for one in run.wrong_clocks:
        yield Finding(one.rank, f"its clock {one.what}", "/clock/sync")


def _steps(steps: pd.DataFrame, whole: bool) -> Iterator[Finding]:
    """@param whole  whether the run's trace has all steps from its first one on"""
    for rank, mine in steps.groupby("rank"):
        numbers = mine["step"].to_numpy()
        for at in np.flatnonzero(np.diff(numbers) != 1) if whole else ():
            yield Finding(rank, "steps are not contiguous", f"after step {numbers[at]}")
        begin, end = mine["begin_ns"].to_numpy(), mine["end_ns"].to_numpy()
        for at in np.flatnonzero(end < begin):
            yield Finding(rank, "a step ends before it begins", f"step {numbers[at]}")
        for at in np.flatnonzero(begin[1:] < end[:-1]):
            yield Finding(rank, "a step begins before the last ended", f"step {numbers[at + 1]}")
        for at in np.flatnonzero(np.diff(mine["n_events_end"].to_numpy(np.int64)) < 0):
            yield Finding(rank, "committed events decrease", f"step {numbers[at + 1]}")


def _bytes(run: Run, steps: pd.DataFrame) -> Iterator[Finding]:
    sums = steps.groupby("step").agg(
        sent=("bytes_sent", "sum"), received=("bytes_received", "sum"), ranks=("rank", "nunique")
    )
    for step, row in sums[sums["ranks"] == run.world].iterrows():
        if row["sent"] != row["received"]:
            what = "bytes sent and received differ"
            yield Finding(-1, what, f"step {step}: {row['sent']} and {row['received']}")


def _memory(run: Run) -> Iterator[Finding]:
    memory = run.memory()
    if memory.empty:
        return
    wide = memory.pivot(index=["rank", "step"], columns="kind", values="peak_bytes")
    kinds = wide.drop(columns="total")
    wrong = (wide["total"] > kinds.sum(axis=1)) | (wide["total"] < kinds.max(axis=1))
    for rank, step in wide.index[wrong]:
        yield Finding(int(rank), "peak memory contradicts that of its kinds", f"step {step}")


def _plans(run: Run) -> Iterator[Finding]:
    """Both have the forward cost of ticks of the forward phase; /plan has it of all."""
    summary, plans = run.plan_summary(), run.plans()
    if summary.empty or plans.empty:
        return
    forward = summary[(summary["phase"] == "forward").to_numpy()]
    key = ["step", "tick", "half", "server"]
    sums = [frame.groupby(key)["cost"].sum() for frame in (plans, forward)]
    both = pd.concat(sums, axis=1, keys=["plan", "summary"], join="inner")
    wrong = ~np.isclose(both["plan"], both["summary"], rtol=1e-6)
    for step, _, _, server in both.index[wrong]:
        what = "the cost in /plan differs from that in /plan_summary"
        yield Finding(int(server), what, f"step {step}")


def _times(events: pd.DataFrame, steps: pd.DataFrame) -> Iterator[Finding]:
    begin, end = events["begin_ns"].to_numpy(), events["end_ns"].to_numpy()
    yield from _each(events, end < begin, "an event ends before it begins")
    window = pd.Index(steps["rank"]).get_indexer(events["rank"])
    opens, closes = (steps[name].to_numpy()[window] for name in ("begin_ns", "end_ns"))
    inside = (window >= 0) & ~one_of(events["lane"], "host")
    outside = (begin < opens) | (end > closes)
    yield from _each(events, inside & outside, "an event lies outside its step")


def _lanes(events: pd.DataFrame) -> Iterator[Finding]:
    blocking = ~events["non_blocking"].to_numpy(bool)
    lanes = events["rank"].to_numpy(np.int64) * 256 + events["lane"].array.codes
    begin, end = events["begin_ns"].to_numpy(np.int64), events["end_ns"].to_numpy(np.int64)
    crossing = np.zeros(len(events), bool)
    crossing[blocking] = crossings(
        begin[blocking], np.maximum(begin, end)[blocking], lanes[blocking]
    )
    yield from _each(events, crossing, "two events of a lane overlap")


def _messages(events: pd.DataFrame, errors: pd.Series) -> Iterator[Finding]:
    ends = message_ends(events)
    ends = ends[np.isin(events["peer"].to_numpy()[ends["event"]], events["rank"].unique())]
    columns = ["step", "rank", "peer", "flow", "bytes", "begin_ns", "end_ns"]
    recorded = rows_of(events, ends["event"].to_numpy(), columns).set_index(ends["message"])
    sends = ends["sends"].to_numpy(bool)
    sent, received = recorded[sends], recorded[~sends]
    yield from _of_flows(sent[~sent.index.isin(received.index)], "a message is not received")
    alone = received[~received.index.isin(sent.index)]
    from_sender = alone.rename(columns={"rank": "peer", "peer": "rank"})
    yield from _of_flows(from_sender, "a message was not sent")
    both = sent.join(received[["bytes", "end_ns"]].add_suffix("_received"), how="inner")
    differ = both["bytes"] != both["bytes_received"]
    yield from _of_flows(both[differ], "bytes sent and received differ")
    error = sum(both[end].map(errors).fillna(0.0) for end in ("rank", "peer"))
    early = both["end_ns_received"] < both["begin_ns"] - error - _CLOCK_ERROR_NS
    yield from _of_flows(both[early], "a message arrives before it is sent")


def _of_flows(messages: pd.DataFrame, what: str) -> Iterator[Finding]:
    for row in messages.itertuples():
        where = f"step {row.step}, flow {row.flow} from rank {row.rank} to rank {row.peer}"
        yield Finding(int(row.rank), what, where)


def _each(events: pd.DataFrame, wrong: np.ndarray, what: str) -> Iterator[Finding]:
    for row in events.iloc[np.flatnonzero(wrong)].itertuples():
        where = f"step {row.step}, {row.name} ({row.category}) at {row.begin_ns} ns"
        yield Finding(int(row.rank), what, where)
