# SPDX-License-Identifier: Apache-2.0
"""What a picture of one step shows, before anything is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from cadenza.time import intervals
from cadenza.colours import MESSAGE_NAMES, PART_NAMES
from cadenza.errors import DataError
from cadenza.read.columns import one_of, rows_of
from cadenza.time.parts import rank_totals
from cadenza.time.pieces import PARTS
from cadenza.study import Study
from cadenza.time.typical import typical
from cadenza.words import role_name

LANES = ("work", "messages")
_COLUMNS = ["row", "lane", "label", "begin_ns", "end_ns", "what"]
_EVENT_COLUMNS = ["rank", "begin_ns", "end_ns", "category", "name", "phase", "microbatch", "layer"]


@dataclass
class Panel:
    """One run's step, ready to be drawn. Times in ns from the begin of the step.

    `bars`, in the order in which they are painted, has row (index into `labels`), lane (of LANES),
    label, begin_ns, end_ns and what (the operation; empty where several were merged).
    """

    title: str
    labels: list[str]
    bars: pd.DataFrame
    busy: list[float]
    duration_ns: int


def choose_step(studies: list[Study], step: int | None) -> int:
    """`step` if all runs completed it; else of their common steps the typical one of all runs."""
    if step is None:
        features = pd.concat([s.step_features for s in studies], axis=1, join="inner")
        if len(features):
            return typical(features)
        complete = set.intersection(*(set(study.step_times["step"]) for study in studies))
        if not complete:
            raise DataError("the runs have no complete step in common")
        return int(min(complete))
    for study in studies:
        study.chosen_steps([step])
    return step


def panel(
    study: Study, step: int, resolution_ns: float, chosen: list[int] | None = None,
    most: int | None = None,
) -> Panel:
    """Draws nothing: says what is to be drawn, at most one piece per lane and `resolution_ns`.

    @param chosen  ranks to show; default: all
    @param most    bars; where there are more, longer pieces are merged too, once
    """
    window = study.step_times.set_index("step").loc[step]
    begin, end = int(window["begin_ns"]), int(window["end_ns"])
    ranks = study.ranks
    if chosen is not None:
        ranks = ranks[ranks["rank"].isin(chosen)]
    events = _by_rank(study.step_events(step), ranks["rank"], _EVENT_COLUMNS)
    pieces = _by_rank(study.step_pieces(step), ranks["rank"])
    known = [(_names(events[rank]), _labelled(pieces[rank])) for rank in ranks["rank"]]
    bars = _all_bars(known, (begin, end), resolution_ns)
    if most is not None and len(bars) > most:
        bars = _all_bars(known, (begin, end), resolution_ns * len(bars) / most)
    busy = _busy_shares(study, step)
    return Panel(
        title=_title(study, step, (end - begin) / 1e9),
        labels=[
            f"rank {rank} · {role_name(role)}"
            for rank, role in ranks[["rank", "role"]].itertuples(index=False)
        ],
        bars=bars,
        busy=[float(busy.get(rank, np.nan)) for rank in ranks["rank"]],
        duration_ns=end - begin,
    )


def _all_bars(
    known: list[tuple[pd.DataFrame, tuple[pd.DataFrame, pd.DataFrame]]],
    window: tuple[int, int],
    resolution_ns: float,
) -> pd.DataFrame:
    """Panel.bars, of _names() and _labelled() pieces of each rank."""
    bars = []
    for row, (names, of_lanes) in enumerate(known):
        whole = (row, LANES[0], PART_NAMES["other"], 0, window[1] - window[0], "no event")
        bars.append(pd.DataFrame([whole], columns=_COLUMNS))
        for lane, pieces in zip(LANES, of_lanes, strict=True):
            bars.append(_bars(pieces, names, window, resolution_ns).assign(row=row, lane=lane))
    return pd.concat(bars, ignore_index=True)[_COLUMNS]


def _by_rank(
    frame: pd.DataFrame, ranks: pd.Series, columns: list[str] | None = None
) -> dict[int, pd.DataFrame]:
    """The rows of each of `ranks`, in one pass over those of all."""
    rows = np.flatnonzero(np.isin(frame["rank"], ranks))
    frame = rows_of(frame, rows, list(frame) if columns is None else columns)
    return dict.fromkeys(ranks, frame[:0]) | dict(list(frame.groupby("rank")))


def _labelled(pieces: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Pieces of the lane of work, where a nanosecond has one part, and messages under way."""
    flight = pieces["in_flight"].to_numpy()
    work, messages = _one_at_a_time(pieces[~flight]), pieces[flight]
    return (
        work.assign(label=_renamed(work["part"], PART_NAMES)),
        messages.assign(label=_renamed(messages["category"], MESSAGE_NAMES)),
    )


