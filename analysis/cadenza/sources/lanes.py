# SPDX-License-Identifier: Apache-2.0
"""What a rank did one thing after the other, from rows of many streams.

The compute lane holds what was computed on the main stream, and what others computed while it did
nothing. Its gaps are told apart by what the rank did meanwhile: it waited for a communication that
ended in the gap; it read data or wrote a checkpoint; or nothing was there to run, as the process
had not launched it (of a program on processors: as it did something that no profiler records).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from cadenza.read.schema import HOST_GAP, WAITS_FOR_GROUPS
from cadenza.sources.neutral import (
    ATTENTION, CHECKPOINT, COLLECTIVE, COMMUNICATION, COMPUTATION, COPY, DATA, DENSE, HOST,
    OPTIMIZER, OTHER, PAUSE, SEND, SYNCHRONIZE,
)
from cadenza.time import intervals

CATEGORIES = {ATTENTION: "compute_attention", DENSE: "compute_dense", OTHER: "compute_other",
              COPY: "compute_other", OPTIMIZER: "optimizer", COLLECTIVE: "collective",
              "send": "p2p_send", "receive": "p2p_receive", DATA: "data",
              CHECKPOINT: "checkpoint", PAUSE: "host", "wait": "wait", HOST_GAP: "host"}
_LEAST_NS = 2_000  # a gap: shorter ones lie between any two kernels
_WAKES_NS = 100_000  # after a communication's end, what may go by until computation goes on
_NOTED = 0.01  # of a gap, how much later the end of what it waited for may be noted
COLUMNS = ["category", "lane", "phase", "name", "begin_ns", "end_ns", "bytes", "flops",
           "enqueued_ns", "still_ns", "peer", "flow", "microbatch", "layer", "non_blocking",
           "sends"]
_KEPT = ["phase", "name", "bytes", "flops", "enqueued_ns", "still_ns", "microbatch", "layer"]


def assembled(
    events: pd.DataFrame, flow: np.ndarray, of_group: Mapping[str, str], window: tuple[int, int],
    whole: bool = True,
) -> pd.DataFrame:
    """COLUMNS, of what lies in the window [begin, end), sorted by begin.

    @param events    neutral.COLUMNS of one rank, times on the clock of all
    @param flow      of each: number of the communication on all ranks; 0: none
    @param of_group  dimension of each process group
    @param whole     whether all that the rank did is recorded: else nothing tells of a gap
    """
    begin, end = window
    if not events["phase"].isin(("forward", "backward")).any():
        phase = events["phase"].astype(object)
        events = events.assign(phase=phase.where(phase != "other", "forward"))
    computed = _computed(events)
    communication = _communication(events, flow, of_group)
    lane = _clipped(computed, begin, end)
    beside = _clipped(communication, begin, end)
    if not (lane["enqueued_ns"] > 0).any():  # of a processor
        beside = _as_it_ended(lane, beside, begin, end)
    between = _gaps(lane, beside, _on_host(events), begin, end)
    if not whole:
        between = between[(between["name"] != HOST_GAP).to_numpy()]
    made = pd.concat([lane, beside.drop(columns="waits"), between, _copies(events, begin, end)],
                     ignore_index=True)
    return made.sort_values("begin_ns", kind="stable", ignore_index=True)[COLUMNS]


def _computed(events: pd.DataFrame) -> pd.DataFrame:
    """What was computed, without overlap, in the order of time."""
    kind = events["kind"].astype(object)
    rows = events[kind.isin(COMPUTATION).to_numpy()]
    stream = rows["stream"].astype(object)
    device = _on_device(rows)
    if device.any():  # what a process computes beside a device is its launching
        rows, stream = rows[device], stream[device]
    main = (stream == _main_stream(rows)).to_numpy()
    pairs = [intervals.make(rows["begin_ns"][of], rows["end_ns"][of]) for of in (main, ~main)]
    own, owner = intervals.innermost(pairs[0][:, 0], pairs[0][:, 1])
    kept = np.flatnonzero(main)[owner]
    side = ~main & (rows["kind"].astype(object) != COPY).to_numpy()
    pieces, which = intervals.innermost(rows["begin_ns"].to_numpy(np.int64)[side],
                                        rows["end_ns"].to_numpy(np.int64)[side])
    more, of = intervals.outside(pieces, intervals.union(own))
    found = np.concatenate([kept, np.flatnonzero(side)[which[of]]]).astype(np.int64)
    times = np.concatenate([own, more])
    made = _made(rows, found, times, "compute")
    made["category"] = rows["kind"].astype(object).map(CATEGORIES).to_numpy()[found]
    made = made[made["end_ns"] > made["begin_ns"]]
    return made.sort_values("begin_ns", kind="stable", ignore_index=True)


def _main_stream(rows: pd.DataFrame) -> str:
    """The one that computes for longest, of rows of computation."""
    took = (rows["end_ns"] - rows["begin_ns"]).where(rows["kind"].astype(object) != COPY, 0)
    sums = took.groupby(rows["stream"].astype(object)).sum()
    return str(sums.idxmax()) if len(sums) else ""


def _on_device(events: pd.DataFrame) -> np.ndarray:
    """Whether rows are of a queue of a device: threads of the process are "host", "host ..."."""
    streams = events["stream"].astype(object).to_numpy()
    known = {one: not str(one).startswith(HOST) for one in pd.unique(streams)}
    return np.array([known[one] for one in streams], bool)


def _copies(events: pd.DataFrame, begin: int, end: int) -> pd.DataFrame:
    """Copies of queues beside the main one, which hold nothing up by themselves."""
    kind, stream = events["kind"].astype(object), events["stream"].astype(object)
    device = kind.isin(COMPUTATION) & _on_device(events)
    side = (kind == COPY) & device & (stream != _main_stream(events[device.to_numpy()]))
    rows = events[side.to_numpy()]
    made = _made(rows, np.arange(len(rows)), rows[["begin_ns", "end_ns"]].to_numpy(np.int64),
                 "communication")
    return _clipped(made.assign(category="compute_other", non_blocking=True), begin, end)


def _made(rows: pd.DataFrame, which: np.ndarray, times: np.ndarray, lane: str) -> pd.DataFrame:
    """Events of rows `which` at other times; of one that is cut, each piece has its share."""
    whole = (rows["end_ns"] - rows["begin_ns"]).to_numpy(float)[which]
    share = (times[:, 1] - times[:, 0]) / np.where(whole > 0, whole, 1.0)
    made = {name: rows[name].astype(object).to_numpy()[which] if name in ("phase", "name")
            else rows[name].to_numpy()[which] for name in _KEPT}
    made["flops"] = made["flops"] * share
    still = made["still_ns"]
    made["still_ns"] = np.where(still >= 0, np.rint(still * share).astype(np.int64), -1)
    return pd.DataFrame({**made, "begin_ns": times[:, 0], "end_ns": times[:, 1], "lane": lane,
                         "category": "", "peer": -1, "flow": 0, "non_blocking": False,
                         "sends": False})


def _communication(
    events: pd.DataFrame, flow: np.ndarray, of_group: Mapping[str, str]
) -> pd.DataFrame:
    """Collectives and messages, which run beside computation, and in `waits` how a wait for each is
    called."""
    kind = events["kind"].astype(object)
    chosen = np.flatnonzero(kind.isin(COMMUNICATION).to_numpy())
    rows = events.iloc[chosen]
    kind = kind.iloc[chosen].to_numpy()
    made = _made(rows, np.arange(len(rows)), rows[["begin_ns", "end_ns"]].to_numpy(np.int64),
                 "communication")
    group = rows["group"].astype(object).map(of_group).fillna("data")
    made["begin_ns"] = _after_those_before(_arrivals(events, rows), made["end_ns"].to_numpy())
    return made.assign(
        category=pd.Series(kind, dtype=object).map(CATEGORIES).to_numpy(),
        bytes=np.maximum(rows["bytes"].to_numpy(np.int64), 0), non_blocking=True,
        flow=flow[chosen], sends=kind == SEND,
        peer=np.where(kind == COLLECTIVE, -1, rows["peer"].to_numpy()),
        waits=group.map(WAITS_FOR_GROUPS).to_numpy(),
    )


def _after_those_before(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Begins, of which none lies a moment before the end of what began before: that is rounding,
    and would say that the rank did not wait for it."""
    order = np.lexsort((end, begin))
    before = np.append(begin[order][:1], np.maximum.accumulate(end[order])[:-1])
    moved = begin.copy()
    over = before - begin[order]
    moved[order] = np.where((over > 0) & (over <= _LEAST_NS),
                            np.minimum(before, end[order]), begin[order])
    return moved


