# SPDX-License-Identifier: Apache-2.0
"""The published training steps, those of published.csv; bench/README.md describes its columns."""

import csv
from dataclasses import dataclass, fields
from pathlib import Path

PATH = Path(__file__).with_name("published.csv")


@dataclass(frozen=True)
class Row:
    """One step as its source describes it; numbers are 0 and words empty where it does not."""

    section: str  # class
    group: str
    id: str
    source: str
    gpu: str
    gpus: int
    network: float  # Gb/s of a GPU to other nodes; 0: as in the machine file
    layers: int
    d_model: int
    heads: int
    kv: int
    ffn: int
    vocab: int
    seq: int  # tokens of a sequence
    mbs: int  # sequences of a microbatch
    gbs: int  # sequences of a step
    dp: int
    tp: int
    pp: int
    vp: int
    cp: int
    recompute: str
    shard: str  # none, optimizer (ZeRO stage 1), full (FSDP, ZeRO stage 3)
    sp: bool | None  # sequence parallelism; None where nothing is sliced
    tied: bool | None  # embeddings
    published: str  # in the source's unit
    pub_tps: float  # tokens per second and GPU
    pub_fits: bool | None
    pub_mem: float  # GiB of a GPU
    note: str


_READ = {int: lambda text: int(text or 0), float: lambda text: float(text or 0), str: str,
         bool | None: {"True": True, "False": False, "": None}.__getitem__}


def read(path: Path = PATH) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return [Row(*(_READ[field.type](line[_column(field.name)]) for field in fields(Row)))
                for line in csv.DictReader(file)]


def _column(name: str) -> str:
    return "class" if name == "section" else name
