# SPDX-License-Identifier: Apache-2.0
import copy

import matplotlib.image
import pandas as pd
import pytest
import yaml

from cadenza.errors import DataError
from cadenza.sweep.points import open_sweep, values_of
from cadenza.sweep.report import counts, markdown, verdicts
from cadenza.sweep.views import VALUE

CONFIG = {
    "name": "grid",
    "title": "Figure 1: a grid",
    "base": "e.yaml",
    "axes": {"size": {"8": {}, "16": {}}, "system": {"a": {}, "b c1": {}, "b c2": {}}},
    "report": [
        {
            "title": "a over b",
            "value": {"speed_up": {"of": ["a"], "over": ["b c1", "b c2"]}},
            "axis": "system",
            "x": "size",
            "checks": [{"what": "all", "range": [1.2, 1.5], "source": "text"}],
        },
        {
            "title": "seconds",
            "value": "seconds",
            "x": "size",
            "series": ["system"],
            "checks": [{"where": {"system": "a", "size": 8}, "about": 10, "within": 1}],
        },
    ],
}
ROWS = [  # size, system, status, seconds, attention_share, memory
    ("8", "a", "ok", 10.0, 0.5, 100),
    ("8", "b c1", "ok", 15.0, 0.6, 100),
    ("8", "b c2", "ok", 14.0, 0.6, 200),
    ("16", "a", "ok", 20.0, 0.25, 100),
    ("16", "b c1", "ok", 30.0, 0.6, 100),
    ("16", "b c2", "out_of_memory", 22.0, 0.6, 400),
]
RANKS, TOKENS = 4, 1200


