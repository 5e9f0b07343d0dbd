# SPDX-License-Identifier: Apache-2.0
"""One run of the program: how it is started, and what its traces say of every step."""

import json
import os
import shutil
import subprocess

import h5py
import numpy as np

from placement_runs import cases

WARM_UP = 1  # steps whose times do not count: memory is touched for the first time
TOO_NOISY = 4  # exit code of a calibration that nobody should rely upon
TIMEOUT = 900  # s of a run
DENSE, ATTENTION, OTHER, OPTIMIZER = 0, 1, 2, 10  # categories of docs/trace.md
DISPATCH, RETURN = 6, 7
FORWARD = 0  # phase
MOVING = ("pack", "unpack")  # other computation that a balanced bound does not have
NESTED = "tensor_"  # begins the names of collectives inside dense computation


class RunError(Exception):
    """A run ended badly."""


def environment():
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, **(root if os.getuid() == 0 else {}), "OMP_NUM_THREADS": "1",
            "OMP_PROC_BIND": "false"}


def words_of(program, experiment, keys):
    words = [str(program), *experiment]
    for key in keys:
        words += ["--set", key]
    return words


def call(words, accepted=(0,)):
    """What the command prints; its exit code must be one of `accepted`."""
    try:
        done = subprocess.run(words, env=environment(), capture_output=True, text=True,
                              check=False, timeout=TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise RunError(f"stopped after {TIMEOUT} s") from error
    if done.returncode not in accepted:
        lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        raise RunError(f"{lines[-1]} (exit code {done.returncode})")
    return done.stdout


def named(events, names, chosen):
    return np.isin(events["name_id"], [i for i, name in enumerate(names) if chosen(name)])


def compute_seconds(events, names):
    """Computation of a step by its category, without packing, unpacking and collectives."""
    times = (events["end_ns"] - events["begin_ns"]) * 1e-9
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


def read_rank(path):
    with h5py.File(path, "r") as file:
        steps, events = file["/steps"][:], file["/events"][:]
        names = [text.decode() for text in file["/meta/strings"][:]]
    found = []
    for step in steps:
        mine = events[events["step"] == step["step"]]
        found.append({"seconds": float(step["end_ns"] - step["begin_ns"]) * 1e-9,
                      "compute": compute_seconds(mine, names), "loss": float(step["loss"]),
                      "sent": int(step["bytes_sent"]), "forward_bytes": forward_bytes(mine)})
    return found


def read_steps(folder):
    """Steps of a run, without those that warm up."""
    ranks = [read_rank(path) for path in sorted((folder / "trace").glob("rank-*.h5"))]
    return [{"seconds": max(rank["seconds"] for rank in step),
             "compute": [rank["compute"] for rank in step], "loss": step[0]["loss"],
             "sent": [rank["sent"] for rank in step],
             "forward_bytes": sum(rank["forward_bytes"] for rank in step) // 2}
            for step in list(zip(*ranks))[WARM_UP:]]


def planned_bytes(program, experiment, mix, placement):
    """What the plans send in a forward pass; None where a step's plans are not its forward pass."""
    if "parallel.pipeline" in cases.PLACEMENTS[placement]:
        return None
    keys = cases.settings(mix, placement, 1)
    plan = json.loads(call(words_of(program, ["plan", experiment, "--format", "json"], keys)))
    return sum(plan["summary"]["bytes_sent_per_rank"]) * cases.MODEL["layers"]


def save(path, results):
    """A run that is interrupted while it writes loses nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(results, indent=1))
    part.replace(path)


class Runs:
    def __init__(self, program, folder, under, steps):
        self.program, self.folder, self.under, self.steps = program, folder, under, steps
        enough = len(os.sched_getaffinity(0)) >= cases.RANKS
        self.binding = ["--bind-to", "core"] if enough else ["--oversubscribe"]
        folder.mkdir(parents=True, exist_ok=True)
        self.experiment = folder / "experiment.yaml"
        self.experiment.write_text("name: placements\nseed: 7\n")

    def launch(self, ranks, arguments, keys=(), accepted=(0,)):
        """Runs the program on `ranks` ranks."""
        call([*self.under, "mpirun", "-n", str(ranks), *self.binding,
              *words_of(self.program, arguments, keys)], accepted)

    def train(self, ranks, keys):
        """Trains; the folder of the run."""
        output = self.folder / "run"
        shutil.rmtree(output, ignore_errors=True)
        self.launch(ranks, ["train", str(self.experiment), "--output", str(output)], keys)
        return output

    def measure(self, mix, placement):
        keys = cases.settings(mix, placement, WARM_UP + self.steps)
        return read_steps(self.train(cases.RANKS, keys))

    def planned(self, mix, placement):
        return planned_bytes(self.program, str(self.experiment), mix, placement)