def _one_at_a_time(pieces: pd.DataFrame) -> pd.DataFrame:
    """The pieces of a rank without what time_parts() counts as another part."""
    covered, found = intervals.EMPTY, [pieces[:0]]
    for part in PARTS[:-1]:
        mine = pieces[one_of(pieces["part"], part)]
        pairs = intervals.make(mine["begin_ns"], mine["end_ns"])
        left, owner = intervals.outside(pairs, covered)
        found.append(mine.iloc[owner].assign(begin_ns=left[:, 0], end_ns=left[:, 1]))
        covered = intervals.union(covered, pairs)
    return pd.concat(found, ignore_index=True)


def _renamed(values: pd.Series, names: dict[str, str]) -> np.ndarray:
    """Categories by other names."""
    known = np.array([names.get(name) for name in values.cat.categories], object)
    return known[values.cat.codes.to_numpy()]


def _bars(
    pieces: pd.DataFrame, names: pd.DataFrame, window: tuple[int, int], resolution_ns: float
) -> pd.DataFrame:
    """Long pieces as they are, short ones merged: label, begin_ns, end_ns, what."""
    begin, end = window
    first, last = (pieces[name].to_numpy() for name in ("begin_ns", "end_ns"))
    inside = np.flatnonzero((last > begin) & (first < end))
    pieces = rows_of(pieces, inside, ["label", "begin_ns", "end_ns"])
    for name in ("begin_ns", "end_ns"):
        pieces[name] = np.clip(pieces[name].to_numpy(), begin, end)
    first, last = (pieces[name].to_numpy() for name in ("begin_ns", "end_ns"))
    long = last - first >= resolution_ns
    kept = np.flatnonzero(long)
    kept = pieces.iloc[kept[np.argsort(first[kept], kind="stable")]]
    kept = kept.assign(what=_what(kept, names))
    between, _ = intervals.outside(
        intervals.make([begin], [end]), intervals.union(intervals.make(first[long], last[long])))
    bars = pd.concat([_merged(pieces[~long], _columns(between, resolution_ns)), kept],
                     ignore_index=True)
    for name in ("begin_ns", "end_ns"):
        bars[name] = np.clip(bars[name].to_numpy(), begin, end) - begin
    return bars


def _columns(gaps: np.ndarray, resolution_ns: float) -> np.ndarray:
    """Intervals cut into columns of at most `resolution_ns`: (n, 2)."""
    count = np.ceil((gaps[:, 1] - gaps[:, 0]) / resolution_ns).astype(np.int64)
    owner = np.repeat(np.arange(len(gaps)), count)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    begins = gaps[owner, 0] + (place * resolution_ns).astype(np.int64)
    ends = np.minimum(gaps[owner, 0] + ((place + 1) * resolution_ns).astype(np.int64),
                      gaps[owner, 1])
    return intervals.make(begins, np.where(place + 1 == count[owner], gaps[owner, 1], ends))


