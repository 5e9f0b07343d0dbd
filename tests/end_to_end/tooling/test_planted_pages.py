# SPDX-License-Identifier: Apache-2.0
"""What `test_pages.py` must find: pages with a fault in them, each of which it has to name."""

import pytest

import harness
import page_commands
from pages import Page, PageError
from test_pages import assert_marked_could_run, run_page

SOUND = """# A page
Words, and `cadenza plan INPUT.yaml --format table|json` in them.
```yaml
# mine.yaml
name: mine
```
```bash
word=kept        # a comment
test -f \\
    mine.yaml
mkdir made
```
```python
open("made/file.txt", "w").write("x")
```
```text
nothing to run
```
```bash
test "$word" = kept
cat made/file.txt >/dev/null
```
<!-- not run: needs Slurm -->
```bash
sbatch --nodes=2 job.sbatch mine.yaml --set run.steps=5
module load gcc && FOO=1 mpirun -n 2 cadenza train mine.yaml --output out.yaml
```
"""


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "cadenza"
    root.mkdir()
    (root / "job.sbatch").write_text("")
    return root


def write(folder, text):
    path = folder.parent / "page.md"
    path.write_text(text)
    return Page(path)


def judge(folder, text):
    """As the tests of a page do, in turn."""
    page = write(folder, text)
    result = run_page(page, folder)
    assert result.code == 0, result.err
    assert_marked_could_run(page, folder)
    found = [c for _, code in page.inline for c in page_commands.inline_complaints(code)]
    assert found == []


def test_a_sound_page_runs_in_order_with_what_came_before(folder):
    judge(folder, SOUND)
    page = write(folder, SOUND)
    assert [line for line, _ in page.commands(run=True)] == [8, 9, 11, 20, 21]
    assert len(page.commands(run=False)) == 2


FAULTS = {
    "a command fails": ("mkdir made", "mkdir made/deep/er", "line 11: exit status 1: mkdir"),
    "the first of two fails": ("cat made", "false | cat made", "line 21: exit status 1"),
    "a failure that bash passes over": ("mkdir made", "mkdir x/y && ls", "page.md:11: found '&&'"),
    "a program fails": ('open("made/file.txt", "w")', "oops()", "NameError"),
    "a file that nothing makes": ("cat made/file", "cat made/other", "made/other.txt"),
    "the state is lost": ("= kept", "= lost", "line 20: exit status 1"),
    "a program that is not there": ("mkdir made", "mkdirs made", "mkdirs: command not found"),
    "a quote without end": ("mkdir made", "mkdir 'made", "page.md"),
    "marked, an unknown option": ("--set run", "--sett run", "has no option '--sett'"),
    "marked, one after it": ("--output out", "--outputs out", "has no option '--outputs'"),
    "marked, an unknown command": ("cadenza train", "cadenza trian", "no command 'trian'"),
    "marked, an unknown program": ("module load", "modul load", "no program 'modul'"),
    "marked, a missing file": ("train mine.yaml", "train my.yaml", "no file 'my.yaml'"),
    "marked, a missing script": ("job.sbatch", "jobs.sbatch", "no file 'jobs.sbatch'"),
    "marked, a quote without end": ("--nodes=2", "--nodes='2", "No closing quotation"),
    "in the text, an unknown option": ("--format table", "--formats table", "option '--formats'"),
    "a block of nothing": ("```text", "```", "found a block of ''"),
    "a block of another kind": ("```text", "```sh", "found a block of 'sh'"),
    "a mark of no block": ("Slurm -->", "Slurm -->\nWords.", "a mark that no block follows"),
    "a mark without a reason": ("needs Slurm", "", "valid: <!-- not run: REASON -->"),
    "a block without an end": ("out.yaml\n```", "out.yaml", "has no end"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(fault, folder):
    old, new, message = FAULTS[fault]
    assert SOUND.count(old) == 1
    with pytest.raises((AssertionError, PageError, ValueError), match="(?s).*") as found:
        judge(folder, SOUND.replace(old, new))
    assert message in str(found.value)


@pytest.mark.parametrize("command", [
    "bench/compare --quick --llm-c DIR", "bench/accuracy --head-dims 64", "scripts/paper --quick",
    "build/release/bench/bench_step --dtype bfloat16"])
def test_options_of_programs_are_known_and_others_are_not(command):
    program = command.split()[0]
    if not (harness.ROOT / program).exists():
        pytest.skip(f"{program} is not built")
    assert page_commands.inline_complaints(command) == []
    assert page_commands.inline_complaints(f"{command} --nonsense")
