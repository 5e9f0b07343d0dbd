# SPDX-License-Identifier: Apache-2.0
import json
import re
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest
import trace_files
from conftest import steps_of, two_ranks
from trace_files import ATTENTION, DENSE, Rank, write_run

import cadenza
from cadenza.cli import _parser
from cadenza.colours import LABEL_COLOURS
from cadenza.timeline.panels import choose_step, panel


@pytest.fixture
def colocated(tmp_path):
    """One rank has all the work of 200 ns, the other a tenth of it."""
    slow, slow_steps = steps_of([(ATTENTION, 0, 100)])
    fast, fast_steps = steps_of([(ATTENTION, 0, 10)])
    ranks = [Rank(0, slow, slow_steps), Rank(1, fast, fast_steps)]
    return write_run(tmp_path / "colo", ranks, placement="colocated")


def test_summary_text(run_folder, cli):
    done = cli("summary", run_folder)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    for part in ("small", "cad (servers: in-place)", "100 ns", "1,000", "5.0000 -> 4.0000",
                 "25.0%", "1.500 (median", "planned 1.000", "71.0%", "1.0 MiB",
                 "trainer+server"):
        assert part in done.stdout, part
    assert max(map(len, done.stdout.splitlines())) <= 132


def test_summary_json(run_folder, inside):
    (run,) = json.loads(inside("summary", run_folder, "--json").stdout)["runs"]
    assert run["name"] == "small" and run["placement"] == "cad" and run["steps"] == 2
    imbalance = {"median": 1.5, "run": 1.5, "by_layer": 1.5, "planned": 1.0}
    assert run["attention_imbalance"] == pytest.approx(imbalance)
    assert run["tokens_per_second"] == 1000.5
    rank = run["per_rank"][1]
    assert rank["attention_wait_seconds"] == pytest.approx(40e-9)
    assert rank["busy_share"] == pytest.approx(0.36)
    assert rank["peak_memory_bytes"] == 1 << 20


def test_summary_names_what_computed_attention(tmp_path, inside):
    """Rank by rank where they differ; a simulated trace does not say."""

    def kernels_of(name, words):
        ranks = [Rank(r, *steps_of([(ATTENTION, 0, 9)]), kernel=word)
                 for r, word in enumerate(words)]
        folder = write_run(tmp_path / name, ranks)
        lines = inside("summary", folder).stdout.splitlines()
        (said,) = [line.split("attention kernel")[1].strip() for line in lines
                   if "attention kernel" in line]
        (run,) = json.loads(inside("summary", folder, "--json").stdout)["runs"]
        return said, run["attention_kernels"]

    said, counts = kernels_of("real", ("avx512", "amx", "amx"))
    assert said == "amx on 2 ranks, avx512 on 1 rank" and counts == {"amx": 2, "avx512": 1}
    assert kernels_of("simulated", ("", "", ""))[1] == {}


def test_what_if(colocated, inside):
    text = inside("what-if", colocated).stdout
    assert "no attention imbalance" in text and "mean of 2 of 2 steps" in text
    found = json.loads(inside("what-if", colocated, "--json").stdout)
    assert found["steps"] == [0, 1]
    assert found["scenarios"][0]["scenario"] == "as recorded"
    assert found["scenarios"][0]["seconds"] == pytest.approx(100e-9)
    one = json.loads(inside("what-if", colocated, "--step", "1", "--json").stdout)
    assert one["steps"] == [1] and len(one["scenarios"]) >= 4
    refused = inside("what-if", colocated, "--step", "7")
    assert refused.returncode == 2
    assert "no complete step 7; valid are 0 to 1" in refused.stderr


def test_links(colocated, inside):
    assert inside("links", colocated).stdout.startswith("Ranks exchange nothing.")
    found = json.loads(inside("links", colocated, "--json").stdout)
    assert found["usual_is"] == "others" and found["slow"] == found["matrix"] == []


