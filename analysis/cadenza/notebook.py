# SPDX-License-Identifier: Apache-2.0
"""What a notebook shows of a run, where its name is the last line of a cell."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from cadenza.files import printable


def facts_html(
    name: str, path: str, lines: Iterable[tuple[str, str]], sentences: Iterable[str]
) -> str:
    """A heading, a table of (what, value) and a paragraph for each sentence."""
    head = f"<p><b>{_text(name)}</b> {_text(path)}</p>"
    rows = "".join(f"<tr><th>{_text(what)}</th><td>{_text(value)}</td></tr>"
                   for what, value in lines)
    return f"{head}<table>{rows}</table>" + "".join(f"<p>{_text(one)}</p>" for one in sentences)


def _text(value: str) -> str:
    """Names of files and runs may hold anything."""
    return escape(printable(value))
