# SPDX-License-Identifier: Apache-2.0
"""What plan, program and executor add to a step's kernels: both alternately in one process."""

from comparison import sampling
from comparison.process import Process
from placement_runs import cases

TARGET = 1.02  # step / bare loop of its kernels
LENGTH = 1024  # of every document


def measure(program, log, rounds):
    """Seconds of both in every round: {"step": [...], "kernels": [...]}."""
    documents = [LENGTH] * (cases.MICROBATCH // LENGTH) or [cases.MICROBATCH]
    work = {**cases.MODEL, "documents": documents, "dtype": "float32"}
    bench = Process([program, "--interactive"], 1, log)
    try:
        for kind in ("step", "kernels"):
            bench.ask({"prepare": kind, "work": {"kind": kind, **work}})
            bench.ask({"run": kind})
        sides = {kind: lambda kind=kind: bench.ask({"run": kind})["seconds"]
                 for kind in ("step", "kernels")}
        return sampling.alternate(sides, budget=3600, most=rounds)
    finally:
        bench.close()


def line(samples):
    found = sampling.ratio(samples["step"], samples["kernels"])
    low, high = sampling.quartiles([a / b for a, b in zip(samples["step"], samples["kernels"])])
    return ("Step / bare loop of its kernels, one rank, one balanced batch: "
            f"{found:.4f} (quartiles {low:.4f} to {high:.4f}, target ≤ {TARGET}, "
            f"{'met' if found <= TARGET else 'missed'})")
