# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-check where there is no device: its stages with the host's programs, its bundle, and
the faults that it has to find."""

import contextlib
import ctypes
import fnmatch
import json
import os
import re
import subprocess
import sys
import time

import pytest

import harness

sys.path.insert(0, str(harness.ROOT / "scripts"))
from gpu_check import bench, bundle, cases, place, results, stages

CHECK = harness.ROOT / "scripts/gpu-check"
BENCH = harness.PROGRAM.parent / cases.BENCH
PASSES = "#!/bin/sh\necho '[  PASSED  ] 3 tests.'\n"
FAILS = PASSES + "echo '[  FAILED  ] Planted.Fault (1 ms)'\nexit 1\n"


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def build(tmp_path):
    """A build's folder: the host's program, and stubs for the rest."""
    folder = tmp_path / "build"
    write_program(folder / cases.PROGRAM, f'#!/bin/sh\nexec {harness.PROGRAM} "$@"\n')
    bench = f'#!/bin/sh\nexec {BENCH} "$@"\n' if BENCH.is_file() else "#!/bin/sh\nexit 3\n"
    write_program(folder / cases.BENCH, bench)
    for name in cases.TESTS:
        write_program(folder / name, PASSES)
    return folder


def run(*words, program=CHECK, cwd=None, **environment):
    return subprocess.run(
        [sys.executable, program, *map(str, words)], cwd=cwd, capture_output=True, text=True,
        env={**os.environ, "CADENZA": str(harness.PROGRAM), **environment}, check=False,
        timeout=harness.TIMEOUT)


def read(out):
    return json.loads((out / "results.json").read_text())["stages"]


def in_process(build, out, *names, losses=None):
    """With what a test has changed of the cases or the stages."""
    here = place.Place(build, harness.ROOT / "bench/peers", {"revision": "r", "losses": losses})
    code = results.run(here, names, out)
    return code, read(out)


@pytest.fixture(scope="module")
def losses():
    return place.host_losses(harness.PROGRAM)


def test_stages_one_after_another_and_one_again(build, tmp_path):
    out = tmp_path / "out"
    names = ["device", "kernels", "modules", "sanitizer"]
    result = run("run", "--build", build, "--out", out, "--stage", *names)
    assert result.returncode == 0, result.stdout + result.stderr
    parts = read(out)
    assert {name: part["status"] for name, part in parts.items()} == {
        "device": "skipped", "kernels": "passed", "modules": "passed", "sanitizer": "skipped"}
    assert parts["device"]["reason"] == "these programs compute on the host"
    for name, programs in (("kernels", cases.KERNELS), ("modules", cases.MODULES)):
        figures = parts[name]["figures"]
        assert list(figures) == [stages.named(*case) for case in programs]
        assert all(each["passed"] == 3 for each in figures.values())
    assert all(part["revision"] and part["seconds"] <= part["limit"] for part in parts.values())

    write_program(build / cases.TESTS[1], FAILS)
    result = run("run", "--build", build, "--out", out, "--stage", "modules")
    assert result.returncode == 1
    assert "modules    failed" in result.stdout
    again = read(out)
    assert again["modules"]["reason"] == f"{cases.TESTS[1]} (Planted.Fault)"
    assert {**again, "modules": None} == {**parts, "modules": None}
    assert "FAILED" in (out / "modules.log").read_text()


def test_attention_is_measured_and_what_is_not_is_named(build, tmp_path, monkeypatch):
    if not BENCH.is_file():
        pytest.skip(f"{BENCH} is not built")
    monkeypatch.setattr(cases, "HOST_SHAPES", cases.HOST_SHAPES[1:])
    code, parts = in_process(build, tmp_path / "out", "attention")
    figures = parts["attention"]["figures"]
    if "auto" in figures["skipped"]:
        pytest.skip(figures["skipped"]["auto"])
    assert code == 0, parts
    assert [row["pass"] for row in figures["rows"]] == ["forward", "backward"]
    assert all(row["tflops"] > 0 and row["shape"].endswith("2 documents, shards of 32")
               for row in figures["rows"])
    assert "valid for bfloat16 here" in figures["skipped"]["mma"] and figures["skipped"]["torch"]
    table = "\n".join(results.tables(parts))
    assert "core attention, TFLOP/s" in table and "not measured: mma" in table


# Answers as bench_attention on a device would; it has no sm90, and what mma is to compute never
# ends.
DEVICE_BENCH = '''#!{python}
import json, sys, time
for line in sys.stdin:
    request = json.loads(line)
    kernel = request.get("work", {{}}).get("kernel")
    if kernel == "mma":
        time.sleep(1000)
    answer = {{"error": "kernel: found sm90"}} if kernel == "sm90" else {{"flops": 4e12}}
    print(json.dumps({{"seconds": 0.02}} if "run" in request else answer), flush=True)
'''


def test_tests_that_never_end_hide_no_others(build, tmp_path, monkeypatch):
    """They are those of one kernel, in a process of its own."""
    monkeypatch.setattr(cases, "UNIT_SECONDS", 1.0)
    write_program(build / cases.TESTS[0], f"""#!/bin/sh
