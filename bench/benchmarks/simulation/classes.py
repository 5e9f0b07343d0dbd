# SPDX-License-Identifier: Apache-2.0
"""Seconds of a step by class of operation, from traces of real and simulated runs alike."""

import statistics

import numpy as np

from lib import traces
from lib.traces import NESTED, named, seconds_of

COMPUTE_LANE = 0
WORK = (0, 1, 2, 9, 10)  # categories of docs/trace.md: dense, attention, other, data, optimizer
PASSES = {0: "forward", 1: "backward", 2: "recompute"}
BY_PASS = ("attend", "attention_inputs", "attention_outputs")
SMALL = {"embed": "other", "embed_gradient": "other", "begin_attention": "other", "load": "other",
         "gradient_norm": "other", "pack": "copies", "unpack": "copies"}
ALONE = ("loss", "optimize", "estimate")


def class_of(name, phase):
    if name in BY_PASS:
        return f"{name} {PASSES[phase]}"
    return SMALL.get(name) or (name if name in ALONE else None)


def nested_seconds(events, inner):
    """What collectives inside dense computation take of each event."""
    taken = np.zeros(len(events))
    for event, seconds in zip(inner, seconds_of(inner)):
        around = ((events["begin_ns"] <= event["begin_ns"])
                  & (events["end_ns"] >= event["end_ns"]))
        taken[np.flatnonzero(around)] += seconds
    return taken


def seconds_by_class(events, names):
    inner = events[named(events, names, lambda name: name.startswith(NESTED))]
    events = events[(events["lane"] == COMPUTE_LANE) & np.isin(events["category"], WORK)]
    times = seconds_of(events) - nested_seconds(events, inner)
    found = {}
    for event, seconds in zip(events, times):
        name = class_of(names[event["name_id"]], int(event["phase"]))
        if name is not None:
            found[name] = found.get(name, 0.0) + float(seconds)
    return found


def of_rank(steps, events, names):
    """Seconds of each step, and by class."""
    return [(float(seconds_of(step)),
             seconds_by_class(events[events["step"] == step["step"]], names)) for step in steps]


def over_ranks(step, name):
    return sum(classes.get(name, 0.0) for _, classes in step)


def read(folder, skip):
    """Median over steps after the first `skip`: seconds of a step, and by class of all ranks."""
    steps = list(zip(*(of_rank(*rank)[skip:] for rank in traces.ranks(folder))))
    found = {name for step in steps for _, classes in step for name in classes}
    return {"seconds": statistics.median(max(seconds for seconds, _ in step) for step in steps),
            "classes": {name: statistics.median(over_ranks(step, name) for step in steps)
                        for name in sorted(found)}}
