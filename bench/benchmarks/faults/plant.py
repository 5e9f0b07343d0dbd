# SPDX-License-Identifier: Apache-2.0
"""What is planted, and what is to be said of it."""

import copy
from dataclasses import dataclass, field

import numpy as np

from benchmarks.faults.layouts import (ATTENTION, LAYOUTS, NODES, STEPS, groups, nodes, ranks_of,
                                       servers_of)

_MOVES_NOTHING = ("cad 4", "ping-pong 4")  # where documents are even: no messages of attention
_WHOLE = 1 - 1e-9  # the speed of a healthy rank; of 1, cadenza says that it changes nothing
_LEAST = 0.1  # seconds of a pause: the analysis takes less for turns at a core


@dataclass
class Fault:
    """The truth about one fault; a run has any number of them, on different ranks."""

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
    alike: list[set[int]] = field(default_factory=list)  # ... of links that may be meant
    vague: bool = False  # its links carry only collectives of more ranks: they show no single link
    work: bool = False  # ranks have unequal documents, too


class _Planting:
    """One run: what its faults are drawn from, and the experiment that gets them.

    The draws of every kind begin with a rank and a share.
    """

    def __init__(self, kind: str, layout: str, seed: int, made: dict, step_seconds: float) -> None:
        self.random = np.random.default_rng([seed, KINDS.index(kind), *map(ord, layout)])
        self.kind, self.layout, self.made, self.seconds = kind, layout, made, step_seconds
        self.ranks, self.steps = ranks_of(layout), made["run"]["steps"]
        self.rank = int(self.random.integers(self.ranks))
        self.share = round(self.uniform(0.5, 0.85), 2)
        self.faults: list[Fault] = []

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

    def a_phase(self) -> str:
        return ("", "forward", "backward")[self.whole(0, 3)]

    def every(self) -> list[int]:
        """Every second or third step."""
        period = self.whole(2, 4)
        return list(range(self.whole(0, period), self.steps, period))

    def add(self, ranks: set[int], steps: list[int] | None = None, **what: object) -> None:
        """Plants the same on some ranks."""
        timed = {"steps": steps} if steps else {}
        self.made["cluster"].setdefault("faults", []).extend(
            {"rank": rank, **what, **timed} for rank in sorted(ranks))

    def fault(self, ranks: set[int], *causes: str, **what: object) -> None:
        """Notes what is to be said."""
        what = {"share": self.share, "timed": bool(what.get("steps")), **what}
        self.faults.append(Fault(self.kind, ranks, causes or ("slow",), **what))

    def others(self, count: int) -> list[int]:
        """So many ranks, of which none is `rank`."""
        ranks = [rank for rank in range(self.ranks) if rank != self.rank]
        return [int(rank) for rank in self.random.choice(ranks, size=count, replace=False)]

    def a_while(self) -> list[int]:
        """Two steps or more, one after the other; at least two come after them."""
        first = self.whole(0, self.steps - 3)
        return list(range(first, self.whole(first + 2, self.steps - 1)))

    def computes(self, rank: int, steps: list[int], phase: str = "", **what: float) -> None:
        """Plants a rank that is slow (speed) or lacks its core (core), and notes it."""
        ((key, share),) = what.items()
        self.add({rank}, steps, **what, **({"phase": phase} if phase else {}))
        self.fault({rank}, {"speed": "slow", "core": "no core"}[key], phase=phase, steps=steps,
                   share=share)


def _slow(p: _Planting) -> None:
    p.made["cluster"]["slow_ranks"] = [[p.rank, p.share]]
    p.fault({p.rank})


def _phase(p: _Planting) -> None:
    p.computes(p.rank, [], str(p.random.choice(["forward", "backward"])), speed=p.share)


def _intermittent(p: _Planting) -> None:
    size = p.whole(1, 3)
    steps = sorted(int(s) for s in p.random.choice(p.steps, size=size, replace=False))
    p.computes(p.rank, steps, speed=p.share)


def _pause(p: _Planting) -> None:
    _some_pause(p, p.rank)


def _data(p: _Planting) -> None:
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
    p.fault(groups(p.layout, "data")[late], "work")


