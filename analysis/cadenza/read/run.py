# SPDX-License-Identifier: Apache-2.0
"""A run folder as tidy pandas frames. Times are nanoseconds on rank 0's clock."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from cadenza.read import clocks, frames
from cadenza.errors import DamagedError, DataError, UsageError
from cadenza.files import printable, read_text, read_yaml
from cadenza.notebook import facts_html
from cadenza.read.clocks import WrongClock, wrong_clocks
from cadenza.read.experiment import checked
from cadenza.read.machine import Machine, machine_of
from cadenza.read.rank_file import RankFile, text
from cadenza.units import with_units

_RANK_COLUMNS = ("rank", "host", "role", "local_rank", "data", "pipeline", "tensor", "context",
                 "server", "threads", "device", "peak_flops", "attention_kernel")

EVENTS_AT_ONCE = 8_000_000  # in memory: about 95 bytes each
_MOST = 2**63 - 1
_NAMED = 8  # runs of a folder


def of_step(events: pd.DataFrame, step: int) -> pd.DataFrame:
    """The rows of one step, numbered from 0."""
    return events[(events["step"] == step).to_numpy()].reset_index(drop=True)


def chosen(
    path: Path, wanted: Iterable[int] | None, present: Iterable[int], what: str
) -> list[int]:
    """The wanted ranks or steps (default: all that are present) in ascending order.

    @throws UsageError for one that the run does not have: an answer about the others would be
            mistaken for one about all that were wanted
    """
    there = sorted({int(number) for number in present})
    if wanted is None:
        return there
    found = sorted(set(wanted))
    missing = sorted(set(found) - set(there))
    if missing:
        valid = f"{there[0]} to {there[-1]}" if there else "none"
        raise UsageError(f"{path}: no {what} {missing[0]}; valid are {valid}")
    return found


@with_units
class Run:
    """What a run left behind.

    `warnings` says what is missing; `truncated` is true when the run did not end cleanly, and then
    everything here is of its complete steps.
    """

    def __init__(self, path: Path, whole: bool = False, keep: object = None) -> None:
        self.path, self._keep = path, keep  # a folder that lives as long as the run does
        if not path.exists():
            raise DataError(f"{path}: no such run folder")
        if not path.is_dir():
            raise DataError(f"{path}: not a run folder; pass the folder that holds trace/")
        found = rank_files(path)
        if not found:
            raise DataError(f"{path}: no trace in it ({_meant(path)})")
        files, damaged = _read_files(found, whole)
        self.files = {f.rank: f for f in sorted(files, key=lambda f: f.rank)}
        self.world = next(iter(self.files.values())).world
        self.warnings = [f"{error}; continuing without it" for error in list(damaged.values())[:3]]
        if len(damaged) > 3:
            more = f"{len(damaged) - 3} more rank files are damaged; continuing without them"
            self.warnings.append(f"{path}: {more}")
        self._check_files(set(damaged))

    def _check_files(self, damaged: set[int]) -> None:
        """@param damaged  ranks of which warnings have told already"""
        first = next(iter(self.files.values()))
        for file in self.files.values():
            if (file.run_id, file.world) != (first.run_id, first.world):
                raise DataError(f"{file.path}: belongs to another run than {first.path.name}")
        missing = [r for r in range(self.world) if r not in self.files and r not in damaged]
        if missing:
            few = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            self.warnings.append(
                f"{self.path}: {len(missing)} of {self.world} rank files missing (rank {few}); "
                "continuing with the others"
            )
        if self.truncated:
            ending = Counter(f.ending for f in self.files.values() if f.ending).most_common(1)[0][0]
            self.warnings.append(f"{self.path}: the run {ending}; showing its complete steps")
        dropped = sum(f.dropped_events for f in self.files.values())
        if dropped:
            self.warnings.append(
                f"{self.path}: {dropped} events did not fit the buffers and were not recorded"
            )

    @cached_property
    def wrong_clocks(self) -> list[WrongClock]:
        """Clocks that are off by more than their measurements say. All times here are corrected."""
        files = list(self.files.values())

        def events(step: int) -> pd.DataFrame:
            return frames.events_frame(files, [step], clocks.EVENT_COLUMNS)

        return wrong_clocks(files, self.ranks, events)

    @cached_property
    def _timed(self) -> list[RankFile]:
        """All files, with clocks that are corrected."""
        for one in self.wrong_clocks:
            self.files[one.rank].ahead_ns = one.ahead_ns
        return list(self.files.values())

    def _repr_html_(self) -> str:
        hosts = {file.info["host"] for file in self.files.values()}
        lines = [("producer", str(self.info["producer"])),
                 ("ranks", f"{len(self.files)} of {self.world}"),
                 ("hosts", str(len(hosts))),
                 ("steps", str(len(self.chosen_steps(None)))),
                 ("events", f"{self.event_count:,}")]
        return facts_html(self.name, str(self.path), lines, self.warnings)

    @property
    def name(self) -> str:
        """The experiment's, or the folder's where it has none."""
        return str(self.config.get("name", self.path.name))

    @property
    def truncated(self) -> bool:
        """Whether the run did not end cleanly."""
        return any(f.truncated for f in self.files.values())

    @property
    def event_count(self) -> int:
        """Events of complete steps, of all ranks; 0 for `--trace summary`."""
        return sum(f.committed for f in self.files.values())

    @cached_property
    def info(self) -> dict[str, str | int]:
        """Who made the run: producer, run_id, code_version, code_revision, build, seed and
        created_utc; what a trace does not say is ""."""
        found = next(iter(self.files.values())).attributes()
        return {name: _plain(value) for name, value in found.items()}

    def events(
        self,
        ranks: Iterable[int] | None = None,
        steps: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Timed operations that were committed with `steps`, ordered by rank and begin.

        @param ranks, steps  default: all
        @param columns       some of frames.EVENT_COLUMNS; default: all
        @throws UsageError for a rank, step or column that the run does not have
        """
        unknown = [name for name in columns or () if name not in frames.EVENT_COLUMNS]
        if unknown:
            valid = ", ".join(frames.EVENT_COLUMNS)
            raise UsageError(f"events have no column '{unknown[0]}'; valid are {valid}")
        wanted = None if steps is None else self.chosen_steps(steps)
        files = self._timed
        if ranks is not None:
            files = [self.files[rank] for rank in self.chosen_ranks(ranks)]
        return frames.events_frame(files, wanted, columns or frames.EVENT_COLUMNS)

    def chosen_ranks(self, ranks: Iterable[int] | None) -> list[int]:
        """These ranks, or all; a rank without a file is a UsageError."""
        return chosen(self.path, ranks, self.files, "rank")

    def chosen_steps(self, steps: Iterable[int] | None) -> list[int]:
        """These steps, or all that a rank completed; any other is a UsageError."""
        present = np.concatenate([file.steps["step"] for file in self.files.values()])
        return chosen(self.path, steps, np.unique(present), "complete step")

    def events_of_steps(
        self, steps: Iterable[int], columns: Sequence[str] | None = None
    ) -> Iterator[tuple[list[int], pd.DataFrame]]:
        """Several of `steps` at a time with the events of all of them, as many as fit into memory:
        opening hundreds of files takes longer than reading them. of_step() has those of one."""
        steps = list(steps)
        at_once = max(1, EVENTS_AT_ONCE * len(steps) // max(self.event_count, 1))
        for first in range(0, len(steps), at_once):
            batch = steps[first : first + at_once]
            yield batch, self.events(steps=batch, columns=columns)

    def steps(self) -> pd.DataFrame:
        """Complete steps, one row per rank and step."""
        return frames.steps_frame(self._timed)

    def ranks(self) -> pd.DataFrame:
        """Who took part: one row per rank file."""
        rows = []
        for file in self.files.values():
            row = {k: _plain(file.info[k]) for k in _RANK_COLUMNS}
            row["role"] = file.role
            row["truncated"] = file.truncated
            row["tail_events"] = file.tail_events
            row["writer_ns"] = file.writer_ns
            rows.append(row)
        return pd.DataFrame(rows)

    def start_up(self) -> pd.DataFrame:
        """rank, seconds: from when its process began to when its first step did, on its own clock;
        NaN in simulated runs. All begin the first step together, so what a rank has less than the
        others is by how much later it came."""
        rows = []
        for file in self.files.values():
            started, begin = int(file.info["started_ns"]), file.steps["begin_ns"][:1]
            known = started >= 0 and len(begin) > 0
            rows.append((file.rank, (int(begin[0]) - started) / 1e9 if known else np.nan))
        return pd.DataFrame(rows, columns=["rank", "seconds"])

    def memory(self) -> pd.DataFrame:
        """High-water marks: rank, step, kind (or `total`), peak_bytes."""
        return frames.highwater_frame(list(self.files.values()))

    def memory_samples(self) -> pd.DataFrame:
        """Memory over time: rank, step, time_ns, kind (or `host_rss`), bytes."""
        return frames.samples_frame(self._timed)

    def plans(self) -> pd.DataFrame:
        """Attention tasks of the forward plans, each in the file of the rank that computes it."""
        return frames.table_frame(list(self.files.values()), "/plan")

    def plan_summary(self) -> pd.DataFrame:
        """What each server was given: a row per step, tick, half, phase (forward, backward), stage
        and server, with tasks, messages_in, cost (FLOP), bytes_in, bytes_out,
        attend_seconds and receive_seconds (predicted)."""
        return frames.table_frame(list(self.files.values()), "/plan_summary")

    def positions(self) -> pd.DataFrame:
        """Losses by place in the document, a row per rank, step and bin: step, position (where the
        bin begins), targets, hits (targets that were the model's first choice), loss (sum)."""
        return frames.table_frame(list(self.files.values()), "/positions")

    def answers(self) -> pd.DataFrame:
        """Answers to questions of documents (source retrieval): step, hit (1: the model's first
        choice), length (of the document), fact and position (places in it where the answer is told
        and where it is asked for), loss. Empty for other sources."""
        return frames.table_frame(list(self.files.values()), "/answers")

    def recall(self) -> pd.DataFrame:
        """What sparse attention kept of the attention of sampled queries: step, layer (which the
        step sampled), distance (of query and key, where its class begins), kept and attention
        (to kept keys and to all; 1 is that of one query to all its keys), keys (by head, that have
        queries at this distance or further), unseen (those that none of these queries sees)."""
        return frames.table_frame(list(self.files.values()), "/recall")

    def clock(self) -> pd.DataFrame:
        """Measurements of the ranks' clocks: rank, time_ns, offset_ns, error_ns, phase."""
        return frames.clock_frame(list(self.files.values()))

    def metrics(self) -> pd.DataFrame:
        """metrics.jsonl, one row per step; empty where the run wrote none."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return pd.DataFrame(columns=["step"])
        lines = read_text(path).splitlines()
        rows = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                rows.append(_json_object(line))
            except ValueError as error:
                if number == len(lines):  # a killed run may leave half a line
                    break
                raise DataError(f"{path}:{number}: not a JSON object: {error}") from error
        return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["step"])

    @property
    def started(self) -> datetime | None:
        """When the run began (UTC), in either of ISO 8601's forms; None where no trace says it."""
        try:
            text = str(self.info["created_utc"]).replace("-", "").replace(":", "")
            return datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
        except ValueError:
            return None

    @cached_property
    def config(self) -> dict:
        """The resolved experiment."""
        path = self.path / "experiment.yaml"
        if path.exists():
            source, content = str(path), read_text(path)
        else:
            file = next(iter(self.files.values()))
            source, content = _meta_text(file, "config_yaml")
        return checked(source, read_yaml(source, content))

    @cached_property
    def machine(self) -> Machine | None:
        """What the links of the machine give, where the trace says it: simulated runs do."""
        source, content = _meta_text(next(iter(self.files.values())), "machine_yaml")
        try:
            return machine_of(read_yaml(source, content), self.config)
        except ValueError as error:
            raise DataError(f"{source}: not a machine file: {error}") from error


def holds_run(path: Path) -> bool:
    """Whether it is a folder with rank files."""
    return bool(rank_files(path))


def rank_files(path: Path) -> list[Path]:
    """The rank files of a run folder, in the order of their names."""
    return sorted(file for file in (path / "trace").glob("rank-*.h5")
                  if re.fullmatch(r"rank-\d{1,9}\.h5", file.name))


def _meant(path: Path) -> str:
    """What somebody may have meant who named a folder without a trace."""
    if (path / "sweep.yaml").exists():
        return f"it holds a sweep: cadenza-analyze sweep {path}"
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
    runs = [str(folder) for folder in folders if rank_files(folder)]
    if not runs:
        return "expected trace/rank-00000.h5 ..."
    more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    return f"it holds runs: {' '.join(runs[:_NAMED])}{more}"


def _read_files(paths: list[Path], whole: bool) -> tuple[list[RankFile], dict[int, DamagedError]]:
    """Those that can be read, and by rank what is wrong with the others."""
    files, damaged = [], {}
    for path in paths:
        try:
            file = RankFile(path)
            if path.stem != f"rank-{file.rank:05}":
                raise DamagedError(f"{path}: is a copy of the file of rank {file.rank}")
            if whole:
                file.read_whole()
            files.append(file)
        except DamagedError as error:
            damaged[int(path.stem.removeprefix("rank-"))] = error
    if not files:
        raise next(iter(damaged.values()))
    return files, damaged


def _meta_text(file: RankFile, name: str) -> tuple[str, str]:
    """Where a text of /meta lies, and the text."""
    raw = file.read_table(f"/meta/{name}")
    return f"{file.path}:/meta/{name}", raw.tobytes().decode("utf-8", "replace")


def _plain(value: object) -> str | int | float:
    """A value of HDF5 as one of Python's."""
    return value.item() if isinstance(value, np.number) else text(value)


def _json_object(line: str) -> dict:
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"found {type(value).__name__}")
    return {printable(key): _of_frame(one) for key, one in value.items()}


def _of_frame(value: object) -> object:
    """Numbers that a column holds; a step's values are nothing else."""
    if isinstance(value, int) and not -_MOST <= value <= _MOST:
        raise ValueError("found a number that no file of a run has")
    return str(value) if isinstance(value, list | dict) else value