def write_sweep(folder, config, rows):
    (folder / "sweep.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    lines = ["size,system,status,reason,seconds,attention_share,largest_memory_bytes,ranks,"
             "tokens,tokens_per_second,model_flops_utilization,attention_imbalance"]
    lines += [f"{n},{s},{w},,{t},{a},{m},{RANKS},{TOKENS},{TOKENS / t if t else ''},0.5,1.25"
              for n, s, w, t, a, m in rows]
    (folder / "sweep.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def write(tmp_path):
    def make(change=None, rows=ROWS):
        config = copy.deepcopy(CONFIG)
        if change:
            change(config)
        write_sweep(tmp_path, config, rows)
        return tmp_path

    return make


def view(folder, value, **keys):
    """The values of one view, by labels."""
    config = yaml.safe_load((folder / "sweep.yaml").read_text())
    config["report"] = [{"title": "t", "x": "size", "value": value, **keys}]
    (folder / "sweep.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    sweep = open_sweep(folder)
    values = values_of(sweep, sweep.views[0])
    of_axes = sweep.axes if "axis" not in keys else ["size"]
    return {tuple(row[axis] for axis in of_axes): row[VALUE] for _, row in values.iterrows()}


def test_speed_up_is_over_the_best_that_fits(write):
    what = {"speed_up": {"of": ["a"], "over": ["b c1", "b c2"]}}
    assert view(write(), what, axis="system") == {("8",): 1.4, ("16",): 1.5}
    regardless = view(write(), what, axis="system", beyond_memory=True)
    assert regardless == {("8",): 1.4, ("16",): 1.1}


def test_derived_values(write):
    folder = write()
    assert view(folder, {"sum": ["attention_share", "seconds"]})["8", "a"] == 10.5
    assert view(folder, {"ratio": ["largest_memory_bytes", "seconds"]})["8", "a"] == 10
    assert view(folder, {"lost": "seconds"})["8", "a"] == pytest.approx(0.9)
    assert view(folder, "attention_seconds")["16", "a"] == 5.0
    speed = view(folder, {"relative_speed": "seconds"})
    assert speed["8", "a"] == 1.0 and speed["16", "a"] == 0.5
    relative = view(folder, {"relative_to": {"column": "seconds", "where": {"size": 8}}})
    assert relative["16", "b c1"] == 2.0 and relative["8", "b c2"] == 1.0


def test_points_that_were_not_simulated_are_left_out(write):
    rows = [*ROWS[:5], ("16", "b c2", "refused", "", "", "")]
    assert ("16", "b c2") not in view(write(rows=rows), "seconds")


@pytest.mark.parametrize(
    ("check", "verdict", "ours"),
    [
        ({"range": [1.2, 1.5]}, "agrees", "1.40 to 1.50, median 1.45"),
        ({"range": [1.2, 1.45]}, "1 of 2 inside", None),
        ({"range": [1.0, 1.2]}, "above", None),
        ({"range": [2.0, 3.0]}, "below", None),
        ({"about": 1.45, "within": 0.05}, "agrees", None),
        ({"about": 1.45, "within": 0.01}, "above and below", None),
        ({"highest": [16]}, "agrees", "at 16"),
        ({"lowest": [16]}, "differs", "at 8"),
        ({"range": [0, 9], "where": {"size": []}}, "missing", "nothing was simulated"),
    ],
)
def test_verdicts(write, check, verdict, ours):
    def change(config):
        config["report"][0]["checks"] = [check]

    row = verdicts(open_sweep(write(change)))[0]
    assert row["verdict"] == verdict
    if ours:
        assert row["ours"] == ours


def test_optimum_is_looked_for_on_every_line(write):
    def change(config):
        config["report"][1]["checks"] = [{"lowest": [8]}]

    assert verdicts(open_sweep(write(change)))[1]["verdict"] == "agrees"
    rows = [("8", "a", "ok", 30.0, 0.5, 1), *ROWS[1:]]
    row = verdicts(open_sweep(write(change, rows)))[1]
    assert (row["verdict"], row["ours"]) == ("differs", "at 8, 16")


def test_table_has_all_checks_and_says_why(write):
    def change(config):
        config["report"][0]["why"] = "Because."

    text = markdown([open_sweep(write(change))])
    row = "| Figure 1: a over b | all | 1.20 to 1.50 | 1.40 to 1.50, median 1.45 | agrees |"
    assert row in text
    assert "| Figure 1: seconds |  | 10.00 (± 1.00) | 10.00 | agrees |" in text
    assert "**Figure 1, a over b.** Because." in text
    assert "6 points: 5 ok, 1 out of memory" in text


def test_views_without_checks_are_tables_of_values(write):
    def change(config):
        config["report"][1]["checks"] = []

    lines = markdown([open_sweep(write(change))]).splitlines()
    assert "| system | size 8 | size 16 |" in lines
    assert "| b c2 | 14.00 | (22.00) |" in lines, "in brackets: it does not fit"


def without_report(config):
    del config["report"]


def test_a_sweep_without_report_names_its_best_point_first(write, cli, tmp_path):
    folder = write(without_report)
    text = markdown([open_sweep(folder)])
    assert "published" not in text and "verdict" not in text
    best = "Best: size 8, system a: 10.00 s a step, 120 tokens/s on 4 ranks."
    assert text.splitlines()[0] == f"**Figure 1: a grid.** {best}"
    assert "6 points: 5 ok, 1 out of memory" in text
    assert text in cli("sweep", folder).stdout
    done = cli("sweep", folder, "--markdown", tmp_path / "table.md")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "table.md").read_text() == text


def cells(text, header):
    """The rows below a table's header, as lists of text."""
    lines = [[cell.strip() for cell in line[1:-1].split("|")] if line[:1] == "|" else None
             for line in text.splitlines()]
    first = lines.index(header) + 2
    return lines[first : lines.index(None, first)]


RANKING = ["place", "step", "slower", "tokens/s", "MFU", "imbalance", "memory"]
EFFECTS = ["axis", "label", "fastest in", "slower, median", "at most"]


def test_points_are_ranked_and_those_that_do_not_fit_come_last(write):
    text = markdown([open_sweep(write(without_report))])
    rows = cells(text, ["size", "system", *RANKING])
    assert [row[:3] for row in rows] == [
        ["8", "a", "1"],
        ["8", "b c2", "2"],
        ["8", "b c1", "3"],
        ["16", "a", "4"],
        ["16", "b c1", "5"],
        ["16", "b c2", "too large"],
    ]
    assert rows[1][3:] == ["14.00 s", "1.40 x", "86", "50.0%", "1.25", "200 B"]


def test_each_label_is_compared_with_its_like(write):
    text = markdown([open_sweep(write(without_report))])
    assert cells(text, EFFECTS) == [
        ["size", "8", "2 of 2", "1.00 x", "1.00 x"],  # "b c2" is alone: 16 does not fit
        ["size", "16", "0 of 2", "2.00 x", "2.00 x"],
        ["system", "a", "2 of 2", "1.00 x", "1.00 x"],
        ["system", "b c1", "0 of 2", "1.50 x", "1.50 x"],
        ["system", "b c2", "0 of 1", "1.40 x", "1.40 x"],
    ]


def test_each_workload_has_its_best_point(write):
    def change(config):
        del config["report"]
        config["axes"]["size"] = {"8": {}, "16": {"data.max_document": 16}}

    rows = [*ROWS[:4], ("16", "b c1", "ok", 15.0, 0.6, 100), ROWS[5]]
    text = markdown([open_sweep(write(change, rows))])
    assert "Best of size 8: system a: 10.00 s a step" in text
    assert "Best of size 16: system b c1: 15.00 s a step" in text
    ranked = cells(text, ["size", "system", *RANKING])
    assert [row[:3] for row in ranked[3:]] == [
        ["16", "b c1", "1"],
        ["16", "a", "2"],
        ["16", "b c2", "too large"],
    ]
    assert ranked[4][4] == "1.33 x", "against the best of its workload"


def test_equals_ranks_and_points_left_out_are_named(write):
    rows = [*ROWS[:4], ("16", "b c1", "ok", 10.005, 0.6, 100),
            ("16", "b c2", "refused", "", "", "")]
    folder = write(without_report, rows)
    table = pd.read_csv(folder / "sweep.csv", dtype=str)
    table.loc[1, "ranks"] = "1"
    table.loc[5, "reason"] = "b c2 needs 32"
    table.to_csv(folder / "sweep.csv", index=False)
    first, second, third = markdown([open_sweep(folder)]).splitlines()[:3]
    assert first.rstrip().endswith("on 4 ranks; 1 other is as fast, within 0.1%.")
    assert second.strip() == ("Most tokens/s per rank: size 8, system b c1: 15.00 s a step, "
                              "80 tokens/s on 1 rank.")
    assert third == "1 refused, the first of them size 16, system b c2: b c2 needs 32."


def test_where_nothing_fits_the_least_is_named(write):
    rows = [(n, s, "out_of_memory", t, a, m) for n, s, _, t, a, m in ROWS]
    text = markdown([open_sweep(write(without_report, rows))])
    assert "No point fits into memory. size 8, system a needs least: 100 B on a rank." in text
    rows = [(n, s, "refused", "", "", "") for n, s, *_ in ROWS]
    text = markdown([open_sweep(write(without_report, rows))])
    assert text.startswith("**Figure 1: a grid.** No point was simulated.") and "| " not in text


def test_views_that_nothing_was_published_about_have_no_verdicts(write):
    def change(config):
        config["report"] = [{"title": "seconds of a", "value": "seconds", "x": "size"}]
        config["axes"]["system"] = {"a": {}}

    text = markdown([open_sweep(write(change, [ROWS[0], ROWS[3]]))])
    assert "published" not in text
    assert "| size 8 | size 16 |" in text and "| 10.00 | 20.00 |" in text


def test_command_draws_every_view(write, cli, tmp_path):
    folder = write()
    done = cli("sweep", folder, "--markdown", tmp_path / "table.md")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    for number in range(2):
        picture = matplotlib.image.imread(folder / f"grid-{number}.png")
        assert picture.std() > 0.01
    assert "| agrees |" in (tmp_path / "table.md").read_text()
    assert "| agrees |" in cli("sweep", folder).stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["report"][0].update(valu=1), "unknown key 'valu'"),
        (lambda c: c["report"][0].pop("x"), "has no 'x'"),
        (lambda c: c["report"][1].update(series=["sizes"]), "found no axis 'sizes'"),
        (lambda c: c["report"][1].update(value="second"), "found no column 'second'"),
        (lambda c: c["report"][1].update(value={"cube": 1}), "unknown form 'cube'"),
        (lambda c: c["report"][0]["checks"][0].pop("range"), "valid: one of range"),
        (lambda c: c["report"][0].update(axis="sizes"), "found no axis 'sizes'"),
        (lambda c: c["report"].append(3), "found '3'; valid: a block"),
        (lambda c: c["report"][0].update(x=["size", "system"]), "found 2 axes; valid: one"),
        (lambda c: c["report"][0].update(series=["size"]), "found axis 'size' twice"),
        (lambda c: c["report"][0].update(checks={"range": [1, 2]}), "checks: found "),
        (lambda c: c["report"][0]["checks"][0].update(range=[1]), "found [1.0]; valid: [low"),
        (lambda c: c["report"][1]["checks"][0].update(within=-1), "found [11.0, 9.0]; valid: [low"),
        (lambda c: c["report"][0]["checks"][0].update(range=[1, "x"]), "found 'x'; valid: a n"),
        (lambda c: c["report"][0]["checks"][0].update(where={"x": 1}), "found no axis 'x'"),
        (lambda c: c["report"][0]["value"]["speed_up"].pop("of"), "speed_up: has no 'of'"),
        (lambda c: c["report"][0].update(value={"ratio": ["seconds"]}), "found 1 columns; val"),
        (lambda c: c["report"][0].update(value={"relative_to": {
            "column": "seconds", "where": {"size": ["8", "16"]}}}),
         "names more than one point"),
        (lambda c: c["report"][0].update(beyond_memory="maybe"), "valid: true, false"),
        (lambda c: c.update(name="../x"), "name: found '../x'; valid: the name of a file"),
        (lambda c: c.update(axes={"_value": {}}), "found '_value', the name of a column"),
        (lambda c: c.update(axes=["size"]), "axes: found no block of keys"),
    ],
)
def test_bad_views_are_one_line(write, inside, change, message):
    done = inside("sweep", write(change))
    assert done.returncode == 3, done.stderr
    assert message in done.stderr and done.stderr.count("\n") == 1