def test_critical_path(colocated, inside):
    assert "the critical path by operation" in inside("critical-path", colocated).stdout
    found = json.loads(inside("critical-path", colocated, "--step", "0", "--json").stdout)
    assert found["step"] == 0
    assert sum(piece["end_ns"] - piece["begin_ns"] for piece in found["path"]) == 100
    assert sum(row["share"] for row in found["shares"]) == pytest.approx(1)


def test_compare(run_folder, colocated, inside):
    text = inside("compare", colocated, run_folder).stdout
    for part in ("cad against colocated", "x 1.000", "colocated 1.818, cad 1.500",
                 "unknown: 8 equal steps are needed, there are 2",
                 "attention.placement", "data-parallel wait"):
        assert part in text, part
    (one,) = json.loads(inside("compare", colocated, run_folder, "--json").stdout)["comparisons"]
    assert (one["first"], one["other"]) == ("colocated", "cad")
    assert one["step_time"]["ratio"] == 1.0
    # Core attention was 100 and 10 of 100 ns, is 30 and 10: 35 ns less in the mean of the ranks.
    change = {row["part"]: row["change"] for row in one["waterfall"]}
    assert change["compute_attention"] == pytest.approx(-35e-9)


def test_fail_if_slower(tmp_path, inside):
    """Steps of 100 and of 104 ns without noise."""

    def run(name, ns, count=9):
        steps = [(s, ns * s, ns * s + ns) for s in range(count)]
        return write_run(tmp_path / name, [Rank(0, [], steps, producer="simulator")])

    before, after, short = run("before", 100), run("after", 104), run("short", 104, 7)
    for other, allowed, code, said in (
        (after, "3%", 1, "failed: after is slower than before by more than 3% (step time x 1.040"),
        (after, "4.5%", 0, "passed: it is not shown that after is slower"),
        (before, "0%", 0, "passed"),
        (short, "3%", 0, "not decided whether short is slower than before by more than 3%: 8 equal "
                         "steps are needed, there are 7"),
    ):
        done = inside("compare", before, other, "--fail-if-slower", allowed)
        assert done.returncode == code and said in done.stdout, (done.stdout, done.stderr)
    done = inside("compare", before, before, after, short, "--json", "--fail-if-slower", "3%")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 3
    assert len(json.loads(done.stdout)["comparisons"]) == 3
    assert inside("compare", before, after).returncode == 0


@pytest.mark.parametrize("value", ["-3%", "3", "300%", "three", "nan%", "1e1%", "%", ""])
def test_fail_if_slower_refuses(value, run_folder, inside):
    done = inside("compare", run_folder, run_folder, f"--fail-if-slower={value}")
    assert done.returncode == 2 and done.stdout == ""
    assert f"found '{value}'; valid: 0% to 100%, such as 3%" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_stragglers(colocated, inside):
    found = json.loads(inside("stragglers", colocated, "--json").stdout)
    assert {row["rank"] for row in found["stragglers"]} == {0}
    (one,) = found["verdicts"]
    assert one["sentence"] in " ".join(inside("stragglers", colocated).stdout.split())


def test_bubbles(run_folder, inside):
    found = json.loads(inside("bubbles", run_folder, "--json").stdout)
    waits = [row["data_parallel_wait"] for row in found["per_rank"]]
    assert waits == pytest.approx([10e-9, 0.0])
    assert "dp wait" in inside("bubbles", run_folder).stdout


def test_imbalance(run_folder, inside):
    text = inside("imbalance", run_folder).stdout
    assert "worker" in text and "1.500" in text and "(--json: all)" in text
    assert max(map(len, text.splitlines())) <= 132
    found = json.loads(inside("imbalance", run_folder, "--json").stdout)
    assert found["run"]["worker"] == pytest.approx(1.5)
    assert found["run"]["worker_flops"] is None  # no event says its FLOPs
    assert found["sparsity"] == {"steps": [], "layers": []}  # no step has FLOPs