case "$*" in *=\\*Mma*) sleep 1000 ;; esac
{PASSES}""")
    code, parts = in_process(build, tmp_path / "out", "kernels")
    figures = parts["kernels"]["figures"]
    ended = [name for name, part in figures.items() if part["code"] != 0]
    assert (code, ended) == (1, [f"{cases.TESTS[0]} *Mma.*"]) and len(figures) == len(cases.KERNELS)
    assert "its 1 s were over" in parts["kernels"]["reason"]


def test_a_kernel_that_never_ends_hides_no_other(build, tmp_path, monkeypatch):
    write_program(build / cases.BENCH, DEVICE_BENCH.format(python=sys.executable))
    monkeypatch.setattr(stages, "require_device", lambda check: None)
    monkeypatch.setattr(cases, "PEERS", {})
    monkeypatch.setattr(cases, "DEVICE_KERNELS", ["sm90", "mma", "other"])
    monkeypatch.setattr(bench, "ANSWER", 1.0)
    here = place.Place(build, tmp_path / "no peers", {"revision": "r", "losses": None})
    here.on_device = True
    assert results.run(here, ["attention"], tmp_path / "out") == 1
    part = read(tmp_path / "out")["attention"]
    figures = part["figures"]
    assert part["reason"].startswith("mma: ") and "its 1 s were over" in part["reason"]
    assert figures["skipped"]["sm90"] == "kernel: found sm90"
    assert {row["by"] for row in figures["rows"]} == {"other"}
    assert len(figures["rows"]) == 2 * len(cases.DEVICE_SHAPES)
    assert len({row["shape"] for row in figures["rows"]}) == 2 * len(cases.DEVICE_SHAPES)
    assert all(row["tflops"] == 200 and row["calls"] == 3 for row in figures["rows"])


NCU = """#!/bin/sh
echo '==PROF== Connected to process 7'
echo '{"work": {"documents": [32768]}}'
cat <<'END'
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","void run_units<QueryGradientLoader>","","","",""
"0","7","void run_units<QueryGradientLoader>","Speed Of Light","Duration","ms","12.5"
"0","7","void run_units<QueryGradientLoader>","Launch","Registers Per Thread","register","168"
"1","7","void run_units<KeyGradientLoader>","Speed Of Light","Duration","ms","17.25"
END
"""


@pytest.mark.parametrize("says, status, reason", [
    (NCU, "passed", ""),
    ("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM - no permission'\nexit 1\n", "skipped",
     "this machine's driver keeps its counters for administrators; both grids together: 20 ms"),
    ("#!/bin/sh\necho '==WARNING== No kernels were profiled.'\n", "failed",
     "ncu: ==WARNING== No kernels were profiled."),
    (None, "skipped", "there is no ncu here; both grids together: 20 ms")],
    ids=["counts", "forbidden", "nothing", "missing"])
def test_counters_of_the_backward_pass(build, tmp_path, monkeypatch, says, status, reason):
    write_program(build / cases.BENCH, DEVICE_BENCH.format(python=sys.executable)
                  .replace('kernel == "sm90"', "False"))
    tools = tmp_path / "tools"
    if says:
        write_program(tools / "ncu", says)
    monkeypatch.setattr(stages.shutil, "which",
                        lambda name, path=None: str(tools / name) if says else None)
    monkeypatch.setattr(stages, "require_device", lambda check: None)
    here = place.Place(build, tmp_path / "no peers", {"revision": "r", "losses": None})
    here.on_device = True
    results.run(here, ["counters"], tmp_path / "out")
    part = read(tmp_path / "out")["counters"]
    assert (part["status"], part["reason"]) == (status, reason)
    if status == "passed":
        assert list(results.tables({"counters": part})) == [
            "QueryGradient: Duration 12.5 ms, Registers Per Thread 168 register",
            "KeyGradient: Duration 17.25 ms"]


def test_targets_are_judged():
    shape = {"pass": "backward", "documents": [16384], "head_dim": 128, "heads": 64, "task": 0}
    rows = [{**shape, "by": "sm90", "tflops": 364.0},
            {**shape, "by": "torch cudnn", "tflops": 519.0},
            {**shape, "by": "sm90", "tflops": 1.0, "head_dim": 64}]
    runs = [{"by": "sm90, trace off", "model_flops_utilization": 0.438},
            {"by": "sm90, trace on", "model_flops_utilization": 0.9}]
    assert list(results.targets(rows, runs)) == [
        "target: backward of sm90 over cuDNN, 16384 tokens, 0.701 (at least 0.7): met",
        "target: MFU of a step with sm90 0.438 (at least 0.45): missed"]
    assert not list(results.targets(rows[:1], []))


def test_losses_are_those_of_the_host(build, tmp_path, monkeypatch, losses):
    monkeypatch.setattr(cases, "LOSS_CASES", [cases.LOSS_CASES[0], cases.LOSS_CASES[-1]])
    code, parts = in_process(build, tmp_path / "out", "losses", losses=losses)
    assert code == 0, parts
    assert set(parts["losses"]["figures"]) == {"staged 2 float64", "auto 1 bfloat16"}


@pytest.mark.parametrize("off", [1e-9, float("nan")])
def test_a_wrong_loss_is_found(build, tmp_path, monkeypatch, losses, off):
    monkeypatch.setattr(cases, "LOSS_CASES", [("auto", 1, "float64")])
    wrong = [*losses[:3], losses[3] * (1 + off), *losses[4:]]
    code, parts = in_process(build, tmp_path / "out", "losses", losses=wrong)
    assert (code, parts["losses"]["status"]) == (1, "failed")
    assert "auto 1 float64: off by" in parts["losses"]["reason"]


def test_steps_are_measured_with_a_trace_and_without(build, tmp_path, monkeypatch):
    code, parts = in_process(build, tmp_path / "out", "step")
    assert code == 0, parts
    assert [row["by"] for row in parts["step"]["figures"]["runs"]] == [
        "auto, trace off", "auto, trace on"]
    table = "\n".join(results.tables(parts))
    for words in ("tracing, auto: ", "tokens/s, MFU", "not measured: torch"):
        assert words in table


def test_a_program_that_ends_badly_is_found(build, tmp_path):
    write_program(build / cases.PROGRAM,
                  "#!/bin/sh\necho 'cadenza: rank 1: NCCL says no' >&2\nexit 5\n")
    code, parts = in_process(build, tmp_path / "out", "losses", "step", losses=[1.0])
    assert code == 1
    said = "cadenza: rank 1: NCCL says no"
    assert [part["reason"] for part in parts.values()] == [
        said, f"auto, trace off: {said}; auto, trace on: {said}"]


CHILD, ITSELF = "sleep 1000 & echo $! >>{mark}; wait", "echo $$ >>{mark}; exec sleep 1000"


@pytest.mark.parametrize("name, program, sleeps", [
    ("kernels", cases.TESTS[0], CHILD), ("modules", cases.TESTS[4], ITSELF),
    ("attention", cases.BENCH, CHILD)], ids=["program", "ranks", "conversation"])
def test_what_hangs_is_ended_with_all_that_it_started(
        build, tmp_path, monkeypatch, name, program, sleeps):
    mark = tmp_path / "mark"
    write_program(build / program, "#!/bin/sh\necho begun\n" + sleeps.format(mark=mark))
    monkeypatch.setitem(stages.STAGES, name, (stages.STAGES[name][0], 3))
    code, parts = in_process(build, tmp_path / "out", name)
    assert (code, parts[name]["status"]) == (1, "failed"), parts
    assert "was ended: the stage's 3 s were over" in parts[name]["reason"]
    sleeping = int(mark.read_text().split()[0])  # programs that run after it begin and end at once
    with contextlib.suppress(ProcessLookupError):
        for _ in range(100):  # mpirun ends its ranks in its own time
            os.kill(sleeping, 0)
            time.sleep(0.1)
        os.kill(sleeping, 9)
        pytest.fail("what it had started was left")


def test_what_was_ended_from_outside_is_no_success(tmp_path, build, monkeypatch):
    monkeypatch.setitem(stages.STAGES, "kernels", (lambda check: sys.exit(9), 5))
    with pytest.raises(SystemExit):
        in_process(build, tmp_path / "out", "kernels")
    assert read(tmp_path / "out")["kernels"]["status"] == "failed"


def for_a_device(build, folder):
    """Makes the program of the build one that needs a driver."""
    folder.mkdir()
    (folder / "none.c").write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    (folder / "main.c").write_text("int cuInit(unsigned); int main(void) { return cuInit(0); }\n")
    library = folder / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library,
                    folder / "none.c"], check=True)
    subprocess.run(["cc", "-o", build / cases.PROGRAM, folder / "main.c", library], check=True)
    return library


def test_without_a_device_one_line_says_so(build, tmp_path):
    library = for_a_device(build, tmp_path / "driver")
    write_program(build / cases.TESTS[0],
                  "#!/bin/sh\necho 'skipped: no NVIDIA device here: none is visible'\nexit 77\n")
    out = tmp_path / "out"
    result = run("--build", build, "--out", out, LD_LIBRARY_PATH=str(library.parent))
    assert result.returncode == 1
    assert "device     failed" in result.stdout
    parts = read(out)
    assert {name: part["status"] for name, part in parts.items()} == {
        name: "failed" if name == "device" else "skipped" for name in stages.STAGES}
    assert {part["reason"] for part in parts.values()} == {
        "no NVIDIA device here: none is visible"}

    library.unlink()
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("this machine has a driver")
    assert run("--build", build, "--out", out, "--stage", "device").returncode == 1
    assert read(out)["device"]["reason"] == (
        "no NVIDIA device here: there is no driver (libcuda.so.1)")


def test_a_bundle_runs_where_it_was_copied_to(build, tmp_path):
    folder = tmp_path / "bundle"
    result = run("bundle", folder, "--build", build)
    assert result.returncode == 0, result.stderr
    assert 0 < bundle.check_size(folder, folder) < bundle.LIMIT
    copied = folder.rename(tmp_path / "elsewhere")
    build.rename(tmp_path / "gone")
    result = run("--stage", "device", "kernels", "modules", program=copied / "gpu-check",
                 cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert read(tmp_path / "gpu-check-results")["kernels"]["status"] == "passed"
    log = (tmp_path / "gpu-check-results/modules.log").read_text()
    assert log.count("3 tests") == len(cases.MODULES) + 4  # four of them on two ranks


def test_a_bundle_too_large_or_of_nothing_is_refused(build, tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    for number in range(7):
        (files / f"part{number}").write_bytes(b"x" * 1000 * number)
    with pytest.raises(place.Unfit, match=r"at most 0.00954; .* part6 .*, part2 \S+$"):
        bundle.check_size(files, files, 10000)
    (build / cases.TESTS[2]).unlink()
    result = run("bundle", tmp_path / "bundle", "--build", build)
    assert result.returncode == 2
    assert result.stderr == f"gpu-check: {build}: has no {cases.TESTS[2]}; build it first\n"
    result = run("run", "--build", tmp_path)
    assert result.returncode == 2 and "there is no such program" in result.stderr


def test_what_it_names_is_there():
    unit = harness.ROOT / "tests/unit"
    for name in cases.TESTS:
        stem = name.removeprefix("tests/test_")
        mpi = harness.ROOT / f"tests/mpi/test_{stem.removeprefix('mpi_')}.cpp"
        assert mpi.is_file() if stem.startswith("mpi_") else (unit / stem).is_dir(), name
    folder = unit / cases.SANITIZED.removeprefix("tests/test_")
    text = "".join(path.read_text() for path in folder.glob("*.cpp"))
    there = [f"{suite}.{name}"
             for suite, name in re.findall(r"^TEST(?:_F)?\((\w+), (\w+)\)", text, re.M)]
    there += [f"{suite}/{kernel}.{name}" for kernel in ("Mma", "Sm90")
              for suite, name in re.findall(r"^TYPED_TEST\((\w+), (\w+)\)", text, re.M)]
    of_kernels = [tests.lstrip("-") for _, tests in cases.KERNELS]
    for pattern in ":".join([*of_kernels, *(tests for _, tests in cases.SANITIZER)]).split(":"):
        assert fnmatch.filter(there, pattern), pattern
    assert cases.SANITIZER[0] == ("memcheck", cases.SM90_CASES)  # what needs it most
    seconds = {name: limit for name, (_, limit) in stages.STAGES.items()}
    assert max(seconds.values()) <= 6 * 60
    # What the page's first four commands do, with a minute for the start of each.
    assert sum(list(seconds.values())[:5]) + 4 * 60 <= 30 * 60 <= sum(seconds.values()) + 7 * 60
    assert sum(seconds.values()) + 7 * 60 <= 45 * 60
