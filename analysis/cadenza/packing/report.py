# SPDX-License-Identifier: Apache-2.0
"""A survey of packings as tables and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console

from cadenza.colours import RANK_COLOURS
from cadenza.files import printable, save_figure
from cadenza.packing.effects import Survey, pairs
from cadenza.tables import print_table
from cadenza.words import number, share

_BAR = 20  # characters


def by_length(lengths: Sequence[int]) -> pd.DataFrame:
    """For each class of lengths, length (the power of two at which it begins), documents, and the
    shares of all documents, tokens and pairs that are in it."""
    whole = pd.DataFrame({"documents": 1, "tokens": lengths,
                          "pairs": [pairs([one]) for one in lengths]})
    classes = 2 ** np.floor(np.log2(lengths)).astype(np.int64)
    found = whole.groupby(pd.Series(classes, name="length")).sum()
    shares = (found / found.sum()).add_suffix("_share")
    return pd.concat([found[["documents"]], shares], axis=1).reset_index()


def records(survey: Survey) -> dict:
    """For JSON."""
    return {"lengths": by_length(survey.lengths).to_dict("records"),
            "packings": [vars(one) for one in survey.effects], "refused": survey.refused}


def print_survey(out: Console, survey: Survey, data: int) -> None:
    """Tables of at most 80 columns.

    @param data  data-parallel ranks
    """
    frame = by_length(survey.lengths)
    most = frame["tokens_share"].max()
    rows = [[str(row.length), str(row.documents), share(row.documents_share),
             share(row.tokens_share), share(row.pairs_share),
             "#" * round(_BAR * row.tokens_share / most)] for row in frame.itertuples()]
    print_table(out, ["length from", "documents", "share", "tokens", "pairs", ""], rows, {""},
                f"{len(survey.lengths)} documents of {sum(survey.lengths)} tokens before they are "
                "cut")
    rows = [[one.packing, share(one.cut_documents), share(one.cut_tokens), share(one.pairs),
             number(one.fullest, ".3f"), _interval(one.imbalance)] for one in survey.effects]
    steps = len(survey.effects[0].imbalance)
    names = ["packing", "docs cut", "tokens cut", "pairs left", "fullest", "imbalance"]
    print_table(out, names, rows, {"packing"},
                f"the first {steps} steps on {data} data-parallel ranks; tokens cut: of cut "
                "documents; fullest: microbatch over mean; imbalance: largest over mean attention "
                "of a rank, mean of steps (least to most)")
    for one in survey.effects:
        if one.longest_delay:
            out.print(f"{one.packing}: documents wait for up to {one.longest_delay} steps")
    for packing, why in survey.refused.items():
        out.print(f"{packing}: not possible: {printable(why)}")


def _interval(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f} ({min(values):.2f} to {max(values):.2f})"


def draw(survey: Survey, output: Path) -> None:
    """Lengths, and the imbalance of each step by packing; its ending says in which format."""
    import matplotlib  # takes a while to load
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": ""}):
        figure = Figure(figsize=(10, 3.6), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        frame = by_length(survey.lengths)
        places = np.arange(len(frame))
        for i, name in enumerate(("documents", "tokens", "pairs")):
            left.bar(places + 0.27 * (i - 1), 100 * frame[f"{name}_share"], 0.27, label=name,
                     color=RANK_COLOURS[i])
        left.set_xticks(places, frame["length"].astype(str), rotation=45)
        left.set(xlabel="length of the document from, tokens", ylabel="share, %")
        left.legend()
        for i, one in enumerate(survey.effects):
            right.plot(one.imbalance, marker="osxd"[i], label=one.packing, color=RANK_COLOURS[i])
        right.set(xlabel="step", ylabel="attention of the slowest rank / mean")
        right.set_ylim(bottom=1)
        right.xaxis.get_major_locator().set_params(integer=True)
        right.legend(loc="upper right")
        save_figure(figure, output)