def _link(p: _Planting) -> None:
    """Between ranks that exchange something: neighbours, or the same place in the next stage."""
    apart = p.ranks // LAYOUTS[p.layout].get("pipeline", 1) if "pipeline" in p.layout else 1
    apart = LAYOUTS[p.layout]["data"] if "servers" in p.layout else apart
    one = p.whole(0, p.ranks - apart)
    share = round(p.uniform(0.05, 0.3), 2)
    p.made["cluster"]["slow_links"] = [[one, one + apart, share]]
    p.fault({one, one + apart}, "link", link="link", share=share,
            vague=_only_collectives(p.layout) or p.layout in _MOVES_NOTHING)


def _only_collectives(layout: str) -> bool:
    return (max(LAYOUTS[layout].values()) > 2 and layout not in ATTENTION
            and "pipeline" not in layout)


def _clean(_: _Planting) -> None:
    """Nothing."""


def _two_ranks(p: _Planting) -> None:
    other = (p.rank + p.whole(1, p.ranks)) % p.ranks
    share = p.share if p.coin() else round(p.uniform(0.5, 0.85), 2)
    p.made["cluster"]["slow_ranks"] = [[p.rank, p.share], [other, share]]
    p.fault({p.rank})
    p.fault({other}, share=share)


def _node(p: _Planting) -> None:
    ranks = nodes(p.layout)[p.whole(0, NODES[p.layout])]
    p.add(ranks, speed=p.share)
    p.fault(ranks)


def _adapter(p: _Planting) -> None:
    """Out, in, or both."""
    node, share = p.whole(0, NODES[p.layout]), round(p.uniform(0.05, 0.3), 2)
    _slow_adapter(p, node, share, p.whole(0, 3))


def _slow_adapter(p: _Planting, node: int, share: float, way: int) -> None:
    """@param way  0: out, 1: in, 2: both"""
    out, into = ((share, 1.0), (1.0, share), (share, share))[way]
    p.made["cluster"].setdefault("slow_adapters", []).append([node, out, into])
    p.fault(nodes(p.layout)[node], "link", link="adapter", share=share,
            alike=_either(p.layout, node), vague=_only_collectives(p.layout))


def _replica(p: _Planting) -> None:
    replicas = groups(p.layout, "data")
    ranks = replicas[p.whole(0, len(replicas))]
    p.add(ranks, speed=p.share)
    p.fault(ranks)


def _ramp(p: _Planting) -> None:
    """Each step takes away 3 to 8 % of the speed that the rank still has."""
    loss, steps = p.uniform(0.03, 0.08), list(range(1, p.steps))
    for step in steps:
        p.add({p.rank}, [step], speed=round((1 - loss) ** step, 4))
    p.fault({p.rank}, steps=steps, trend="rising", share=round(1 - loss, 4))


def _step_change(p: _Planting) -> None:
    p.computes(p.rank, list(range(p.whole(2, p.steps - 2), p.steps)), speed=p.share)


def _period(p: _Planting) -> None:
    p.computes(p.rank, p.every(), speed=p.share)


def _in_turn(p: _Planting) -> None:
    """One rank a step, in an order of the seed's, as garbage collection comes."""
    order = [int(rank) for rank in p.random.permutation(p.ranks)]
    turns = {step: order[step % p.ranks] for step in range(p.steps)}
    what = {"pause": p.pause()} if p.coin() else {"speed": p.share}
    for step, rank in turns.items():
        p.add({rank}, [step], **what)
    p.fault(set(turns.values()), "paused" if "pause" in what else "slow",
            steps=list(turns), trend="in turn", turns=turns)


def _all_ranks(p: _Planting) -> None:
    """Against the machine file."""
    steps, ranks = p.since(), set(range(p.ranks))
    p.add(ranks, steps, speed=p.share)
    p.fault(ranks, steps=steps)


def _one_step_of_all(p: _Planting) -> None:
    steps, ranks = [p.whole(1, p.steps)], set(range(p.ranks))
    what = {"pause": p.pause()} if p.coin() else {"speed": p.share}
    p.add(ranks, steps, **what)
    p.fault(ranks, "paused" if "pause" in what else "slow", steps=steps)


