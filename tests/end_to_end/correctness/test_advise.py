# SPDX-License-Identifier: Apache-2.0
"""cadenza advise: its numbers against `simulate` and against lengths that are known, its three
forms, and what it refuses."""

import json
import re
import shutil
import statistics
import subprocess

import numpy as np
import pytest

import harness

# A second: few layers on eight devices of two nodes.
QUESTION = ["--model", "llama3.2-1b", "--machine", "h100", "--devices", "8", "--sequence", "16384",
            "--tokens", "131072", "--set", "model.layers=4", "--tensor", "1",
            "--set", "run.recompute=none", "--set", "parallel.pipeline=1",
            "--set", "cluster.ranks_per_node=4"]


def advise(*words, **options):
    return harness.run_well(1, ["advise", *map(str, words)], cwd=harness.ROOT, **options)


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """The answer as JSON, as text, and the folder of its files."""
    folder = tmp_path_factory.mktemp("advice") / "new"
    text = advise(*QUESTION, "--output", folder).out
    return json.loads((folder / "advice.json").read_text()), text, folder


def settings(row):
    """Of a row of the search."""
    keys = {f"parallel.{key}": row[key]
            for key in ("data", "pipeline", "tensor", "context", "shard")}
    keys |= {"attention.placement": row["placement"].split(",")[0].split(" ")[0],
             "attention.overlap": "ping_pong" if "ping-pong" in row["placement"] else "none",
             "run.recompute": row["recompute"], "batch.microbatch": row["microbatch"],
             "batch.longest": row["longest"]}
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


def seconds(folder, row, steps, *more):
    words = ["simulate", folder / "experiment.yaml", "--steps", str(steps), "--format", "json",
             *settings(row), *more]
    found = harness.run_well(1, words, cwd=harness.ROOT)
    return json.loads(found.out)["step_seconds"]


def best_of(found, cad):
    """Those over several steps stand before those of one step, of which each says too little."""
    return next(row for row in found["search"]
                if row["status"] == "simulated" and row["placement"].startswith("cad") == cad)


def test_the_first_scenario_is_what_the_search_says(answer):
    found, _, _ = answer
    asked = found["scenarios"][0]
    assert asked["cad"] == found["cad"]
    assert asked["with_cad"]["seconds"] == pytest.approx(best_of(found, True)["seconds"])
    assert asked["without_cad"]["seconds"] == pytest.approx(best_of(found, False)["seconds"])
    assert found["cad"]["low"] <= found["cad"]["value"] <= found["cad"]["high"]


@pytest.mark.parametrize("key, more", [
    ("network_half", ["--set", "cluster.bandwidth=0.5"]),
    ("slow_device", ["--set", "cluster.slow_ranks=[[0, 0.8]]"]),
    ("sequence_double", ["--set", "data.max_document=32768"])])
def test_a_scenario_changes_times_as_simulated_steps_change(answer, key, more):
    found, _, folder = answer
    (scenario,) = (one for one in found["scenarios"] if one["key"] == key)
    row = best_of(found, False)
    if key == "sequence_double":
        assert row["data"] % 2 == 0
        more = [*more, "--set", f"batch.microbatch={2 * row['microbatch']}",
                "--set", f"parallel.data={row['data'] // 2}",
                "--set", f"parallel.context={row['context'] * 2}"]
        if row["placement"] == "colocated":
            more += ["--set", "attention.placement=zigzag"]
    steps = scenario["cad"]["steps"]
    before, after = seconds(folder, row, steps), seconds(folder, row, steps, *more)
    expected = row["seconds"] * sum(after) / sum(before)
    assert scenario["without_cad"]["seconds"] == pytest.approx(expected, rel=1e-9)
    assert scenario["without_cad"]["seconds"] != pytest.approx(row["seconds"], rel=1e-3)


def test_the_experiment_is_the_first_row(answer):
    found, text, folder = answer
    first = found["search"][0]
    again = seconds(folder, first, first["steps"])
    assert statistics.mean(again) == pytest.approx(first["seconds"], rel=1e-9)
    assert f"{folder}/experiment.yaml" in text


def test_the_three_forms_say_the_same(answer):
    found, text, folder = answer
    page = (folder / "advice.html").read_text()
    ratio = f"{found['cad']['value']:.2f} x ({found['cad']['low']:.2f} to "
    for form in (text, page):
        assert found["answer"].replace("<", "&lt;") in form
        assert ratio in form
        for one in found["scenarios"]:
            assert one["what"] in form
    assert page.count("<tr>") == page.count("</tr>") > 20
    assert not re.search(r"https?://|<script", page)
    for one in found["instructions"]:
        assert (folder / one["file"]).read_text() == one["text"]
    assert [one["stack"] for one in found["instructions"]] == [
        "Cadenza", "Megatron-LM", "torchtitan"]


