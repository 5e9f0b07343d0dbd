# SPDX-License-Identifier: Apache-2.0
"""The stages, and those of them that say what must hold on a device."""

import contextlib
import csv
import io
import math
import re
import shutil
from pathlib import Path

from . import bench, cases, place
from .process import Failed, Skipped, last_line

QUERY = "name,uuid,driver_version,memory.total,compute_cap,clocks.max.sm,clocks.max.memory"
COUNT = re.compile(r"^\[  (PASSED|FAILED|SKIPPED) *\] (\d+) tests?[.,]", re.MULTILINE)
CASE = re.compile(r"^\[  FAILED  \] ([\w/]+\.[\w/]+)", re.MULTILINE)


def require_device(check):
    """@throws Skipped where the programs are for devices and there is none"""
    if not check.place.on_device:
        return
    found = place.needs(*map(check.place.program, cases.PROGRAMS),
                        environment=check.place.environment)
    missing = {name for name, path in found.items() if path is None}
    if "libcuda.so.1" in missing:
        raise Skipped("no NVIDIA device here: there is no driver (libcuda.so.1)")
    if missing:
        folders = ", ".join(place.cuda_folders()) or "no folder of CUDA"
        raise Skipped(f"not found: {', '.join(sorted(missing))} (looked into {folders})")
    code, out = check.run(check.place.program(cases.TESTS[0]), "--gtest_list_tests")
    if code:
        raise Skipped(last_line(out).removeprefix("skipped: "))


def device(check):
    if not check.place.on_device:
        raise Skipped("these programs compute on the host")
    try:
        require_device(check)
    except Skipped as error:
        raise Failed(error) from None
    describe_device(check)


def describe_device(check):
    """nvidia-smi's words, and which CUDA driver and programs are for."""
    code, out = check.run("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader")
    if code:
        raise Failed(f"nvidia-smi: {last_line(out)}")
    check.figures["devices"] = [dict(zip(QUERY.split(","), line.split(", ")))
                                for line in out.splitlines()]
    driver = re.search(r"CUDA Version: ([\d.]+)", check.run("nvidia-smi")[1])
    libraries = " ".join(place.needs(check.place.program(cases.PROGRAM)))
    program = re.search(r"libcublas\.so\.(\d+)", libraries)
    check.figures["cuda"] = {"driver": driver and driver[1], "programs": program and program[1]}
    # What Open MPI needs: a loopback that is up, and room for shared memory.
    with contextlib.suppress(Failed):
        check.figures["interfaces"] = check.run("ip", "-br", "a")[1].splitlines()
    shared = Path("/dev/shm")
    check.figures["shared_memory_bytes"] = shutil.disk_usage(shared).free if shared.is_dir() else 0


def named(program, tests):
    return program if tests == "*" else f"{program} {tests}"


def kernels(check):
    run_tests(check, cases.KERNELS)


def modules(check):
    run_tests(check, cases.MODULES)


def run_tests(check, programs):
    failed = []
    for name, tests in programs:
        what = named(name, tests)
        ranks = cases.RANKS if name == cases.MPI else None
        launcher = ["mpirun", "-n", ranks, "--bind-to", "none"] if ranks else []
        try:
            code, out = check.run(*launcher, check.place.program(name), "--gtest_brief=1",
                                  f"--gtest_filter={tests}", limit=cases.UNIT_SECONDS)
        except Failed as end:
            code, out = None, str(end)
        failures = sorted(set(CASE.findall(out)))
        check.figures[what] = {"code": code, "failures": failures, **{
            word.lower(): int(number) for word, number in COUNT.findall(out)}}
        check.save()
        if code != 0:
            failed.append(f"{what} ({', '.join(failures[:3]) or last_line(out)})")
    if failed:
        raise Failed("; ".join(failed))


