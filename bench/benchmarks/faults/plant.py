# SPDX-License-Identifier: Apache-2.0
"""What is planted, and what is to be said of it."""

import copy
from dataclasses import dataclass, field

import numpy as np

from benchmarks.faults.layouts import (ATTENTION, LAYOUTS, NODES, STEPS, groups, nodes, ranks_of,
                                       servers_of)

_MOVES_NOTHING = ("cad 4", "ping-pong 4")  # where documents are even: no messages of attention
_LEAST = 0.1  # seconds of a pause: the analysis takes less for turns at a core


@dataclass
class Fault:
    """The truth about one run."""

    kind: str
    ranks: set[int] = field(default_factory=set)  # of a link both ends, of an adapter its node's
    causes: tuple[str, ...] = ("slow",)  # any of which is right
    phase: str = ""  # "": of no single one
    steps: list[int] = field(default_factory=list)  # empty: all
    share: float = 1.0
    timed: bool = False  # it has a time that is to be said
    trend: str = ""  # that is to be said; "": what follows from the steps
    turns: dict[int, int] = field(default_factory=dict)  # by step: the rank that has it
    link: str = ""  # kind of a verdict: link or adapter
    alike: list[set[int]] = field(default_factory=list)  # members that the run cannot tell from it
    vague: bool = False  # its links carry only collectives of more ranks: they show no single link
    work: bool = False  # ranks have unequal documents, too


class _Planting:
    """One run: what its fault is drawn from, and the experiment that gets it.

    The draws of every kind begin with a rank and a share.
    """

    def __init__(self, kind: str, layout: str, seed: int, made: dict, step_seconds: float) -> None:
        self.random = np.random.default_rng([seed, KINDS.index(kind), *map(ord, layout)])
        self.kind, self.layout, self.made, self.seconds = kind, layout, made, step_seconds
        self.ranks, self.steps = ranks_of(layout), made["run"]["steps"]
        self.rank = int(self.random.integers(self.ranks))
        self.share = round(self.uniform(0.5, 0.85), 2)

    def uniform(self, low: float, high: float) -> float:
        return float(self.random.uniform(low, high))

    def whole(self, low: int, high: int) -> int:
        """From low to high - 1."""
        return int(self.random.integers(low, high))

    def coin(self) -> bool:
        return self.whole(0, 2) == 1

    def pause(self) -> float:
        return max(_LEAST, self.uniform(0.2, 0.8) * self.seconds)

    def since(self) -> list[int]:
        """Every step, or every one from some step on; there are three without it or more."""
        return list(range(self.whole(3, self.steps - 2), self.steps)) if self.coin() else []

    def every(self) -> list[int]:
        """Every second or third step."""
        period = self.whole(2, 4)
        return list(range(self.whole(0, period), self.steps, period))

    def add(self, ranks: set[int], steps: list[int] | None = None, **what: object) -> None:
        """Plants the same on some ranks."""
        timed = {"steps": steps} if steps else {}
        self.made["cluster"].setdefault("faults", []).extend(
            {"rank": rank, **what, **timed} for rank in sorted(ranks))

    def fault(self, ranks: set[int], *causes: str, **what: object) -> Fault:
        what = {"share": self.share, "timed": bool(what.get("steps")), **what}
        return Fault(self.kind, ranks, causes or ("slow",), **what)


def _slow(p: _Planting) -> Fault:
    p.made["cluster"]["slow_ranks"] = [[p.rank, p.share]]
    return p.fault({p.rank})


def _phase(p: _Planting) -> Fault:
    phase = str(p.random.choice(["forward", "backward"]))
    p.add({p.rank}, speed=p.share, phase=phase)
    return p.fault({p.rank}, phase=phase)


def _intermittent(p: _Planting) -> Fault:
    size = p.whole(1, 3)
    steps = sorted(int(s) for s in p.random.choice(p.steps, size=size, replace=False))
    p.add({p.rank}, steps, speed=p.share)
    return p.fault({p.rank}, steps=steps)


def _pause(p: _Planting) -> Fault:
    phase, steps = str(p.random.choice(["forward", "backward"])), [p.whole(0, p.steps)]
    p.add({p.rank}, steps, pause=p.pause(), phase=phase)
    return p.fault({p.rank}, "paused", phase=phase, steps=steps)


