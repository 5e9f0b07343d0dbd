# SPDX-License-Identifier: Apache-2.0
import json

import pytest
from trace_files import Rank, write_run

import cadenza


@pytest.fixture
def folder(tmp_path):
    """Two ranks with 20 steps. In the last two, place 0 has loss 3 and place 8 loss 1; of the
    answers in documents of 100 tokens, those that are told first are right half of the time."""
    steps = [(s, 100 * s, 100 * s + 100) for s in range(20)]
    ranks = []
    for number in range(2):
        rows = [(s, 0, 10, 0, 30.0) for s in range(20)]
        rows += [(s, 8, 20, 10, 20.0 if s >= 18 else 80.0) for s in range(20)]
        # One answer of two tokens, told early; one of a token, told late.
        answers = [(s, i or number, 100, 5, 95 + i, 2.0, number, 0) for s in range(20)
                   for i in range(2)]
        answers += [(s, 1, 100, 95, 99, 0.5, number, 1) for s in range(20)]
        ranks.append(Rank(number, [], steps, positions=rows, answers=answers))
    return write_run(tmp_path / "learned", ranks)


def test_losses_by_place(folder):
    run = cadenza.open(folder)
    found = cadenza.by_position(run.positions())
    assert found["position"].tolist() == [0, 8] and found["targets"].tolist() == [400, 800]
    assert found["loss"].tolist() == pytest.approx([3, (18 * 80 + 2 * 20) / 400])
    assert found["accuracy"].tolist() == [0, 0.5]


def test_answers_by_depth(folder):
    found = cadenza.by_depth(cadenza.open(folder).answers())
    assert found["length"].tolist() == [64, 64] and found["depth"].tolist() == [0, 0.8]
    assert found["answers"].tolist() == [40, 40] and found["accuracy"].tolist() == [0.5, 1]
    assert found["loss"].tolist() == [2, 0.5]


def test_the_command_takes_the_last_tenth(folder, inside):
    told = json.loads(inside("positions", folder, "--json").stdout)
    assert told["steps"] == [18, 19]
    assert [row["loss"] for row in told["positions"]] == [3, 1]
    assert [row["answers"] for row in told["answers"]] == [4, 4]
    first = json.loads(inside("positions", folder, "--steps", "0-1", "--json").stdout)
    assert [row["loss"] for row in first["positions"]] == [3, 4]
    text = inside("positions", folder).stdout
    assert "loss by place in the document; steps 18 to 19" in text and "accuracy" in text


def test_runs_stand_side_by_side(folder, tmp_path, inside):
    rows = [(s, 0, 10, 5, 10.0) for s in range(20)]
    answers = [(s, 0, 300, 5, 99, 2.0, 0, 0) for s in range(20)]
    steps = [(s, 100 * s, 100 * s + 100) for s in range(20)]
    other = write_run(tmp_path / "other", [Rank(0, [], steps, positions=rows, answers=answers)])
    told = json.loads(inside("positions", folder, other, "--json").stdout)["runs"]
    assert [run["path"] for run in told] == [str(folder), str(other)]
    assert told[0] == {"path": str(folder),
                       **json.loads(inside("positions", folder, "--json").stdout)}
    assert [row["length"] for row in told[1]["answers"]] == [256]
    picture = tmp_path / "answers.svg"
    text = inside("positions", folder, other, "--plot", picture).stdout
    assert text.count("loss by place in the document") == 1 == text.count("answers by length")
    assert str(picture) in text
    drawn = picture.read_text()
    for words in ("length of the document", "depth of the fact", "50 %", "100 %", "0 %"):
        assert words in drawn
    assert "no answers to draw" in inside(
        "positions", write_run(tmp_path / "plain", [Rank(0, [], steps[:1], positions=rows[:1])]),
        "--plot", picture).stderr


def test_what_is_not_there(folder, tmp_path, inside):
    unknown = inside("positions", folder, "--steps", "20")
    assert unknown.returncode == 2 and "no complete step 20; valid are 0 to 19" in unknown.stderr
    none = write_run(tmp_path / "none", [Rank(0, [], [(0, 0, 100)])])
    found = inside("positions", none)
    assert found.returncode == 3 and "no losses by position in the trace" in found.stderr
    assert list(cadenza.open(none).positions()) == ["step", "position", "targets", "hits", "loss"]
    one = Rank(0, [], [(0, 0, 9)], positions=[(0, 0, 1, 0, 2.0)])
    plain = write_run(tmp_path / "plain", [one])
    assert "answers by length" not in inside("positions", plain).stdout


def test_recall_by_distance(tmp_path):
    recall = [(s, s, 0, 6.0, 8.0, 100, 0) for s in range(2)]
    recall += [(s, s, 1024, 1.0, 8.0, 40, 10 * s) for s in range(2)]
    ranks = [Rank(0, [], [(s, 100 * s, 100 * s + 100) for s in range(2)], recall=recall)]
    run = cadenza.open(write_run(tmp_path / "sparse", ranks))
    found = cadenza.by_distance(run.recall())
    assert found["distance"].tolist() == [0, 1024]
    assert found["attention"].tolist() == [0.5, 0.5]
    assert found["recall"].tolist() == [0.75, 0.125]
    assert found["unseen"].tolist() == [0, 0.125]
    assert cadenza.by_distance(run.recall().iloc[:0]).empty