def tool_of_cuda(check, name):
    if not check.place.on_device:
        raise Skipped("these programs compute on the host")
    tool = shutil.which(name) or shutil.which(
        name, path=f"/usr/local/cuda/bin:/usr/local/cuda/{name}")
    if not tool:
        raise Skipped(f"there is no {name} here")
    return tool


def sanitizer(check):
    tool = tool_of_cuda(check, "compute-sanitizer")
    failed, unfinished = [], []
    for name, tests in cases.SANITIZER:
        what = f"{name} {tests.split('.')[0]}"
        try:
            code, out = check.run(tool, "--tool", name, "--error-exitcode", 9,
                                  check.place.program(cases.SANITIZED), f"--gtest_filter={tests}",
                                  limit=cases.SANITIZER_SECONDS)
        except Failed as end:
            check.figures[what] = {"code": None, "said": str(end)}
            unfinished.append(what)
            continue
        said = re.findall(r"^=+ (.* SUMMARY: .*)$", out, re.MULTILINE) or [last_line(out)]
        check.figures[what] = {"code": code, "said": said[-1]}
        check.save()
        if code:
            failed.append(f"{what}: {said[-1]}")
    if unfinished:
        check.note = f"not finished in time: {', '.join(unfinished)}"
    if failed:
        raise Failed("; ".join(failed))


def losses(check):
    expected = check.place.about["losses"]
    if not expected:
        raise Skipped("no losses to compare with: there is no host's program (CADENZA names one)")
    path = check.scratch / "losses.yaml"
    path.write_text(cases.LOSSES)
    failed = []
    for transport, ranks, dtype in cases.LOSS_CASES:
        run = bench.train(check, path, ranks, {"run.transport": transport, "run.dtype": dtype,
                                               "parallel.data": ranks})
        found = place.losses(run)
        off = max((abs(a / b - 1) for a, b in zip(found, expected, strict=True)),
                  key=lambda value: (math.isnan(value), value))
        name, most = f"{transport} {ranks} {dtype}", cases.TOLERANCE[dtype]
        check.figures[name] = {"losses": found, "off": off, "tolerance": most}
        check.save()
        if not off <= most:
            failed.append(f"{name}: off by {off:.2g}, at most {most:g}")
    if failed:
        raise Failed("; ".join(failed))


def counters(check):
    """By kernel what ncu says of it; where it may not, the time of the pass as a whole."""
    try:
        count(check, tool_of_cuda(check, "ncu"))
    except Skipped as why:
        if not check.place.on_device:
            raise
        with check.converse(check.place.program(cases.BENCH), "--interactive",
                            env=check.place.environment) as program:
            measured = check.figures["backward"] = bench.measure(program, cases.COUNTED)
        raise Skipped(f"{why}; both grids together: {1e3 * measured['seconds']:.4g} ms") from None


def count(check, tool):
    code, out = check.run(tool, *cases.COUNTERS, check.place.program(cases.BENCH),
                          *cases.COUNTED_WORDS)
    if "ERR_NVGPUCTRPERM" in out:
        raise Skipped("this machine's driver keeps its counters for administrators")
    _, header, rows = out.partition('"ID"')
    for row in csv.DictReader(io.StringIO(header + rows)):
        grid = re.search(r"(Query|Key)Gradient", row.get("Kernel Name") or "")
        if grid and row.get("Metric Name"):
            value = f"{row['Metric Value']} {row['Metric Unit']}".strip()
            check.figures.setdefault(grid[0], {})[row["Metric Name"]] = value
    if code or check.figures.keys() != {"QueryGradient", "KeyGradient"}:
        raise Failed(f"ncu: {last_line(out)}")


# With the seconds of each, 26 minutes in all, in the order in which they say most soonest.
STAGES = {"device": (device, 30), "kernels": (kernels, 240), "sanitizer": (sanitizer, 240),
          "modules": (modules, 240), "attention": (bench.attention, 240), "losses": (losses, 100),
          "step": (bench.step, 280), "counters": (counters, 120)}
