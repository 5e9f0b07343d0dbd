# SPDX-License-Identifier: Apache-2.0
"""What cadenza-analyze reads, sound and changed; a fault of it would be found."""

import os
import signal
from pathlib import Path

import fuzz_analysis
import pytest

# Inputs of each target: a few seconds.
RUNS = {"trace": 40, "commands": 30, "simulated": 5, "sweep_folder": 30, "plan_picture": 20,
        "straggler_analysis": 30, "documents": 40, "kineto": 30, "neutral": 60, "nsight": 30}


@pytest.mark.parametrize("target", fuzz_analysis.TARGETS)
def test_analysis(target, tmp_path):
    """Mended findings stand as planted damage in analysis/tests."""
    words = ["--target", target, "--runs", str(RUNS[target]), "--seed", "1"]
    assert fuzz_analysis.main([*words, "--findings", str(tmp_path)]) == 0


def refuse_badly(_):
    raise KeyError("events")


def answer_wrongly(_):
    return 7


def crash(_):
    os.kill(os.getpid(), signal.SIGSEGV)


def loop(_):
    while True:
        pass


def allocate(_):
    return len(bytearray(2 * fuzz_analysis.MEMORY))


FAULTS = {
    refuse_badly: "KeyError",
    answer_wrongly: "ended with 7",
    crash: "died by SIGSEGV",
    loop: "takes too much processor time",
    allocate: "MemoryError",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(fuzz_analysis, "analyze", fault)
    findings = tmp_path / "findings"
    code = fuzz_analysis.main(["--runs", "1", "--findings", str(findings)])
    assert code == 1 and FAULTS[fault] in capfd.readouterr().out
    (kept,) = (path for path in findings.iterdir() if path.suffix != ".txt")
    assert kept.stat().st_size > 0 and FAULTS[fault] in Path(f"{kept}.txt").read_text()
