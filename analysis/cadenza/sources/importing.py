# SPDX-License-Identifier: Apache-2.0
"""A run folder from files that other programs wrote: read, aligned, assembled, written.

Ranks are read one by one, by several processes, and put aside; what they did together, which is
little, is looked at at once; then each rank is written.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from cadenza.errors import DataError, UsageError
from cadenza.files import made, printable
from cadenza.log import LOG
from cadenza.processes import LARGE, mapped
from cadenza.sources import layout as layouts
from cadenza.sources.align import Clock, clocks
from cadenza.sources.finding import FEW, NAMED, files_in, left_out
from cadenza.sources.kernels import unknown as unknown_kernels
from cadenza.sources.lanes import assembled
from cadenza.sources.meetings import COLUMNS as MET
from cadenza.sources.meetings import matched
from cadenza.sources.lengths import read_lengths, unmatched, with_lengths
from cadenza.sources.neutral import (COMMUNICATION, COMPUTATION, DIMENSIONS, HOST, NO_LENGTHS, STEP,
                                     Lengths, RankTrace, Source, began)
from cadenza.sources.windows import same_steps, step_of, windows
from cadenza.sources.write import RankFacts, write_rank
from cadenza.words import counted, ranks_named, ranks_of, seconds, shortened

_MOST_SAID = 12  # sentences about what files cannot tell
_FEW = 6  # steps that a sentence names
_WORLD = 1 << 20
_SINCE_NS = 10**18  # 2001
_WORTH_NS = 50_000  # what clocks may be off by without a word
_APART_NS = 60 * 10**9  # that clocks may be without a word
_NO_NAME = "device"  # whose name is not told
_ONE_PASS = "Passes are not told apart: all computation but the optimizer's is called forward"
_DEAR = 0.01  # of the time of all rows: a kernel that takes less is not named


@dataclass
class _Summary:
    """What is kept in memory of a rank."""

    path: Path  # of its first file
    rank: int
    worlds: dict[int, Path]  # ranks of the run, as its files say, and one that says it
    host: str
    device: str
    place: dict[str, int]
    groups: dict[str, tuple[str, tuple[int, ...]]]
    peaks: dict[int, int]
    cannot: list[str]
    rows: pd.DataFrame  # meetings.COLUMNS
    steps: pd.DataFrame  # step, begin_ns, end_ns, lengths
    span: tuple[int, int]
    ends: pd.DataFrame  # of what was computed: began (launched or begun), end_ns
    one_clock: bool
    whole: bool
    passes: bool  # whether they are told apart
    files: list[Path] = field(default_factory=list)  # its parts, put aside


def import_run(
    inputs: Sequence[Path], output: Path, source: str | None = None, layout: str | None = None,
    lengths: Path | None = None,
) -> list[str]:
    """Writes a run folder of what the inputs (files, or folders of them) tell.

    @param source  name of one of SOURCES; default: each file says it
    @param layout  sizes of dimensions, such as "data=4,tensor=2"; default: the process groups
    @param lengths  file of documents' lengths, as lengths.read_lengths() has it
    @returns sentences: what the files cannot tell
    @throws DataError, UsageError
    """
    sizes = layouts.parsed(layout) if layout else None
    told = read_lengths(lengths) if lengths else NO_LENGTHS
    _check_output(output, inputs)
    files, passed_over = files_in(inputs, source)
    with _space_beside(output) as aside:
        found, lost = _read(files, aside, told)
        world, of_world = _world(found)
        if sizes and any(one.worlds for one in found.values()):
            layouts.check_size(sizes, world)
        notes = [*lost, *of_world, *passed_over, *unmatched(told, _step_numbers(found))]
        run = _Made(aside / "run", inputs, files, world, notes)
        said = _write(found, run, sizes)
        run.folder.rename(output)
    return said


def _check_output(output: Path, inputs: Sequence[Path]) -> None:
    if output.exists() or output.is_symlink():
        raise DataError(f"{output}: exists; valid: a new folder")
    for path in inputs:
        if output.resolve().is_relative_to(path.resolve()):
            raise UsageError(f"--output {output}: is in {path}, which is read; valid: a folder "
                             "outside it")


@contextmanager
def _space_beside(output: Path) -> Iterator[Path]:
    """A folder that is gone in the end. @throws DataError where nothing can be written there"""
    try:
        with tempfile.TemporaryDirectory(prefix=".import-", dir=made(output.parent)) as folder:
            yield Path(folder)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error).partition("\n")[0]
        raise DataError(f"{output}: cannot be written: {why}") from error


def _read(
    files: list[tuple[Path, Source]], aside: Path, lengths: Lengths
) -> tuple[dict[int, _Summary], list[str]]:
    """By rank, and sentences about files that are left out. Every rank's rows are put aside.

    @throws DataError where no file can be read
    """
    found: dict[int, _Summary] = {}
    damaged: dict[Path, DataError] = {}
    LOG.info("reading %d files", len(files))
    sizes = sum(path.stat().st_size for path, _ in files if path.is_file())
    large = LARGE if sizes > 1 << 24 else 0  # bytes: of less, processes take longer to start
    each = mapped(partial(_read_one, aside, lengths), files, large)
    for number, ((path, _), parts) in enumerate(zip(files, each, strict=True), start=1):
        LOG.info("read %d of %d files", number, len(files))
        if isinstance(parts, DataError):
            damaged[path] = parts
            continue
        for one in parts:
            if one.rank in found:
                _join(found[one.rank], one)
            else:
                found[one.rank] = one
    if not found:
        none = DataError(f"{files[0][0]}: no rank in it")
        raise next(iter(damaged.values()), none)
    return dict(sorted(found.items())), left_out(damaged)


def _read_one(
    aside: Path, lengths: Lengths, item: tuple[Path, Source]
) -> list[_Summary] | DataError:
    """@returns what a file tells, or why it cannot be read"""
    path, source = item
    try:
        found = [_put_aside(one, path, aside) for one in source.read(path, lengths)]
    except DataError as error:
        return error
    for one in found:
        one.steps = with_lengths(one.steps, lengths.get(one.rank, {}))
    return found


def _put_aside(one: RankTrace, path: Path, aside: Path) -> _Summary:
    if not 0 <= one.rank < _WORLD:
        raise DataError(f"{path}: rank {one.rank}; valid: 0 to {_WORLD - 1}")
    events = one.events
    kind = events["kind"].astype(object)
    steps = events.loc[(kind == STEP).to_numpy(), ["step", "begin_ns", "end_ns", "lengths"]]
    rows = events.loc[kind.isin(COMMUNICATION).to_numpy(), MET]
    rest = events[~kind.isin((STEP, *COMMUNICATION)).to_numpy()]
    unknown = unknown_kernels(events)
    whole = (rest["end_ns"] - rest["begin_ns"]).sum()
    unknown = unknown[unknown > _DEAR * whole]
    if len(unknown):
        some = ", ".join(shortened(printable(str(name)), NAMED) for name in unknown.index[:FEW])
        one.cannot.append(f"Kernels of unknown kind count as other computation: {some}.")
    file = aside / f"{secrets.token_hex(8)}.pickle"
    with file.open("xb") as out:
        pickle.dump(events, out, protocol=5)
    span = (int(events["begin_ns"].min()), int(events["end_ns"].max())) if len(events) else (0, 0)
    on_device = ~events["stream"].astype(object).str.startswith(HOST)
    device = one.device or (_NO_NAME if (on_device & kind.isin(COMPUTATION)).any() else "")
    worlds = {one.world: path} if one.world else {}
    return _Summary(path, one.rank, worlds, one.host, device, one.place, one.groups,
                    one.peak_memory, one.cannot, rows, steps.sort_values("begin_ns"), span,
                    pd.DataFrame({"began": began(rest), "end_ns": rest["end_ns"].to_numpy()}),
                    one.one_clock, one.whole,
                    bool(events["phase"].isin(("forward", "backward")).any()), [file])


def _join(one: _Summary, other: _Summary) -> None:
    """Another part of the same rank. @throws DataError where both tell of the same steps: but for
    one, in which one of them ends"""
    both = set(one.steps["step"]) & set(other.steps["step"])
    if len(both) > 1 or (both and len(one.steps) == len(other.steps) == 1):
        raise DataError(f"{other.path}: tells of step {min(both)} of rank {one.rank}, as "
                        f"{one.path} does; valid: files of one run, whose ranks they say")
    one.worlds = {**other.worlds, **one.worlds}
    one.host, one.device = one.host or other.host, one.device or other.device
    one.place, one.groups = {**other.place, **one.place}, {**other.groups, **one.groups}
    one.peaks = {**other.peaks, **one.peaks}
    one.cannot += other.cannot
    one.rows = pd.concat([one.rows, other.rows], ignore_index=True)
    one.steps = pd.concat([one.steps, other.steps]).sort_values("begin_ns")
    one.span = (min(one.span[0], other.span[0]), max(one.span[1], other.span[1]))
    one.ends = pd.concat([one.ends, other.ends], ignore_index=True)
    one.one_clock &= other.one_clock
    one.whole &= other.whole
    one.passes |= other.passes
    one.files += other.files


def _world(found: Mapping[int, _Summary]) -> tuple[int, list[str]]:
    """How many ranks the run has, and sentences: what files say otherwise, and who is missing.

    @throws DataError where there is a rank that the run cannot have
    """
    told: dict[int, Path] = {}
    for one in found.values():
        told = {**one.worlds, **told}
    last = max(found)
    world = max(told, default=last + 1)
    if last >= world:
        raise DataError(f"{found[last].path}: is of rank {last}, but the files say that the run "
                        f"has {counted(world, 'rank')}; valid: files of one run")
    said = []
    if len(told) > 1:
        each = ", ".join(f"{one} ({path.name})" for one, path in sorted(told.items())[:FEW])
        said.append(f"Files do not agree how many ranks the run has: {each}; taken for {world}.")
    missing = tuple(rank for rank in range(world) if rank not in found)
    if missing:
        said.append(f"Of {counted(world, 'rank')} these have no trace: {ranks_of(missing)}.")
    return world, said


@dataclass(frozen=True)
class _Made:
    """The run that is made."""

    folder: Path
    inputs: Sequence[Path]
    files: list[tuple[Path, Source]]
    world: int
    notes: list[str]  # sentences about its files


@dataclass(frozen=True)
class _Shared:
    """What every rank's writing needs."""

    found: Mapping[int, _Summary]
    clock: Mapping[int, Clock]
    steps: list[int]
    edges: Mapping[int, np.ndarray]
    lengths: Mapping[int, list[int]]
    places: Mapping[int, Mapping[str, int]]
    of_group: Mapping[str, str]
    flow: Mapping[int, np.ndarray]  # by rank, of its communications in the order of its rows
    facts: Mapping[str, object]
    world: int
    folder: Path


