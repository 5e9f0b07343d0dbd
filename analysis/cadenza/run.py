# SPDX-License-Identifier: Apache-2.0
"""A run folder as tidy pandas frames. Times are nanoseconds on rank 0's clock."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from cadenza.errors import DataError
from cadenza.rank_file import RankFile, text
from cadenza.schema import CATEGORIES, FLAG_NON_BLOCKING, MEMORY_KINDS, PHASES, ROLES

_STEP_NAMES = {"t_begin": "begin_ns", "t_end": "end_ns", "docs": "documents",
               "sum_len2": "sum_length2", "grad_norm": "gradient_norm", "lr": "learning_rate",
               "bytes_recv": "bytes_received"}  # fmt: skip
_RANK_COLUMNS = ("rank", "host", "role", "local_rank", "data", "pipeline", "tensor", "context",
                 "server", "threads", "device", "peak_flops")  # fmt: skip


def open_run(path: str | Path) -> Run:
    """Opens a run folder. Only headers are read here; frames are read when asked for."""
    return Run(Path(path))


class Run:
    """What a run left behind.

    `warnings` says what is missing; `truncated` is true when the run did not end cleanly, and then
    everything here is of its complete steps.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise DataError(f"{path}: no such run folder")
        if not path.is_dir():
            raise DataError(f"{path}: not a run folder; pass the folder that holds trace/")
        found = sorted(
            f for f in (path / "trace").glob("rank-*.h5") if re.fullmatch(r"rank-\d+\.h5", f.name)
        )
        if not found:
            raise DataError(f"{path}: no trace in it (expected trace/rank-00000.h5 ...)")
        self.files = {f.rank: f for f in map(RankFile, found)}
        self.world = next(iter(self.files.values())).world
        self.warnings: list[str] = []
        self._check_files()

    def _check_files(self) -> None:
        first = next(iter(self.files.values()))
        for file in self.files.values():
            if (file.run_id, file.world) != (first.run_id, first.world):
                raise DataError(f"{file.path}: belongs to another run than {first.path.name}")
        missing = [r for r in range(self.world) if r not in self.files]
        if missing:
            few = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            self.warnings.append(
                f"{self.path}: {len(missing)} of {self.world} rank files missing (rank {few}); "
                "going on with the others"
            )
        if self.truncated:
            self.warnings.append(
                f"{self.path}: the run did not end cleanly; showing its complete steps"
            )
        dropped = sum(f.dropped_events for f in self.files.values())
        if dropped:
            self.warnings.append(
                f"{self.path}: {dropped} events did not fit the buffers and were not recorded"
            )

    @property
    def truncated(self) -> bool:
        return any(f.truncated for f in self.files.values())

    def _chosen(self, ranks: Iterable[int] | None) -> list[RankFile]:
        if ranks is None:
            return list(self.files.values())
        return [self.files[r] for r in sorted(set(ranks)) if r in self.files]

    def events(
        self, ranks: Iterable[int] | None = None, steps: Iterable[int] | None = None
    ) -> pd.DataFrame:
        """Timed operations that were committed with `steps`, ordered by rank and begin."""
        wanted = None if steps is None else sorted(set(steps))
        files = self._chosen(ranks)
        return _concat([_events_frame(f, wanted) for f in files], by=["rank", "begin_ns"])

    def steps(self) -> pd.DataFrame:
        """Complete steps, one row per rank and step."""
        frames = []
        for file in self.files.values():
            frame = pd.DataFrame(file.steps).rename(columns=_STEP_NAMES)
            frame["step"] = frame["step"].astype(np.int64)
            for column in ("begin_ns", "end_ns"):
                frame[column] = file.to_global(frame[column].to_numpy())
            frame.insert(0, "rank", file.rank)
            frames.append(frame)
        return _concat(frames, by=["rank", "step"])

    def ranks(self) -> pd.DataFrame:
        """Who took part: one row per rank file."""
        rows = []
        for file in self.files.values():
            row = {k: file.info[k] for k in _RANK_COLUMNS if k in file.info}
            row = {k: text(v) if isinstance(v, bytes) else v.item() for k, v in row.items()}
            row["role"] = _name(ROLES, int(row.get("role", 0)), file, "role")
            row["truncated"] = file.truncated
            row["tail_events"] = file.tail_events
            rows.append(row)
        return pd.DataFrame(rows)

    def memory(self) -> pd.DataFrame:
        """High-water marks: rank, step, kind (or `total`), peak_bytes."""
        return self._per_rank("/memory/highwater", _highwater_frame)

    def memory_samples(self) -> pd.DataFrame:
        """Memory over time: rank, step, time_ns, kind (or `host_rss`), bytes."""
        return self._per_rank("/memory/samples", _samples_frame)

    def plans(self) -> pd.DataFrame:
        """Attention tasks as placed. Every rank holds the same plan, so equal copies count once."""
        found = [f.read_table("/plan") for f in self.files.values()]
        tables = [t for t in found if t is not None and len(t)]
        if not tables:
            return pd.DataFrame(columns=["step", "tick", "doc", "home", "server", "stage", "cost"])
        same = all(np.array_equal(tables[0], t) for t in tables[1:])
        return pd.DataFrame(np.concatenate(tables[:1] if same else tables))

    def metrics(self) -> pd.DataFrame:
        """metrics.jsonl, one row per step; empty where the run wrote none."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return pd.DataFrame(columns=["step"])
        lines = _read_text(path).splitlines()
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

    @cached_property
    def config(self) -> dict:
        """The resolved experiment."""
        path = self.path / "experiment.yaml"
        if path.exists():
            source, content = str(path), _read_text(path)
        else:
            file = next(iter(self.files.values()))
            source = f"{file.path}:/meta/config_yaml"
            raw = file.read_table("/meta/config_yaml")
            content = "" if raw is None else raw.tobytes().decode("utf-8", "replace")
        try:
            config = yaml.safe_load(content) or {}
        except yaml.YAMLError as error:
            raise DataError(f"{source}: not YAML: {str(error).splitlines()[0]}") from error
        if not isinstance(config, dict):
            raise DataError(f"{source}: found a {type(config).__name__}, expected a map of keys")
        return config

    def _per_rank(
        self, table: str, make: Callable[[RankFile, np.ndarray], pd.DataFrame]
    ) -> pd.DataFrame:
        frames = []
        for file in self.files.values():
            rows = file.read_table(table)
            if rows is not None:
                frames.append(make(file, rows))
        return _concat(frames, by=[])


def _concat(frames: list[pd.DataFrame], by: Sequence[str]) -> pd.DataFrame:
    if not frames:
        return pd.DataFrame(columns=["rank", "step"])
    frame = pd.concat(frames, ignore_index=True)
    return frame.sort_values(list(by), kind="stable", ignore_index=True) if by else frame


def _name(names: Sequence[str], code: int, file: RankFile, what: str) -> str:
    if not 0 <= code < len(names):
        raise DataError(f"{file.path}: unknown {what} {code}; valid are 0 to {len(names) - 1}")
    return names[code]


def _categorical(codes: np.ndarray, names: Sequence[str], file: RankFile, what: str):
    if len(codes):
        _name(names, int(codes.max()), file, what)
    return pd.Categorical.from_codes(codes.astype(np.int16), categories=pd.Index(names))


def _events_frame(file: RankFile, steps: Sequence[int] | None) -> pd.DataFrame:
    rows, strings = file.read_events(steps)
    # Equal strings would not be categories: a name is looked up by its first row.
    names = list(dict.fromkeys(strings or [""]))
    position = {name: index for index, name in enumerate(names)}
    lookup = np.array([position[name] for name in strings or [""]])
    ids = np.minimum(rows["name_id"].astype(np.int64), len(lookup) - 1)
    return pd.DataFrame(
        {
            "rank": np.full(len(rows), file.rank, dtype=np.int32),
            "step": rows["step"].astype(np.int64),
            "begin_ns": file.to_global(rows["t_begin_ns"]),
            "end_ns": file.to_global(rows["t_end_ns"]),
            "category": _categorical(rows["cat"], CATEGORIES, file, "event category"),
            "phase": _categorical(rows["phase"], PHASES, file, "phase"),
            "name": np.asarray(names, dtype=object)[lookup[ids]],
            "lane": rows["lane"],
            "peer": rows["peer"],
            "flow": rows["flow"].astype(np.int64),
            "microbatch": rows["mb"],
            "layer": rows["layer"],
            "document": rows["doc"],
            "bytes": rows["bytes"],
            "flops": rows["flops"],
            "non_blocking": (rows["flags"] & FLAG_NON_BLOCKING) != 0,
        }
    )


def _highwater_frame(file: RankFile, rows: np.ndarray) -> pd.DataFrame:
    wide = pd.DataFrame(rows["peak"], columns=pd.Index(MEMORY_KINDS)).assign(
        total=rows["peak_total"], rank=file.rank, step=rows["step"].astype(np.int64)
    )
    return wide.melt(["rank", "step"], var_name="kind", value_name="peak_bytes")


def _samples_frame(file: RankFile, rows: np.ndarray) -> pd.DataFrame:
    wide = pd.DataFrame(rows["bytes"], columns=pd.Index(MEMORY_KINDS)).assign(
        host_rss=rows["host_rss"],
        rank=file.rank,
        step=rows["step"].astype(np.int64),
        time_ns=file.to_global(rows["t_ns"]),
    )
    return wide.melt(["rank", "step", "time_ns"], var_name="kind", value_name="bytes")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _json_object(line: str) -> dict:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError(f"found {type(value).__name__}")
    return value
