# SPDX-License-Identifier: Apache-2.0
"""Runs stages one after another; keeps what they measured in one JSON, prints it as a table."""

import datetime
import json
import math
import os
import tempfile
from pathlib import Path

from . import cases, process, stages
from .process import Failed, Skipped


class Check:
    """What a stage sees: the programs, its time, and where its figures go."""

    def __init__(self, place, seconds, log, scratch, keep):
        self.place, self.clock, self.log, self.scratch = place, process.Clock(seconds), log, scratch
        self.figures, self.note = {}, ""
        self.save = lambda: keep({"status": "failed", "reason": "it was ended from outside",
                                  "figures": self.figures})

    def run(self, *words, limit=math.inf):
        return process.run(words, self.clock, self.log, limit, env=self.place.environment,
                           cwd=self.scratch)

    def converse(self, *words, env, limit=math.inf):
        return process.Conversation(words, self.clock, self.log, limit, env=env)


def run_stage(name, place, out, keep):
    """@return the stage's part of the results"""
    work, seconds = stages.STAGES[name]
    log = out / f"{name}.log"
    log.write_text("")
    with tempfile.TemporaryDirectory() as scratch:
        check = Check(place, seconds, log, Path(scratch), keep)
        check.save()
        status = "passed"
        try:
            if name != "device":
                stages.require_device(check)
            work(check)
        except (Failed, Skipped) as end:
            status, check.note = type(end).__name__.lower(), str(end)
    return {"status": status, "reason": check.note, "seconds": round(check.clock.spent(), 1),
            "limit": seconds, "figures": check.figures}


def run(place, names, out):
    """@return the exit code"""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "results.json"
    results = json.loads(path.read_text()) if path.is_file() else {"stages": {}}

    def keep(name, part):
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        results["stages"][name] = {"revision": place.about["revision"], "time": now, **part}
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(results, indent=1))
        os.replace(unfinished, path)

    for name in names:
        part = run_stage(name, place, out, lambda part, name=name: keep(name, part))
        keep(name, part)
        print(f"{name:10} {part['status']:8} {part['seconds']:6.1f} s  {part['reason']}",
              flush=True)
    print("\n".join(["", *tables(results["stages"]), f"{path}"]))
    return int(any(results["stages"][name]["status"] == "failed" for name in names))


def tables(parts):
    """What the measuring stages left, as lines."""
    device, attention, step, counters = (parts.get(name, {}).get("figures", {}) for name in (
        "device", "attention", "step", "counters"))
    for row in device.get("devices", []):
        yield ", ".join(row.values())
    rows = attention.get("rows", [])
    names = list(dict.fromkeys(row["by"] for row in rows))
    if rows:
        yield f"{'core attention, TFLOP/s':40}" + "".join(f"{name:>21}" for name in names)
    for shape in dict.fromkeys(row["shape"] for row in rows):
        by = {row["by"]: f"{row['tflops']:.3g}" for row in rows if row["shape"] == shape}
        yield f"{shape:40}" + "".join(f"{by.get(name, '-'):>21}" for name in names)
    yield from targets(rows, step.get("runs", []))
    for row in step.get("runs", []):
        share = row.get("model_flops_utilization")
        yield (f"step, {row['by']}: {row['seconds']:.4g} s, {row['tokens_per_second']:.4g} tokens/s"
               + (f", MFU {share:.3f}" if share else ""))
    for kernel, share in step.get("tracing", {}).items():
        yield f"tracing, {kernel}: {100 * share:+.2f} % of a step"
    for grid, figures in counters.items():
        if grid.endswith("Gradient"):
            yield f"{grid}: " + ", ".join(f"{name} {figures[name]}" for name in SHOWN
                                          if name in figures)
    skipped = {**step.get("skipped", {}), **attention.get("skipped", {})}
    yield from (f"not measured: {name}: {reason}" for name, reason in skipped.items())


# Of ncu's metrics, those that a line shows.
SHOWN = ("Duration", "Compute (SM) Throughput", "Memory Throughput", "Registers Per Thread",
           "Achieved Occupancy")


def targets(rows, runs):
    """Whether what was measured is what docs/gpu.md says that it must be, as lines."""
    def said(what, found, least):
        return f"target: {what} {found:.3g} (at least {least:g}): " + (
            "met" if found >= least else "missed")

    for direction, least in cases.TARGETS.items():
        for length in cases.TARGET_LENGTHS:
            rate = {row["by"]: row["tflops"] for row in rows
                    if row["pass"] == direction and row["documents"] == [length]
                    and row["head_dim"] == 128 and row["heads"] == 64 and not row["task"]}
            if {"sm90", "torch cudnn"} <= rate.keys():
                yield said(f"{direction} of sm90 over cuDNN, {length} tokens,",
                           rate["sm90"] / rate["torch cudnn"], least)
    for run in runs:
        if run["by"] == "sm90, trace off":
            yield said("MFU of a step with sm90", run["model_flops_utilization"],
                       cases.TARGET_MFU)
