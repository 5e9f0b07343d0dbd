# SPDX-License-Identifier: Apache-2.0
"""What the page is made of: sections of figures and tables, as data that the template walks."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass, field

from bokeh.document import Document

from cadenza.report.style import THEME, Plot

_SENTENCE = 28  # characters


def packed(text: str) -> str:
    """Compressed, in characters that need no escape in HTML."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _item(plot: Plot) -> dict:
    """What Bokeh.embed.embed_item() takes: bokeh.embed.json_item() serialises twice."""
    document = Document(theme=THEME)
    document.add_root(plot)
    item = {"root_id": plot.id, "target_id": None, "doc": document.to_json(deferred=False)}
    document.clear()
    return item


@dataclass
class Figure:
    """A picture, or several of which the reader chooses one by `choices`' labels."""

    title: str
    choices: dict[str, Plot]
    note: str = ""
    wide: bool = False  # over the full width of the page
    dense: bool = False  # as many bars as a wide screen has pixels: scrolls on a narrow one

    def specs(self) -> list[str]:
        """What the page's script draws, for each choice."""
        return [packed(json.dumps(_item(plot))) for plot in self.choices.values()]

    @property
    def height(self) -> int:
        """Of the first choice, in pixels."""
        return next(iter(self.choices.values())).height


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
class Tree:
    """A table that unfolds, of one of `metrics`, which the reader chooses; templates/tree.js."""

    title: str
    metrics: list[str]
    data: str  # packed() JSON: job, nodes [(host, ranks)], ranks {rank: place}, metrics [{unit,
    # lanes {lane: {rank: value}}}]
    note: str = ""
    wide: bool = True


Block = Figure | Table | Tree


@dataclass
class Section:
    anchor: str
    title: str
    intro: str
    blocks: list[Block | None]
    legend: list[tuple[str, str]] = field(default_factory=list)  # (label, colour)

    def __post_init__(self) -> None:
        """Of blocks that stand side by side by twos, one that is left over gets the whole row."""
        self.blocks = [block for block in self.blocks if block is not None]
        alone = False
        for block, after in zip(self.blocks, [*self.blocks[1:], None], strict=False):
            alone = not (block.wide or alone)
            if alone and (after is None or after.wide):
                block.wide, alone = True, False
