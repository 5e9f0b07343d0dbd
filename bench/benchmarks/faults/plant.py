# SPDX-License-Identifier: Apache-2.0
"""What is planted, and what is to be said of it."""

import copy
from dataclasses import dataclass, field

import numpy as np

from benchmarks.faults.layouts import LAYOUTS, STEPS, ranks_of

KINDS = ("slow", "phase", "intermittent", "pause", "data", "link", "clean")
_LEAST = 0.1  # seconds of a pause: the analysis takes less for turns at a core
_LATE = {"slow": "persistent", "phase": "persistent", "intermittent": "intermittent",
         "pause": "paused", "data": "data", "link": "link", "clean": "none"}


@dataclass
class Fault:
    """The truth about one run."""

    kind: str
    ranks: set[int] = field(default_factory=set)  # any of which is the culprit; of a link both
    phase: str = ""  # "": of no single one
    steps: list[int] = field(default_factory=list)
    share: float = 1.0

    @property
    def cause(self) -> str:
        return _LATE[self.kind]


def plant(kind: str, layout: str, seed: int, clean: dict, step_seconds: float) -> tuple:
    """The experiment with a fault, and the fault.

    @param clean         experiment()
    @param step_seconds  of the run without the fault: a pause is a share of it
    """
    random = np.random.default_rng([seed, KINDS.index(kind), *map(ord, layout)])
    made = copy.deepcopy(clean)
    rank = int(random.integers(ranks_of(layout)))
    fault = Fault(kind, {rank}, share=round(float(random.uniform(0.5, 0.85)), 2))
    cluster = made["cluster"]
    if kind == "slow":
        cluster["slow_ranks"] = [[rank, fault.share]]
    elif kind == "phase":
        fault.phase = str(random.choice(["forward", "backward"]))
        cluster["faults"] = [{"rank": rank, "speed": fault.share, "phase": fault.phase}]
    elif kind == "intermittent":
        size = int(random.integers(1, 3))
        fault.steps = sorted(int(s) for s in random.choice(STEPS, size=size, replace=False))
        cluster["faults"] = [{"rank": rank, "speed": fault.share, "steps": fault.steps}]
    elif kind == "pause":
        fault.phase = str(random.choice(["forward", "backward"]))
        fault.steps = [int(random.integers(STEPS))]
        seconds = max(_LEAST, float(random.uniform(0.2, 0.8)) * step_seconds)
        cluster["faults"] = [{"rank": rank, "pause": seconds, "phase": fault.phase,
                              "steps": fault.steps}]
    elif kind == "data":
        _longer_documents(made, layout, random, fault)
    elif kind == "link":
        _slow_link(made, layout, random, fault)
    elif kind == "clean":
        made = even_documents(made)
        fault.ranks = set()
    return made, fault


def even_documents(made: dict) -> dict:
    """The same with documents of one length: no rank has more to do than its peers."""
    length = made["batch"]["microbatch"] // 4
    made["data"]["lengths"]["values"] = [length]
    return made


def _longer_documents(made: dict, layout: str, random: np.random.Generator, fault: Fault) -> None:
    """One data-parallel rank gets a document that fills its microbatch, always; the others, short
    ones."""
    data = LAYOUTS[layout]["data"]
    late = int(random.integers(data))
    size = made["batch"]["microbatch"]
    count = made["batch"]["tokens"] // size
    values = []
    for number in range(count):
        long = number % data == late
        values += [size] if long else [size // 8] * 8
    made["data"]["lengths"]["values"] = values
    each = LAYOUTS[layout].get("tensor", 1)
    fault.ranks = {r for r in range(ranks_of(layout)) if r // each % data == late}


def _slow_link(made: dict, layout: str, random: np.random.Generator, fault: Fault) -> None:
    """Between ranks that exchange something: neighbours, or the same place in the next stage."""
    ranks = ranks_of(layout)
    apart = ranks // LAYOUTS[layout].get("pipeline", 1) if "pipeline" in layout else 1
    apart = LAYOUTS[layout]["data"] if "servers" in layout else apart
    one = int(random.integers(ranks - apart))
    other = one + apart
    share = round(float(random.uniform(0.05, 0.3)), 2)
    made["cluster"]["slow_links"] = [[one, other, share]]
    fault.ranks, fault.share = {one, other}, share