def _arrivals(events: pd.DataFrame, rows: pd.DataFrame) -> np.ndarray:
    """When the rank came to each communication of `rows`, ns.

    A process comes when it asks for it; a thread of the library begins later. A device comes when
    its kernel begins, but for one that the kernel before it in its queue held up: PyTorch's process
    groups let it wait for what was launched before it, so that the rank was there when that was
    done.
    """
    begin, end = (rows[name].to_numpy(np.int64) for name in ("begin_ns", "end_ns"))
    asked = rows["enqueued_ns"].to_numpy(np.int64)
    kind = events["kind"].astype(object)
    computed = events[(kind.isin(COMPUTATION) & _on_device(events)
                       & (events["enqueued_ns"] > 0)).to_numpy()]
    if computed.empty:
        return np.where(asked > 0, np.minimum(asked, begin), begin)
    computed = computed.sort_values("enqueued_ns", kind="stable")
    done = np.append(0, np.maximum.accumulate(computed["end_ns"].to_numpy(np.int64)))
    there = done[np.searchsorted(computed["enqueued_ns"].to_numpy(), asked, side="right")]
    order = np.lexsort((begin, pd.factorize(rows["stream"].astype(object))[0]))
    stream = pd.factorize(rows["stream"].astype(object))[0][order]
    before = np.where(np.append(-1, stream[:-1]) == stream, np.append(0, end[order][:-1]), 0)
    queued = np.zeros(len(rows), bool)
    queued[order] = begin[order] - before < _WAKES_NS
    queued &= (asked > 0) & (there > 0)
    return np.where(queued, np.minimum(np.maximum(there, asked), begin), begin)


