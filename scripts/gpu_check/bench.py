# SPDX-License-Identifier: Apache-2.0
"""The stages that measure: core attention by kernel beside PyTorch's, and steps of a model."""

import contextlib
import importlib.util
import math
import os
import statistics
import sys

from . import cases, place
from .process import Failed, Skipped

SAMPLES = 3
STEP_SECONDS = 90  # of a training of a few steps
LEAST = 0.05     # seconds of a sample: so many calls in a row
MOST_CALLS = 50
MARGIN = 0.1     # of a stage's time: nothing begins when less is left
ANSWER = 30.0    # seconds that a program has for one


def measure(program, work):
    """The median over some samples."""
    flops = program.ask({"prepare": "it", "work": work})["flops"]
    program.ask({"run": "it"})  # may prepare what later ones use
    once = program.ask({"run": "it"})["seconds"]
    calls = max(1, min(MOST_CALLS, math.ceil(LEAST / once)))
    samples = [program.ask({"run": "it", "calls": calls})["seconds"] for _ in range(SAMPLES)]
    program.ask({"release": "it"})
    seconds = statistics.median(samples)
    return {"seconds": seconds, "samples": samples, "calls": calls,
            "tflops": flops / seconds / 1e12}


def works(on_device):
    for heads, kv_heads, head_dim, documents, task in (
            cases.DEVICE_SHAPES if on_device else cases.HOST_SHAPES):
        for direction in ("forward", "backward"):
            what = str(documents[0]) if len(documents) == 1 else f"{len(documents)} documents"
            shards = f", shards of {task}" if task else ""
            yield {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "task": task,
                   "documents": documents, "pass": direction, "dtype": "bfloat16",
                   "shape": f"{direction} d{head_dim} {heads}:{kv_heads} {what}{shards}"}


def attention(check):
    """Every kernel in a process of its own: one that breaks the device or never ends is named, and
    the others go on."""
    on_device = check.place.on_device
    rows = check.figures["rows"] = []
    skipped = check.figures["skipped"] = {}
    broken = {}
    unreached = 0

    def ours():
        return check.converse(check.place.program(cases.BENCH), "--interactive",
                              env=check.place.environment, limit=ANSWER)

    with ours() as program:
        limit = {"kind": "limit", "dtype": "bfloat16" if on_device else "float32"}
        check.figures["product"] = measure(program, limit)
    ways = [(name, settings, lambda: peer(check, "torch_attention", skipped))
            for name, settings in cases.PEERS.items()]
    ways += [(name, {"kernel": name}, ours)
             for name in (cases.DEVICE_KERNELS if on_device else cases.HOST_KERNELS)]
    for number, (name, settings, start) in enumerate(ways):
        # One after another, for the device's memory, each with its share of the time that is left.
        end = check.clock.left() * (1 - 1 / (len(ways) - number))
        program = start()
        with program or contextlib.nullcontext():
            for work in works(on_device) if program else ():
                if name in skipped or name in broken:
                    break
                if check.clock.left() < max(end, MARGIN * check.clock.seconds):
                    unreached += 1
                    continue
                try:
                    rows.append({"by": name, **work, **measure(program, {**work, **settings})})
                except (Failed, Skipped) as error:
                    ends = isinstance(error, Failed) and name not in cases.PEERS
                    (broken if ends else skipped)[name] = str(error)
                check.save()
    if broken or not rows:
        raise Failed("; ".join(f"{name}: {why}" for name, why in (broken or skipped).items()))
    if unreached:
        check.note = f"{unreached} measurements were not reached in time"


def peer(check, name, skipped):
    """PyTorch in the machine's own environment, or None."""
    if check.place.on_device and importlib.util.find_spec("torch"):
        return check.converse(sys.executable, check.place.peers / f"{name}.py",
                              env={**os.environ, "OMP_NUM_THREADS": "2"}, limit=2 * ANSWER)
    skipped["torch"] = ("PyTorch is not installed here" if check.place.on_device
                        else "measured on devices alone")
    return None


def step(check):
    path = check.scratch / "step.yaml"
    path.write_text(cases.STEP if check.place.on_device else cases.SMALL_STEP)
    runs = check.figures["runs"] = []
    skipped = check.figures["skipped"] = {}
    torch = peer(check, "torch_step", skipped)
    with torch or contextlib.nullcontext():
        try:
            runs += [torch_step(torch)] if torch else []
        except (Failed, Skipped) as error:  # too little memory, say: nothing is wrong with ours
            skipped["torch"] = str(error)
    broken, seconds = [], {}
    for kernel, trace in cases.STEPS if check.place.on_device else cases.HOST_STEPS:
        by = f"{kernel}, trace {'on' if trace else 'off'}"
        settings = {"attention.kernel": kernel, "trace.events": str(trace).lower(),
                    "trace.memory": str(trace).lower()}
        try:
            run = train(check, path, 1, settings, limit=STEP_SECONDS)
        except Failed as error:
            broken.append(f"{by}: {error}")
            continue
        steps = place.metrics(run)[1:]  # the first one prepares
        runs.append({"by": by, **{
            key: statistics.median(row[key] for row in steps)
            for key in ("seconds", "tokens_per_second", "model_flops_utilization",
                        "peak_memory_bytes")}})
        seconds[kernel, trace] = runs[-1]["seconds"]
        check.save()
    check.figures["tracing"] = {kernel: seconds[kernel, True] / off - 1
                                for (kernel, trace), off in seconds.items()
                                if not trace and (kernel, True) in seconds}
    if broken:
        raise Failed("; ".join(broken))


def torch_step(torch):
    torch.ask({"prepare": "it", "work": cases.TORCH_STEP})
    steps = [torch.ask({"run": "it"}) for _ in range(4)][1:]
    seconds = statistics.median(row["seconds"] for row in steps)
    return {"by": "torch", "seconds": seconds, "tokens_per_second": steps[0]["tokens"] / seconds}


def train(check, experiment, ranks, settings, limit=math.inf):
    """@return the run's folder; the program's first complaint where it fails"""
    folder = check.scratch / f"run-{len(list(check.scratch.iterdir()))}"
    settings = {"run.device": "cuda" if check.place.on_device else "host", **settings}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    code, out = check.run("mpirun", "-n", ranks, "--bind-to", "none",
                          check.place.program(cases.PROGRAM), "train", experiment, "--output",
                          folder, *words, limit=limit)
    if code:
        said = [line for line in out.splitlines() if line.startswith("cadenza:")]
        raise Failed(said[0] if said else f"cadenza train ended with {code}")
    return folder