def _write(
    found: dict[int, _Summary], run: _Made, sizes: Mapping[str, int] | None
) -> list[str]:
    """@returns sentences: what a step is, and what the files cannot tell"""
    ranks = list(found)
    for one in found.values():
        if one.steps.empty:  # all of it is one step
            one.steps = pd.DataFrame({"step": [0], "begin_ns": [one.span[0]],
                                      "end_ns": [one.span[1]], "lengths": [""]})
            one.cannot.append("Nothing says where a step begins: all counts as one step.")
    step = np.concatenate([_steps_of(one) for one in found.values()])
    rows = pd.concat([one.rows for one in found.values()], ignore_index=True)
    meeting = matched(rows, step)
    LOG.info("aligning the clocks of %d ranks", len(ranks))
    one_clock = all(one.one_clock for one in found.values())
    clock = {**{rank: Clock(known=one_clock) for rank in ranks},
             **({} if one_clock else clocks(rows, meeting))}
    clock[ranks[0]] = Clock()
    clock = {rank: one.over(found[rank].span) for rank, one in clock.items()}
    owner = rows["rank"].to_numpy()
    for name in ("begin_ns", "end_ns"):
        times = rows[name].to_numpy(np.int64, copy=True)
        for rank in ranks:
            times[owner == rank] = clock[rank].aligned(times[owner == rank])
        rows[name] = times
    of_steps = {rank: _aligned_steps(one, clock[rank]) for rank, one in found.items()}
    done = {rank: _done(one, clock[rank]) for rank, one in found.items()}
    when = same_steps(of_steps) if one_clock else windows(of_steps, done, rows, meeting, step)
    groups = {name: group for one in found.values() for name, group in one.groups.items()}
    of_group = layouts.dimensions(groups, rows)
    places = layouts.places(ranks, {rank: one.place for rank, one in found.items()}, groups,
                            of_group, rows, sizes)
    flow = np.where(meeting >= 0, meeting + 1, 0)
    documents = _lengths(found, when.steps, places)
    said = [*map(_sentence, run.notes), *_lacking(found),
            *_said(found, clock, len(documents), len(when.steps))]
    shared = _Shared(found, clock, when.steps, when.edges, documents, places,
                     of_group, {rank: flow[owner == rank] for rank in ranks},
                     _facts(run, places, clock, when.told, said, int(when.edges[ranks[0]][0]),
                            all(one.whole for one in found.values())),
                     run.world, run.folder)
    (run.folder / "trace").mkdir(parents=True)
    LOG.info("writing %d ranks", len(ranks))
    for _ in mapped(partial(_write_rank, shared), ranks, sum(len(o.ends) for o in found.values())):
        pass
    (run.folder / "experiment.yaml").write_text(str(shared.facts["config"]), encoding="utf-8")
    return [*said[: len(run.notes)], when.told, *said[len(run.notes) :]]


