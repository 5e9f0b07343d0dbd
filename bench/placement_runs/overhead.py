# SPDX-License-Identifier: Apache-2.0
"""What plan, program and executor add to a step's kernels: both alternately in one process."""

from comparison import sampling
from comparison.process import Process
from placement_runs.cases import MICROBATCH, MODEL

DOCUMENTS = [1024] * (MICROBATCH // 1024)
TARGET = 1.02  # step / bare loop of its kernels


def measure(program, log, rounds, model=None, documents=None):
    """Seconds of both in every round: {"step": [...], "kernels": [...]}."""
    work = {**(model or MODEL), "documents": documents or DOCUMENTS, "dtype": "float32"}
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
    return (f"step / bare loop of its kernels, one rank, {len(DOCUMENTS)} × 1K tokens: "
            f"{found:.4f} (quartiles {low:.4f} to {high:.4f}, target ≤ {TARGET}, "
            f"{'met' if found <= TARGET else 'missed'})")
