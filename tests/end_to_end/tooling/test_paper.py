# SPDX-License-Identifier: Apache-2.0
"""scripts/paper: the exhibits of the CAD paper, from the sweeps of inputs/paper to the table."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

import harness

QUICK = ["fig03", "fig04", "fig05", "fig06", "fig11", "fig12"]
PAGE = harness.ROOT / "docs/results/paper.md"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    env = {
        **harness.environment(),
        "CADENZA": str(harness.PROGRAM),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    words = [harness.ROOT / "scripts/paper", "--quick", "--output", folder]
    done = subprocess.run(
        words, env=env, capture_output=True, text=True, timeout=4 * harness.TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_point_of_the_small_exhibits_is_simulated(built):
    assert sorted(path.name for path in built.iterdir() if path.is_dir()) == QUICK
    for name in QUICK:
        with (built / name / "sweep.csv").open() as file:
            status = {row["status"] for row in csv.DictReader(file)}
        assert status <= {"ok", "out_of_memory"}, name
        assert list((built / name).glob("*.png"))


def test_the_table_has_a_verdict_for_every_check(built):
    rows = [line for line in (built / "paper.md").read_text().splitlines() if line[:1] == "|"]
    assert len(rows) > 20
    assert not [row for row in rows if "nothing was simulated" in row]
    # The public planner's own claims, whatever the machine file says.
    even = [row for row in rows if "Figure 4: 4b" in row and "| CAD |" in row]
    assert len(even) == 1 and "| agrees |" in even[0]


def lines_of(page, names):
    """Rows and sentences of some exhibits ("Figure 3"), as the command writes them."""
    begins = tuple(f"{mark}{name}{end}" for name in names for mark in ("| ", "**", "")
                   for end in (":", ","))
    return [line for line in page.read_text().splitlines() if line.startswith(begins)]


def test_the_page_has_what_its_command_writes(built):
    names = [f"Figure {int(name.removeprefix('fig'))}" for name in QUICK]
    written = lines_of(built / "paper.md", names)
    assert len(written) > 40
    assert lines_of(PAGE, names) == written, "scripts/paper writes docs/results/paper.md anew"


def test_unknown_options_are_refused():
    words = [harness.ROOT / "scripts/paper", "--fast"]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=harness.TIMEOUT, check=False
    )
    assert done.returncode == 1 and "unknown option '--fast'" in done.stderr