def _steps_of(one: _Summary) -> np.ndarray:
    return step_of(began(one.rows), one.steps)


def _aligned_steps(one: _Summary, clock: Clock) -> pd.DataFrame:
    return one.steps.assign(begin_ns=clock.aligned(one.steps["begin_ns"].to_numpy(np.int64)),
                            end_ns=clock.aligned(one.steps["end_ns"].to_numpy(np.int64)))


def _done(one: _Summary, clock: Clock) -> pd.Series:
    """By step: when all that was begun in it had ended, ns on the clock of all."""
    step = np.concatenate([step_of(one.ends["began"].to_numpy(), one.steps), _steps_of(one)])
    end = np.concatenate([one.ends["end_ns"].to_numpy(np.int64),
                          one.rows["end_ns"].to_numpy(np.int64)])
    return pd.Series(clock.aligned(end)).groupby(step).max()


def _lengths(
    found: Mapping[int, _Summary], steps: list[int], places: Mapping[int, Mapping[str, int]]
) -> dict[int, list[int]]:
    """By step: lengths of all documents, where the first rank of every replica says its own. The
    others of a replica have the same."""
    told: dict[int, list[list[int]]] = {}
    first = [one for rank, one in found.items()
             if not any(places[rank][which] for which in DIMENSIONS if which != "data")]
    for one in first:
        for number, text in one.steps[["step", "lengths"]].itertuples(index=False):
            if text:
                told.setdefault(int(number), []).append([int(n) for n in str(text).split(",")])
    return {step: sum(told[step], []) for step in steps
            if first and len(told.get(step, ())) == len(first)}