def _merged(pieces: pd.DataFrame, columns: np.ndarray) -> pd.DataFrame:
    """Runs of columns of one label each: that of which most is still to be drawn, so that over many
    columns every label has its share, however short its pieces are."""
    code, labels = pd.factorize(pieces["label"])
    if not len(labels) or not len(columns):
        return pd.DataFrame({"label": [], "begin_ns": [], "end_ns": [], "what": []})
    pairs = intervals.make(pieces["begin_ns"].to_numpy(), pieces["end_ns"].to_numpy())
    covered = np.stack([
        intervals.covered_within(intervals.union(pairs[code == one]), columns[:, 0], columns[:, 1])
        for one in range(len(labels))])
    kind = _in_shares(covered, columns[:, 1] - columns[:, 0])
    apart = (np.diff(kind) != 0) | (columns[1:, 0] != columns[:-1, 1])
    change = np.flatnonzero(apart) + 1
    starts, ends = np.append(0, change), np.append(change, len(kind)) - 1
    filled = kind[starts] >= 0
    starts, ends = starts[filled], ends[filled]
    return pd.DataFrame({
        "label": [labels[k] for k in kind[starts]],
        "begin_ns": columns[starts, 0], "end_ns": columns[ends, 1], "what": "",
    })


def _in_shares(covered: np.ndarray, width: np.ndarray) -> np.ndarray:
    """A label for each column, -1: none, as an error diffusion has it (Floyd and Steinberg, 1976).

    @param covered  ns of each label in each column: (labels, columns)
    """
    amounts = np.vstack([covered, np.maximum(width - covered.sum(axis=0), 0)])
    owed, chosen = [0.0] * len(amounts), []
    for wide, column in zip(width.tolist(), amounts.T.tolist(), strict=True):
        owed = [before + more for before, more in zip(owed, column, strict=True)]
        best = max(range(len(owed)), key=owed.__getitem__)
        owed[best] -= wide
        chosen.append(best)
    chosen = np.array(chosen)
    return np.where(chosen == len(covered), -1, chosen)


def _names(events: pd.DataFrame) -> pd.DataFrame:
    """Events in the order of their begin, with what a reader wants to know of them."""
    rows = np.lexsort((-events["end_ns"].to_numpy(), events["begin_ns"].to_numpy()))
    return rows_of(events, rows, ["begin_ns", "end_ns", "name", "phase", "microbatch", "layer"])


def _what(pieces: pd.DataFrame, names: pd.DataFrame) -> list[str]:
    """Of each piece the event that began last before it and holds it, as text."""
    if names.empty:
        return [""] * len(pieces)
    last = np.searchsorted(names["begin_ns"].to_numpy(), pieces["begin_ns"].to_numpy(), "right") - 1
    last = np.maximum(last, 0)
    holds = names["end_ns"].to_numpy()[last] >= pieces["end_ns"].to_numpy()
    columns = ("name", "phase", "microbatch", "layer")
    found = [np.asarray(names[column].array.take(last)).tolist() for column in columns]
    rows = zip(*found, holds.tolist(), strict=True)
    return [_text(*event) if held else "" for *event, held in rows]


@lru_cache(maxsize=4096)
def _text(name: str, phase: str, microbatch: int, layer: int) -> str:
    parts = [f"{name} · {phase}"]
    if microbatch >= 0:
        parts.append(f"microbatch {microbatch}")
    if layer >= 0:
        parts.append(f"layer {layer}")
    return " · ".join(parts)


def _busy_shares(study: Study, step: int) -> pd.Series:
    mine = study.parts[study.parts["step"] == step]
    return rank_totals(mine).set_index("rank")["busy_share"]


def _title(study: Study, step: int, seconds: float) -> str:
    config = study.run.config
    placement = config.get("attention", {}).get("placement")
    parts = [study.run.name, f"step {step}", f"{seconds:.3f} s"]
    if placement:
        parts.insert(1, f"placement {placement}")
    imbalance = study.imbalance.set_index("step")["imbalance"].get(step, np.nan)
    if np.isfinite(imbalance):
        parts.append(f"attention imbalance {imbalance:.2f}")
    return "  ·  ".join(parts)
