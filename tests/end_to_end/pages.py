# SPDX-License-Identifier: Apache-2.0
"""A Markdown page as a program: its commands and samples, in order, as one bash script.

A fenced block says in its first line what it is:
  bash    commands; they run, in the root of a copy of the repository
  python  a program; it runs there too
  yaml    a file, where its first line is a comment with the name (`# mine.yaml`): later commands
          use it. Otherwise a part of an experiment, which has to be one that the program accepts
  json    JSON
  text    what programs print, and pictures
`<!-- not run: REASON -->` above a block keeps it from running here; readers do not see it. What is
marked, and commands in running text (`cadenza plan INPUT.yaml --format json`), are looked at all
the same: see `page_commands.py`."""

import re
from dataclasses import dataclass
from pathlib import Path

KINDS = ("bash", "python", "yaml", "json", "text")
FENCE = re.compile(r"\s*```(.*)")
MARK = re.compile(r"<!-- not run: (\S.*) -->")
FILE = re.compile(r"# (\S+\.yaml)")
CODE = re.compile(r"`([^`]+)`")
END = "END_OF_BLOCK"


class PageError(Exception):
    """A page that cannot be read: one line with the place."""


@dataclass
class Block:
    kind: str
    line: int  # of its first line, from 1
    lines: list[str]
    reason: str  # why it is not run; "" if it is

    @property
    def text(self):
        return "\n".join(self.lines) + "\n"

    @property
    def file(self):
        """The name of the file that a yaml block is."""
        named = FILE.fullmatch(self.lines[0]) if self.kind == "yaml" and self.lines else None
        return named and named[1]

    @property
    def commands(self):
        """(line in the page, command) of a bash block, continued lines joined."""
        found, start, joined = [], 0, ""
        for number, line in enumerate(self.lines, start=self.line):
            start = start or number
            joined += line.removesuffix("\\")
            if not line.endswith("\\"):
                if joined.strip() and not joined.strip().startswith("#"):
                    found.append((start, joined))
                start, joined = 0, ""
        return found


class Page:
    def __init__(self, path):
        self.path = Path(path)
        lines = self.path.read_text().splitlines()
        self.length = len(lines)
        self.blocks, self.prose = split(self.path.name, lines)

    def of(self, kind, run):
        """Blocks of a kind that are run, or that are not."""
        return [b for b in self.blocks if b.kind == kind and bool(b.reason) != run]

    def commands(self, run):
        return [command for block in self.of("bash", run) for command in block.commands]

    @property
    def inline(self):
        """(line, code) of code in running text."""
        return [(number, code) for number, line in self.prose for code in CODE.findall(line)]

    def script(self):
        """All that is run, each line where the page has it. The first failure ends the script and
        is said with its line."""
        for line, command in self.commands(run=True):
            if "&&" in command:  # bash goes on where the first of two fails
                raise PageError(f"{self.path.name}:{line}: found '&&'; valid: a line for each")
        lines = [""] * (self.length + 1)
        for block in self.blocks:
            if block.reason or (block.kind == "yaml" and not block.file):
                continue
            body = slice(block.line - 1, block.line - 1 + len(block.lines))
            if block.kind in ("bash", "python", "yaml"):
                lines[body] = block.lines
            if block.kind in ("python", "yaml"):
                target = "python3 -" if block.kind == "python" else f"cat >{block.file}"
                lines[block.line - 2] = f"{target} <<'{END}'"
                lines[block.line - 1 + len(block.lines)] = END
        return "\n".join(lines)


def split(name, lines):
    """Blocks, and the lines outside of them with their numbers."""
    blocks, prose, mark, block = [], [], "", None
    for number, line in enumerate(lines, start=1):
        fence = FENCE.match(line)
        if block is not None and fence:
            blocks.append(block)
            block = None
        elif block is not None:
            block.lines.append(line)
        elif fence:
            if fence[1] not in KINDS:
                raise PageError(f"{name}:{number}: found a block of '{fence[1]}'; valid: "
                                f"{', '.join(KINDS)}")
            block, mark = Block(fence[1], number + 1, [], mark), ""
        else:
            prose.append((number, line))
            marked = MARK.fullmatch(line)
            if mark and line.strip():
                raise PageError(f"{name}:{number}: a mark that no block follows")
            if line.startswith("<!-- not run") and not marked:
                raise PageError(f"{name}:{number}: found '{line}'; valid: <!-- not run: REASON -->")
            mark = marked[1] if marked else mark
    if block is not None or mark:
        raise PageError(f"{name}: the last block or mark has no end")
    return blocks, prose
