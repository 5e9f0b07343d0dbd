# SPDX-License-Identifier: Apache-2.0
"""How pictures of the page look, and the few kinds of marks that they are drawn with.

Colours are those of light paper; templates/report.js puts DARK's in their place on dark paper, and
writes numbers with their units (`si`), on axes as in what a pointer shows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from bokeh.models import (
    BasicTicker, ColorBar, ColumnDataSource, CustomJSHover, CustomJSTickFormatter, FixedTicker,
    GlyphRenderer, HBar, HoverTool, Line, LinearColorMapper, NoOverlap, Plot, Range1d, Rect,
    Scatter, VBar,
)
from bokeh.palettes import interp_palette
from bokeh.plotting import figure as empty
from bokeh.themes import Theme

ROW_LABELS = 24  # with more ranks, an axis has numbers instead of a label per rank
INK, FAINT, LINE, GAP = "#26292e", "#e9eaec", "#b9bdc4", "#fffffe"
_ABOVE, _MIDDLE, _BELOW = "#c8324c", "#f2f2f0", "#1157bf"
_LEAST, _HALF, _MOST = "#d0dfef", "#74a8d9", "#173f6d"
_DIVERGING = interp_palette((_BELOW, _MIDDLE, _ABOVE), 65)
_SEQUENTIAL = interp_palette((_LEAST, _HALF, _MOST), 65)
_ON_DARK = (*interp_palette((_BELOW, "#2a2e34", _ABOVE), 65),
            *interp_palette(("#34495f", "#3f82cc", "#dcebfa"), 65))
DARK = {
    INK: "#dcdfe4", FAINT: "#2c3037", LINE: "#59606b", GAP: "#1c2025",
    **{light: dark for light, dark in zip((*_DIVERGING, *_SEQUENTIAL), _ON_DARK, strict=True)
       if light != dark},
}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_TEXT = {"text_font": _FONT, "text_font_size": "12px", "text_color": INK}
THEME = Theme(json={"attrs": {
    "Plot": {"background_fill_alpha": 0, "border_fill_alpha": 0, "outline_line_color": None,
             "min_border": 8, "min_border_right": 12},
    "Axis": {"axis_line_color": LINE, "major_tick_line_color": None, "minor_tick_line_color": None,
             "axis_label_standoff": 6, "major_label_standoff": 6,
             **{f"axis_label_{name}": value for name, value in _TEXT.items()},
             **{f"major_label_{name}": value for name, value in _TEXT.items()},
             "axis_label_text_font_style": "normal"},
    "Grid": {"grid_line_color": FAINT},
    "ColorBar": {"background_fill_alpha": 0, "major_tick_line_color": None,
                 **{f"major_label_{name}": value for name, value in _TEXT.items()}},
}})


def figure(
    height: int, x: str = "", y: str = "", *, x_unit: str = "", y_unit: str = "", **options
) -> Plot:
    """An empty picture with titles of its axes, whose numbers are in units.

    A drag over it zooms along x.

    @param x_unit, y_unit  "s" becomes ms, us and so on where it suits
    @param options         bokeh's: x_axis_type="log", ...
    """
    made = empty(height=height, sizing_mode="stretch_width", toolbar_location=None,
                 tools="xbox_zoom,reset", x_axis_label=x or None, y_axis_label=y or None,
                 **options)
    for axis, unit in ((made.xaxis, x_unit), (made.yaxis, y_unit)):
        axis.formatter = _formatter(unit)
        axis.major_label_policy = NoOverlap(min_distance=8)
    return made


def _formatter(unit: str, signed: bool = False) -> CustomJSTickFormatter:
    sign = "true" if signed else "false"
    return CustomJSTickFormatter(code=f"return tickText(ticks, index, '{unit}', {sign})")


def source(**columns: Sequence) -> ColumnDataSource:
    """Columns of equal length, numbers in four bytes: pictures need no more."""
    short = {"i": np.int32, "u": np.int32, "f": np.float32}
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    return ColumnDataSource({
        name: array.astype(short[array.dtype.kind]) if array.dtype.kind in short else array.tolist()
        for name, array in arrays.items()})


def hover(
    made: Plot, text: str, drawn: Sequence[GlyphRenderer] = (), *, upright: bool = False,
    words: dict[str, list[str]] | None = None,
) -> None:
    """What a pointer on marks shows: HTML with $name of the marks, texts @column and numbers
    @{column}{unit} of their source.

    @param drawn    the marks; default: all of the picture
    @param upright  all marks above or below the pointer, too
    @param words    column -> texts, of which the column has the places
    """
    units = dict.fromkeys(re.findall(r"@\{\w+\}(?=\{)", text),
                          CustomJSHover(code="return si(value, format)"))
    for name, texts in (words or {}).items():
        units[f"@{{{name}}}"] = CustomJSHover(args={"words": texts}, code="return words[value]")
    made.add_tools(HoverTool(
        renderers=list(drawn) or "auto", tooltips=f"<div>{text}</div>", formatters=units,
        mode="vline" if upright else "mouse", point_policy="follow_mouse", show_arrow=False))


def line(
    made: Plot, x: Sequence, y: Sequence, colour: str, *, name: str = "", dash: str = "solid",
    **told: Sequence,
) -> GlyphRenderer:
    """A line with points, which are returned, for each of its values @x and @y, and @told."""
    data = source(x=x, y=y, **told)
    look = {"line_color": colour, "line_width": 2, "line_dash": dash}
    made.add_glyph(data, Line(x="x", y="y", **look), name=name)
    points = Scatter(x="x", y="y", size=6, fill_color=colour, line_color=colour)
    return made.add_glyph(data, points, name=name)


def bars(
    made: Plot, data: ColumnDataSource, begin: str, end: str | dict, colour: str, *,
    upright: bool = False, name: str = "", width: float = 0.7,
) -> GlyphRenderer:
    """Bars from column `begin` to `end` at the source's "at", across or upright."""
    line = colour if width == 1.0 else None  # no paper between bars that touch
    look = {"fill_color": colour, "line_color": line}
    bar = VBar(x="at", bottom=begin, top=end, width=width, **look) if upright else \
        HBar(y="at", left=begin, right=end, height=width, **look)
    return made.add_glyph(data, bar, name=name)