def _server(p: _Planting) -> None:
    p.rank = p.ranks - 1 - p.whole(0, servers_of(p.layout))
    _slow(p)


def _optimizer(p: _Planting) -> None:
    """Of a trainer, and slow enough to be felt in a short phase."""
    rank, share = p.whole(0, p.ranks - servers_of(p.layout)), round(p.uniform(0.1, 0.4), 2)
    p.computes(rank, [], "optimizer", speed=share)


def _late_start(p: _Planting) -> None:
    """In every step, from a step on, in one, or in every second or third."""
    steps = ([], p.since(), [p.whole(1, p.steps)], p.every())[p.whole(0, 4)]
    p.add({p.rank}, steps, between=p.uniform(0.1, 0.5) * p.seconds)
    p.fault({p.rank}, "late start", phase="between steps", steps=steps)


def _pause_between(p: _Planting) -> None:
    """Before one step but the first, or before every second or third."""
    steps, ranks = [p.whole(1, p.steps)] if p.coin() else p.every(), set(range(p.ranks))
    steps = [step for step in steps if step > 0]  # before the first there is no other
    p.add(ranks, steps, between=p.uniform(0.2, 1.0) * p.seconds)
    p.fault(ranks, "paused", "late start", phase="between steps", steps=steps)


def _clock(p: _Planting) -> None:
    """Of one rank, or of each by another time; from a thousandth of a step to ten steps."""
    for rank in range(p.ranks) if p.coin() else [p.rank]:
        ahead = float(10 ** p.uniform(-3, 1)) * p.seconds
        p.add({rank}, clock=ahead if p.coin() else -ahead)


def _no_core(p: _Planting) -> None:
    steps, share = p.since(), round(p.uniform(0.3, 0.8), 2)
    p.computes(p.rank, steps, core=share)


def _mixed(p: _Planting) -> None:
    """Two or three faults, each of another rank and drawn for itself."""
    for rank in [p.rank, *p.others(p.whole(1, 3))]:
        (_some_slow, _some_core, _some_pause)[p.whole(0, 3)](p, rank)


def _some_slow(p: _Planting, rank: int) -> None:
    """In all steps, from one on, or in the first ones."""
    steps = list(range(p.steps))
    begin, end = p.whole(3, p.steps - 2), p.whole(2, p.steps - 2)
    p.computes(rank, (steps, steps[begin:], steps[:end])[p.whole(0, 3)], p.a_phase(),
               speed=round(p.uniform(0.5, 0.85), 2))


def _some_core(p: _Planting, rank: int) -> None:
    steps = p.a_while() if p.coin() else list(range(p.steps))
    p.computes(rank, steps, core=round(p.uniform(0.3, 0.8), 2))


def _some_pause(p: _Planting, rank: int) -> None:
    phase, steps = str(p.random.choice(["forward", "backward"])), [p.whole(0, p.steps)]
    p.add({rank}, steps, pause=p.pause(), phase=phase)
    p.fault({rank}, "paused", phase=phase, steps=steps)


def _unequal(p: _Planting) -> None:
    """In the same steps and phases, but one loses more than twice as much as the other."""
    steps = list(range(p.steps))
    if p.coin():
        steps = sorted(int(s) for s in p.random.choice(steps, size=p.whole(1, 3), replace=False))
    phase = p.a_phase()
    p.computes(p.rank, steps, phase, speed=round(p.uniform(0.5, 0.64), 2))
    p.computes(p.others(1)[0], steps, phase, speed=round(p.uniform(0.82, 0.9), 2))


def _ended(p: _Planting) -> None:
    what = {"core": round(p.uniform(0.3, 0.8), 2)} if p.coin() else {"speed": p.share}
    p.computes(p.rank, p.a_while(), **what)


