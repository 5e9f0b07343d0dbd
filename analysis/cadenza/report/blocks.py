# SPDX-License-Identifier: Apache-2.0
"""What the page is made of: sections of figures and tables, as data that the template walks."""

from __future__ import annotations

from dataclasses import dataclass, field

import plotly.graph_objects as go

_SENTENCE = 28  # characters


@dataclass
class Figure:
    """A picture, or several of which the reader chooses one by `choices`' labels."""

    title: str
    choices: dict[str, go.Figure]
    note: str = ""
    wide: bool = False  # over the full width of the page
    dense: bool = False  # as many bars as a wide screen has pixels: scrolls on a narrow one

    def specs(self) -> list[tuple[str, str]]:
        """(label, JSON of data and layout), safe inside a <script> element.

        Colours that depend on the page's theme are left to it: its template is put in there.
        """
        made = []
        for label, figure in self.choices.items():
            figure.layout.template = None
            made.append((label, figure.to_json().replace("<", "\\u003c")))
        return made

    @property
    def height(self) -> int:
        return max(int(figure.layout.height or 320) for figure in self.choices.values())


@dataclass
class Table:
    """Text cells; `numbers` are the columns that are set flush right."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    numbers: set[int] = field(default_factory=set)
    note: str = ""
    wide: bool = False

    @property
    def long(self) -> set[int]:
        """Columns of sentences, which need room on a narrow page."""
        return {i for row in self.rows for i, cell in enumerate(row) if len(cell) > _SENTENCE}


@dataclass
class Section:
    anchor: str
    title: str
    intro: str
    blocks: list[Figure | Table | None]
    legend: list[tuple[str, str]] = field(default_factory=list)  # (label, colour)