LABELS = ("null", "None", "nan", "NA", "", "0.10", "0x10", "1e3", "yes", "~", "a b")


def test_every_label_is_text(write, inside):
    """None is another's word for nothing, or for a number."""

    def change(config):
        config["axes"] = {"system": {label: {} for label in LABELS}}
        value = {"relative_to": {"column": "seconds", "where": {"system": "null"}}}
        config["report"] = [{"title": "t", "x": "system", "value": value,
                             "checks": [{"where": {"system": ["NA", ""]}, "lowest": ["NA"]}]}]

    rows = [("8", label, "ok", 2.0 + i, 0.5, 1) for i, label in enumerate(LABELS)]
    sweep = open_sweep(write(change, rows))
    assert sweep.table["system"].tolist() == list(LABELS)
    values = values_of(sweep, sweep.views[0])[VALUE]
    assert values.tolist() == [1 + i / 2 for i in range(len(LABELS))]
    (row,) = verdicts(sweep)
    assert (row["ours"], row["verdict"]) == ("at NA", "agrees")
    assert inside("sweep", sweep.path).returncode == 0
    write(lambda config: (change(config), config.pop("report")), rows)
    done = inside("sweep", sweep.path)
    assert done.returncode == 0 and "Best: system null: 2.000 s" in done.stdout, done.stderr


