# SPDX-License-Identifier: Apache-2.0
"""Traces of ByteDance's StragglerAnalysis (arXiv 2505.05713): one parquet file of a job.

A row is an operation of a worker: a computation of one microbatch, a message between stages, a
collective or a part of the update. Times are seconds since the step began (float32), on clocks that
are aligned already. Of a tensor group one rank is recorded, so numbers of ranks may have holes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from cadenza.errors import DataError
from cadenza.files import printable
from cadenza.prepare.documents import check_file
from cadenza.prepare.packages import package
from cadenza.sources.columnar import columns_part
from cadenza.sources.neutral import (
    COLLECTIVE, COLUMNS, DENSE, HOST, NO_LENGTHS, OPTIMIZER, OTHER, PAUSE, RECEIVE, SEND, STEP,
    Lengths, RankTrace, Source, frame,
)
from cadenza.words import counted, shortened

_MOST_ROWS = 1 << 24  # in memory at once
_MOST_SECONDS = 1e8  # of all steps
_MOST_START = 1e11  # s: also of a clock that counts from 1970
_NAMED = 120  # characters of names and messages
_COUNTS = {"dp_rank": 0, "stage": 0, "rank": 0, "step": 0, "seq_id": -1, "mc": -1, "mb_id": -1,
           "gmc": -1}  # least values
_SECONDS = ("start_ts", "duration")
_CANNOT = [
    "A computation is one row for a whole microbatch: its kernels are not recorded.",
    "Times are those within a step: each step is set to begin where the one before it ended, "
    "whatever lay between.",
    "What ranks do or wait for between a step's last backward pass and its first sum is not "
    "recorded: slowdown and verdicts leave it out, other replays keep it as it is.",
]


@dataclass(frozen=True)
class _Operation:
    kind: str
    phase: str
    stream: str
    group: str = ""  # of a collective
    to: int = 0  # of a message: how many stages further the other end is


# By `optype`.
_OPERATIONS = {
    "forward-compute": _Operation(DENSE, "forward", "compute"),
    "backward-compute": _Operation(DENSE, "backward", "compute"),
    "optimizer": _Operation(OPTIMIZER, "optimizer", "compute"),
    "forward-send": _Operation(SEND, "forward", "forward-send", to=1),
    "forward-recv": _Operation(RECEIVE, "forward", "forward-recv", to=-1),
    "backward-send": _Operation(SEND, "backward", "backward-send", to=-1),
    "backward-recv": _Operation(RECEIVE, "backward", "backward-recv", to=1),
    "params-all-gather": _Operation(COLLECTIVE, "forward", "collectives", "data"),
    "grads-reduce-scatter": _Operation(COLLECTIVE, "optimizer", "collectives", "data"),
    "separate-grads-all-reduce": _Operation(COLLECTIVE, "optimizer", "collectives", "data"),
    "layernorm-grads-all-reduce": _Operation(COLLECTIVE, "optimizer", "collectives", "tensor"),
    "embedding-grads-all-reduce": _Operation(COLLECTIVE, "optimizer", "collectives", "embedding"),
    "optimizer-clip-main-grad": _Operation(COLLECTIVE, "optimizer", "collectives", "world"),
    "gc": _Operation(PAUSE, "other", HOST),
}


def claims(path: Path) -> bool:
    """Whether its columns are those of such a trace."""
    if path.suffix != ".parquet" or not path.is_file():
        return False
    columns = columns_part(path) or b""
    return all(name in columns for name in (b"dp_rank", b"optype", b"start_ts", b"gmc"))


def read(path: Path, _: Lengths = NO_LENGTHS) -> list[RankTrace]:
    """@throws DataError for what is no such trace, or a damaged one"""
    rows = _table(path)
    place = _places(path, rows)
    rows, cut = _whole_steps(path, rows, len(place))
    rows, unmatched = _with_partners(_with_times(path, rows), place)
    cannot = [*_CANNOT]
    if cut:
        cannot.append(f"{counted(cut, 'step')} left out: not recorded on all ranks.")
    unknown = sorted(set(rows["optype"]) - set(_OPERATIONS))
    if unknown:
        names = printable(shortened(", ".join(unknown), _NAMED))
        cannot.append(f"Operations of unknown type count as other computation: {names}.")
    if unmatched:
        cannot.append(f"{counted(unmatched, 'message')} of unknown microbatch: the rank has more "
                      "or fewer of them than computations.")
    ranks = place["rank"].to_numpy()
    if int(ranks[-1]) >= len(ranks):
        cannot.append("Of ranks that share a place, as of a tensor group, one is recorded.")
    groups = _groups(place)
    events = pd.concat([_steps(rows), _events(rows, groups)]).sort_values("rank", kind="stable")
    events = events.astype({name: of for name, (of, _) in COLUMNS.items() if of == "category"})
    bounds = np.searchsorted(events["rank"].to_numpy(), [*ranks, int(ranks[-1]) + 1])
    return [RankTrace(int(one.rank), 0, events.iloc[low:high].reset_index(drop=True),
                      place={"data": int(one.dp_rank), "pipeline": int(one.stage)},
                      groups={name: ("pipeline" if name.startswith("embedding") else
                                     name.partition(" ")[0], members)
                              for name, members in groups.items() if one.rank in members},
                      cannot=cannot, one_clock=True, whole=False)
            for one, low, high in zip(place.itertuples(), bounds[:-1], bounds[1:], strict=True)]


STRAGGLER_ANALYSIS = Source("straggler_analysis", "ByteDance's StragglerAnalysis (trace-*.parquet)",
                            claims, read)


def _table(path: Path) -> pd.DataFrame:
    """The columns that are needed, checked: optype (text), numbers as int64 and float64."""
    rows = _read(path)
    types = rows["optype"]
    if types.isna().any():
        raise DataError(f"{path}: row {int(types.isna().argmax())} has no optype")
    for name, least in _COUNTS.items():
        values = rows[name].to_numpy()
        wrong = ~((values >= least) & (values < 2**31) & (values == np.floor(values)))
        _refuse(path, name, values, wrong, f"whole numbers from {least} to {2**31 - 1}")
    start, duration = (rows[name].to_numpy() for name in _SECONDS)
    _refuse(path, "start_ts", start, ~(np.abs(start) < _MOST_START), "seconds")
    _refuse(path, "duration", duration, ~((duration >= 0) & (duration <= _MOST_SECONDS)),
            "seconds, 0 or more")
    return rows.astype(dict.fromkeys(_COUNTS, np.int64))


def _read(path: Path) -> pd.DataFrame:
    """optype (text or None), other columns as float64."""
    check_file(path)
    arrow, parquet = package("pyarrow"), package("pyarrow.parquet")
    numbers = (*_COUNTS, *_SECONDS)
    try:
        with parquet.ParquetFile(path) as file:
            for name in ("optype", *numbers):
                if file.schema_arrow.names.count(name) != 1:
                    raise DataError(f"{path}: has not one column {name}; valid: a trace of "
                                    "StragglerAnalysis")
            if not 0 < file.metadata.num_rows <= _MOST_ROWS:
                raise DataError(f"{path}: has {file.metadata.num_rows} rows; valid: 1 to "
                                f"{_MOST_ROWS}")
            table = file.read(["optype", *numbers], use_threads=False)
        types = table.column("optype").cast(arrow.string()).to_pylist()
        made = {name: table.column(name).cast(arrow.float64()).to_numpy() for name in numbers}
    except (OSError, arrow.ArrowException, UnicodeDecodeError) as error:
        why = shortened(printable(str(error).partition("\n")[0]), _NAMED)
        raise DataError(f"{path}: not a parquet file of numbers, or damaged: {why}") from error
    return pd.DataFrame({"optype": pd.Series(types, dtype=object), **made})


def _refuse(path: Path, name: str, values: np.ndarray, wrong: np.ndarray, valid: str) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"{path}: row {row}: {name} is {values[row]:g}; valid: {valid}")


def _places(path: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """rank, dp_rank, stage: sorted, each rank and each place once."""
    place = rows[["rank", "dp_rank", "stage"]].drop_duplicates().sort_values("rank")
    for names in (["rank"], ["dp_rank", "stage"]):
        twice = place[place.duplicated(names)]
        if len(twice):
            one = twice.iloc[0]
            raise DataError(f"{path}: rank {one['rank']}, dp_rank {one['dp_rank']}, stage "
                            f"{one['stage']}: {' and '.join(names)} of others, too; valid: one "
                            "rank in each place")
    return place.reset_index(drop=True)


def _whole_steps(path: Path, rows: pd.DataFrame, ranks: int) -> tuple[pd.DataFrame, int]:
    """Rows of the steps that all ranks recorded, and the number of other steps."""
    whole = rows.groupby("step")["rank"].nunique() == ranks
    if not whole.any():
        raise DataError(f"{path}: no step is recorded on all of its {ranks} ranks")
    return rows[rows["step"].map(whole)], int((~whole).sum())


def _with_times(path: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """With begin_ns, end_ns, step_begin_ns, step_end_ns and `turn` (number of the step from 0), in
    the order of time on each rank."""
    begin = rows["start_ts"] - rows.groupby("step")["start_ts"].transform("min")
    span = (begin + rows["duration"]).groupby(rows["step"]).max()
    if not span.sum() <= _MOST_SECONDS:
        raise DataError(f"{path}: the steps take {span.sum():g} s; valid: at most "
                        f"{_MOST_SECONDS:g} s")
    ends = np.cumsum(np.rint(span * 1e9).astype(np.int64))
    origin = rows["step"].map(ends - np.rint(span * 1e9).astype(np.int64))
    return rows.assign(
        begin_ns=origin + np.rint(begin * 1e9).astype(np.int64),
        end_ns=origin + np.rint((begin + rows["duration"]) * 1e9).astype(np.int64),
        step_begin_ns=origin, step_end_ns=rows["step"].map(ends),
        turn=np.searchsorted(span.index, rows["step"]),
    ).sort_values(["step", "rank", "begin_ns", "seq_id"], kind="stable", ignore_index=True)


def _with_partners(rows: pd.DataFrame, place: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """With peer, microbatch and `number`, which is that of a message or collective in its step, the
    same on all of its ranks.

    @returns the rows, without messages beyond the ends of the model, which the profiler records
             though none was sent; and how many messages have no known microbatch
    """
    rows = rows.assign(
        peer=-1, microbatch=rows["mb_id"], edge=-1, what=rows["optype"],
        number=rows.groupby(["step", "rank", "optype"], sort=False).cumcount())
    known, gone = np.ones(len(rows), bool), np.zeros(len(rows), bool)
    chunks, stages = int(rows["gmc"].max()) + 1, int(place["stage"].max()) + 1
    of_place = place.set_index(["dp_rank", "stage"])["rank"]
    for optype, operation in _OPERATIONS.items():
        mine = rows[rows["optype"] == optype]
        if not operation.to or mine.empty:
            continue
        computed = rows[rows["optype"] == f"{operation.phase}-compute"]
        found = _matched(mine, computed, computed["gmc"] + operation.to, chunks)
        at = mine.index
        there = pd.MultiIndex.from_arrays(
            [mine["dp_rank"], (mine["stage"] + operation.to) % stages])
        rows.loc[at, "peer"] = of_place.reindex(there).fillna(-1).to_numpy(np.int64)
        rows.loc[at, "what"] = operation.phase
        rows.loc[at, ["microbatch", "edge"]] = found[["microbatch", "edge"]].to_numpy()
        known[at], gone[at] = found["known"], found["gone"]
        rows.loc[at, "number"] = found["microbatch"].to_numpy()
    code = rows.groupby(["what", "edge", "number"], sort=False).ngroup()
    rows["number"] = np.where(known, rows["turn"] * (code.max() + 1) + code, -1)
    return rows[~gone].reset_index(drop=True), int((~known & ~gone).sum())


def _matched(
    mine: pd.DataFrame, computed: pd.DataFrame, other: pd.Series, chunks: int
) -> pd.DataFrame:
    """Of messages, in their order: microbatch, edge (the lower of the chunks of the model that it
    connects), known, gone (there is no chunk at the other end).

    A message belongs to a computation: the k-th to the k-th that has a neighbour or, where there
    are as many messages as computations, to the k-th of all.

    @param computed  of the same phase
    @param other     of each the chunk at the other end
    """
    by = ["step", "rank"]
    inside = ((other >= 0) & (other < chunks)).to_numpy()
    computed = computed.assign(edge=np.minimum(other, computed["gmc"]), inside=inside)
    order = computed.groupby(by)["inside"]
    computed = computed.assign(of_all=order.cumcount(), of_inside=order.cumsum() - 1)
    counts = order.agg(["size", "sum"]).reindex(pd.MultiIndex.from_frame(mine[by])).fillna(0)
    count = mine.groupby(by)["optype"].transform("size").to_numpy()
    exact, all_ = count == counts["sum"].to_numpy(), count == counts["size"].to_numpy()
    mine = mine[by].assign(turn=mine.groupby(by).cumcount())
    columns = [*by, "mb_id", "edge", "inside"]
    kept = computed[inside]
    found = [mine.merge(of[[*columns, turn]], "left", left_on=[*by, "turn"], right_on=[*by, turn])
             for of, turn in ((kept, "of_inside"), (computed, "of_all"))]
    known = exact | all_

    def chosen(name: str, default: int) -> np.ndarray:
        values = np.where(exact, found[0][name].fillna(default), found[1][name].fillna(default))
        return np.where(known, values, default).astype(np.int64)

    return pd.DataFrame({"microbatch": chosen("mb_id", -1), "edge": chosen("edge", -1),
                         "known": known, "gone": known & (chosen("inside", 0) == 0)})


def _groups(place: pd.DataFrame) -> dict[str, tuple[int, ...]]:
    """World ranks of each process group. Who else is in a tensor group is not recorded."""
    found = {f"data {stage}": tuple(members.tolist())
             for stage, members in place.groupby("stage")["rank"]}
    ends = place[place["stage"].isin([place["stage"].min(), place["stage"].max()])]
    found |= {f"embedding {replica}": tuple(members.tolist())
              for replica, members in ends.groupby("dp_rank")["rank"]}
    return {**found, "world": tuple(place["rank"].tolist())}


def _events(rows: pd.DataFrame, groups: dict[str, tuple[int, ...]]) -> pd.DataFrame:
    other = _Operation(OTHER, "other", "other")
    types = {name: _OPERATIONS.get(name, other) for name in rows["optype"].unique()}

    def of_type(name: str) -> pd.Series:
        return rows["optype"].map({key: getattr(one, name) for key, one in types.items()})

    kind, group = of_type("kind"), of_type("group")
    which = np.select([group == "data", group == "embedding", group == "tensor"],
                      [rows["stage"], rows["dp_rank"], rows["rank"]], -1)
    names = pd.Series(which).astype(str).radd(group + " ").where(which >= 0, group)
    members = {name: ",".join(map(str, ranks)) for name, ranks in groups.items()}
    meets = kind.isin([COLLECTIVE, SEND, RECEIVE]).to_numpy()
    several = rows["mc"].max() > 0
    return frame({
        "rank": rows["rank"], "step": rows["step"], "begin_ns": rows["begin_ns"],
        "end_ns": rows["end_ns"], "kind": kind, "phase": of_type("phase"), "name": rows["optype"],
        "stream": of_type("stream"), "group": names, "members": names.map(members).fillna(""),
        "sequence": np.where(meets, rows["number"], -1), "peer": rows["peer"],
        "microbatch": rows["microbatch"], "layer": rows["mc"] if several else -1,
    }, len(rows))


def _steps(rows: pd.DataFrame) -> pd.DataFrame:
    first = rows.drop_duplicates(["rank", "step"])
    return frame({"rank": first["rank"], "step": first["step"], "begin_ns": first["step_begin_ns"],
                  "end_ns": first["step_end_ns"], "kind": STEP, "name": STEP}, len(first))
