# SPDX-License-Identifier: Apache-2.0
"""What a notebook meets: refusals, pictures, units and docstrings of `Run` and `Study`."""

import html
import inspect
import json
import pickle
import re
from importlib import resources
from pathlib import Path

import pandas as pd
import pytest
from conftest import HAND, two_ranks
from trace_files import write_run

import cadenza
from cadenza.causes.verdicts import COLUMNS
from cadenza.colours import PART_NAMES
from cadenza.facts import facts


@pytest.mark.parametrize("ask", [
    lambda run, study: run.events(ranks=[0, 7]),
    lambda run, study: run.events(steps=[1, 7]),
    lambda run, study: study.step_events(7),
    lambda run, study: study.step_pieces(7),
    lambda run, study: study.stage_work(7),
    lambda run, study: study.graph(7),
    lambda run, study: study.what_if(7),
    lambda run, study: study.critical_path(7),
])
def test_unknown_ranks_and_steps_are_refused(run_folder, ask):
    run = cadenza.open(run_folder)
    with pytest.raises(cadenza.UsageError, match=r"no (rank|complete step) 7; valid are 0 to 1"):
        ask(run, cadenza.Study(run))


def test_known_ranks_and_steps_are_given(run_folder):
    run = cadenza.open(run_folder)
    events = run.events(ranks=iter([1]), steps=iter([1]))
    assert set(events["rank"]) == {1} and set(events["step"]) == {1}
    assert run.events(ranks=[]).empty


NUMBERS_OF_THINGS = {
    "rank", "step", "peer", "flow", "microbatch", "layer", "tick", "stage", "half", "local_rank",
    "data", "pipeline", "tensor", "context", "server", "document", "question", "home",
    "layer_class", "sender", "receiver", "slowest", "since_step",
}
VARYING = {"amount"}  # its sentence has the unit
OF_STEPS = {"step_events": [1], "step_pieces": [1], "stage_work": [1]}


def public(thing):
    return [name for name in dir(type(thing)) if not name.startswith("_")]


def frames_of(thing):
    """Every frame that a Run or Study gives, by name."""
    for name in public(thing):
        found = getattr(thing, name)
        if callable(found):
            member = inspect.signature(found)
            if member.return_annotation != "pd.DataFrame" or name == "steady":
                continue
            found = found(*OF_STEPS.get(name, []))
        if isinstance(found, pd.DataFrame):
            yield name, found


def test_every_column_says_its_unit(run_folder):
    run = cadenza.open(run_folder)
    study = cadenza.Study(run)
    study.prepare()
    found = [*frames_of(run), *frames_of(study)]
    assert len(found) > 40
    for name, frame in found:
        units = frame.attrs["units"]
        numeric = {column for column in frame if pd.api.types.is_numeric_dtype(frame[column])
                   and frame[column].dtype != bool}
        assert numeric - set(units) <= NUMBERS_OF_THINGS | VARYING, name
        causes = {"data"} if name.endswith("between") else set()
        assert set(units) <= set(frame) - NUMBERS_OF_THINGS | causes, name
        assert set(units.values()) <= {"ns", "s", "B", "FLOP", "FLOP/s", "1/s", "1"}, name


def test_units(run_folder):
    run = cadenza.open(run_folder)
    study = cadenza.Study(run)
    for frame, column, unit in [
        (run.events(), "begin_ns", "ns"), (run.events(), "bytes", "B"),
        (run.ranks(), "peak_flops", "FLOP/s"), (run.steps(), "model_flops", "FLOP"),
        (run.steps(), "learning_rate", "1"), (study.efficiencies, "load_balance", "1"),
        (study.steps, "machine_seconds", "s"), (study.parts, "other", "ns"),
        (study.totals, "other", "s"), (study.totals, "busy_share", "1"),
        (study.step_features, "seconds", "1"), (study.attention_passes, "worker_flops", "1"),
        (study.attention_passes, "mean_flops", "FLOP"), (study.attention_tasks, "rate", "FLOP/s"),
        (study.steady(study.totals.assign(step=0)), "other", "s"),
    ]:
        assert frame.attrs["units"][column] == unit, column
    assert "other" not in cadenza.rank_totals(study.parts).attrs.get("units", {})


def test_units_do_not_hinder_pandas(run_folder):
    study = cadenza.Study(cadenza.open(run_folder))
    parts, totals = study.parts, study.totals
    assert parts[parts["rank"] == 0].attrs == parts.attrs
    assert pd.concat([parts, parts]).attrs == parts.attrs
    assert pd.concat([parts, totals]).attrs == {}  # a column of both has no one unit
    assert len(parts.merge(totals, on="rank")) == len(parts)
    assert json.loads(parts.to_json(orient="records"))
    assert pickle.loads(pickle.dumps(parts)).attrs == parts.attrs


