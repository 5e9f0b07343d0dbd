# SPDX-License-Identifier: Apache-2.0
"""Pictures of plans, and what is refused. tests/end_to_end draws those of every placement."""

import copy
import json
import re
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from cadenza.colours import RANK_COLOURS
from cadenza.errors import DataError
from cadenza.plan.matrix import NOBODY, _tokens, matrices
from cadenza.plan.picture import _colours
from cadenza.plan.read import read_plan

PAGE = Path(__file__).parents[2] / "docs/plan.md"
PAIRS = 512 * 513 // 2


@pytest.fixture
def example():
    """The plan of docs/plan.md, which cadenza made: two ranks, documents of 512 and 8 tokens."""
    return json.loads(re.search(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)[1])


@pytest.fixture
def write(tmp_path):
    def call(content, name="step.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return call


@pytest.fixture
def read(write):
    return lambda content: read_plan(write(content))


def tasks_of(value):
    return [task for stage in value["plans"][0]["stages"] for task in stage["tasks"]]


def share_of(picture, rank):
    wanted = [int(RANK_COLOURS[rank][i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return (np.abs(picture[..., :3] - wanted).max(axis=-1) < 0.01).mean()


def test_the_picture_has_the_colours_of_both_ranks(example, write, cli):
    path = write(example)
    done = cli("plan", path)
    assert (done.returncode, done.stderr) == (0, "")
    output = path.with_suffix(".png")
    assert done.stdout == f"{output}\n"
    picture = matplotlib.image.imread(output)
    first, second = share_of(picture, 0), share_of(picture, 1)
    assert first > 0.02 and second == pytest.approx(first, rel=0.1)  # as the loads
    assert share_of(picture, 2) == 0


def test_what_the_picture_says(example, write, inside):
    path = write(example)
    texts = []
    for name in ("a.svg", "b.svg"):
        assert inside("plan", path, "--output", path.parent / name).returncode == 0
        texts.append((path.parent / name).read_text())
    assert texts[0] == texts[1]
    for words in ("rank 0", "rank 1", "20.0 KiB", "document 0", "512 tokens", "queries", "keys",
                  "load (% of a fair share)", "imbalance 2.000 before balancing, 1.000 planned",
                  "predicted for assumed 50 GFLOP/s"):
        assert f"{words}" in texts[0], words
    assert inside("plan", path, "--output", path.parent / "a.pdf").returncode == 0
    assert (path.parent / "a.pdf").read_bytes().startswith(b"%PDF")


def test_every_pair_is_painted_once(example, read):
    step = read(example)
    found, more = matrices(step, step.plans[0], 9)
    assert [one.document for one in found] == [0, 1] and more == 0
    for matrix in found:
        painted = np.zeros((matrix.length, matrix.length), dtype=int)
        server = np.full_like(painted, NOBODY)
        for task in tasks_of(example):
            if task["document"] == matrix.document:
                for query in range(*task["q"]):
                    keys = slice(task["k"][0], min(task["k"][1], query + 1))
                    painted[query, keys] += 1
                    server[query, keys] = task["server"]
        assert (painted == np.tri(matrix.length)).all()
        assert (matrix.servers == server).all() and (matrix.opacity == 1).all()
    shares = [(found[0].servers == rank).sum() / PAIRS for rank in (0, 1)]
    assert shares == pytest.approx([0.5, 0.5], abs=0.002)
    assert step.plans[0].loads == pytest.approx([1.000274, 0.999726], abs=1e-6)
    assert step.plans[0].sent.tolist() == [20480, 10240]


def test_loads_are_of_the_shares_that_capacities_give(example, read):
    example["capacities"] = [100, 50]  # two thirds and one third
    example["plans"][0]["imbalance"] = 1.5
    assert read(example).plans[0].loads == pytest.approx([0.75, 1.5], abs=0.001)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 61])
@pytest.mark.parametrize(("stripes", "run"), [(1, 1), (4, 1), (4, 2), (3, 5), (7, 16)])
def test_tokens_are_numbered_stripe_by_stripe(stripes, run, length, example, read):
    """The first one of docs/plan.md: `0 1 8 9 | 2 3 10 11 | 4 5 12 13 | 6 7 14 15`."""
    plan = read(example).plans[0]
    plan.stripes, plan.run = stripes, run
    order = sorted(range(length), key=lambda place: (place // run % stripes, place))
    assert [order[token] for token in _tokens(plan, length, np.arange(length))] == [*range(length)]


def test_bands_and_slices_of_heads(example, read):
    [task] = [task for task in tasks_of(example) if task["document"] == 1]
    changed = {**task, "rule": "band", "low": -2, "high": 1, "heads": [0, 1]}
    task |= {"rule": "full", "heads": [1, 2]}
    example["plans"][0]["stages"][0]["tasks"].append(changed)
    step = read(example)
    _, banded, full = matrices(step, step.plans[0], 9)[0]
    assert (banded.heads, full.heads) == ((0, 1), (1, 2)) and (full.servers == 0).all()
    ahead = np.arange(8) - np.arange(8)[:, None]
    assert ((banded.servers == 0) == ((ahead >= -2) & (ahead <= 1))).all()


def test_the_longest_documents_are_drawn(example, read):
    step = read(example)
    found, more = matrices(step, step.plans[0], 1)
    assert [one.length for one in found] == [512] and more == 1


def test_sparse_documents_are_as_faint_as_their_pairs_are_few(example, read):
    example["plans"].append(copy.deepcopy(example["plans"][0]))
    example["plans"][1]["tick"] = 1
    example["documents"] *= 2
    for task in [task for stage in example["plans"][1]["stages"] for task in stage["tasks"]]:
        task["document"] += 2
    shares = [1.0] * 16 + [0.25] * 16
    example["plans"][0]["density"] = [shares, None]
    example["plans"][1]["density"] = [None, shares]
    step = read(example)
    assert [set(plan.densities) for plan in step.plans] == [{0}, {3}]
    long, short = matrices(step, step.plans[0], 9)[0]
    assert (long.opacity[:256] == 1).all() and (long.opacity[256:] == 0.25).all()
    assert (short.opacity == 1).all()
    assert matrices(step, step.plans[1], 9)[0][1].opacity[:, 0].tolist() == [1] * 4 + [0.25] * 4


def test_an_index_leaves_its_blocks_and_columns(example, read):
    rows = [[[0, 3]], [[3, 6]], [[0, 3], [6, 8]]]
    example["patterns"] = [None, {"block": 3, "rows": rows, "columns": [1]}]
    step = read(example)
    long, short = matrices(step, step.plans[0], 9)[0]
    drawn = ["".join(".x"[int(cell)] for cell in row) for row in short.opacity]
    assert drawn == ["xxx.....", *["xxx....."] * 2, *[".x.xxx.."] * 3, *["xxx...xx"] * 2]
    assert (long.opacity == 1).all()


@pytest.mark.parametrize("ranks", [1, 2, 8, 9, 64, 200])
def test_no_two_ranks_have_the_same_colour(ranks):
    made = _colours(ranks)
    assert made.shape == (ranks + 1, 4) and made[-1, 3] == 0
    assert len({tuple(colour) for colour in made[:-1]}) == ranks
    assert (np.abs(np.diff(made[:-1, :3], axis=0)).max(axis=1) > 0.2).all()  # neighbours


def test_many_ranks(example, write, inside):
    """Fewer labels, and no more inches."""
    example["ranks"] = 5000
    path = write(example)
    assert inside("plan", path, "--output", path.with_suffix(".svg")).returncode == 0
    text = path.with_suffix(".svg").read_text()
    assert "rank 0" in text and "rank 125" in text and "rank 126" not in text


def put(value, place, new):
    *way, last = place
    for key in way:
        value = value[key]
    value[last] = new


def leaves(value, place=()):
    items = enumerate(value) if isinstance(value, list) else value.items()
    for key, one in items:
        yield (*place, key)
        if isinstance(one, list | dict):
            yield from leaves(one, (*place, key))


@pytest.mark.parametrize(
    "wrong", [None, True, "x", [], {}, [[]], -1, 0, 0.5, 1e300, 10**12, 10**30, float("inf")]
)
def test_a_wrong_value_is_refused_or_changes_the_picture(wrong, example, read):
    """Of every place, whatever it means there; most of them in one line that names the place."""
    example["patterns"] = [None, {"block": 8, "rows": [[[0, 8]]], "columns": [1]}]
    example["plans"][0]["density"] = [[0.5] * 32, None]
    refused = 0
    for place in leaves(copy.deepcopy(example)):
        changed = copy.deepcopy(example)
        put(changed, place, wrong)
        try:
            step = read(changed)
            for plan in step.plans:
                matrices(step, plan, 9)
        except DataError as error:
            refused += 1
            assert "found " in str(error) and "\n" not in str(error) and len(str(error)) < 400
    assert refused > 30


@pytest.mark.parametrize(
    ("place", "new", "message"),
    [
        (("ranks",), 0, "ranks: found 0; valid: an integer from 1 to 65536"),
        (("documents", 0), "512", 'documents[0]: found "512"; valid: an integer'),
        (("documents", 0), 10**30, f"documents[0]: found {10**30}; valid: an integer"),
        (("plans",), [], "plans: found []; valid: a list of one plan or more"),
        (("plans", 0, "stages", 0, "tasks", 1, "server"), 2,
         "plans[0].stages[0].tasks[1].server: found 2; valid: an integer from 0 to 1"),
        (("plans", 0, "stages", 0, "tasks", 1, "rule"), "x\n", 'rule: found "x\\n"; valid: causal'),
        (("plans", 0, "stages", 0, "tasks", 1, "q"), [9, 5], "q: found [9, 5]; valid: a range"),
        (("plans", 0, "stages", 1, "moves", 0, "bytes"), -1, "bytes: found -1; valid: a number"),
        (("plans", 0, "order"), None, "plans[0].order: found null; valid: an object"),
        (("plans", 0, "predicted_seconds"), 1e31, "valid: a number from 0 to 1e+30"),
        (("summary", "rates"), 5, "summary.rates: found 5; valid: text"),
    ],
)
def test_a_damaged_value_is_named(place, new, message, example, write, inside):
    put(example, place, new)
    path = write(example)
    done = inside("plan", path)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1 and f"{path}: " in done.stderr, done.stderr
    assert message in done.stderr and not path.with_suffix(".png").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not the JSON of cadenza plan: Expecting value"),
        ("tick 0: 9 documents\n", "not the JSON of cadenza plan: Expecting value"),
        ("[" * 100_000, "it nests too deeply"),
        ('{"ranks": NaN}', "found NaN"),
        ('{"ranks": ' + "9" * 5000 + "}", "not the JSON of cadenza plan"),
        ("[]", "step.json: found []; valid: an object"),
        ("{}", "ranks: found no such value; valid: what docs/plan.md describes"),
        ('{"ranks": 1e999}', "ranks: found Infinity"),
    ],
)
def test_what_is_no_plan(content, message, write, inside):
    done = inside("plan", write(content))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1 and message in done.stderr, done.stderr


def test_a_file_that_was_cut_short(example, write, inside):
    whole = json.dumps(example)
    for length in range(1, len(whole), len(whole) // 20):
        done = inside("plan", write(whole[:length]))
        assert done.returncode == 3 and "not the JSON of cadenza plan" in done.stderr


def test_files_that_cannot_be_read_or_written(example, write, inside, tmp_path):
    path = write(example)
    binary = tmp_path / "b.json"
    binary.write_bytes(b"\xff\xfe\x00")
    link = tmp_path / "link.png"
    link.symlink_to(path)
    for words, code, message in (
        ((), 2, "FILE"),
        ((tmp_path / "none.json",), 3, "none.json: cannot be read: No such file"),
        ((tmp_path,), 3, "not a file"),
        ((binary,), 3, "cannot be read: 'utf-8'"),
        ((path, "--output", "a.bmp"), 2, "valid endings are .png, .svg, .pdf"),
        ((path, "--output", tmp_path / "no/a.png"), 3, "no such folder"),
        ((path, "--output", link), 3, "is a link to"),
        ((write(example, "plan.png"),), 2, "is the plan; valid: another file"),
        ((tmp_path / "none.json", "--output", tmp_path / "plan.png"), 3, "cannot be read"),
        ((tmp_path / "plan.png", "--output", tmp_path / ".." / tmp_path.name / "plan.png"), 2,
         "is the plan; valid: another file"),
    ):
        done = inside("plan", *words)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert done.stderr.count("\n") == 1 and message in done.stderr, done.stderr
    assert json.loads(path.read_text()) == example


def test_names_are_shown_as_they_are(example, write, inside):
    name = "[/bold] {0} { $x_{$ <!--<script> \x1b[31m \ud800 é 漢" + "x" * 500
    example["summary"]["rates"] = name
    path = write(example, "$x_{$\x1b[31m\n.json")
    done = inside("plan", path, "--output", path.with_name("a.svg"))
    assert (done.returncode, done.stderr) == (0, "")
    text = path.with_name("a.svg").read_text()
    assert "$x_{$ &lt;!--&lt;script&gt; \\x1b[31m \\ud800" in text and "\x1b" not in text
    done = inside("plan", path)
    assert done.returncode == 0 and done.stdout.endswith("$x_{$\\x1b[31m\\n.png\n")
    path.write_text("x")
    done = inside("plan", path)
    assert done.returncode == 3 and done.stderr.count("\n") == 1 and "\x1b" not in done.stderr