@pytest.mark.parametrize("name", ["value", "workload", "place", "fits", "_base", "index", "$x_{$"])
def test_an_axis_can_have_any_name_but_a_column_s(name, write, inside):
    def change(config):
        config["axes"] = {name: config["axes"].pop("size"), **config["axes"]}
        config["report"] = [{"title": "$t_{$", "value": {"relative_to": {
            "column": "seconds", "where": {"system": "a"}}}, "x": name, "series": ["system"]}]

    folder = write(change)
    text = (folder / "sweep.csv").read_text()
    (folder / "sweep.csv").write_text(text.replace("size", name, 1))
    done = inside("sweep", folder)
    assert done.returncode == 0 and f"{name} 16" in done.stdout, done.stderr


def test_a_speed_up_without_checks_is_a_table(write, inside):
    def change(config):
        del config["report"][0]["checks"]
        config["report"][0]["beyond_memory"] = True

    done = inside("sweep", write(change))
    assert done.returncode == 0, done.stderr
    assert "| size 8 | size 16 |" in done.stdout and "| 1.40 | (1.10) |" in done.stdout


def test_a_sweep_of_one_axis_and_of_none(write, inside):
    def one(config):
        del config["axes"]["size"]
        config["report"] = [{**config["report"][0], "x": "system", "checks": []}]

    folder = write(one, ROWS[:3])
    assert inside("sweep", folder).returncode == 0
    write(lambda config: (config.pop("report"), config.pop("axes")), ROWS[:1])
    done = inside("sweep", folder)
    assert done.returncode == 0 and "10.00 s a step" in done.stdout, done.stderr