def test_imbalance_without_attention_is_refused(tmp_path, inside):
    folder = write_run(tmp_path / "dense", [Rank(0, *steps_of([(DENSE, 0, 9)]))])
    done = inside("imbalance", folder)
    assert done.returncode == 3 and "no rank computes core attention" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_check(run_folder, tmp_path, inside):
    done = inside("check", run_folder, "--json")
    assert (done.returncode == 1) == bool(json.loads(done.stdout)["findings"])
    backwards = write_run(tmp_path / "bad", [Rank(0, [(0, DENSE, 50, 10)], [(0, 0, 100)])])
    done = inside("check", backwards)
    assert done.returncode == 1 and "rank 0" in done.stdout and "finding" in done.stdout


def test_export(run_folder, tmp_path, inside):
    path = tmp_path / "t.json"
    done = inside("export", run_folder, "--format", "chrome", "--ranks", "1", "--output", path)
    assert done.returncode == 0 and str(path) in done.stdout, done.stderr
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1}


def test_missing_rank_goes_on_with_a_warning(tmp_path, inside):
    folder = write_run(tmp_path / "r", two_ranks()[:1], world=2)
    done = inside("summary", folder, "--json")
    assert done.returncode == 0 and "1 of 2 rank files missing" in done.stderr
    assert json.loads(done.stdout)["runs"][0]["ranks"] == 1


def test_trace_without_events(tmp_path, inside):
    ranks = [Rank(0, [], [(0, 0, 100)])]
    done = inside("summary", write_run(tmp_path / "r", ranks), "--json")
    assert done.returncode == 0 and "no events" in done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert run["per_rank"][0]["other_seconds"] is None  # not known, rather than all of it
    assert inside("stragglers", tmp_path / "r").returncode == 3
    assert inside("timeline", tmp_path / "r").returncode == 3


@pytest.mark.parametrize("command", ["stragglers", "bubbles", "imbalance"])
def test_run_that_ended_before_its_first_step(command, tmp_path, inside):
    done = inside(command, write_run(tmp_path / "r", [Rank(0)]))
    assert done.returncode == 3 and "no complete step" in done.stderr, done.stderr
    assert "trace.events" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "COMMAND"),
        (("fly",), 2, "invalid choice"),
        (("summary",), 2, "RUN"),
        (("summary", "x", "--colour"), 2, "unrecognized arguments: --colour"),
        (("summary", "nowhere"), 3, "nowhere: no such run folder"),
        (("timeline", "nowhere", "--step", "x"), 2, "invalid int value"),
        (("timeline", "{run}", "--step", "9"), 2, "valid are 0 to 1"),
        (("timeline", "{run}", "--output", "a.bmp"), 2, "valid endings are .png, .svg, .pdf"),
        (("timeline", "{run}", "--output", "{run}/no/a.png"), 3, "no such folder"),
        (("summary", "{run}/experiment.yaml"), 3, "not a run folder"),
        (("compare", "{run}"), 2, "needs at least two runs"),
        (("report", "{run}", "--output", "{run}/no/r.html"), 3, "no such folder"),
        (("report",), 2, "RUN"),
        (("export", "{run}"), 2, "--format"),
        (("export", "{run}", "--format", "otf"), 2, "invalid choice"),
        (("export", "{run}", "--format", "csv", "--ranks", "1-"), 2, "not a list such as 0,2,5-7"),
    ],
)
def test_errors_are_one_line(arguments, code, message, run_folder, inside):
    done = inside(*(a.replace("{run}", str(run_folder)) for a in arguments))
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n") == 1 and message in done.stderr, done.stderr


@pytest.mark.parametrize(("run", "code"), [("nowhere", 3), ("--nothing", 2)])
def test_exit_codes_of_the_process(run, code, cli):
    done = cli("summary", run)
    assert done.returncode == code
    assert done.stderr.startswith("cadenza-analyze: error: ") and done.stderr.count("\n") == 1


def test_help(inside, capsys):
    commands = next(one for one in _parser()._actions if one.choices)
    for command in ((), *((name,) for name in commands.choices)):
        with pytest.raises(SystemExit, match="0"):
            inside(*command, "--help")
        assert "usage: cadenza-analyze" in capsys.readouterr().out


