# SPDX-License-Identifier: Apache-2.0
"""Every command of every page: run as the page has it, or marked with a reason and looked at."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml


import harness
import own_model
import page_commands
from pages import Page

LEFT_OUT = (".git", "build", "runs", ".venv", "__pycache__", "*.egg-info", ".pytest_cache")
PAGES = sorted(
    path.relative_to(harness.ROOT).as_posix()
    for path in harness.ROOT.glob("**/*.md")
    if not any(path.match(f"{part}/**") or part in path.parts for part in LEFT_OUT)
)
MOST_MARKED = 56  # commands that are not run here: each one more needs a good reason
SLOTS = 2  # of the machine that a page is read on: more ranks need --oversubscribe


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The repository as it is cloned, with its programs built, and nothing else."""
    folder = tmp_path_factory.mktemp("pages") / "cadenza"
    shutil.copytree(harness.ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
    built = [harness.PROGRAM, *harness.PROGRAM.parent.glob("bench/bench_*")]
    for program in built:
        link = folder / "build/release" / program.relative_to(harness.PROGRAM.parent)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(program)
    return folder


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """What scripts/quickstart leaves in runs/quickstart, with fewer steps."""
    folder = tmp_path_factory.mktemp("quickstart")
    for placement in ("cad", "colocated"):
        words = ["train", harness.ROOT / "inputs/quickstart.yaml", "--output", folder / placement]
        words += ["--set", "run.steps=4", "--set", f"attention.placement={placement}"]
        harness.run_well(2, words)
    return folder


def environment(folder):
    """A reader's: two cores, and cadenza-analyze installed."""
    hosts = folder / "hosts"
    hosts.write_text(f"localhost slots={SLOTS}\n")
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(harness.ROOT / "analysis"),
        "OMPI_MCA_rmaps_base_oversubscribe": None,
        "PRTE_MCA_rmaps_default_mapping_policy": None,
        "OMPI_MCA_orte_default_hostfile": str(hosts),
        "PRTE_MCA_prte_default_hostfile": str(hosts),
    }


def run_page(page, root):
    """The page's script, to its end or its first failure, which is said with its line."""
    script = root.parent / "page.sh"
    script.write_text(page.script())
    check = harness.finish(harness.start(["bash", "-n", script]))
    assert check.code == 0, check.err.replace(str(script), str(page.path))
    setting = (
        "set -eEuo pipefail; trap 'echo \"line $LINENO: exit status $?: $BASH_COMMAND\" >&2' ERR; "
        '. "$1"'
    )
    words = ["bash", "-c", setting, page.path.name, str(script)]
    started = harness.start(words, cwd=root, env=environment(root.parent))
    return harness.finish(started, timeout=4 * harness.TIMEOUT)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.thorough if name == "bench/README.md" else ())
    for name in PAGES])
def test_what_a_page_says_to_run_runs(name, checkout, tmp_path, request):
    page = Page(harness.ROOT / name)
    root = tmp_path / "cadenza"
    shutil.copytree(checkout, root, symlinks=True)
    if "runs/quickstart" in page.script():
        shutil.copytree(request.getfixturevalue("quickstart"), root / "runs/quickstart")
    if "my-model" in page.script():
        own_model.make(root, (harness.ROOT / "docs/data.md").read_text().split("\n\n"))
    if "import traces" in page.script():
        shutil.copytree(harness.ROOT / "analysis/tests/data/kineto", root / "traces")
    result = run_page(page, root)
    assert result.code == 0, f"{name}: {result.err[-3000:]}\n{result.out[-1000:]}"
    assert_marked_could_run(page, root)


def assert_marked_could_run(page, root):
    """Where the page's other commands have left their files."""
    found = [f"{page.path.name}:{line}: {complaint}"
             for line, text in page.commands(run=False)
             for complaint in page_commands.complaints(text, root)]
    assert found == []
    for block in page.of("bash", run=False):
        parsed = harness.finish(harness.start(["bash", "-n", "-c", block.text]))
        assert parsed.code == 0, f"{page.path.name}:{block.line}: {parsed.err}"


@pytest.mark.parametrize("name", PAGES)
def test_commands_in_running_text_have_options_that_exist(name):
    found = [f"{name}:{line}: {complaint}"
             for line, code in Page(harness.ROOT / name).inline
             for complaint in page_commands.inline_complaints(code)]
    assert found == []


@pytest.mark.parametrize("name", PAGES)
def test_samples_are_what_they_say(name, tmp_path):
    """JSON is JSON, parts of experiments have keys and values that the program accepts."""
    for block in Page(harness.ROOT / name).blocks:
        if block.kind == "json":
            json.loads(block.text)
        if block.kind == "yaml" and not block.file and not block.reason:
            path = harness.write_experiment(tmp_path / "e.yaml", yaml.safe_load(block.text))
            harness.run_well(1, ["train", path, "--dry-run"], cwd=harness.ROOT)


def test_few_commands_are_not_run(capsys):
    """They are counted, so that nobody marks one more without noticing."""
    pages = {name: Page(harness.ROOT / name) for name in PAGES}
    counts = {name: (len(page.commands(run=True)), len(page.commands(run=False)))
              for name, page in pages.items()}
    run, marked = map(sum, zip(*counts.values(), strict=True))
    with capsys.disabled():
        print(f"\ncommands of {len(PAGES)} pages: {run} run, {marked} marked; "
              + ", ".join(f"{name} {a} + {b}"
                          for name, (a, b) in counts.items() if a + b))
    assert marked <= MOST_MARKED
