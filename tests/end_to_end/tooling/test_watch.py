# SPDX-License-Identifier: Apache-2.0
"""cadenza-analyze watch beside real runs, which it must not disturb, and on simulated ones.
`bench/watch` measures what it misses, and what it costs."""

import os
import signal
import subprocess
import sys
import time

import pytest

import harness

pytest.importorskip(
    "cadenza", reason="the package analysis/ is not installed here", exc_type=ImportError
)
sys.path.insert(0, str(harness.ROOT / "bench"))
from benchmarks.real_faults import plant, processes  # noqa: E402
from benchmarks.watch.cases import clean, fault, planted, simulate  # noqa: E402

SEED = 4000  # of runs that no tuning has seen
PAUSE = 1.5  # seconds: long beside what a busy machine takes from a rank at one go
ATTEMPTS = 4  # a pause between two steps is in no operation
LONG_STEPS = {
    "model": {"layers": 2, "d_model": 64, "ffn": 128},
    "batch": {"tokens": 8192, "microbatch": 1024},
    "parallel": {"data": 2},
    "run": {"steps": 24},
}


def watch(run, *words):
    return subprocess.Popen([sys.executable, "-m", "cadenza.cli", "watch", str(run), *words],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def watched(run, *words):
    """Exit code, and lines that it printed."""
    process = watch(run, *words)
    out, err = process.communicate(timeout=harness.TIMEOUT)
    assert err == ""
    return process.returncode, out.splitlines()


@pytest.mark.parametrize("placement", ["colocated", "cad"])
def test_a_simulated_run_without_a_fault_is_healthy(placement, tmp_path):
    run = simulate(harness.PROGRAM, clean(placement, 8, SEED, 60), tmp_path / "run")
    code, lines = watched(run, "--every", "20")
    assert code == 0
    assert sum("healthy" in line for line in lines) == 3 and lines[-1].endswith("no alarms")


@pytest.mark.parametrize("kind", ["slow", "attention", "no core", "pause", "late start"])
def test_a_fault_in_a_simulated_run_is_told_within_three_steps(kind, tmp_path):
    case = fault(kind, "cad", 4, SEED)
    run, without, with_it = planted(harness.PROGRAM, case, tmp_path)
    assert 1 - without[case.first :].sum() / with_it[case.first :].sum() > 0.01
    code, lines = watched(run, "--until-alarm")
    (alarm,) = [line for line in lines if line.startswith("ALARM")]
    assert code == 1 and f"Repairing rank {case.rank} " in alarm
    told = int(alarm.split()[2].rstrip(":"))
    assert case.first <= told < case.first + 3, lines


def stopped_run(folder, corpus):
    """What the watch says of a real run that it waits for, a rank of which is stopped once."""
    folder.mkdir()
    changes = harness.merged(LONG_STEPS, {"data": harness.tokens_data(corpus)})
    experiment = harness.write_experiment(folder / "e.yaml", changes)
    beside = watch(folder / "run", "--every", "4")
    assert beside.stdout.readline() == "no complete step yet; waiting\n"
    process = harness.start(harness.command(2, ["train", experiment, "--output", folder / "run"]))
    try:
        harness.wait_for_steps(process, folder / "run", 10)
        time.sleep(0.1)
        plant.pause([processes.rank_processes(process.pid)[1]], PAUSE)
        result = harness.finish(process)
    finally:
        harness.stop(process)
    out, err = beside.communicate(timeout=harness.TIMEOUT)
    assert (result.code, err) == (0, ""), str(result)
    return beside.returncode, out.splitlines()


def test_a_rank_of_a_real_run_that_is_stopped_is_told(corpus, tmp_path):
    for attempt in range(ATTEMPTS):
        code, lines = stopped_run(tmp_path / str(attempt), corpus)
        told = [line for line in lines if line.startswith("ALARM") and "rank 1 " in line]
        if any("stood still for 1." in line for line in told):
            break
    assert code == 1 and "stood still for 1." in " ".join(told), lines
    assert lines[-2:] == ["the run has ended", lines[-1]] and "watched 24 steps" in lines[-1]


def test_a_real_run_that_hangs_is_told(corpus, tmp_path):
    changes = harness.merged(LONG_STEPS, {"data": harness.tokens_data(corpus),
                                          "run": {"steps": 4000}})
    experiment = harness.write_experiment(tmp_path / "e.yaml", changes)
    process = harness.start(harness.command(
        2, ["train", experiment, "--output", tmp_path / "run"]))
    victim, beside = None, None
    try:
        harness.wait_for_steps(process, tmp_path / "run", 12)
        victim = processes.rank_processes(process.pid)[1]
        os.kill(victim, signal.SIGSTOP)
        beside = watch(tmp_path / "run")
        said = next(line for line in beside.stdout if "ALARM no step for" in line)
        assert "it hangs, or writes nothing" in said
        beside.send_signal(signal.SIGINT)
        out, err = beside.communicate(timeout=harness.TIMEOUT)
        assert (beside.returncode, err) == (130, "") and " watched " in out.splitlines()[-1]
    finally:
        if victim:
            os.kill(victim, signal.SIGCONT)
        if beside:
            beside.kill()
        harness.stop(process)
