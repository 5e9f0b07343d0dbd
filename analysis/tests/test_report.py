# SPDX-License-Identifier: Apache-2.0
"""The page without a browser: its figures' frames, its sentences, and that it is one file."""

import base64
import gzip
import json
import re

import numpy as np
import pytest
from conftest import steps_of, two_ranks
from trace_files import ATTENTION, DENSE, Rank, write_run

import cadenza
from cadenza import summary
from cadenza.comparison import compare
from cadenza.time.parts import PARTS
from cadenza.report import (
    default_output,
    figures_attention,
    figures_balance,
    figures_compare,
    figures_memory,
    figures_time,
    figures_timeline,
    headlines,
    places,
    ranking,
    tree,
    write_report,
)


def columns(made, name=None):
    """Of a picture's first marks with that name: column -> values."""
    return next(one for one in made.renderers if name in (None, one.name)).data_source.data


def scripts(page, attributes="[^>]*"):
    """The compressed scripts of a page."""
    found = re.findall(rf'<script type="application/gzip"{attributes}>(.*?)</script>', page)
    return [gzip.decompress(base64.b64decode(one)).decode() for one in found]


def study(folder):
    return cadenza.Study(cadenza.open(folder))


def one_slow(folder, slow=90, fast=30, placement="colocated"):
    """Rank 0 attends for `slow` ns of every step of 100, rank 1 for `fast`."""
    ranks = [
        Rank(number, *steps_of([(ATTENTION, 0, ns, {"flops": 1e4 * ns, "name": "attend"})], 4),
             plan=[(step, number, 1e4 * ns) for step in range(4)])
        for number, ns in ((0, slow), (1, fast))
    ]
    return write_run(folder, ranks, placement=placement)


@pytest.fixture
def page(tmp_path):
    """The page of two runs as text."""
    runs = [one_slow(tmp_path / "a"), one_slow(tmp_path / "b", 60, 60, "cad")]
    write_report([cadenza.open(run) for run in runs], tmp_path / "r.html")
    return (tmp_path / "r.html").read_text()


def test_the_page_needs_nothing_else(page):
    outside = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(?!data:)[^\"#]*\"", page)
    assert outside == []
    assert "@import" not in page.split("</style>")[0]
    (library,) = scripts(page, ' id="library"')
    assert "Bokeh" in library and not re.search("https?://cdn", page)
    assert len(page) < 1e6


def test_every_section_is_there(page):
    found = re.findall(r'<section id="([a-z-]+)">', page)
    assert found == ["overview", "steps", "comparison", "time", "heat", "stragglers", "what-if",
                     "system", "path", "timeline", "memory", "attention", "plan", "efficiency"]
    drawn = scripts(page, "")
    drawn = [one for one in map(json.loads, drawn) if "job" not in one]  # but for the trees
    assert len(drawn) > 20 and all(one["doc"]["roots"] for one in drawn)


def test_a_run_with_stages_shows_their_balance(tmp_path):
    """Rank 0 attends for 40 ns in stage 0, rank 1 for 10 and 30 ns in both."""
    place = {"name": "attend", "layer": 0, "tick": 0}
    events = [[(ATTENTION, 0, 40, {**place, "stage": 0})],
              [(ATTENTION, 0, 10, {**place, "stage": 0}),
               (ATTENTION, 20, 50, {**place, "stage": 1})]]
    ranks = [Rank(number, *steps_of(mine)) for number, mine in enumerate(events)]
    run = cadenza.open(write_run(tmp_path / "a", ranks, placement="ring"))
    figures, frame = figures_balance.work_by_stage(study(run.path))
    assert frame["seconds"].tolist() == pytest.approx([40e-9, 10e-9, 30e-9])
    cells = columns(figures["forward"])["value"]
    np.testing.assert_allclose(cells, [40e-9, 0, 10e-9, 30e-9], rtol=1e-6)
    write_report([run], tmp_path / "r.html")
    section = (tmp_path / "r.html").read_text().split('<section id="balance">')[1]
    section = section.split("</section>")[0]
    for level in ("1.000", "2.000", "1.750"):  # 40 / 40, 40 / 20 and 70 / 40
        assert f">{level}</td>" in section, level
    assert "sparsity" not in section  # no step has FLOPs


