# SPDX-License-Identifier: Apache-2.0
"""How long a step takes under changed conditions: by replay, not by subtraction.

Replaying keeps what subtraction forgets: when one cause is gone the next one shows.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from cadenza.graph.graph import StepGraph
from cadenza.read.columns import rows_of
from cadenza.read.schema import HOST_GAP
from cadenza.graph.lanes import WORK
from cadenza.graph.loads import BY_CHANCE, machine_slowness, usual, variance
from cadenza.graph.pauses import pauses, without

_MOST_RANKS = 16  # scenarios of single ranks: those that lose most
_SLOWER = 1.01  # than the median by less than this is no difference
_WORTH = 0.001  # of a step: a rank that costs less is not shown
COMMUNICATION_FREE = "communication free"
_OF_ALL = (  # scenario, rank, explanation
    ("as recorded", -1, "the recorded durations, replayed"),
    ("all ranks balanced", -1,
     "each operation takes the mean of the ranks that run it at the same time"),
    ("no attention imbalance", -1,
     "ranks share core attention in proportion to their rates"),
    (COMMUNICATION_FREE, -1, "no latency, infinite bandwidth"),
)
_NO_PAUSE = "no rank stands still"
_NO_HOST_GAP = "no host gaps"


def what_if(graph: StepGraph) -> pd.DataFrame:
    """@returns scenario, rank (-1: all), seconds, saved_seconds, explanation

    Scenarios:

    - "as recorded": the replay; its seconds are the measured ones.
    - "all ranks balanced": computation takes the mean of the ranks that do the same operation at
      the same time (phase, tick or microbatch, half, layer). Only these are interchangeable: a
      mean over a whole step would take work from one microbatch to another, and could make the
      step longer than it was. Attention's tasks are shared out by the rates of their servers.
    - "no attention imbalance": that for attention alone.
    - "communication free": zero latency, infinite bandwidth, no cost of waiting (POP's T0).
      Copies into and out of messages stay.
    - "no rank stands still": without the pauses that ranks made; only where they did.
    - "no host gaps": every rank has something to run whenever it waits for nobody; only in imported
      runs, which say when it had not.
    - "rank as fast as the median": of one rank, the time per FLOP of every operation is at most
      the median of all ranks that do it (of two ranks, that of the faster), so that neither longer
      documents nor the work of a stage are blamed. A row per rank that is slower; in large runs
      the 16 that lose most.

    A negative saving is possible for the balanced ones: a fast rank whose messages the others wait
    for is made slower, too.
    """
    nodes = _nodes(graph)
    factors = _rank_factors(graph, nodes)
    slow = _most_costly(graph, nodes, factors)
    own = [graph.own, _balanced(graph, nodes), with_equal_attention(graph, nodes)]
    own += [_sped_up(graph, nodes, factors, rank) for rank in slow]
    seconds = graph.replayed_seconds(own=np.stack(own, axis=1))
    rows = [(*_OF_ALL[0], seconds[0]), (*_OF_ALL[1], seconds[1]), (*_OF_ALL[2], seconds[2]),
            (*_OF_ALL[3], network_free(graph))]
    alone = _alone(nodes)
    if graph.pause.any():
        longest = pauses(graph).iloc[0]
        text = "longest pause: rank {rank}, {seconds:.3g} s in {name}".format(**longest)
        rows.append((_NO_PAUSE, -1, text, without(graph)))
    gaps = graph.lanes.where("name", HOST_GAP)
    if gaps.any():
        free = float(graph.replayed_seconds(own=np.where(gaps, 0.0, graph.own))[0])
        rows.append((_NO_HOST_GAP, -1, "no device waits for its process to launch work", free))
    for rank, value in zip(slow, seconds[3:], strict=True):
        number = int(graph.lanes.ranks[rank])
        share = _speed(nodes, factors, rank)
        beside = "the median rate" if len(graph.ranks) > 2 else "the other rank's rate"
        beside = "its machine's rate" if alone[rank] else beside
        text = f"rank {number} computes at {share:.2f} x {beside}"
        rows.append(("rank as fast as the median", number, text, value))
    frame = pd.DataFrame(rows, columns=["scenario", "rank", "explanation", "seconds"])
    frame["saved_seconds"] = graph.seconds - frame["seconds"]
    return frame[["scenario", "rank", "seconds", "saved_seconds", "explanation"]]


def over_steps(found: pd.DataFrame, mean_seconds: float) -> pd.DataFrame:
    """The scenarios of several steps: means, and how much the saving differs between steps.

    A rank that is not slower in a step saves nothing there.

    @param found         what_if() of each, with a column `step`
    @param mean_seconds  of a step of the run, of which `found` may know some only: what these save
                         of their time is said of it
    @returns scenario, rank, seconds, saved_seconds (means), low_share, high_share (of the step's
             time that is saved: the 10th and 90th percentile over the steps), explanation (of the
             step that saves about the mean): what was recorded, then what saves most
    """
    recorded = found[found["scenario"] == _OF_ALL[0][0]].set_index("step")["seconds"]
    rows = []
    for (scenario, rank), mine in found.groupby(["scenario", "rank"], sort=False):
        saved = mine.set_index("step")["saved_seconds"].reindex(recorded.index, fill_value=0.0)
        share = saved / recorded.where(recorded > 0)
        mean = mean_seconds * saved.sum() / recorded.sum() if recorded.sum() > 0 else 0.0
        rows.append((scenario, rank, mean_seconds - mean, mean,
                     share.quantile(0.1), share.quantile(0.9),
                     mine["explanation"].iloc[_usual(mine["saved_seconds"])]))
    columns = ["scenario", "rank", "seconds", "saved_seconds", "low_share", "high_share",
               "explanation"]
    frame = pd.DataFrame(rows, columns=columns)
    first = frame["scenario"] == _OF_ALL[0][0]
    causes = frame[~first].sort_values("saved_seconds", ascending=False, kind="stable")
    return pd.concat([frame[first], causes], ignore_index=True)


def worth(frame: pd.DataFrame) -> pd.Series:
    """Of rows of what_if() or over_steps(), whether they save enough to be shown."""
    return frame["saved_seconds"] >= _WORTH * (frame["seconds"] + frame["saved_seconds"])


def _usual(saved: pd.Series) -> int:
    """Position of the value nearest to the mean."""
    return int((saved - saved.mean()).abs().to_numpy().argmin())


def network_free(graph: StepGraph) -> float:
    """Seconds of the step on a network of zero latency and infinite bandwidth (POP's T0)."""
    free = {"rest": np.zeros(len(graph.rest)), "transfer": np.zeros(len(graph.transfer))}
    return float(graph.replayed_seconds(**free)[0])


def scaled(graph: StepGraph, factor: float, rank: int | None = None, **where: str) -> float:
    """Seconds of the step, had some operations taken `factor` of their time.

    @param rank   world rank; None: all
    @param where  of category, phase, name: the value that the operations have
    """
    chosen = np.ones(len(graph.own), bool)
    for column, value in where.items():
        chosen &= graph.lanes.where(column, value)
    if rank is not None:
        chosen &= graph.lanes.ranks[graph.lanes.rank] == rank
    chosen[graph.lanes.starts] = False
    own = np.where(chosen, graph.own * factor, graph.own)
    return float(graph.replayed_seconds(own=own)[0])


def _nodes(graph: StepGraph) -> pd.DataFrame:
    """Nodes that compute: node, rank (index), time, and columns of their events."""
    lanes = graph.lanes
    node = np.flatnonzero(lanes.where("category", *WORK))
    columns = ["category", "phase", "name", "microbatch", "layer", "tick", "half", "flops"]
    frame = rows_of(lanes.events, lanes.event[node], columns)
    for column in ("category", "phase", "name"):
        frame[column] = frame[column].cat.remove_unused_categories()
    rank = lanes.rank[node]
    pieces = np.bincount(lanes.event[node])[lanes.event[node]]
    frame.loc[frame["category"] == "data", "flops"] = 1.0  # as in loads.operation_loads()
    if lanes.where("name", HOST_GAP).any():  # an imported run, which tells what operations take in
        moved = (frame["flops"] <= 0) & (frame["category"] == "compute_other")
        frame.loc[moved, "flops"] = np.maximum(lanes.column("bytes", 0)[node], 0.0)[moved]
    frame["flops"] /= pieces  # an event with others in it has several nodes
    frame = frame.assign(
        node=node, rank=rank, time=graph.own[node] - graph.pause[node], pause=graph.pause[node],
        slot=np.where(frame["tick"] >= 0, frame["tick"], frame["microbatch"]), turn=-1)
    return _with_turns(graph, frame, lanes.event[node])


def _with_turns(graph: StepGraph, nodes: pd.DataFrame, event: np.ndarray) -> pd.DataFrame:
    """With `turn` of core attention of which no microbatch and layer is told: its number among its
    rank's of the phase, with that of the stage, where the ranks of a stage have as many: they take
    turns in the same order. Else all of a phase are as if at the same time."""
    attends = np.flatnonzero((nodes["category"] == "compute_attention") & (nodes["slot"] < 0)
                             & (nodes["layer"] < 0))
    if not len(attends):
        return nodes
    stage = graph.ranks["pipeline"].to_numpy()[nodes["rank"].iloc[attends]]
    mine = nodes.iloc[attends].assign(event=event[attends], stage=stage)
    of_rank = mine.groupby(["name", "phase", "rank"], observed=True)["event"]
    mine = mine.assign(turn=of_rank.rank("dense").astype(np.int64),
                       count=of_rank.transform("nunique"))
    counts = mine.groupby(["name", "phase", "stage"], observed=True)["count"]
    alike = (counts.transform("min") == counts.transform("max")).to_numpy()
    turn = np.full(len(nodes), -1)
    turn[attends[alike]] = (mine["turn"] * (stage.max() + 1) + stage).to_numpy()[alike]
    return nodes.assign(turn=turn)


def with_equal_attention(graph: StepGraph, nodes: pd.DataFrame | None = None) -> np.ndarray:
    """StepGraph.own without attention imbalance. @param nodes  _nodes(), where they are known"""
    nodes = _nodes(graph) if nodes is None else nodes
    return _balanced(graph, nodes[nodes["category"] == "compute_attention"])


def _balanced(graph: StepGraph, part: pd.DataFrame) -> np.ndarray:
    """Durations where ranks share what they do at the same time, of nodes `part`."""
    keys = ["name", "phase", "slot", "half", "layer", "turn"]
    totals = part.groupby([*keys, "rank"], sort=False, observed=True)[["time", "flops"]].sum()
    totals["rate"] = totals["flops"] / totals["time"].where(totals["time"] > 0)
    group = totals.groupby(keys, sort=False, observed=True)
    names = part.drop_duplicates("name").set_index("name")["category"]
    attends = (totals.index.get_level_values("name").map(names) == "compute_attention")
    by_rate = group["flops"].transform("sum") / group["rate"].transform("sum")
    by_rate = by_rate.where(attends & (group["flops"].transform("min") > 0))
    shared = by_rate.fillna(group["time"].transform("mean"))
    factor = (shared / totals["time"].where(totals["time"] > 0)).fillna(1.0).rename("factor")
    of_node = part.join(factor, on=[*keys, "rank"])["factor"].to_numpy()
    own = graph.own.copy()
    own[part["node"].to_numpy()] = (part["time"] * of_node + part["pause"]).to_numpy()
    return own


def _rank_factors(graph: StepGraph, nodes: pd.DataFrame) -> np.ndarray:
    """Per node: by how much its rank is slower there than is usual on ranks that do the same, of
    whatever stage; at least 1.

    The optimizer, which has no FLOPs, is compared with the times of ranks of the same role and
    stage; so is all else but attention where nothing has FLOPs (imported runs). Other operations
    without FLOPs, and those that no other rank does, are taken to be as slow as the rank's others
    of the phase, else of all; where a rank does all of its operations alone, the machine says how
    slow.
    """
    keys = ["name", "phase"]
    totals = nodes.groupby([*keys, "rank"], sort=False, observed=True)[["time", "flops"]].sum()
    totals["cost"] = (totals["time"] / totals["flops"]).where(totals["flops"] > 0)
    totals["factor"] = totals["cost"] / usual(totals["cost"], keys)
    reads = nodes.loc[nodes["category"] == "data", "name"].unique()  # no measure of a rank's speed
    computes = ~totals.index.get_level_values("name").isin(reads)
    phase = totals.index.get_level_values("phase").astype(object)
    alike = np.asarray(phase == "optimizer")
    if not totals["cost"][computes].notna().any():  # an imported run
        attends = nodes.loc[nodes["category"] == "compute_attention", "name"].unique()
        alike = computes & ~totals.index.get_level_values("name").isin(attends)
    totals["factor"] = totals["factor"].fillna(_of_peers(graph, totals, alike)).clip(lower=1)
    known = totals[totals["factor"].notna() & computes]
    known = known.assign(fair=known["time"] / known["factor"])[["time", "fair"]]
    of_phase = known.groupby(level=["rank", "phase"], observed=True).sum()
    overall = known.groupby(level="rank").sum()
    overall = (overall["time"] / overall["fair"]).reindex(range(len(graph.ranks)))
    overall = overall.fillna(_beside_machine(graph, nodes))
    factor = nodes.join(totals["factor"], on=[*keys, "rank"])["factor"]
    place = pd.MultiIndex.from_frame(nodes[["rank", "phase"]])
    near = pd.Series((of_phase["time"] / of_phase["fair"]).reindex(place).to_numpy())
    return factor.fillna(near).fillna(nodes["rank"].map(overall)).to_numpy()


def _of_peers(graph: StepGraph, totals: pd.DataFrame, alike: np.ndarray) -> pd.Series:
    """By how much the rank is slower than its peers in operations that are alike on all of them;
    NaN in other rows.

    @param totals  time by name, phase and rank (index)
    @param alike   bool, by row
    """
    rank = totals.index.get_level_values("rank")
    stage = graph.ranks.groupby(["role", "pipeline"], sort=False).ngroup().to_numpy()[rank]
    phase = totals.index.get_level_values("phase").astype(object)
    time = totals["time"].where(alike).astype(float)
    return time / usual(time, [totals.index.get_level_values("name"), phase, stage])


def _alone(nodes: pd.DataFrame) -> pd.Series:
    """By rank (index): whether no other rank does what it does."""
    keys = ["name", "phase"]
    counted = (nodes["flops"] > 0) & (nodes["category"] != "data")
    if not counted.any():
        counted = nodes["category"] != "data"
    pairs = nodes.assign(of=nodes["rank"].where(counted)).groupby([*keys, "rank"], observed=True)
    ranks = pairs["of"].max().groupby(level=keys, observed=True).transform("nunique")
    return (ranks <= 1).groupby(level="rank").all()


def _beside_machine(graph: StepGraph, nodes: pd.DataFrame) -> pd.Series:
    """machine_slowness() of each rank."""
    computed = nodes["time"].where(nodes["category"] != "data", 0.0)
    spent = pd.Series(np.bincount(nodes["rank"], computed, len(graph.ranks)) / 1e9)
    return machine_slowness(spent, graph.ranks["machine_seconds"])


def _most_costly(graph: StepGraph, nodes: pd.DataFrame, factors: np.ndarray) -> list[int]:
    """Indices of ranks that are slower than their peers, those that lose most first."""
    rank, time = nodes["rank"].to_numpy(), nodes["time"].to_numpy()
    spent = np.bincount(rank, time, len(graph.ranks))
    fair = np.bincount(rank, time / factors, len(graph.ranks))
    least = np.maximum((_SLOWER - 1) * fair, BY_CHANCE * _deviation(graph, nodes))
    order = np.argsort(fair - spent, kind="stable")[:_MOST_RANKS]
    return [int(r) for r in order if spent[r] - fair[r] > least[r]]


def _deviation(graph: StepGraph, nodes: pd.DataFrame) -> np.ndarray:
    """Per rank the standard deviation of what it computes in all, by loads.variance()."""
    lanes = graph.lanes
    event = lanes.event[nodes["node"].to_numpy()]
    rows, at = np.unique(event, return_index=True)
    seconds = pd.Series(np.bincount(event, nodes["time"], len(lanes.events))[rows])
    part = rows_of(lanes.events, rows, ["name", "phase", "rank", "flops"])
    keys = [part[key] for key in ("name", "phase", "rank")]
    rank = nodes["rank"].to_numpy()[at]
    return np.sqrt(np.bincount(rank, variance(seconds, part["flops"], keys), len(graph.ranks)))


def _sped_up(graph: StepGraph, nodes: pd.DataFrame, factors: np.ndarray, rank: int) -> np.ndarray:
    own = graph.own.copy()
    chosen = (nodes["rank"] == rank).to_numpy()
    mine = nodes[chosen]
    own[mine["node"].to_numpy()] = (mine["time"] / factors[chosen] + mine["pause"]).to_numpy()
    return own


def _speed(nodes: pd.DataFrame, factors: np.ndarray, rank: int) -> float:
    """Of a rank, as a share of the median's."""
    mine = (nodes["rank"] == rank).to_numpy()
    time = nodes["time"].to_numpy()[mine]
    return float((time / factors[mine]).sum() / time.sum())
