# SPDX-License-Identifier: Apache-2.0
"""What the commands say on a terminal, and beside their results."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from conftest import two_ranks
from trace_files import ATTENTION, OPTIMIZER, WAIT, Rank, write_run

COLUMNS = 80
# The command line, but what it is doing is said at once: on a fast machine all is over in a second.
IMPATIENT = ("-c", "from cadenza import cli, log; log._PATIENCE = 0; raise SystemExit(cli.main())")


def on_terminal(*arguments, program=("-m", "cadenza.cli")):
    """What the program writes to a terminal of 80 columns: standard output, standard error."""
    ours, theirs = zip(pty.openpty(), pty.openpty(), strict=True)
    for end in theirs:
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    words = [sys.executable, *program, *map(str, arguments)]
    process = subprocess.Popen(words, stdout=theirs[0], stderr=theirs[1],
                               env={**environment, "TERM": "xterm"})
    for end in theirs:
        os.close(end)
    said = [read_all(end) for end in ours]
    assert process.wait(timeout=300) == 0, said
    return said


def read_all(end):
    parts = []
    while True:
        try:
            parts.append(os.read(end, 1 << 16))
        except OSError:  # the other end is closed
            parts.append(b"")
        if not parts[-1]:
            os.close(end)
            return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(parts).decode())


@pytest.fixture
def pipeline(tmp_path):
    """Ranks with every part of time that a table has a column for, and of one that is late."""
    ranks = []
    for rank in range(4):
        slow = 200_000 if rank == 3 else 0
        events = [
            (0, ATTENTION, 0, 300_000 + slow),
            (0, WAIT, 500_000, 700_000, {"name": "wait"}),
            (0, WAIT, 700_000, 800_000, {"name": "wait_for_stage"}),
            (0, WAIT, 800_000, 850_000, {"name": "wait_for_ranks"}),
            (0, OPTIMIZER, 900_000, 950_000),
        ]
        ranks.append(Rank(rank, events, [(0, 0, 1_000_000)], place=(rank // 2, rank % 2, 0)))
    return write_run(tmp_path / "a-name-that-takes-some-room-of-the-line", ranks)


@pytest.mark.parametrize(
    "command",
    ["summary", "stragglers", "bubbles", "compare", "what-if", "slowdown", "critical-path"],
)
def test_tables_fit_80_columns(command, pipeline, run_folder, cli):
    runs = [pipeline] if command != "compare" else [pipeline, run_folder]
    text, _ = on_terminal(command, *runs)
    assert max(len(line) for line in re.split(r"[\r\n]+", text)) <= COLUMNS, text
    for word in words_of(cli(command, *runs).stdout):
        assert word in text, f"{word} is lost\n{text}"


def words_of(text):
    """Numbers and the columns' names; words that a cell breaks are left out."""
    found = set()
    for line in text.splitlines():
        found |= {word for word in line.split() if re.fullmatch(r"[\d.,+-]+%?|[a-z]+_[a-z]+", word)}
    return found


def test_report_says_on_a_terminal_what_it_is_doing(run_folder):
    out, err = on_terminal("report", run_folder, program=IMPATIENT)
    assert "report: " in out
    assert any(word in err for word in ("reading", "causes", "drawing", "writing", "starting")), err
    _, err = on_terminal("report", run_folder, "--quiet", program=IMPATIENT)
    assert err == ""


def test_nothing_is_said_into_a_pipe(run_folder, cli):
    assert cli("report", run_folder).stderr == ""
    told = cli("report", run_folder, "--verbose")
    assert "cadenza-analyze: info: " in told.stderr and "processor time" in told.stderr
    assert told.stdout == cli("report", run_folder, "--quiet").stdout


@pytest.mark.parametrize("command", ["summary", "stragglers", "bubbles", "what-if", "check"])
def test_every_command_can_be_quiet_and_verbose(command, run_folder, cli):
    plain, quiet, verbose = (cli(command, run_folder, *word)
                             for word in ((), ("--quiet",), ("--verbose",)))
    assert plain.stdout == quiet.stdout == verbose.stdout
    assert quiet.stderr == ""
    assert "info: " in verbose.stderr


def test_warnings_are_said_even_by_a_quiet_command(tmp_path, cli):
    folder = write_run(tmp_path / "r", two_ranks()[:1], world=2)
    told = cli("summary", folder, "--json", "--quiet")
    assert told.stderr.startswith("cadenza-analyze: warning: ") and json.loads(told.stdout)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("sumary",), "did you mean summary?"),
        (("straglers", "x"), "did you mean stragglers?"),
        (("summary", "x", "--jsno"), "did you mean --json?"),
        (("export", "x", "--format", "perfeto"), "did you mean perfetto?"),
    ],
)
def test_a_word_with_a_typing_error(words, meant, inside):
    done = inside(*words)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert meant in done.stderr, done.stderr
