# SPDX-License-Identifier: Apache-2.0
"""What can be said of a command without running it: its program is there, the program's own help
has its options, and the files that it reads ship with the repository."""

import functools
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import harness

SUBCOMMANDS = ("cadenza", "cadenza-analyze")
PROGRAMS = (*SUBCOMMANDS, "cadenza-prepare")
LAUNCHERS = ("mpirun", "srun")
# What clusters and packagers have, and test machines need not.
ELSEWHERE = {"module", "sbatch", "squeue", "scancel", "srun", "git"}
OPTION = re.compile(r"--[a-z][\w-]*")
ASSIGNMENT = re.compile(r"\w+=.*")
INPUT = re.compile(r"[\w./~-]+\.(yaml|txt|h5|csv|json|bin|npy|sbatch|sh)")
WRITTEN = ("--output", "--markdown", ">", ">>")  # a file name follows


def simple_commands(text):
    """Lists of words, without comments; a redirection is a word of its own."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found = [[]]
    for word in lexer:
        if set(word) <= set("&|;()\n"):
            found.append([])
        else:
            found[-1].append(word)
    return [words for words in found if words]


def own_words(words):
    """Without variables and a launcher before the program."""
    while words and ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    if words and words[0] in LAUNCHERS:
        programs = [i for i, word in enumerate(words) if Path(word).name in SUBCOMMANDS]
        return words[programs[0] :] if programs else words
    return words


@functools.cache
def help_of(program, subcommand):
    """The options that a program of this repository knows, as text; None for other programs."""
    name = Path(program).name
    if name == "cadenza":
        return output_of(harness.PROGRAM, *subcommand, "--help")
    if name == "cadenza-analyze":
        return output_of("python3", "-m", "cadenza.cli", *subcommand, "--help")
    if name == "cadenza-prepare":
        return output_of("python3", "-m", "cadenza.prepare.cli", "--help")
    path = harness.ROOT / program
    built = harness.PROGRAM.parents[2] / program
    if program.startswith("build/release/") and built.is_file():
        return output_of(built, "--help")
    if "/" not in program or program.startswith("build/") or not path.is_file():
        return None
    # Scripts install and build before some of them come to their help: their text has it, or that
    # of the module that bench/run starts.
    modules = [*path.parent.glob(f"benchmarks/{path.name}.py"),
               *path.parent.glob(f"benchmarks/{path.name}/__main__.py")]
    return "".join(file.read_text() for file in modules or [path]) + " --help"


def output_of(*words):
    return subprocess.run(list(map(str, words)), env=harness.environment(), capture_output=True,
                          text=True, timeout=harness.TIMEOUT, check=False).stdout


def wrong_options(words):
    """Complaints about options that the words' program does not know; `words` begins with it."""
    program, rest = words[0], words[1:]
    scripts = [i for i, word in enumerate(rest) if word.endswith(".sbatch")]
    if program == "sbatch" and scripts:  # what follows is for cadenza train
        program, rest = "cadenza", ["train", *rest[scripts[0] + 1 :]]
    subcommand = ()
    if Path(program).name in SUBCOMMANDS and rest and not rest[0].startswith("-"):
        subcommand = (rest[0],)
    known = help_of(program, subcommand)
    if known is None:
        return []
    if subcommand and not re.search(rf"^ +{subcommand[0]} ", help_of(program, ()), re.MULTILINE):
        return [f"'{program}' has no command '{subcommand[0]}'"]
    found = set(OPTION.findall(known))
    return [f"'{' '.join([program, *subcommand])}' has no option '{option}'"
            for word in rest for option in OPTION.findall(word.split("=")[0])
            if option not in found]


def inline_complaints(code):
    """Of code in running text, which may have placeholders and several ways to go on."""
    words = own_words(code.replace("[", " ").replace("]", " ").split())
    if not words or not is_ours(words[0]):
        return []
    return wrong_options(words)


def is_ours(program):
    return Path(program).name in PROGRAMS or (
        program.split("/")[0] in ("scripts", "bench", "build") and "/" in program
    )


def complaints(text, root):
    """What is wrong with a command that would run in the folder `root`; [] if nothing is."""
    found = []
    for every in simple_commands(text):
        words = own_words(every)
        if not words:
            continue
        if not exists(words[0], root):
            found.append(f"there is no program '{words[0]}'")
            continue
        found += wrong_options(words)
        found += [f"there is no file '{word}'" for word in inputs(words[1:])
                  if not (root / Path(word).expanduser()).is_file()]
    return found


def exists(program, root):
    if program.startswith("build/"):
        return any(program.split("/")[-1] in file.read_text() for file in cmake_lists())
    if "/" in program:
        return (root / program).is_file()
    builtin = subprocess.run(["bash", "-c", 'type -t "$1"', "bash", program], capture_output=True,
                             check=False)
    return program in ELSEWHERE or program in PROGRAMS or builtin.returncode == 0 or bool(
        shutil.which(program)
    )


@functools.cache
def cmake_lists():
    """What names every program that a build leaves."""
    folders = (".", "bench", "tests/fuzz")
    return [harness.ROOT / folder / "CMakeLists.txt" for folder in folders]


def inputs(words):
    """Words that name a file that the command reads. What runs leave does not ship."""
    for before, word in zip(["", *words], words, strict=False):
        path = word.split("=")[-1]
        if before in WRITTEN or not INPUT.fullmatch(path):
            continue
        if not path.startswith(("runs/", "jobscripts/logs/")):
            yield path