def test_a_row_that_was_cut_off_is_left_out(write):
    folder = write()
    text = (folder / "sweep.csv").read_text()
    (folder / "sweep.csv").write_text(text[:-20])
    assert len(open_sweep(folder).table) == len(ROWS) - 1


BROKEN_TABLES = [
    (("8,a,ok,,10.0", "8,a,ok,,ten"), "sweep.csv:2: seconds: found 'ten'; valid: a number"),
    (("8,a,ok,,10.0", "8,a,ok,,1e99"), "sweep.csv:2: seconds: found '1e99'"),
    (("8,a,ok,,10.0", "8,a,ok,,-1"), "sweep.csv:2: seconds: found -1 at a point that was"),
    (("8,a,ok,,10.0", "8,a,ok,,"), "sweep.csv:2: seconds: found nan at a point that was"),
    (("8,a,ok,,10.0", "8,a"), "sweep.csv:2: broken table: found 9 cells, expected 12"),
    (("16,a", "8,a"), "sweep.csv:5: found the labels of a row before"),
    (("size,", "size,size,"), "has more than one column 'size'"),
    (("8,a", '8,"a'), "broken table: unexpected end of data"),
]


@pytest.mark.parametrize(("change", "said"), BROKEN_TABLES)
def test_broken_tables_are_one_line(change, said, write, inside):
    folder = write()
    text = (folder / "sweep.csv").read_text()
    (folder / "sweep.csv").write_text(text.replace(*change, 1))
    done = inside("sweep", folder)
    assert done.returncode == 3 and done.stderr.count("\n") == 1
    assert said in done.stderr, done.stderr


def test_bad_files_are_named(write, cli, tmp_path):
    assert "sweep.yaml: cannot be read" in cli("sweep", tmp_path / "nowhere").stderr
    folder = write()
    (folder / "sweep.csv").write_text("size,system\n8,a\n")
    with pytest.raises(DataError, match="has no column 'status'"):
        open_sweep(folder)
    (folder / "sweep.csv").write_text("")
    with pytest.raises(DataError, match="has no column 'size'"):
        open_sweep(folder)
    (folder / "sweep.yaml").write_text("- 1\n")
    with pytest.raises(DataError, match="found a list, expected a map of keys"):
        open_sweep(folder)
    (folder / "sweep.yaml").write_text("{a: ")
    with pytest.raises(DataError, match="sweep.yaml: not YAML"):
        open_sweep(folder)


def test_one_point_is_not_plural(tmp_path):
    names = ["ranks", "seconds", "tokens", "tokens_per_second", "model_flops_utilization",
             "attention_imbalance", "attention_share", "largest_memory_bytes"]
    (tmp_path / "sweep.yaml").write_text("name: s\naxes: {size: [1]}\n")
    table = f"size,status,reason,{','.join(names)}\n1,ok,{',1' * len(names)}\n"
    (tmp_path / "sweep.csv").write_text(table)
    assert counts(open_sweep(tmp_path)) == "1 point: 1 ok"


def test_a_name_that_ends_lines_stays_on_its_line(write, inside):
    done = inside("sweep", write(lambda config: config.update(name="a\u2028b")))
    assert done.returncode == 0 and "a\\u2028b-0.png: " in done.stdout, done.stderr
