# SPDX-License-Identifier: Apache-2.0
"""The tables made of runs, and whether the targets are met."""

import statistics

from benchmarks.placements.cases import BASELINES, CAD, MIXES, PLACEMENTS, REFERENCE
from lib import tables

BOUND_TARGET = 1.05  # step of CAD / balanced bound
RIVAL_TARGET = 1.02  # CAD / best baseline
SPEEDUP_TARGET = 1.3  # colocated / CAD
IMBALANCE = 1.5  # of colocated's computation, above which SPEEDUP_TARGET holds


def computed(step):
    """Seconds of computation by rank."""
    return [sum(rank.values()) for rank in step["compute"]]


def bound(step):
    return statistics.mean(computed(step))


def imbalance(step):
    return max(computed(step)) / bound(step)


def over_steps(record, value):
    return statistics.median(value(step) for steps in record["rounds"] for step in steps)


def to_bound(record):
    return over_steps(record, lambda step: step["seconds"] / bound(step))


def round_seconds(record):
    return [statistics.median(step["seconds"] for step in steps) for steps in record["rounds"]]


def ratio(one, other):
    """Median over the rounds that both took part in of their ratio inside the round."""
    return statistics.median(a / b for a, b in zip(round_seconds(one), round_seconds(other)))


def usable(records, mix):
    """Records of a mix that hold runs, by placement."""
    found = {name: records.get(f"{mix}/{name}", {}) for name in PLACEMENTS}
    return {name: record for name, record in found.items() if record.get("rounds")}


def best_baseline(records):
    """Of the baselines that took part in most rounds: the others were left out as slow."""
    names = [name for name in BASELINES if name in records]
    most = max(len(records[name]["rounds"]) for name in names)
    kept = [name for name in names if len(records[name]["rounds"]) == most]
    return min(kept, key=lambda name: ratio(records[name], records[CAD]))


def cell(records, name):
    if name not in records:
        return "–"
    record = records[name]
    return f"{ratio(record, records[CAD]):.2f} ({to_bound(record):.3f})"


def times(records):
    """All placements on all mixes: time / CAD's, and in brackets step / balanced bound."""
    found = {mix: usable(records, mix) for mix in MIXES}
    found = {mix: records for mix, records in found.items() if CAD in records}
    lines = tables.head(["step / CAD's (step / bound)", *found])
    for name in PLACEMENTS:
        lines.append(tables.row([name, *(cell(of_mix, name) for of_mix in found.values())]))
    seconds = [f"{over_steps(of_mix[CAD], lambda step: step['seconds']):.2f}"
               for of_mix in found.values()]
    return [*lines, tables.row(["CAD's step, s", *seconds])]


def memory(records):
    """Of all placements on all mixes: peak memory of the largest rank, and its ratio to the mean of
    the ranks (the paper's memory divergence)."""
    found = {mix: usable(records, mix) for mix in MIXES}
    found = {mix: of_mix for mix, of_mix in found.items() if of_mix}
    lines = tables.head(["peak memory of the largest rank, MiB (/ mean)", *found])
    for name in PLACEMENTS:
        cells = []
        for of_mix in found.values():
            peaks = of_mix[name]["rounds"][-1][-1]["memory"] if name in of_mix else []
            cells.append(f"{max(peaks) / 2**20:.0f} ({max(peaks) / statistics.mean(peaks):.2f})"
                         if peaks else "–")
        lines.append(tables.row([name, *cells]))
    return lines


def bytes_agree(records):
    """Whether every run sent in its forward passes what its plans say."""
    return all(step["forward_bytes"] == record["planned_bytes"]
               for record in records.values() if record.get("planned_bytes") is not None
               for steps in record["rounds"] for step in steps)


def verdict(met):
    return "met" if met else "missed"


def targets(records):
    lines = tables.head(["mix", "colocated's imbalance", "CAD / bound ≤ 1.05",
                         "CAD / best baseline ≤ 1.02",
                         "colocated / CAD ≥ 1.3 where imbalance > 1.5", "bytes as planned"])
    for mix in MIXES:
        found = usable(records, mix)
        if CAD not in found or REFERENCE not in found:
            lines.append(f"| {mix} | not run | | | | |")
            continue
        above = to_bound(found[CAD])
        rival = best_baseline(found)
        beside = ratio(found[CAD], found[rival])
        uneven = over_steps(found[REFERENCE], imbalance)
        faster = ratio(found[REFERENCE], found[CAD])
        speedup = f"{faster:.2f}"
        if uneven > IMBALANCE:
            speedup += f" {verdict(faster >= SPEEDUP_TARGET)}"
        lines.append(tables.row([
            mix, f"{uneven:.2f}", f"{above:.3f} {verdict(above <= BOUND_TARGET)}",
            f"{beside:.3f} ({rival}) {verdict(beside <= RIVAL_TARGET)}", speedup,
            "yes" if bytes_agree(found) else "NO"]))
    return lines