def colour_share(picture, label):
    wanted = [int(LABEL_COLOURS[label][i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return (np.abs(picture[..., :3] - wanted).max(axis=-1) < 0.01).mean()


def test_timeline_picture(run_folder, colocated, inside):
    done = inside("timeline", colocated, run_folder)
    assert done.returncode == 0, done.stderr
    path = colocated / "timeline.png"
    assert str(path) in done.stdout
    picture = matplotlib.image.imread(path)
    assert picture.shape[1] == 1280 and picture.shape[0] > 200
    for label in ("core attention", "dense", "optimizer", "data-parallel wait", "communication"):
        assert colour_share(picture, label) > 0.0005, label
    assert colour_share(picture, "core attention") > colour_share(picture, "dense") > 0.01


def test_timeline_of_some_ranks(run_folder, inside):
    path = run_folder / "t.svg"
    assert inside("timeline", run_folder, "--ranks", 1, "--output", path).returncode == 0
    text = path.read_text()
    assert "rank 1" in text and "rank 0" not in text
    done = inside("timeline", run_folder, "--ranks", "7-9", "--output", path)
    assert done.returncode == 2 and "no rank 7; valid are 0 to 1" in done.stderr


def test_timeline_svg(run_folder, inside):
    path = run_folder / "t.svg"
    assert inside("timeline", run_folder, "--step", 1, "--output", path).returncode == 0
    text = path.read_text()
    assert "rank 1 · trainer+server" in text and "step 1" in text and "core attention" in text


def test_bars_of_the_picture(run_folder):
    made = panel(cadenza.Study(cadenza.open(run_folder)), 0, resolution_ns=1.0)
    assert made.bars.iloc[0].tolist() == [0, "work", "other", 0, 100, "no event"]  # beneath all
    mine = made.bars[(made.bars["row"] == 0) & (made.bars["lane"] == "work")].iloc[1:]
    lane_0 = mine[mine["label"] != "other"]  # planning has a lane of its own
    assert lane_0[["label", "begin_ns", "end_ns"]].values.tolist() == [
        ["dense", 0, 30], ["core attention", 30, 60], ["other compute", 60, 65],
        ["data-parallel wait", 70, 80], ["communication", 80, 90], ["optimizer", 90, 96],
    ]
    beneath = made.bars[(made.bars["row"] == 1) & (made.bars["lane"] == "messages")]
    assert beneath[["label", "begin_ns", "end_ns"]].values.tolist() == [
        ["attention dispatch", 20, 60]
    ]


def test_some_ranks_of_the_picture(run_folder):
    made = panel(cadenza.Study(cadenza.open(run_folder)), 0, 1.0, chosen=[1])
    assert made.labels == ["rank 1 · trainer+server"]
    assert set(made.bars["row"]) == {0}
    assert made.busy == pytest.approx([0.36])


def test_tiny_events_are_merged(tmp_path):
    """Twenty thousand events, alternately 30 and 10 ns long, are some hundred bars, in shares."""
    events = []
    for at in range(0, 400_000, 40):
        events += [(0, DENSE, at, at + 30), (0, ATTENTION, at + 30, at + 40)]
    run = cadenza.open(write_run(tmp_path / "r", [Rank(0, events, [(0, 0, 400_000)])]))
    bars = panel(cadenza.Study(run), 0, resolution_ns=1000.0).bars
    took = bars.assign(ns=bars["end_ns"] - bars["begin_ns"])[1:].groupby("label")["ns"].sum()
    assert len(bars) <= 1 + 400 and took.to_dict() == {"dense": 300_000, "core attention": 100_000}


def test_median_step_is_drawn(tmp_path):
    steps = [(0, 0, 100), (1, 100, 150), (2, 150, 210)]
    events = [(s, DENSE, b, b + 5) for s, b, _ in steps]
    study = cadenza.Study(cadenza.open(write_run(tmp_path / "r", [Rank(0, events, steps)])))
    assert choose_step([study], None) == 2
    assert choose_step([study], 1) == 1


def test_what_nobody_foresaw_is_one_line(run_folder, inside, monkeypatch):
    def fail(_):
        raise KeyError("events\nmore")

    monkeypatch.setattr("cadenza.commands.summarize", fail)
    done = inside("summary", run_folder)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "error: internal: KeyError: 'events\\nmore' (test_cli.py:" in done.stderr, done.stderr
    assert "Traceback" in inside("summary", run_folder, "--verbose").stderr


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(MemoryError(), 1, "not enough memory"), (KeyboardInterrupt(), 130, ""),
     (OSError(28, "No space left on device", "/x"), 3, "/x: No space left on device")],
)
def test_how_a_command_can_end(error, code, said, run_folder, inside, monkeypatch):
    def fail(_):
        raise error

    monkeypatch.setattr("cadenza.commands.summarize", fail)
    done = inside("summary", run_folder)
    assert done.returncode == code and said in done.stderr and done.stderr.count("\n") == bool(said)


@pytest.mark.parametrize("end", [">/dev/full", "--json >&-"])
def test_results_that_cannot_be_written(end, run_folder):
    line = f"{sys.executable} -m cadenza.cli summary {run_folder} {end}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=300)
    assert done.returncode == 3 and done.stderr.count("\n") == 1, done.stderr
    assert "error: standard output: " in done.stderr


def test_a_terminal_without_our_characters(tmp_path, cli, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = cli("summary", write_run(tmp_path / "r", two_ranks(), config={"name": "é"}))
    assert done.returncode == 0 and done.stdout.startswith("\\xe9"), done.stderr


def test_names_are_shown_as_they_are(tmp_path, inside, monkeypatch):
    """Of runs and operations: they are no markup, formats, formulas or steering of terminals."""
    name = "[/bold] [red]x :smile: {0} { $x_{$ <!--<script> a|b \x1b[31m"
    monkeypatch.setattr(trace_files, "NAMES", [name] * len(trace_files.NAMES))
    late = {"name": name, "still_ns": 80_000_000}
    ranks = [
        Rank(rank, [(step, trace_files.WAIT if rank else DENSE, begin, begin + 90_000_000,
                     late if rank else {}) for step, begin in ((0, 0), (1, 10**8))],
             [(0, 0, 10**8), (1, 10**8, 2 * 10**8)])
        for rank in range(2)
    ]
    safe = name.replace("\x1b", "\\x1b")
    run = write_run(tmp_path / "r", ranks, config={"name": safe})
    for words in (("summary",), ("stragglers",), ("slowdown",), ("critical-path",), ("check",),
                  ("timeline",), ("stragglers", "--json"), ("export", "--format", "perfetto"),
                  ("report",)):
        done = inside(words[0], run, *words[1:])
        assert done.returncode in (0, 1) and done.stderr == "", (words, done.stderr)
        assert "\x1b" not in done.stdout
        if words == ("summary",):
            assert done.stdout.startswith(safe), done.stdout
    rows = json.loads(inside("stragglers", run, "--json").stdout)["stragglers"]
    assert any(f"stood still for 0.08 s in {safe} (" in row["explanation"] for row in rows)
    page = (run / "report.html").read_text()
    assert "<!--" not in "".join(re.findall(r"application/json.(.*?)</script>", page, re.DOTALL))


def test_a_folder_of_runs_says_which(run_folder, inside):
    done = inside("report", run_folder.parent)
    assert done.returncode == 3 and f"it holds runs: {run_folder})" in done.stderr, done.stderr
    (run_folder.parent / "sweep.yaml").write_text("")
    done = inside("summary", run_folder.parent)
    assert f"cadenza-analyze sweep {run_folder.parent}" in done.stderr
    done = inside("sweep", run_folder)
    assert f"valid: cadenza-analyze summary {run_folder}" in done.stderr


def test_tables_have_units_and_no_numbers_of_nothing(colocated, inside):
    text = inside("what-if", colocated).stdout + inside("stragglers", colocated).stdout
    assert "-1" not in text and "e-0" not in text and "_seconds" not in text, text
    assert " ns " in text and " 0 ns " not in text


@pytest.mark.parametrize("words", ["0-99999999999", "5-2", "1,2,٣-"])
def test_lists_of_numbers_that_are_none(words, run_folder, inside):
    done = inside("export", run_folder, "--format", "csv", "--ranks", words)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