def stacked(
    labels: list[str], at: Sequence[int], parts: dict[str, np.ndarray], colours: dict[str, str],
    title: str, unit: str, text: str, who: list[str],
) -> Plot:
    """A bar for each label, of parts one behind the other; upright if there are many.

    @param at      numbers of the labels
    @param parts   name -> value for each label
    @param text    what is shown of a part, @{value} being its value and @{share} that of the bar,
                   beneath `who` it is of
    """
    many = len(labels) > ROW_LABELS
    made = figure(340, "rank", title, y_unit=unit) if many else \
        figure(row_height(len(labels)), title, x_unit=unit)
    ends = np.cumsum(list(parts.values()), axis=0)
    for (name, values), end in zip(parts.items(), ends, strict=True):
        data = source(at=at if many else np.arange(len(labels)), who=who, begin=end - values,
                      end=end, value=values, share=values / np.maximum(ends[-1], 1e-300))
        bars(made, data, "begin", "end", colours[name], upright=many, name=name,
             width=1.0 if many else 0.7)
    hover(made, f"@who<br>$name {text}", made.renderers)
    if many:
        made.y_range.start = 0
        made.x_range = Range1d(min(at) - 0.5, max(at) + 0.5)
        made.xgrid.visible = False
    else:
        made.x_range.start = 0
        rank_rows(made, labels)
    return made


def heat_map(
    rows: list[str], columns: list[str], values: np.ndarray, *, x: str, unit: str, text: str,
    y: str = "", least: float = 0.0, most: float | None = None, sizes: tuple[int, int] = (160, 480),
    diverging: bool = False, name: str = "", who: list[str] | None = None, **told: Sequence,
) -> Plot:
    """A cell for each value; none for NaN.

    @param values  [rows, columns]
    @param who     what a pointer shows of a row; default: its label
    @param told    more columns for `text`, one value for each cell, in the order of `values`
    @param sizes   the least and the largest height
    """
    made = figure(row_height(len(rows), 30, *sizes), x, y)
    row, column = np.indices(values.shape)
    flat = values.ravel()
    known = ~np.isnan(flat)
    told = {key: np.asarray(more)[known] for key, more in told.items()}
    data = source(row=row.ravel()[known], column=column.ravel()[known], value=flat[known],
                  of_row=np.array(who or rows, object)[row.ravel()[known]],
                  of_column=np.array(columns, object)[column.ravel()[known]], **told)
    mapper = LinearColorMapper(_DIVERGING if diverging else _SEQUENTIAL, low=least, high=most)
    few = len(rows) <= 64
    colour = {"field": "value", "transform": mapper}
    cell = Rect(x="column", y="row", width=1, height=1, fill_color=colour,
                line_color=GAP if few else colour)
    made.add_glyph(data, cell, name=name)
    hover(made, text)
    made.add_layout(ColorBar(color_mapper=mapper, width=10, padding=4, bar_line_color=None,
                             formatter=_formatter(unit, diverging),
                             ticker=BasicTicker(desired_num_ticks=5)), "right")
    rank_rows(made, rows)
    every = -(-len(columns) // 12)
    _labelled(made.xaxis, columns, every)
    made.x_range = Range1d(-0.5, len(columns) - 0.5)
    made.grid.visible = False
    return made


def rank_rows(made: Plot, labels: list[str]) -> None:
    """Ranks from top to bottom at 0, 1, 2, ...; of many, some have their label."""
    _labelled(made.yaxis, labels, -(-len(labels) // ROW_LABELS))
    made.y_range = Range1d(len(labels) - 0.5, -0.5)
    made.ygrid.visible = False


def _labelled(axis: list, labels: list[str], every: int) -> None:
    places = range(0, len(labels), every)
    axis.ticker = FixedTicker(ticks=list(places))
    axis.formatter = CustomJSTickFormatter(
        args={"labels": {str(place): labels[place] for place in places}},
        code="return labels[tick] ?? ''")


def step_axis(made: Plot, steps: int) -> None:
    """Whole numbers, not too many."""
    made.xaxis.ticker = BasicTicker(min_interval=1, desired_num_ticks=min(max(steps, 2), 12),
                                    num_minor_ticks=0)


def from_zero(made: Plot) -> None:
    """The upright axis begins at zero."""
    made.y_range.start = 0


def row_height(rows: int, each: int = 34, least: int = 150, most: int = 620) -> int:
    return min(max(rows * each + 70, least), most)