def _said(
    found: Mapping[int, _Summary], clock: Mapping[int, Clock], with_lengths: int, steps: int
) -> list[str]:
    """Sentences about what is not known.

    @param with_lengths  in how many of the steps lengths of documents are known
    """
    said = [*_of_clocks(clock), *_of_ranks(found)]
    if not with_lengths:
        said.append("The traces do not say how long documents were: a rank with longer ones may "
                    "look slow, unless its other work is as fast as usual.")
    elif with_lengths < steps:
        said.append(f"How long documents were is told of {with_lengths} of "
                    f"{counted(steps, 'step')}.")
    if len(said) > _MOST_SAID:
        more = counted(len(said) - _MOST_SAID, "more sentence")
        said = [*said[:_MOST_SAID], f"({more} of this kind.)"]
    return said


def _step_numbers(found: Mapping[int, _Summary]) -> dict[int, set[int]]:
    return {rank: set(one.steps["step"].tolist()) for rank, one in found.items()}


def _lacking(found: Mapping[int, _Summary]) -> Iterator[str]:
    """Steps that some ranks have no trace of, but for the first and the last, of which a record
    often has a part."""
    mine = _step_numbers(found)
    inner = sorted(set().union(*mine.values()))[1:-1]
    whose: dict[tuple[int, ...], list[int]] = {}
    for rank, steps in mine.items():
        whose.setdefault(tuple(step for step in inner if step not in steps), []).append(rank)
    for steps, ranks in whose.items():
        if steps:
            some = ", ".join(map(str, steps[:_FEW])) + (", ..." if len(steps) > _FEW else "")
            yield (f"{counted(len(steps), 'step')} left out, of which {ranks_named(tuple(ranks))} "
                   f"tells nothing: {some}.")


