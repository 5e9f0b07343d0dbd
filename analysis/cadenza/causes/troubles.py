# SPDX-License-Identifier: Apache-2.0
"""What is wrong in a run: which ranks or links, why, and in which steps. What it costs is left to
verdicts.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from cadenza.causes.adapters import slow_links
from cadenza.causes.patterns import (
    IN_TURN, INTERMITTENT, NOTICED, ONCE, PERIODIC, STEADY, patterns, trend_of,
)
from cadenza.causes.repair import (
    ATTENTION, BETWEEN, HOST, INPUT, LATE_START, NO_CORE, PAUSED, SLOW, WORK, Trouble,
)
from cadenza.causes.slowness import Cells, log_ratio
from cadenza.graph.loads import PHASES_OF_WORK
from cadenza.links.slow import SlowLink
from cadenza.read.schema import HOST_GAP
from cadenza.words import on_host

_LEAST = 0.002  # of a step: what takes less is not looked at
_SURE = 5.0  # standard deviations
CORES = 0.15  # of what is usual, by which cores of a host are slower without a fault
_LATE = 0.01  # of a step: a rank that begins later, or reads for longer, is late
_ALWAYS = 6.0  # standard errors by which a rank has more work than its peers, in every step
_MORE = 0.08  # of its peers' work: less more is not worth a word
_TURN = 0.25  # of the largest, what a turn of one rank must be
_FEWEST_TURNS = 4
_LATER = 2  # times the least time from turn to turn: one may be missing
_SAME_STEPS = 0.7  # of the steps of two ranks, what both have
_SAME_PHASES = 0.15  # of a rank's computing time, what phases may take that two ranks have not both
_UNEQUAL = 2.0  # times slower than another: a fault of its own
MAIN = 0.9  # of what is lost: where so much is in one phase, it is of that phase
_HOST_BOUND = 0.05  # of a step, for which all ranks have nothing to run, or read: worth a word
_STAND_STILL = 0.03  # of its computing time, what a rank has no core for
_FURTHER = 0.25  # of the largest lack of a core of a rank, what is more than its variation
_COLD = 0.3  # of the time without a core, by how much a rank may then be slower
_COLDEST = 0.5  # of what is usual, by how much it may at most
_LEAST_VARIES = 0.01  # standard deviation of the share of a step that a rank has no core for
_APART = 0.954  # standard deviations, the median distance of two normal numbers


@dataclass(frozen=True)
class Facts:
    """What troubles are found in: frames of the steady steps."""

    cells: Cells
    loads: pd.DataFrame  # loads.operation_loads()
    paused: pd.DataFrame  # pauses.pauses()
    steps: pd.DataFrame  # Run.steps()
    step_seconds: pd.Series  # by step
    ranks: pd.DataFrame  # Run.ranks()
    links: list[SlowLink]
    pairs: pd.DataFrame  # times.pair_times()
    gaps: pd.DataFrame  # loads.host_gaps()
    imported: bool = False
    optimizer_first: bool = False  # loads.begins_with_optimizer()


def find(facts: Facts) -> list[Trouble]:
    """Of every cause; one cause at one time is one trouble, however many ranks have it."""
    found = []
    for each in (_slow(facts), _without_core(facts), _paused(facts), _late_input(facts),
                 _host_gaps(facts), _late_start(facts), _more_work(facts)):
        found += _in_turn(_together(facts, list(each)))
    links = slow_links(facts.links, facts.ranks, facts.pairs, facts.cells.given,
                       _numbers(facts.cells.steps)) if facts.links else []
    return [*found, *_all_without_core(facts), *_of_all(facts), *_attention_in_turn(facts), *links]


def steadily_slow(facts: Facts) -> list[Trouble]:
    """Ranks that are slow in all steps, or from one on, where a row is a whole pass whose documents
    nobody knows: what comes and goes, or is no more than that does, may be longer documents."""
    cells = facts.cells
    more = dict(_beyond_peers(facts, cells.run.sum(axis=0)))

    def certain(one: Trouble) -> bool:
        rank = int(np.searchsorted(cells.ranks, one.members[0]))
        steps = np.isin(cells.steps, one.steps)
        return one.trend == STEADY and rank in more and _always(more[rank][steps])

    return _together(facts, [one for one in _slow(facts) if certain(one)])


def _beyond_peers(facts: Facts, work: np.ndarray) -> Iterable[tuple[int, np.ndarray]]:
    """Indices of ranks, and by how much more each has in every step than the ranks in its place of
    the other data replicas: logarithms. @param work  (ranks, steps)"""
    places = facts.ranks.set_index("rank").reindex(facts.cells.ranks)
    peers = places.groupby(["role", "pipeline", "tensor", "context"]).ngroup().to_numpy()
    for rank, mine in enumerate(work):
        others = work[(peers == peers[rank]) & (np.arange(len(work)) != rank)]
        if len(others) and (mine > 0).all():
            yield rank, log_ratio(mine, np.median(others, axis=0))


def _always(more: np.ndarray) -> bool:
    """Whether a series is above 0 by more than its mean may be off."""
    if len(more) < 3:
        return False
    error = max(float(more.std(ddof=1)), 0.001) / np.sqrt(len(more))
    return bool(more.mean() > _ALWAYS * error)


def _slow(facts: Facts) -> Iterable[Trouble]:
    """Ranks that take longer for the same work, while they have a core."""
    cells = facts.cells
    # Who gets its core of a host back finds its caches cold: what that may cost is no slowness.
    most = np.clip(cells.run - cells.fair, 0, _COLDEST * cells.fair)
    cold = np.minimum(_COLD * cells.still, most)
    cold *= on_shared_cores(facts)[:, None]
    cells = replace(cells, run=cells.run - cold)
    level = log_ratio(cells.run, cells.fair)
    with_core = 1 - _share_without_core(cells)
    for rank, least in enumerate(_least(facts)):
        phases = [phase for phase in range(len(PHASES_OF_WORK))
                  if _is_slow(level[phase, rank], cells.noise[phase], least)
                  and _excess(cells, phase, rank) > _LEAST * facts.step_seconds.sum()]
        if not phases:
            continue
        run, fair = cells.run[phases, rank], cells.fair[phases, rank]
        weight = fair.sum(axis=1) / fair.sum()
        noise = float(np.sqrt(((cells.noise[phases] * weight) ** 2).sum()))
        left = np.ones(len(cells.steps))
        for one in patterns(log_ratio(run.sum(axis=0), fair.sum(axis=0)), noise, least):
            share = left * (1 - np.exp(-one.level))
            left = left - share
            names = tuple(PHASES_OF_WORK[phase] for phase in phases)
            found = _trouble(SLOW, facts, rank, one.active, one.trend, names, share)
            number = int(cells.ranks[rank])
            yield replace(found, with_core={
                (number, step): float(with_core[rank, at]) for step, at in
                zip(found.steps, np.flatnonzero(one.active), strict=True)})


def on_shared_cores(facts: Facts) -> np.ndarray:
    """Which ranks, in the cells' order, compute where neighbours can slow them: on cores of a host,
    that others share with its units, caches and power, and, of a virtual machine, unseen. A machine
    file says what a core does alone."""
    devices = facts.ranks.set_index("rank")["device"].reindex(facts.cells.ranks)
    return np.array([not facts.cells.given and on_host(str(device)) for device in devices])


def unseen_cores(facts: Facts) -> bool:
    """Whether an imported run computed on cores of a host, of which no row says that a rank had
    none for a while."""
    return bool(_follow_on(facts.steps) and on_shared_cores(facts).any())


def _least(facts: Facts) -> np.ndarray:
    """By how much each rank must be slower to be named."""
    return np.where(on_shared_cores(facts), CORES, NOTICED)


def _is_slow(level: np.ndarray, noise: float, least: float) -> bool:
    mean, error = level.mean(), noise / np.sqrt(len(level))
    return bool(level.max() > max(least, _SURE * noise) or mean > max(least, _SURE * error))


def _excess(cells: Cells, phase: int, rank: int) -> float:
    return float(np.clip(cells.run[phase, rank] - cells.fair[phase, rank], 0, None).sum())


def _share_without_core(cells: Cells) -> np.ndarray:
    """Of the computing time, by rank and step."""
    still, whole = cells.still.sum(axis=0), (cells.still + cells.run).sum(axis=0)
    return np.where(whole > 0, still / np.where(whole > 0, whole, 1.0), 0.0)


def _all_without_core(facts: Facts) -> Iterable[Trouble]:
    """What all ranks lack: on a shared machine other programs take turns at all cores."""
    share = _share_without_core(facts.cells)
    common = share.min(axis=0)
    active = common > _STAND_STILL
    if active.any() and len(share) > 1:
        yield _joined([_trouble(NO_CORE, facts, rank, active, trend_of(active), PHASES_OF_WORK,
                                common) for rank in range(len(share))])


def _without_core(facts: Facts) -> Iterable[Trouble]:
    """What ranks lack beyond what all of them do."""
    share = _share_without_core(facts.cells)
    common = share.min(axis=0) if len(share) > 1 else np.zeros(share.shape[1])
    noise = max(_LEAST_VARIES, np.median([_varies(one) for one in share]), _varies(common))
    for rank, mine in enumerate(share):
        others = np.delete(share, rank, axis=0).min(axis=0) if len(share) > 1 else common
        more = mine - others
        found = patterns(more, max(noise, _varies(more)))
        levels = [one.level[one.active].mean() for one in found]
        for one, level in zip(found, levels, strict=True):
            if level > max(_STAND_STILL, _FURTHER * max(levels)):
                phases, part = _phases_without_core(facts.cells, rank, one.active)
                yield _trouble(NO_CORE, facts, rank, one.active, one.trend, phases,
                               np.clip(np.clip(mine - common, 0, one.level) / part, 0, 1))


def _phases_without_core(
    cells: Cells, rank: int, active: np.ndarray
) -> tuple[tuple[str, ...], float]:
    """In which phases a rank lacks its core: all, or one; and what part of its computing time these
    take.

    @param rank  its index in the cells
    """
    still, run = (part[:, rank, active].sum(axis=1) for part in (cells.still, cells.run))
    main = int(still.argmax())
    if still[main] < MAIN * still.sum():
        return PHASES_OF_WORK, 1.0
    return (PHASES_OF_WORK[main],), float((still + run)[main] / (still + run).sum())


def _varies(series: np.ndarray) -> float:
    """Standard deviation of a step, whatever pattern the series has: from steps one, two and three
    apart."""
    apart = [np.abs(series[lag:] - series[:-lag]) for lag in (1, 2, 3) if len(series) > lag]
    return min((float(np.median(one)) / _APART for one in apart), default=0.0)


def _paused(facts: Facts) -> Iterable[Trouble]:
    paused = facts.paused
    for rank, seconds in enumerate(_by_rank_and_step(facts, paused, "seconds")):
        active = seconds > _LEAST * facts.step_seconds.mean()
        if active.any():
            mine = paused.loc[paused["rank"] == facts.cells.ranks[rank], "phase"]
            yield _trouble(PAUSED, facts, rank, active, trend_of(active),
                           tuple(sorted(set(mine))), seconds)


def _late_input(facts: Facts) -> Iterable[Trouble]:
    """Ranks that read their documents for longer than is usual."""
    reads = facts.loads[facts.loads["category"] == "data"]
    seconds = _by_rank_and_step(facts, reads, "seconds")
    late = np.clip(seconds - np.quantile(seconds, 0.25), 0, None)
    yield from _seconds(INPUT, facts, late, ("forward",))


def _host_gaps(facts: Facts) -> Iterable[Trouble]:
    """Ranks that have nothing to run for longer than the others."""
    seconds = _by_rank_and_step(facts, facts.gaps, "seconds")
    if len(seconds) < 2:
        return
    usual = facts.step_seconds.mean()
    noise = [_varies(one / usual) for one in seconds - seconds.min(axis=0)]
    noise = max(_LEAST_VARIES, float(np.median(noise)))
    for rank, mine in enumerate(seconds):
        more = (mine - np.median(np.delete(seconds, rank, axis=0), axis=0)) / usual
        for one in patterns(more, max(noise, _varies(more)), _LATE):
            phases, part, name = _of_gaps(facts, rank, one.active)
            yield replace(_trouble(HOST, facts, rank, one.active, one.trend, phases,
                                   np.clip(one.level, 0, None) * usual * part), name=name)


def _of_gaps(
    facts: Facts, rank: int, active: np.ndarray
) -> tuple[tuple[str, ...], float, str]:
    """In which phases a rank has nothing to run, in these steps: all, or one; what part of its gaps
    these are; and what fills them, where that is told.

    @param rank  its index in the cells
    """
    gaps = facts.gaps
    mine = gaps[(gaps["rank"] == facts.cells.ranks[rank])]
    here = mine["step"].isin(facts.cells.steps[active])
    lost = mine[here].groupby("phase")["seconds"].sum() / active.sum()
    if not active.all():
        usual = mine[~here].groupby("phase")["seconds"].sum() / (~active).sum()
        lost = (lost - usual.reindex(lost.index).fillna(0.0)).clip(lower=0)
    names = mine[here].groupby("name")["seconds"].sum()
    name = str(names.idxmax()) if names.max() > MAIN * names.sum() else ""
    name = "" if name == HOST_GAP else name
    if lost.max() >= MAIN * lost.sum():
        return (str(lost.idxmax()),), 1.0, name
    return tuple(sorted(set(mine["phase"]))), 1.0, name


def _of_all(facts: Facts) -> Iterable[Trouble]:
    """What all ranks of an imported run spend a part of their steps on: their devices have nothing
    to run, as the processes do not launch it, or they read their documents. Of a program on
    processors gaps are what the processes do."""
    if not _follow_on(facts.steps):
        return
    reads = facts.loads[facts.loads["category"] == "data"]
    found = [(INPUT, reads)] if on_shared_cores(facts).any() else [
        (INPUT, reads), (HOST, facts.gaps)]
    for cause, frame in found:
        seconds = _by_rank_and_step(facts, frame, "seconds")
        middle = np.quantile(seconds, 0.5, axis=0, method="lower")  # of two ranks the lesser
        active = middle > _HOST_BOUND * facts.step_seconds.to_numpy()
        if active.mean() > 0.5:
            phases = tuple(sorted(set(frame["phase"])))
            yield _joined([_trouble(cause, facts, rank, active, trend_of(active), phases, mine)
                           for rank, mine in enumerate(seconds)])


def _late_start(facts: Facts) -> Iterable[Trouble]:
    """Ranks end a step together: whose own step is shorter began it later. So no two clocks are
    compared, which may be apart."""
    if _follow_on(facts.steps):
        return
    steps = facts.steps.assign(took=facts.steps["end_ns"] - facts.steps["begin_ns"])
    took = _by_rank_and_step(facts, steps, "took")
    late = np.where(took > 0, took.max(axis=0) - took, 0.0) / 1e9
    usual = np.median(late[late <= np.quantile(late, 0.75)])
    yield from _seconds(LATE_START, facts, np.clip(late - usual, 0, None), (BETWEEN,))


def _follow_on(steps: pd.DataFrame) -> bool:
    """Whether each step of a rank begins when its last one ends, as in imported runs: who begins
    one late has ended the last one late."""
    mine = steps.sort_values(["rank", "step"])
    same = mine["rank"].diff() == 0
    begins = mine["begin_ns"][same].to_numpy()
    return bool(same.any() and (begins == mine["end_ns"].shift()[same].to_numpy()).all())


def _by_rank_and_step(facts: Facts, frame: pd.DataFrame, column: str) -> np.ndarray:
    """Sums of a column, 0 where there is none: (ranks, steps)."""
    sums = frame.pivot_table(index="rank", columns="step", values=column, aggfunc="sum")
    sums = sums.reindex(index=facts.cells.ranks, columns=facts.cells.steps)
    return sums.astype(float).fillna(0.0).to_numpy()


def _seconds(
    cause: str, facts: Facts, late: np.ndarray, phases: tuple[str, ...]
) -> Iterable[Trouble]:
    """@param late  seconds, (ranks, steps)"""
    for rank, mine in enumerate(late):
        active = mine > _LATE * facts.step_seconds.mean()
        if active.any():
            yield _trouble(cause, facts, rank, active, trend_of(active), phases, mine)


def _more_work(facts: Facts) -> Iterable[Trouble]:
    """Ranks whose documents give them more work than the ranks in their place of the other data
    replicas have, in every step. Whom the placement gives more is not to blame."""
    cells = facts.cells
    for rank, more in _beyond_peers(facts, cells.fair.sum(axis=0)):
        if more.min() > _MORE and _always(more):
            yield _trouble(WORK, facts, rank, np.ones(len(more), bool), STEADY, PHASES_OF_WORK,
                           1 - np.exp(-more))


def _attention_in_turn(facts: Facts) -> Iterable[Trouble]:
    """Core attention of imported runs of which now one rank has more than its peers, now another:
    of Cadenza's own a placement says who has what. Who always has more has more work; who takes
    longer for all it does is slow."""
    if not facts.imported:
        return
    attends = (facts.loads["category"] == "compute_attention").to_numpy()
    computes = (facts.loads["category"] != "data").to_numpy()
    more, rest = (dict(_beyond_peers(facts, _by_rank_and_step(facts, facts.loads[of], "seconds")))
                  for of in (attends, computes & ~attends))
    ranks = sorted(set(more) & set(rest))
    if not ranks:
        return
    much, other = (np.stack([of[rank] for rank in ranks]) for of in (more, rest))
    much = much - other
    noise = float((other - np.median(other, axis=1, keepdims=True)).std())
    least = max(np.log1p(_MORE), _SURE * noise, float(_least(facts).max()))
    longest, active = much.argmax(axis=0), much.max(axis=0) > least
    turns = np.unique(longest[active])
    if active.sum() < _FEWEST_TURNS or len(turns) < 2 or (much > least).all(axis=1).any():
        return
    steps = facts.cells.steps
    excess = {(int(facts.cells.ranks[ranks[longest[at]]]), int(steps[at])):
              float(1 - np.exp(-much[longest[at], at])) for at in np.flatnonzero(active)}
    yield Trouble(ATTENTION, _numbers(facts.cells.ranks[ranks]), _numbers(steps[active]), IN_TURN,
                  ("forward", "backward"), excess)


def _trouble(
    cause: str, facts: Facts, rank: int, active: np.ndarray, trend: str, phases: tuple[str, ...],
    excess: np.ndarray,
) -> Trouble:
    """@param rank  its index in the cells"""
    steps = _numbers(facts.cells.steps[active])
    number = int(facts.cells.ranks[rank])
    return Trouble(cause, (number,), steps, trend, phases,
                   {(number, step): float(value)
                    for step, value in zip(steps, excess[active], strict=True)})


def _numbers(steps: np.ndarray) -> tuple[int, ...]:
    return tuple(int(step) for step in steps)


def _together(facts: Facts, each: list[Trouble]) -> list[Trouble]:
    """Ranks that have it alike as one: each as one of the others has it, if not as all."""
    groups: list[list[Trouble]] = []
    for one in sorted(each, key=lambda t: (-len(t.steps), -_mean(t))):
        for group in groups:
            free = one.members[0] not in {t.members[0] for t in group}
            if free and any(_alike(facts, one, other) for other in group):
                group.append(one)
                break
        else:
            groups.append([one])
    return [_joined(group) for group in groups]


def _alike(facts: Facts, one: Trouble, other: Trouble) -> bool:
    """Whether two ranks have the same in the same steps and phases, by about as much."""
    mine, both = set(one.steps), set(other.steps)
    if len(mine & both) < _SAME_STEPS * len(mine | both):
        return False
    if one.cause not in (SLOW, NO_CORE):
        return True
    cells = facts.cells
    rank = np.searchsorted(cells.ranks, one.members[0])
    took = pd.Series(cells.fair[:, rank].sum(axis=1), index=list(PHASES_OF_WORK))
    if took[list(set(one.phases) ^ set(other.phases))].sum() > _SAME_PHASES * took.sum():
        return False
    slower = [-np.log1p(-_mean(t)) for t in (one, other)]
    return max(slower) <= _UNEQUAL * min(slower)


def _mean(one: Trouble) -> float:
    return float(np.mean(list(one.excess.values())))


def _joined(group: list[Trouble]) -> Trouble:
    """What most of the ranks have."""
    if len(group) == 1:
        return group[0]
    steps = pd.Series([step for one in group for step in one.steps]).value_counts()
    chosen = tuple(sorted(int(s) for s in steps.index[steps >= len(group) / 2]))
    trend = pd.Series([one.trend for one in group]).mode().iloc[0]
    phases = pd.Series([one.phases for one in group]).mode().iloc[0]
    members = tuple(sorted(one.members[0] for one in group))
    return replace(group[0], members=members, steps=chosen, trend=str(trend), phases=phases,
                   excess=_all_of(group, "excess"), with_core=_all_of(group, "with_core"))


def _all_of(group: list[Trouble], name: str) -> dict[tuple[int, int], float]:
    return {place: value for one in group for place, value in getattr(one, name).items()}


def _in_turn(each: list[Trouble]) -> list[Trouble]:
    """Those that have it now and then, each at other times, as one: of two each more than once."""
    turns = [one for one in each if one.trend in (ONCE, PERIODIC, INTERMITTENT)]
    size = [_mean(one) for one in turns]
    turns = [one for one, much in zip(turns, size, strict=True) if much >= _TURN * max(size)]
    order = sorted((step, one.members) for one in turns for step in one.steps)
    steps = [step for step, _ in order]
    alone = len(set(steps)) == len(steps)
    few = len(turns) < 2 or (len(turns) == 2 and min(len(one.steps) for one in turns) < 2)
    few = few or len(order) < _FEWEST_TURNS
    if few or not alone or len({rank for _, of in order for rank in of}) < 2:
        return each
    # It goes from one to another, at about equal times.
    changes = sum(one[1] != other[1] for one, other in zip(order, order[1:], strict=False))
    apart = np.diff(steps)
    if changes < len(apart) / 2 or apart.max() > _LATER * apart.min():
        return each
    phases = tuple(dict.fromkeys(phase for one in turns for phase in one.phases))
    ranks = {rank for one in turns for rank in one.members}
    joined = replace(turns[0], members=tuple(sorted(ranks)), steps=tuple(steps), trend=IN_TURN,
                     excess=_all_of(turns, "excess"), phases=phases,
                     with_core=_all_of(turns, "with_core"))
    return [*(one for one in each if one not in turns), joined]


def lost_by_phase(facts: Facts, one: Trouble) -> pd.Series:
    """Seconds that a trouble takes, by phase."""
    cells = facts.cells
    if one.cause == PAUSED and one.phases != (BETWEEN,):
        mine = facts.paused[facts.paused["rank"].isin(one.members)
                            & facts.paused["step"].isin(one.steps)]
        return mine.groupby("phase")["seconds"].sum()
    if one.cause in (SLOW, NO_CORE):
        ranks, steps = np.isin(cells.ranks, one.members), np.isin(cells.steps, one.steps)
        lost = cells.still if one.cause == NO_CORE else cells.run - cells.fair
        some = lost[:, ranks][:, :, steps].sum(axis=(1, 2))
        return pd.Series(some, index=list(PHASES_OF_WORK))[list(one.phases)]
    return pd.Series(1.0, index=list(one.phases))