def _on_host(events: pd.DataFrame) -> pd.DataFrame:
    """What the process did besides computing: kind, phase, name, begin_ns, end_ns."""
    kind = events["kind"].astype(object)
    main = (events["stream"].astype(object) == HOST) | (kind == SYNCHRONIZE)
    rows = events[(kind.isin((DATA, CHECKPOINT, PAUSE, SYNCHRONIZE)) & main).to_numpy()]
    made = rows[["begin_ns", "end_ns"]].copy()
    for name in ("kind", "phase", "name"):
        made[name] = rows[name].astype(object)
    return made.sort_values("begin_ns", kind="stable", ignore_index=True)


def _clipped(made: pd.DataFrame, begin: int, end: int) -> pd.DataFrame:
    inside = made[(made["end_ns"] > begin) & (made["begin_ns"] < end)]
    return inside.assign(begin_ns=inside["begin_ns"].clip(lower=begin),
                         end_ns=inside["end_ns"].clip(upper=end))


def _as_it_ended(
    lane: pd.DataFrame, beside: pd.DataFrame, begin: int, end: int
) -> pd.DataFrame:
    """Communications that a processor waited for, with the end of the wait: their own is noted by a
    thread of the library, which may have no core just then."""
    low, high = _borders(lane, begin, end)
    late = _NOTED * (high - low)
    low, high, late = low[late > _WAKES_NS], high[late > _WAKES_NS], late[late > _WAKES_NS]
    if not len(low):
        return beside
    noted = beside["end_ns"].to_numpy(np.int64)
    gap = np.maximum(np.searchsorted(high, noted, side="left") - 1, 0)  # the last that is over
    waited = (noted > high[gap]) & (noted <= high[gap] + late[gap]) \
        & (beside["begin_ns"].to_numpy(np.int64) < high[gap])
    return beside.assign(end_ns=np.where(waited, high[gap], noted))