def _of_ranks(found: Mapping[int, _Summary]) -> Iterator[str]:
    """What their files cannot tell, once, with the ranks where it is not so of all."""
    whose: dict[str, list[int]] = {}
    for rank, one in found.items():
        passes = [] if one.passes else [_ONE_PASS]
        for line in dict.fromkeys(map(_sentence, [*one.cannot, *passes])):
            whose.setdefault(line, []).append(rank)
    for line, ranks in whose.items():
        yield line if len(ranks) == len(found) else f"{line[:-1]} ({ranks_named(tuple(ranks))})."


def _of_clocks(clock: Mapping[int, Clock]) -> Iterator[str]:
    apart = max((abs(one.offset_ns) for one in clock.values()), default=0)
    if apart > _APART_NS:
        yield (f"Clocks are {seconds(apart / 1e9)} apart: if these are files of two runs, nothing "
               "that is said of ranks beside others holds.")
    unknown = tuple(rank for rank, one in clock.items() if not one.known)
    if unknown and len(clock) > 1:
        yield (f"Nothing that {ranks_named(unknown)} did with others tells how far a clock is off: "
               "it is taken to be right.")
    drifting = tuple(rank for rank, one in clock.items()
                     if one.known and not one.drift_known and one.error_ns > _WORTH_NS)
    if drifting:
        counts = {clock[rank].meetings for rank in drifting}
        fewer = " or fewer" if len(counts) > 1 else ""
        yield (f"The drift of the clock of {ranks_named(drifting)} cannot be told from "
               f"{counted(max(counts), 'meeting')}{fewer} with others: all in all, times may be "
               f"off by up to {seconds(max(clock[rank].error_ns for rank in drifting) / 1e9)}.")


def _sentence(line: str) -> str:
    line = printable(line)
    return f"{line[:1].upper()}{line[1:]}" + ("" if line.endswith(".") else ".")


def _facts(
    run: _Made, places: Mapping[int, Mapping[str, int]], clock: Mapping[int, Clock], step: str,
    said: list[str], begin: int, whole: bool,
) -> dict[str, object]:
    names = sorted({source.name for _, source in run.files})
    sizes = {which: 1 + max(mine.get(which, 0) for mine in places.values())
             for which in layouts.DIMENSIONS}
    off = {rank: {"offset_ns": one.offset_ns, "drift_ppm": round(one.drift * 1e6, 3),
                  "residual_ns": round(one.residual_ns), "error_ns": round(one.error_ns)}
           for rank, one in clock.items()}
    config = {
        "name": printable(run.inputs[0].resolve().stem if run.inputs[0].is_file()
                          else run.inputs[0].resolve().name),
        "imported": {"from": names, "files": len(run.files), "step": step, "cannot_tell": said,
                     "whole": whole, "clocks": off},
        "parallel": sizes,
    }
    key = hashlib.sha256("\n".join(str(path.resolve()) for path, _ in run.files).encode())
    created = ""
    if begin > _SINCE_NS:  # ns since 1970: others count from when a machine was started
        created = datetime.fromtimestamp(begin / 1e9, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"run_id": key.hexdigest()[:16], "created": created,
            "config": yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=1 << 20)}


def _write_rank(shared: _Shared, rank: int) -> None:
    one, clock = shared.found[rank], shared.clock[rank]
    parts = []
    for file in one.files:
        with file.open("rb") as data:
            parts.append(pickle.load(data))  # noqa: S301 - which this program has just written
        file.unlink()
    events = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
    flow = np.zeros(len(events), np.int64)
    flow[np.flatnonzero(events["kind"].astype(object).isin(COMMUNICATION))] = shared.flow[rank]
    for name in ("begin_ns", "end_ns"):
        events[name] = clock.aligned(events[name].to_numpy(np.int64))
    launched = events["enqueued_ns"].to_numpy(np.int64)
    events["enqueued_ns"] = np.where(launched > 0, clock.aligned(launched), 0)
    edges = shared.edges[rank]
    lane = assembled(events, flow, shared.of_group, (int(edges[0]), int(edges[-1])), one.whole)
    hosts = [r for r, other in shared.found.items() if other.host == one.host and one.host]
    facts = RankFacts(
        str(shared.facts["run_id"]), str(shared.facts["created"]), str(shared.facts["config"]),
        rank, shared.world, hosts.index(rank) if rank in hosts else -1,
        printable(one.host), printable(one.device), shared.places[rank],
        clock.error_ns if clock.known else None)
    write_rank(shared.folder / "trace" / f"rank-{rank:05}.h5", facts, lane, shared.steps, edges,
               shared.lengths, one.peaks)