def test_a_run_shows_what_it_is(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "a<b", two_ranks()[:1], world=2)
    run = cadenza.open(folder)
    monkeypatch.setattr(run, "events", None)  # nothing reads them
    shown = run._repr_html_()
    cells = dict(re.findall("<tr><th>(.*?)</th><td>(.*?)</td></tr>", shown))
    assert cells == {"producer": "trainer", "ranks": "1 of 2", "hosts": "1", "steps": "2",
                     "events": "14"}
    assert "a&lt;b" in shown and "a<b" not in shown
    assert "1 of 2 rank files missing" in shown


def test_a_study_shows_its_summary_and_verdicts(tmp_path, run_folder, monkeypatch):
    study = cadenza.Study(cadenza.open(run_folder))
    rows = [[*[None] * (len(COLUMNS) - 1), "Rank 0 <is> slow."]]
    monkeypatch.setattr(study, "verdicts", pd.DataFrame(rows, columns=COLUMNS), raising=False)
    shown = study._repr_html_()
    for name, value in facts(cadenza.summarize(study)):
        assert f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" in shown
    assert "<p>Rank 0 &lt;is&gt; slow.</p>" in shown


def test_plot_parts(run_folder):
    study = cadenza.Study(cadenza.open(run_folder))
    axes, = study.plot_parts().axes
    widths = {bars.get_label(): [bar.get_width() for bar in bars] for bars in axes.containers}
    assert set(widths) == {PART_NAMES[part] for part in cadenza.PARTS
                           if HAND[0][part] or HAND[1][part]}
    for part, name in PART_NAMES.items():
        if name in widths:
            assert widths[name] == pytest.approx([HAND[0][part] * 1e-9, HAND[1][part] * 1e-9])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]


@pytest.mark.parametrize("name", ["plot_parts", "plot_steps", "plot_timeline"])
def test_notebooks_show_pictures_without_pyplot(run_folder, name):
    figure = getattr(cadenza.Study(cadenza.open(run_folder)), name)()
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_plot_steps(run_folder):
    study = cadenza.Study(cadenza.open(run_folder))
    axes, = study.plot_steps().axes
    x, y = axes.lines[0].get_data()
    assert x.tolist() == [0, 1] and y == pytest.approx([100e-9, 100e-9])


def test_plot_timeline(run_folder, tmp_path):
    study = cadenza.Study(cadenza.open(run_folder))
    figure = study.plot_timeline(step=1, ranks=[1])
    axes, = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 1 · trainer+server"]
    assert "step 1" in axes.get_title(loc="left") and axes.collections
    figure.savefig(tmp_path / "library.png")
    with pytest.raises(cadenza.UsageError, match="no rank 7; valid are 0 to 1"):
        study.plot_timeline(ranks=[7])
    with pytest.raises(cadenza.UsageError, match="no complete step 7; valid are 0 to 1"):
        study.plot_timeline(step=7)


def documented():
    """Every name of the package, and the public members of its classes."""
    for name in cadenza.__all__:
        thing = getattr(cadenza, name)
        if callable(thing):
            yield name, thing
    for kind in (cadenza.Run, cadenza.Study):
        for name, member in vars(kind).items():
            if not name.startswith("_"):
                yield f"{kind.__name__}.{name}", member


@pytest.mark.parametrize(("name", "thing"), list(documented()))
def test_every_name_has_a_docstring(name, thing):
    assert inspect.cleandoc(thing.__doc__ or "")


def test_the_api_pages_have_every_name(tmp_path):
    pdoc = pytest.importorskip("pdoc", reason="pdoc is not installed: extra `docs`")
    pdoc.pdoc("cadenza", output_directory=tmp_path)
    page = (tmp_path / "cadenza.html").read_text()
    missing = [name for name in (*cadenza.__all__, *(name for name, _ in documented()))
               if f'id="{name}"' not in page]
    assert not missing


def test_type_checkers_may_read_the_package():
    assert resources.files("cadenza").joinpath("py.typed").is_file()


def test_the_distribution_is_named_as_its_command():
    project = Path(cadenza.__file__).parents[1] / "pyproject.toml"
    name, = re.findall(r'^name = "(.*)"', project.read_text(), re.MULTILINE)
    assert re.findall(r"\[project.scripts\]\n(\S+) =", project.read_text()) == [name]