def _borders(lane: pd.DataFrame, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Begins and ends of what lies before, between and behind the events of a lane."""
    return (np.append(begin, lane["end_ns"].to_numpy(np.int64)),
            np.append(lane["begin_ns"].to_numpy(np.int64), end))


def _gaps(
    lane: pd.DataFrame, beside: pd.DataFrame, host: pd.DataFrame, begin: int, end: int
) -> pd.DataFrame:
    """Events of the compute lane in its gaps."""
    low, high = _borders(lane, begin, end)
    launched = np.append(lane["enqueued_ns"].to_numpy(np.int64), 0)
    phase = np.append(lane["phase"].to_numpy(object), "other")
    long = high - low >= _LEAST_NS
    low, high, launched, phase = low[long], high[long], launched[long], phase[long]
    if not len(low):
        return _pieces([])
    done = _of_host(host, low, high)
    synchronized = done[done["kind"] == SYNCHRONIZE] if len(done) else done
    waits = _waits(beside, low, high)
    # A device that had work in its queue waited for what that work needs. Where the queue was
    # empty until later, the process was late, unless it waited for the same itself.
    last = np.full(len(low), np.iinfo(np.int64).min)
    np.maximum.at(last, waits["gap"].to_numpy(), waits["end_ns"].to_numpy())
    in_sync = np.zeros(len(low), bool)
    in_sync[synchronized["gap"].to_numpy(np.int64)] = True
    late = (launched > np.maximum(last, low)) & ~in_sync
    waits = waits[~late[waits["gap"].to_numpy()]]
    waits = waits.assign(category="wait")
    known = done[done["kind"] != SYNCHRONIZE]
    known = known.assign(category=known["kind"].map(CATEGORIES))
    # A process that does something else does not wait; a device waits whatever its process does.
    if (launched > 0).any():
        known = _outside(known, waits)
    else:
        waits = _outside(waits, known)
    both = pd.concat([known, waits], ignore_index=True)
    # Nothing was there to run until it was launched; of a processor, until it went on.
    until = np.where(launched > 0, np.clip(launched, low, high), high)
    empty = pd.DataFrame({"gap": np.arange(len(low)), "begin_ns": low, "end_ns": until})
    empty = _outside(empty.assign(category="host", name=HOST_GAP, phase=phase),
                     pd.concat([both, synchronized], ignore_index=True))
    found = pd.concat([both, empty], ignore_index=True)
    found["phase"] = np.where(found["phase"] == "other", phase[found["gap"]], found["phase"])
    return _pieces([found[found["end_ns"] - found["begin_ns"] >= _LEAST_NS]])


def _waits(beside: pd.DataFrame, low: np.ndarray, high: np.ndarray) -> pd.DataFrame:
    """Pieces of gaps in which communications ended, each until then: gap, begin_ns, end_ns, name,
    phase."""
    part = beside.sort_values("end_ns", kind="stable")
    end = part["end_ns"].to_numpy(np.int64)
    begin = part["begin_ns"].to_numpy(np.int64)
    gap = np.searchsorted(low, end, side="left") - 1  # the last that began before it ended
    safe = np.maximum(gap, 0)
    inside = (gap >= 0) & (end <= high[safe] + _WAKES_NS) & (begin < high[safe])
    part, gap = part[inside], gap[inside]
    end = np.minimum(end[inside], high[gap])
    before = np.where(np.append(-1, gap[:-1]) == gap, np.append(0, end[:-1]), low[gap])
    begin = np.maximum(np.maximum(begin[inside], low[gap]), before)
    found = pd.DataFrame({"gap": gap, "begin_ns": begin, "end_ns": end,
                          "name": part["waits"].to_numpy(object),
                          "phase": part["phase"].to_numpy(object)})
    return found[found["end_ns"] > found["begin_ns"]]


def _of_host(host: pd.DataFrame, low: np.ndarray, high: np.ndarray) -> pd.DataFrame:
    """Pieces of gaps that rows of the process cover, the innermost row of each place."""
    pieces, owner = intervals.innermost(host["begin_ns"].to_numpy(np.int64),
                                        host["end_ns"].to_numpy(np.int64))
    first = np.searchsorted(high, pieces[:, 0], side="right")
    last = np.searchsorted(low, pieces[:, 1], side="left")
    count = np.maximum(last - first, 0)
    which, part = intervals.several(count)
    gap = part + first[which]
    rows = pd.DataFrame({
        "gap": gap, "begin_ns": np.maximum(pieces[which, 0], low[gap]),
        "end_ns": np.minimum(pieces[which, 1], high[gap]),
        **{name: host[name].to_numpy(object)[owner[which]] for name in ("kind", "phase", "name")},
    })
    return rows[rows["end_ns"] > rows["begin_ns"]]


def _outside(rows: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """What of the rows lies outside of what is known."""
    pairs = intervals.make(rows["begin_ns"], rows["end_ns"])
    covered = intervals.union(intervals.make(known["begin_ns"], known["end_ns"]))
    pieces, owner = intervals.outside(pairs, covered)
    return rows.iloc[owner].assign(begin_ns=pieces[:, 0], end_ns=pieces[:, 1])


def _pieces(found: list[pd.DataFrame]) -> pd.DataFrame:
    columns = ["category", "phase", "name", "begin_ns", "end_ns"]
    made = pd.concat(found)[columns] if found else pd.DataFrame(columns=columns)
    return made.assign(lane="compute", bytes=-1, flops=0.0, enqueued_ns=0, still_ns=-1, peer=-1,
                       flow=0, microbatch=-1, layer=-1, non_blocking=False, sends=False)