def test_the_page_shows_what_its_command_prints():
    page = (harness.ROOT / "docs/what_to_run.md").read_text()
    (command,) = re.findall(r"^build/release/cadenza (advise .*)$", page, re.MULTILINE)
    assert command in (harness.ROOT / "README.md").read_text()
    printed = advise(*command.split()[1:]).out
    blocks = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        assert block in printed, "docs/what_to_run.md is not what its command prints"


def test_documents_are_counted_as_they_are(tmp_path):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("\n".join(["4096"] * 3 + ["1024"] * 4) + "\n")
    words = [*QUESTION, "--lengths", lengths, "--format", "json"]
    documents = json.loads(advise(*words).out)["documents"]
    assert documents["imbalance"] == pytest.approx(1)
    assert documents["longest"] == 4096
    assert documents["median"] == 1024
    assert documents["mean"] == pytest.approx(16384 / 7)
    assert [one["to"] for one in documents["bins"] if one["tokens"] > 0] == [2048, 8192]
    few = 4 * 1024 * 1025 / 2
    many = 3 * 4096 * 4097 / 2
    assert documents["bins"][-1]["attention"] == pytest.approx(many / (many + few))


def test_what_is_typed_can_run(answer):
    found, _, folder = answer
    (own, megatron, torchtitan) = found["instructions"]
    text = (folder / "advice.html").read_text()
    assert "multi_node_gpu.sbatch" in text and "--set run.device=cuda" in text
    assert "row" in megatron and found["search"][megatron["row"]]["status"] == "simulated"
    assert own["missing"] == []
    assert torchtitan["missing"] == []
    assert f'context_parallel_degree = {found["search"][torchtitan["row"]]["context"]}\n' in (
        torchtitan["text"])


def test_a_stack_gets_the_fastest_layout_that_it_has(tmp_path):
    words = [*QUESTION, "--set", "parallel.data=1", "--set", "parallel.context=4"]
    words[words.index("--tensor") + 1] = "2"
    text = advise(*words, "--output", tmp_path).out
    found = json.loads((tmp_path / "advice.json").read_text())
    first = found["search"][0]
    assert first["placement"] == "dynamic" or first["placement"].startswith("cad")
    for one in found["instructions"][1:]:
        row = found["search"][one["row"]]
        assert one["missing"] == []
        assert one["row"] == 0 or (
            f"row {one['row'] + 1}" in text and f"; {one['slower']:.2f} x the time" in text)
        if one["steps"] == 0:
            assert one["slower"] == pytest.approx(row["seconds"] / first["seconds"])
            continue
        before = seconds(tmp_path, first, one["steps"])
        after = seconds(tmp_path, row | {"shard": one["shard"]}, one["steps"])
        assert one["slower"] == pytest.approx(sum(after) / sum(before), rel=1e-9)
    torchtitan = found["instructions"][2]
    assert found["search"][torchtitan["row"]]["placement"] in ("zigzag", "all_gather")
    assert (torchtitan["shard"], torchtitan["steps"] > 0) == ("parameters", True)
    assert "with shard parameters" in text


def test_no_folder_is_left_where_nothing_fits(tmp_path):
    found = harness.run(1, ["advise", "--model", "llama3.1-405b", "--machine", "a100-40",
                            "--devices", "8", "--output", tmp_path / "none"], cwd=harness.ROOT)
    assert found.code == harness.USAGE
    assert "valid: more ranks: weights, gradients and optimizer alone do not fit" in found.err
    assert not (tmp_path / "none").exists()


def test_cad_is_not_chosen_where_it_has_nothing_to_move(tmp_path):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("4096\n")
    found = json.loads(advise(*QUESTION, "--lengths", lengths, "--format", "json").out)
    assert found["cad"]["value"] == pytest.approx(1, abs=0.002)
    assert not found["search"][0]["placement"].startswith("cad")


def test_layouts_with_fewer_rows_are_tried_where_memory_is_short():
    """Without them it said that cad is 1.12 x as fast, as `dynamic` did not fit."""
    words = ["--model", "llama3-8b", "--machine", "h100", "--devices", "8", "--format", "json",
             "--set", "run.memory=74GiB"]
    found = json.loads(advise(*words).out)
    assert best_of(found, cad=False)["placement"] == "dynamic"
    assert best_of(found, cad=False)["longest"] == 1.1
    assert found["cad"]["high"] < 1.05
    given = json.loads(advise(*words, "--set", "batch.longest=1.25").out)
    assert {row["longest"] for row in given["search"]} == {1.25}


def test_one_node_of_a_machine_with_logs_of_others(tmp_path):
    words = [*QUESTION, "--set", "parallel.data=4", "--output", tmp_path]
    for option, value in (("--machine", "h200"), ("--devices", "4"), ("--tokens", "65536")):
        words[words.index(option) + 1] = value
    text = advise(*words).out
    keys = [one["key"] for one in json.loads((tmp_path / "advice.json").read_text())["scenarios"]]
    assert keys == ["as_asked", "slow_device", "documents_half", "documents_double",
                    "sequence_double"]
    assert "no measured configuration of cadenza on h200 is known; nearest:" in text
    assert "34 configurations of DistCA's published logs on h200, simulated as cadenza" in text