def _two_adapters(p: _Planting) -> None:
    """As slow as one another, in the same directions, or each for itself. Nodes of a pipeline that
    have one between them and are alike look like the other two: these are not alike."""
    one, other = (int(node) for node in p.random.choice(NODES[p.layout], size=2, replace=False))
    shares = [round(p.uniform(0.05, 0.12), 2), round(p.uniform(0.18, 0.3), 2)]
    ways = [p.whole(0, 3), p.whole(0, 3)]
    if p.coin() and not ("pipeline" in p.layout and abs(one - other) == 2):
        shares, ways = shares[:1] * 2, ways[:1] * 2
    for node, share, way in zip((one, other), shares, ways, strict=True):
        _slow_adapter(p, node, share, way)


def _either(layout: str, node: int) -> list[set[int]]:
    """Of two nodes, and of those that a pipeline joins in a row, nobody can tell whose adapter it
    is that makes the links between them slow."""
    every = nodes(layout)
    if len(every) > 2 and "pipeline" not in layout:
        return []
    return [every[node] | other for i, other in enumerate(every) if i != node]


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
    "mixed": _mixed,
    "unequal": _unequal,
    "ended": _ended,
    "two adapters": _two_adapters,
}
KINDS = tuple(_PLANTS)
FIRST = KINDS[: KINDS.index("clean") + 1]  # of layouts of one node, but for clean
_LONG = ("ramp", "step change", "period", "in turn", "all ranks", "one step of all", "late start",
         "pause between", "no core", "mixed", "ended")  # runs of more steps
LINKS = ("link", "adapter", "two adapters")
_SIZES = 23  # added to a kind's number where without() draws


def fits(kind: str, layout: str) -> bool:
    """Longer documents make a rank late where attention stays with its data; the ranks of a ring
    have unequal work without any fault."""
    if kind == "clean":
        return not layout.startswith("ring")
    if kind == "server":
        return servers_of(layout) > 0
    if kind == "replica":
        first = groups(layout, "data")[0]
        return "x" in layout and "data" in layout and first not in nodes(layout)
    if kind == "two adapters":
        return NODES.get(layout) == 4
    if kind in FIRST:
        return layout not in NODES and (kind != "data" or "data" in layout)
    return layout in NODES


def without(kind: str, layout: str, seed: int, clean: dict) -> dict:
    """The experiment that gets the fault: so many steps, documents of one length or others.

    @param clean  experiment()
    """
    made = copy.deepcopy(clean)
    random = np.random.default_rng([seed, _SIZES + KINDS.index(kind), *map(ord, layout)])
    made["run"]["steps"] = int(random.integers(9, 13)) if kind in _LONG else STEPS
    if kind in ("adapter", "two adapters"):  # where CAD moves nothing, there are no messages
        even = "cad" not in layout
    elif kind in FIRST:
        even = kind in ("link", "clean")
    else:
        even = kind == "clock" or random.random() < 0.5
    return even_documents(made) if even else made


def plant(kind: str, layout: str, seed: int, clean: dict, step_seconds: float) -> tuple:
    """The experiment with its faults, and the list of them.

    @param clean         without()
    @param step_seconds  of the run without the faults: a pause is a share of it
    """
    planting = _Planting(kind, layout, seed, copy.deepcopy(clean), step_seconds)
    _PLANTS[kind](planting)
    for fault in planting.faults:
        fault.work = kind != "data" and len(clean["data"]["lengths"]["values"]) > 1
    return planting.made, planting.faults


def spare(made: dict, layout: str, fault: Fault) -> dict:
    """The experiment without one of several faults.

    Its block stays, with no effect to speak of: the number of a block determines which operation a
    pause falls into.
    """
    made = copy.deepcopy(made)
    cluster = made["cluster"]
    for block in cluster.get("faults", []):
        if block["rank"] in fault.ranks:
            for key in block.keys() - {"rank", "steps"}:
                del block[key]
            block["speed"] = _WHOLE
    single = [{rank} for rank in range(ranks_of(layout))]
    for key, whose in (("slow_ranks", single), ("slow_adapters", nodes(layout))):
        if key in cluster:
            cluster[key] = [row for row in cluster[key] if whose[row[0]] != fault.ranks]
    return made


def even_documents(made: dict) -> dict:
    """The same with documents of one length: no rank has more to do than its peers."""
    length = made["batch"]["microbatch"] // 4
    made["data"]["lengths"]["values"] = [length]
    return made
