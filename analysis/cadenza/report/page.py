# SPDX-License-Identifier: Apache-2.0
"""The page: its sections, put into the template with everything it needs inside."""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path

import jinja2
from bokeh.resources import Resources
from markupsafe import Markup

from cadenza.comparison import compare
from cadenza.files import written
from cadenza.log import LOG
from cadenza.timeline.panels import choose_step
from cadenza.report import headlines, places, sections
from cadenza.report.blocks import Section, packed
from cadenza.report.ranking import detailed, ranking
from cadenza.report.style import DARK
from cadenza.read.run import Run
from cadenza.study import Study
from cadenza.summary import labels, summarize


def default_output(runs: list[Path]) -> Path:
    """report.html in the run's folder, or in the nearest folder that holds all of them."""
    if len(runs) == 1:
        return runs[0] / "report.html"
    return Path(os.path.commonpath([path.resolve() for path in runs])) / "report.html"


class _Study(Study):
    """A study whose typical step is the one that the page shows of all runs."""

    shown: int | None = None

    @property
    def typical_step(self) -> int:
        return super().typical_step if self.shown is None else self.shown


def write_report(runs: list[Run], output: Path) -> None:
    """Writes one HTML file that needs nothing else: no network, no other file.

    @param runs  one or more; the others are compared with the first. Pictures of one step show the
                 same step of all, as equal steps have equal documents in most comparisons. Of more
                 than a few, all are in one table and some have figures.
    """
    studies = [_Study(run) for run in runs]
    for study in studies:
        study.prepare()
    shown = choose_step(studies, None)
    for study in studies:
        study.shown = shown
    summaries = []
    for study in studies:
        LOG.info("%s: reading its events", study.run.path)
        summaries.append(summarize(study))
    names = labels(summaries)
    LOG.info("comparing, finding causes")
    comparisons = [
        compare(studies[0], study, (names[0], name))
        for study, name in zip(studies[1:], names[1:], strict=True)
    ]
    title = " and ".join(names) if len(names) < 4 else f"{len(names)} runs"
    chosen = detailed(studies)
    ranked = [] if len(chosen) == len(studies) else [
        Section("ranking", "Ranking", "", [ranking(studies, names, summaries, comparisons)])]
    studies, names, summaries = ([all_[number] for number in chosen]
                                 for all_ in (studies, names, summaries))
    comparisons = [comparisons[number - 1] for number in chosen if number > 0]
    page = _environment().get_template("report.html.j2").render(
        title=title,
        started=", ".join(dict.fromkeys(map(places.started, studies))),
        experiment=summaries[0]["name"],
        headlines=headlines.headlines(studies, names, comparisons),
        sections=ranked + sections.sections(studies, names, summaries, comparisons),
        dark=Markup(json.dumps(DARK)),
        library=packed(_library()),
        css=Markup(_asset("report.css")),
        script=Markup("\n".join(map(_asset, ("report.js", "tree.js")))),
    )
    LOG.info("writing %s", output)
    with written(output) as file:
        file.write(page.encode(errors="backslashreplace"))  # a path may have bytes that are no text


def _library() -> str:
    """The script that draws: what Bokeh has for plots, without its widgets and the like."""
    return "\n".join(Resources(mode="inline", components=["bokeh"], log_level="warn").js_raw)


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )


def _asset(name: str) -> str:
    return resources.files("cadenza.report").joinpath("templates", name).read_text("utf-8")
