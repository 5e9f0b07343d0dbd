# SPDX-License-Identifier: Apache-2.0
"""Lines of tables in Markdown."""


def row(cells):
    return "| " + " | ".join(map(str, cells)) + " |"


def head(cells):
    return [row(cells), row(["---"] * len(cells))]


def show(*lines):
    """Prints them at once: a table grows while its cases run."""
    print(*lines, sep="\n", flush=True)