def test_text_of_runs_cannot_become_html(tmp_path):
    folder = one_slow(tmp_path / "a")
    experiment = json.loads((folder / "experiment.yaml").read_text())
    experiment["name"] = "</script><script>alert(1)</script>"
    (folder / "experiment.yaml").write_text(json.dumps(experiment))
    write_report([cadenza.open(folder)], tmp_path / "r.html")
    assert "<script>alert(1)" not in (tmp_path / "r.html").read_text()


def test_headlines_name_the_late_rank_and_what_came_back(tmp_path):
    first, other = study(one_slow(tmp_path / "a")), study(one_slow(tmp_path / "b", 45, 45, "cad"))
    names = ("colocated", "cad")
    lines = headlines.headlines([first, other], list(names), [compare(first, other, names)])
    assert [line.kind for line in lines[:2]] == ["late", "plain"]
    assert lines[0].lead == "colocated: 100 ns a step (mean of 3, without the first)."
    assert "Repairing rank 0" in lines[0].text and "in all steps" in lines[0].text
    assert "No repair of ranks or links saves more than" in lines[1].text
    assert "too few steps to tell this from chance: 8 equal steps are needed" in lines[2].lead
    assert "core attention −15 ns" in lines[2].text
    assert "Median attention imbalance 1.50 → 1.00" in lines[2].text


def test_sentences_of_comparisons(tmp_path):
    """Ten steps of 1 µs, of which dense layers take as much as is said."""

    def run(name, ns, dense, count=10, **options):
        steps = [(s, ns * s, ns * s + ns) for s in range(count)]
        events = [(s, DENSE, b, b + dense, {"flops": 1e3}) for s, b, _ in steps]
        return study(write_run(tmp_path / name, [Rank(0, events, steps)], **options))

    def told(other):
        found = compare(first, other, ("a", "b"))
        return [(line.kind, f"{line.lead} {line.text}")
                for line in headlines.headlines([], [], [found])]

    first = run("a", 1000, 500)
    ((kind, text),) = told(run("fast", 800, 500))
    assert kind == "gain" and text.startswith(
        "b is 1.25 times as fast as a (mean 1.000 us → 800 ns; 95 % interval of equal steps 1.25 "
        "to 1.25).")
    ((kind, text),) = told(run("equal", 1000, 500))
    assert kind == "plain" and "do not differ by more than chance" in text
    ((kind, text),) = told(run("busy", 500, 250))
    assert kind == "plain" and text.startswith(
        "b and a are not comparable: dense layers, whose work is the same, ran at 2.000 x the rate")
    _, (kind, text) = told(run("short", 2500, 1000, 4))
    assert kind == "loss" and "dense layers, whose work no placement changes, ran at 0.50" in text
    _, (kind, text) = told(run("tensor", 2500, 1000, config={"parallel": {"tensor": 2}}))
    assert kind == "plain" and text.endswith("other sizes or types of products do "
                                             "(parallel.tensor).")