def _data(p: _Planting) -> Fault:
    """One data-parallel rank gets a document that fills its microbatch, always; the others, short
    ones."""
    data = LAYOUTS[p.layout]["data"]
    late = p.whole(0, data)
    size = p.made["batch"]["microbatch"]
    values = []
    for number in range(p.made["batch"]["tokens"] // size):
        long = number % data == late
        values += [size] if long else [size // 8] * 8
    p.made["data"]["lengths"]["values"] = values
    return p.fault(groups(p.layout, "data")[late], "work")


def _link(p: _Planting) -> Fault:
    """Between ranks that exchange something: neighbours, or the same place in the next stage."""
    apart = p.ranks // LAYOUTS[p.layout].get("pipeline", 1) if "pipeline" in p.layout else 1
    apart = LAYOUTS[p.layout]["data"] if "servers" in p.layout else apart
    one = p.whole(0, p.ranks - apart)
    share = round(p.uniform(0.05, 0.3), 2)
    p.made["cluster"]["slow_links"] = [[one, one + apart, share]]
    return p.fault({one, one + apart}, "link", link="link", share=share,
                   vague=_only_collectives(p.layout) or p.layout in _MOVES_NOTHING)


def _only_collectives(layout: str) -> bool:
    return (max(LAYOUTS[layout].values()) > 2 and layout not in ATTENTION
            and "pipeline" not in layout)


def _clean(p: _Planting) -> Fault:
    return p.fault(set())


def _two_ranks(p: _Planting) -> Fault:
    other = (p.rank + p.whole(1, p.ranks)) % p.ranks
    share = p.share if p.coin() else round(p.uniform(0.5, 0.85), 2)
    p.made["cluster"]["slow_ranks"] = [[p.rank, p.share], [other, share]]
    return p.fault({p.rank, other})


def _node(p: _Planting) -> Fault:
    ranks = nodes(p.layout)[p.whole(0, NODES[p.layout])]
    p.add(ranks, speed=p.share)
    return p.fault(ranks)


def _adapter(p: _Planting) -> Fault:
    """Out, in, or both; of two nodes nobody can tell whose it is."""
    every = nodes(p.layout)
    node, share = p.whole(0, len(every)), round(p.uniform(0.05, 0.3), 2)
    out, into = ((share, 1.0), (1.0, share), (share, share))[p.whole(0, 3)]
    p.made["cluster"]["slow_adapters"] = [[node, out, into]]
    return p.fault(every[node], "link", link="adapter", share=share,
                   alike=every if len(every) == 2 else [], vague=_only_collectives(p.layout))


def _replica(p: _Planting) -> Fault:
    replicas = groups(p.layout, "data")
    ranks = replicas[p.whole(0, len(replicas))]
    p.add(ranks, speed=p.share)
    return p.fault(ranks)


def _ramp(p: _Planting) -> Fault:
    """Each step takes away 3 to 8 % of the speed that the rank still has."""
    loss, steps = p.uniform(0.03, 0.08), list(range(1, p.steps))
    for step in steps:
        p.add({p.rank}, [step], speed=round((1 - loss) ** step, 4))
    return p.fault({p.rank}, steps=steps, trend="rising", share=round(1 - loss, 4))


def _step_change(p: _Planting) -> Fault:
    steps = list(range(p.whole(2, p.steps - 2), p.steps))
    p.add({p.rank}, steps, speed=p.share)
    return p.fault({p.rank}, steps=steps)


def _period(p: _Planting) -> Fault:
    steps = p.every()
    p.add({p.rank}, steps, speed=p.share)
    return p.fault({p.rank}, steps=steps)


def _in_turn(p: _Planting) -> Fault:
    """One rank a step, in an order of the seed's, as garbage collection comes."""
    order = [int(rank) for rank in p.random.permutation(p.ranks)]
    turns = {step: order[step % p.ranks] for step in range(p.steps)}
    what = {"pause": p.pause()} if p.coin() else {"speed": p.share}
    for step, rank in turns.items():
        p.add({rank}, [step], **what)
    return p.fault(set(turns.values()), "paused" if "pause" in what else "slow",
                   steps=list(turns), trend="in turn", turns=turns)


def _all_ranks(p: _Planting) -> Fault:
    """Against the machine file."""
    steps, ranks = p.since(), set(range(p.ranks))
    p.add(ranks, steps, speed=p.share)
    return p.fault(ranks, steps=steps)


def _one_step_of_all(p: _Planting) -> Fault:
    steps, ranks = [p.whole(1, p.steps)], set(range(p.ranks))
    what = {"pause": p.pause()} if p.coin() else {"speed": p.share}
    p.add(ranks, steps, **what)
    return p.fault(ranks, "paused" if "pause" in what else "slow", steps=steps)


def _server(p: _Planting) -> Fault:
    p.rank = p.ranks - 1 - p.whole(0, servers_of(p.layout))
    return _slow(p)


def _optimizer(p: _Planting) -> Fault:
    """Of a trainer, and slow enough to be felt in a short phase."""
    rank, share = p.whole(0, p.ranks - servers_of(p.layout)), round(p.uniform(0.1, 0.4), 2)
    p.add({rank}, speed=share, phase="optimizer")
    return p.fault({rank}, phase="optimizer", share=share)


def _late_start(p: _Planting) -> Fault:
    """In every step, from a step on, in one, or in every second or third."""
    steps = ([], p.since(), [p.whole(1, p.steps)], p.every())[p.whole(0, 4)]
    p.add({p.rank}, steps, between=p.uniform(0.1, 0.5) * p.seconds)
    return p.fault({p.rank}, "late start", phase="between steps", steps=steps)


def _pause_between(p: _Planting) -> Fault:
    """Before one step but the first, or before every second or third."""
    steps, ranks = [p.whole(1, p.steps)] if p.coin() else p.every(), set(range(p.ranks))
    steps = [step for step in steps if step > 0]  # before the first there is no other
    p.add(ranks, steps, between=p.uniform(0.2, 1.0) * p.seconds)
    return p.fault(ranks, "paused", "late start", phase="between steps", steps=steps)


def _clock(p: _Planting) -> Fault:
    """Of one rank, or of each by another time; from a thousandth of a step to ten steps."""
    for rank in range(p.ranks) if p.coin() else [p.rank]:
        ahead = float(10 ** p.uniform(-3, 1)) * p.seconds
        p.add({rank}, clock=ahead if p.coin() else -ahead)
    return p.fault(set())


def _no_core(p: _Planting) -> Fault:
    steps, share = p.since(), round(p.uniform(0.3, 0.8), 2)
    p.add({p.rank}, steps, core=share)
    return p.fault({p.rank}, "no core", steps=steps, share=share)


_PLANTS = {
    "slow": _slow,
    "phase": _phase,
    "intermittent": _intermittent,
    "pause": _pause,
    "data": _data,
    "link": _link,
    "clean": _clean,
    "two ranks": _two_ranks,
    "node": _node,
    "adapter": _adapter,
    "replica": _replica,
    "ramp": _ramp,
    "step change": _step_change,
    "period": _period,
    "in turn": _in_turn,
    "all ranks": _all_ranks,
    "one step of all": _one_step_of_all,
    "server": _server,
    "optimizer": _optimizer,
    "late start": _late_start,
    "pause between": _pause_between,
    "clock": _clock,
    "no core": _no_core,
}
KINDS = tuple(_PLANTS)
FIRST = KINDS[: KINDS.index("clean") + 1]  # of layouts of one node, but for clean
_LONG = ("ramp", "step change", "period", "in turn", "all ranks", "one step of all", "late start",
         "pause between", "no core")  # runs of more steps


def fits(kind: str, layout: str) -> bool:
    """Longer documents make a rank late where attention stays with its data; the ranks of a ring
    have unequal work without any fault."""
    if kind == "clean":
        return layout != "ring 4"
    if kind == "server":
        return servers_of(layout) > 0
    if kind == "replica":
        first = groups(layout, "data")[0]
        return "x" in layout and "data" in layout and first not in nodes(layout)
    if kind in FIRST:
        return layout not in NODES and (kind != "data" or "data" in layout)
    return layout in NODES


def without(kind: str, layout: str, seed: int, clean: dict) -> dict:
    """The experiment that gets the fault: so many steps, documents of one length or others.

    @param clean  experiment()
    """
    made = copy.deepcopy(clean)
    random = np.random.default_rng([seed, len(KINDS) + KINDS.index(kind), *map(ord, layout)])
    made["run"]["steps"] = int(random.integers(9, 13)) if kind in _LONG else STEPS
    if kind == "adapter":  # where CAD moves nothing, there are no messages
        even = "cad" not in layout
    elif kind in FIRST:
        even = kind in ("link", "clean")
    else:
        even = kind == "clock" or random.random() < 0.5
    return even_documents(made) if even else made


def plant(kind: str, layout: str, seed: int, clean: dict, step_seconds: float) -> tuple:
    """The experiment with a fault, and the fault.

    @param clean         without()
    @param step_seconds  of the run without the fault: a pause is a share of it
    """
    made = copy.deepcopy(clean)
    fault = _PLANTS[kind](_Planting(kind, layout, seed, made, step_seconds))
    fault.work = kind != "data" and len(clean["data"]["lengths"]["values"]) > 1
    return made, fault


def even_documents(made: dict) -> dict:
    """The same with documents of one length: no rank has more to do than its peers."""
    length = made["batch"]["microbatch"] // 4
    made["data"]["lengths"]["values"] = [length]
    return made
