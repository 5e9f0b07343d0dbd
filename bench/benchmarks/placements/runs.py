# SPDX-License-Identifier: Apache-2.0
"""One run of the program: how it is started, and what its traces say of every step."""

import json
import shutil

import numpy as np

from benchmarks.placements import cases
from lib.command import call, mpirun, words_of
from lib.traces import FORWARD, NESTED, named, peak_memory, ranks, seconds_of

WARM_UP = 1  # steps whose times do not count: memory is touched for the first time
DENSE, ATTENTION, OTHER, OPTIMIZER = 0, 1, 2, 10  # categories of docs/trace.md
DISPATCH, RETURN = 6, 7
MOVING = ("pack", "unpack")  # other computation that a balanced bound does not have


def compute_seconds(events, names):
    """Computation of a step by its category, without packing, unpacking and collectives."""
    times = seconds_of(events)
    moving = named(events, names, MOVING.__contains__)
    found = {"dense": DENSE, "attention": ATTENTION, "other": OTHER, "optimizer": OPTIMIZER}
    seconds = {name: float(times[(events["category"] == category) & ~moving].sum())
               for name, category in found.items()}
    nested = named(events, names, lambda name: name.startswith(NESTED))
    seconds["dense"] -= float(times[nested].sum())
    return seconds


def forward_bytes(events):
    """Of messages of attention in the forward pass, sent and received."""
    messages = np.isin(events["category"], (DISPATCH, RETURN)) & (events["phase"] == FORWARD)
    return int(events["bytes"][messages].sum())


def of_rank(steps, events, names):
    """What a rank's trace says of each of its steps."""
    found = []
    for step in steps:
        mine = events[events["step"] == step["step"]]
        found.append({"seconds": float(seconds_of(step)), "compute": compute_seconds(mine, names),
                      "loss": float(step["loss"]), "sent": int(step["bytes_sent"]),
                      "forward_bytes": forward_bytes(mine)})
    return found


def read_steps(folder):
    """Steps of a run, without those that warm up."""
    by_step = zip(*(of_rank(*rank) for rank in ranks(folder)))
    memory = [total for total, _ in peak_memory(folder)]
    return [{"memory": memory, "seconds": max(rank["seconds"] for rank in step),
             "compute": [rank["compute"] for rank in step], "loss": step[0]["loss"],
             "sent": [rank["sent"] for rank in step],
             "forward_bytes": sum(rank["forward_bytes"] for rank in step) // 2}
            for step in list(by_step)[WARM_UP:]]


class Runs:
    """Runs of one program, in a folder."""

    def __init__(self, program, folder, under, steps):
        self.program, self.folder, self.under, self.steps = program, folder, under, steps
        folder.mkdir(parents=True, exist_ok=True)
        self.experiment = folder / "experiment.yaml"
        self.experiment.write_text("name: placements\nseed: 7\n")

    def call(self, count, arguments, settings, accepted=(0,)):
        """Runs the program on `count` ranks."""
        call([*mpirun(count, self.under), *words_of(self.program, arguments, settings)], accepted)

    def train(self, count, settings):
        """The folder of the run."""
        output = self.folder / "run"
        shutil.rmtree(output, ignore_errors=True)
        self.call(count, ["train", self.experiment, "--output", output], settings)
        return output

    def measure(self, mix, placement):
        settings = cases.settings(mix, placement, WARM_UP + self.steps)
        return read_steps(self.train(cases.RANKS, settings))

    def planned(self, mix, placement):
        """Bytes that the plans send in a forward pass; None where a step's plans are not its
        forward pass."""
        if "parallel.pipeline" in cases.PLACEMENTS[placement]:
            return None
        plan = json.loads(call(words_of(self.program, ["plan", self.experiment, "--format", "json"],
                                        cases.settings(mix, placement, 1))))
        return sum(plan["summary"]["bytes_sent_per_rank"]) * cases.MODEL["layers"]