@pytest.mark.parametrize("case", ["no events", "one step", "cut off", "one rank"])
def test_unusual_runs_have_a_page(tmp_path, case):
    ranks = {
        "no events": [Rank(0, [], [(0, 0, 100)]), Rank(1, [], [(0, 0, 100)])],
        "one step": [Rank(n, *steps_of([(DENSE, 0, 50)], count=1)) for n in (0, 1)],
        "cut off": two_ranks(state=0, tail=3),
        "one rank": [Rank(0, *steps_of([(ATTENTION, 0, 50)]))],
    }[case]
    write_report([cadenza.open(write_run(tmp_path / "a", ranks))], tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert ('<section id="time">' in page) == (case != "no events")
    assert ("no: cut off" in page) == (case == "cut off")


def test_all_runs_show_the_same_step(tmp_path):
    """Of three steps the second is typical of one run, the third of the other; of both it is the
    second, which is nearer to both medians."""
    runs = []
    for name, times in (("a", (100, 150, 210)), ("b", (100, 90, 95))):
        ends = np.cumsum(times)
        steps = [(s, int(e - t), int(e)) for s, (t, e) in enumerate(zip(times, ends, strict=True))]
        events = [(s, DENSE, b, b + 50) for s, b, _ in steps]
        runs.append(cadenza.open(write_run(tmp_path / name, [Rank(0, events, steps)])))
    assert [cadenza.Study(run).typical_step for run in runs] == [1, 2]
    write_report(runs, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    timeline = page.split('<section id="timeline">')[1].split("</section>")[0]
    assert re.findall(r"<option>step (\d), typical</option>", timeline) == ["1", "1"]


def test_step_times_of_a_page_are_one(tmp_path):
    """What the sentences, the table, the comparison and the scenarios say of a pair of runs."""
    runs = []
    for name, times in (("a", (300, 100, 150, 220)), ("b", (90, 90, 120, 105))):
        ends = np.cumsum(times)
        steps = [(s, int(e - t), int(e)) for s, (t, e) in enumerate(zip(times, ends, strict=True))]
        events = [(s, DENSE, b, b + 50) for s, b, _ in steps]
        runs.append(study(write_run(tmp_path / name, [Rank(0, events, steps)])))
    first, other = (470 / 3 * 1e-9, 315 / 3 * 1e-9)  # without the first step
    assert [one.seconds for one in runs] == pytest.approx([first, other])
    found = compare(*runs, ("a", "b"))
    typical = (90 * 120 * 105 / (100 * 150 * 220)) ** (1 / 3)
    assert found["step_time"]["ratio"] == pytest.approx(typical)
    bars = found["waterfall"]
    assert sum(row["first"] for row in bars) == pytest.approx(first)
    assert sum(row["other"] for row in bars) == pytest.approx(other)
    recorded = runs[0].what_if().set_index("scenario").loc["as recorded"]
    assert recorded["seconds"] == pytest.approx(first)
    lines = headlines.headlines(runs, ["a", "b"], [found])
    told = " ".join(f"{line.lead} {line.text}" for line in lines)
    assert told.count("157 ns") == 2 and told.count("105 ns") == 2


def test_steps_of_other_kinds_are_named(tmp_path):
    """Of twelve steps four attend for longer: the page says which and where the time goes."""
    long = (2, 5, 6, 9)
    times = [150 if step in long else 100 for step in range(12)]
    ends = np.cumsum(times).tolist()
    steps = [(s, e - t, e) for s, (t, e) in enumerate(zip(times, ends, strict=True))]
    events = [(s, ATTENTION, b, e - 40) for s, b, e in steps]
    one = write_run(tmp_path / "a", [Rank(0, events, steps, producer="simulator")])
    assert figures_timeline.shown_steps(study(one)) == {0: "typical", 2: "typical of 4 others"}
    write_report([cadenza.open(one)], tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "2, 5 to 6, 9" in page and "core attention +50 ns" in page


def test_parts_of_the_picture_sum_to_the_step(run_folder):
    drawn, frame = figures_time.parts_by_rank(study(run_folder))
    assert frame[list(PARTS)].sum(axis=1).tolist() == pytest.approx([100e-9, 100e-9])
    bars = [one.data_source.data for one in drawn.renderers]
    assert sum(np.sum(bar["value"]) for bar in bars) == pytest.approx(200e-9)
    assert sum(np.sum(bar["end"] - bar["begin"]) for bar in bars) == pytest.approx(200e-9)
    assert sum(np.sum(bar["share"]) for bar in bars) == pytest.approx(2)


def test_heat_maps(run_folder):
    choices, frame = figures_time.heat_maps(study(run_folder))
    assert list(choices)[0] == "computing" and "data-parallel wait" in choices
    assert "no core" not in choices  # it is zero
    assert frame.loc[frame["rank"] == 0, "busy"].tolist() == pytest.approx([71e-9] * 2)
    cells = columns(choices["computing"])  # what a reader is told of rank 0
    assert cells["of_row"][:2] == ["rank 0 · node · data 0"] * 2
    assert cells["seconds"][:2] == pytest.approx([71e-9] * 2, rel=1e-6)


def test_a_slow_rank_of_many_can_be_seen(tmp_path):
    """Of 64 ranks that compute 96 to 97 of 100 ns one computes 99: colours reach no further."""
    ranks = [Rank(r, *steps_of([(DENSE, 0, 99 if r == 17 else 96 + r % 2)])) for r in range(64)]
    choices, _ = figures_time.heat_maps(study(write_run(tmp_path / "many", ranks)))
    colours = choices["computing"].renderers[0].glyph.fill_color.transform
    first = columns(choices["computing"])["value"].reshape(64, -1)[:, 0]
    assert colours.high == -colours.low == pytest.approx(2.5e-9, abs=1e-9)
    assert np.argmax(first) == 17 and first[17] >= 0.9 * colours.high
    assert np.abs(np.delete(first, 17)).max() < 0.3 * colours.high


def test_ranks_of_a_large_run_to_choose_from(tmp_path):
    """Thirty ranks, of which two are a tensor group: those that tell most, then all, by dozens."""
    ranks = [Rank(r, *steps_of([(DENSE, 0, 60 + r)]), place=(r // 2, 0, r % 2))
             for r in range(30)]
    one = study(write_run(tmp_path / "many", ranks))
    made = figures_timeline.timelines(one, 100)
    assert list(made) == ["step 0, typical, ranks that tell most", "step 0, ranks 0 to 22",
                          "step 0, ranks 24 to 28"]
    labels = made["step 0, ranks 24 to 28"].yaxis.formatter.args["labels"]
    assert labels == {"0": "rank 24", "1": "rank 26", "2": "rank 28"}


def test_waterfall_bars_meet(tmp_path):
    """Each bar begins where the one before it ended."""
    first, other = study(one_slow(tmp_path / "a")), study(one_slow(tmp_path / "b", 45, 45))
    drawn, frame = figures_compare.speed_up_waterfall(first, other, ("a", "b"))
    bars = columns(drawn)
    at = bars["end"][0]
    assert at == pytest.approx(100e-9) and bars["begin"][0] == bars["begin"][-1] == 0
    changes = frame.loc[frame["change"] != 0, "change"]
    for begin, end, change in zip(bars["begin"][1:-1], bars["end"][1:-1], changes, strict=True):
        assert begin == pytest.approx(min(at, at + change))
        assert end == pytest.approx(max(at, at + change))
        at += change
    assert at == pytest.approx(bars["end"][-1])


def test_timeline_of_few_ranks_shows_all(run_folder):
    one = study(run_folder)
    assert figures_timeline.chosen_ranks(one) == [0, 1]
    drawn = next(iter(figures_timeline.timelines(one, 100).values()))
    rows = np.concatenate([one.data_source.data["at"] for one in drawn.renderers])
    assert set(np.rint(rows)) == {0, 1}
    assert drawn.x_range.end == pytest.approx(100e-9)


def test_memory(run_folder):
    _, frame = figures_memory.memory_by_rank(study(run_folder))
    assert frame["total"].tolist() == [1024.0, 1024.0]  # KiB


def test_plan_and_roofline(tmp_path):
    ranks = two_ranks()
    for rank in ranks:
        rank.summary = [(step, 0, -1, phase, 0, rank.rank, 2, 0, 4.0, 64, 32, 0.5, 0.1)
                        for step in (0, 1) for phase in (0, 1)]
    one = study(write_run(tmp_path / "p", ranks))
    figures, frame = figures_attention.plan_by_tick(one)
    assert frame.groupby("server")["cost"].sum().tolist() == [4.0, 4.0]
    assert columns(figures["cost"])["value"].tolist() == [4.0, 4.0]
    assert columns(figures["predicted attention"])["value"].tolist() == [0.5, 0.5]
    assert figures_attention.roofline(one) is None  # its attention has no FLOPs
    _, tasks = figures_attention.roofline(study(one_slow(tmp_path / "a")))
    assert len(tasks) == 8


def test_where_the_page_goes(tmp_path):
    assert default_output([tmp_path / "a"]) == tmp_path / "a" / "report.html"
    assert default_output([tmp_path / "a", tmp_path / "b"]) == tmp_path / "report.html"


def test_where_ranks_are_and_when_steps_were(tmp_path):
    """Four ranks of two pipelines: the coordinates of which there is more than one; a step that
    begins two seconds after the first."""
    ranks = [Rank(r, *steps_of([(DENSE, 0, 50)], 2), place=(0, r // 2, r % 2)) for r in range(4)]
    one = study(write_run(tmp_path / "a", ranks))
    one.run.info["created_utc"] = "20261231T235959Z"
    assert places.places(one)[3] == "node · pipeline 1, tensor 1"
    one.ranks["device"] = "H100"
    assert places.rank_labels(one)[2] == "rank 2 · node · GPU 2 (H100) · pipeline 1, tensor 0"
    assert places.places(one, short=True)[2] == "node · GPU 2"
    assert places.started(one) == "2026-12-31 23:59:59 UTC"
    one.step_times["begin_ns"] = [0, 2 * 10**9]
    assert [places.step_and_time(one, step) for step in (0, 1, 7)] == [
        "0 (12-31 23:59:59 UTC)", "1 (01-01 00:00:01 UTC)", "7"]


def test_the_tree_has_all_time(tmp_path):
    ranks = [Rank(r, *steps_of([(ATTENTION, 0, 30 + 10 * r), (DENSE, 50, 90)])) for r in range(3)]
    assert sorted(part for lane in tree.LANES.values() for part in lane) == sorted(PARTS)
    one = study(write_run(tmp_path / "a", ranks))
    made = tree.system_tree(one, "a")
    data = json.loads(gzip.decompress(base64.b64decode(made.data)))
    assert [name for host, mine in data["nodes"] for name in mine] == [0, 1, 2]
    values = dict(zip(made.metrics, data["metrics"], strict=True))
    assert not {"no core", "bytes sent"} & set(values)  # they are zero
    assert values["highest memory"]["unit"] == "B"
    whole = [sum(lane[str(r)] for lane in values["step time"]["lanes"].values()) for r in range(3)]
    assert whole == pytest.approx([100e-9] * 3)
    assert values["core attention"]["lanes"] == {
        "compute": {str(r): pytest.approx((30 + 10 * r) * 1e-9) for r in range(3)}}


def test_of_many_runs_few_are_in_detail(tmp_path):
    """Runs of five speeds: a row for each, the fastest first; figures of the first, the fastest and
    the slowest."""
    attends = (60, 90, 30, 70, 50)
    runs = []
    for number, ns in enumerate(attends):
        steps = [(s, s * (ns + 10), (s + 1) * (ns + 10)) for s in range(3)]
        events = [(s, ATTENTION, b, e - 10) for s, b, e in steps]
        runs.append(cadenza.open(write_run(tmp_path / f"run{number}", [Rank(0, events, steps)])))
    assert ranking.detailed([cadenza.Study(run) for run in runs]) == [0, 1, 2]
    assert ranking.detailed([cadenza.Study(run) for run in runs[:4]]) == [0, 1, 2, 3]
    write_report(runs, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    table = page.split('<section id="ranking">')[1].split("</section>")[0]
    order = re.findall(r">[^<]*run(\d)</td>", table)
    assert order == ["2", "4", "0", "3", "1"]
    assert "70 ns" in table and "14.3%" in table  # 10 of run 0's 70 ns are lost
    times = page.split('<section id="time">')[1].split("</section>")[0]
    assert re.findall(r"<h3>[^<]*run(\d)</h3>", times) == ["0", "1", "2"]


def test_lost_time_is_said_in_words(tmp_path):
    """Of 100 ns a rank computes 90, for 60 of which it has no core."""
    events, steps = steps_of([(DENSE, 0, 90, {"still_ns": 60})], 3)
    (line,) = headlines.headlines([study(write_run(tmp_path / "a", [Rank(0, events, steps)]))],
                                  ["a"], [])
    assert "70.0% of the ranks' time is lost, mainly because computations had no core (60.0%)." \
        in line.text


@pytest.mark.parametrize("paths, labels", [
    (["/a/sweep/r1", "/a/sweep/r2"], ["r1", "r2"]),
    (["/a/monday/cad", "/a/tuesday/cad"], ["monday/cad", "tuesday/cad"]),
    (["/a/run", "/a/run"], ["/a/run", "/a/run"]),
    (["/a/run", "/a/run/again"], ["/a/run", "/a/run/again"]),
])
def test_runs_of_one_kind_are_called_by_where_their_folders_differ(paths, labels):
    runs = [{"placement": "cad", "name": "x", "producer": "simulator", "path": path}
            for path in paths]
    assert summary.labels(runs) == labels
    runs[1]["placement"] = "ring"
    assert summary.labels(runs) == ["cad", "ring"]