def test_the_inputs_of_the_program_are_found_from_any_folder(tmp_path):
    words = ["advise", "--model", "llama9", "--machine", "h100", "--devices", "8"]
    found = harness.run(1, words, cwd=tmp_path)
    assert "--model: found 'llama9'" in found.err and "llama3-70b" in found.err
    alone = tmp_path / "alone/bin/cadenza"
    alone.parent.mkdir(parents=True)
    shutil.copy(harness.PROGRAM, alone)
    lost = subprocess.run([alone, *words], cwd=tmp_path, capture_output=True, text=True,
                          check=False)
    assert lost.returncode == harness.USAGE
    assert "no folder inputs/machines is here or with the program" in lost.stderr
    assert lost.stderr.count("\n") == 1 and "valid: ," not in lost.stderr


def test_how_sure_is_what_the_pages_say():
    rows = json.loads((harness.ROOT / "inputs/checked.json").read_text())
    (own,) = (row for row in rows if row["software"] == "cadenza")
    page = (harness.ROOT / own["source"]).read_text()
    errors = sorted(abs(float(found)) for found in re.findall(
        r"^\| (?:pretrain|prolong) \|.*\| ([-+][0-9.]+) \| [0-9.]+ \|", page, re.MULTILINE))
    assert own["steps"] == len(errors) == 34
    assert own["median"] == pytest.approx(statistics.median(errors) / 100)
    assert own["ninety"] == pytest.approx(errors[int(0.9 * (len(errors) - 1))] / 100)
    published = [row for row in rows if row["source"] == "docs/results/published.md"]
    table = (harness.ROOT / "docs/results/published.md").read_text()
    (right, verdicts) = re.search(r"^\| \*\*all\*\*.*\| (\d+) / (\d+) \|", table,
                                  re.MULTILINE).groups()
    own_program = int(verdicts) - sum(row["memory_all"] for row in published)
    assert 0 <= own_program <= 5, "rows of processors that no stack was fitted to"
    assert 0 <= int(right) - sum(row["memory_right"] for row in published) <= own_program


@pytest.mark.parametrize("words, message", [
    (["--model", "llama9"], "--model: found 'llama9'"),
    (["--model", "missing/config.json"], "missing/config.json"),
    (["--machine", "h1000"], "nearest is 'h100'"),
    (["--lengths", "prolonged"], "nearest is 'prolong'"),
    (["--lengths", "none.txt"], "none.txt"),
    (["--lengths", "none.bin"], "none.bin"),
    (["--devices", "0"], "--devices: found 0; valid: an integer in [1, 131072]"),
    (["--sequence", "1"], "--sequence: found 1"),
    (["--software", "deepspeed"], "cluster.software: found deepspeed"),
    (["--tensor", "3"], "--tensor: found 3 with 8 devices"),
    (["--set", "parallel.tensor=2"], "give 16 devices, and --devices 8"),
    (["--set", "attention.placement=cad"], "attention.placement=cad: found cad with"),
])
def test_bad_questions_get_one_line(words, message):
    given = [*QUESTION]
    if words[0] in given and words[0] != "--set":
        at = given.index(words[0])
        del given[at:at + 2]
    found = harness.run(1, ["advise", *given, *words], cwd=harness.ROOT)
    assert found.code == (3 if words[-1].startswith("none.") else 2)
    assert message in found.err
    assert found.err.count("\n") == 1


def test_lengths_of_token_files(tmp_path):
    """Those of a flat file need the token that ends a document, those of Megatron-LM nothing."""
    documents = harness.random_documents(1, [300, 50, 700])
    np.save(tmp_path / "flat.npy", np.concatenate(documents))
    words = ["advise", *QUESTION, "--lengths", tmp_path / "flat.npy"]
    found = harness.run(1, words, cwd=harness.ROOT)
    assert found.code == 2 and found.err.count("\n") == 1
    assert "data.document_end: found nothing, but" in found.err
    index = harness.write_megatron(tmp_path / "tokens", documents)
    found = harness.run(1, ["advise", *QUESTION, "--lengths", index, "--format", "json"],
                        cwd=harness.ROOT)
    assert found.code == 0, str(found)
    assert json.loads(found.out)["documents"]["longest"] == 700


def test_a_folder_that_cannot_be_made_is_told_before_the_search(tmp_path):
    (tmp_path / "file").write_text("mine")
    found = harness.run(1, ["advise", *QUESTION, "--output", tmp_path / "file/in"],
                        cwd=harness.ROOT)
    assert found.code == 3
    assert "valid: --output with a folder" in found.err
    assert found.err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"
