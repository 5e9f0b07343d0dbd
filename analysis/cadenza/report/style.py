# SPDX-License-Identifier: Apache-2.0
"""How pictures of the page look: one base layout, and a plotly template for light and for dark."""

from __future__ import annotations

import plotly.graph_objects as go

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
ROW_LABELS = 24  # with more ranks, an axis has numbers instead of a label per rank


def _template(ink: str, faint: str, line: str, paper: str, scale: list, middle: str) -> dict:
    axis = {"gridcolor": faint, "linecolor": line, "zerolinecolor": line, "tickcolor": line,
            "automargin": True, "ticks": "", "ticklabelstandoff": 5,
            "title": {"font": {"size": 12}}}
    return {
        "layout": {
            "font": {"family": _FONT, "size": 12, "color": ink},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {"bgcolor": paper, "bordercolor": line,
                           "font": {"color": ink, "family": _FONT}, "align": "left"},
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": line, "activecolor": ink},
            "colorscale": {"sequential": scale,
                           "diverging": [[0, "#2f6db3"], [0.5, middle], [1, "#d6455d"]]},
        }
    }


THEMES = {
    "light": _template("#26292e", "#e9eaec", "#b9bdc4", "#ffffff",
                       [[0, "#d0dfef"], [0.5, "#74a8d9"], [1, "#173f6d"]], "#f2f2f0"),
    "dark": _template("#dcdfe4", "#2c3037", "#59606b", "#22262c",
                      [[0, "#34495f"], [0.5, "#3f82cc"], [1, "#dcebfa"]], "#2a2e34"),
}


def figure(height: int, x: str = "", y: str = "", **layout) -> go.Figure:
    """An empty picture with titles of its axes."""
    made = go.Figure()
    made.update_layout(
        height=height,
        margin={"l": 8, "r": 12, "t": 10, "b": 8},
        showlegend=False,
        dragmode="zoom",
        bargap=0.25,
        xaxis={"title": {"text": x}, "zeroline": False},
        yaxis={"title": {"text": y}, "fixedrange": True},
        **layout,
    )
    return made


def rank_rows(made: go.Figure, labels: list[str], axis: str = "yaxis") -> None:
    """Ranks from top to bottom at 0, 1, 2, ...; of many, some have their label."""
    every = -(-len(labels) // ROW_LABELS)
    made.update_layout(
        {axis: {"tickvals": list(range(0, len(labels), every)), "ticktext": labels[::every],
                "range": [len(labels) - 0.5, -0.5], "showgrid": False, "zeroline": False}}
    )


def step_axis(made: go.Figure, steps: int) -> None:
    """Whole numbers, not too many."""
    made.update_xaxes(dtick=max(1, -(-steps // 12)), tickformat="d")


def row_height(rows: int, each: int = 34, least: int = 150, most: int = 620) -> int:
    return min(max(rows * each + 70, least), most)
