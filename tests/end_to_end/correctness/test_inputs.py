# SPDX-License-Identifier: Apache-2.0
"""Every experiment under inputs/ runs, says what it is, and moves the bytes that
docs/placements.md says it moves."""

import json
import re
import sys

import numpy as np
import pytest
import yaml

import harness
from test_bfloat16 import HAS_BFLOAT16

sys.path.insert(0, str(harness.ROOT / "bench"))
from benchmarks import long  # noqa: E402

FOLDER = harness.ROOT / "inputs"
PAGE = harness.ROOT / "docs/placements.md"
ELSEWHERE = ("clusters", "machines", "paper", "software", "sparse")  # for GPU nodes, or never run
INPUTS = sorted(
    path.relative_to(FOLDER).as_posix()
    for path in FOLDER.glob("**/*.yaml")
    if path.parent.name not in ELSEWHERE
)
PLACEMENTS = [name for name in INPUTS if name.startswith("placements/")]
KINDS = [name for name in INPUTS if name.startswith("attention/") and "retrieval" not in name]
SMALLER = 32  # times fewer tokens than the files have


def read(name):
    """As it is written: without defaults."""
    return yaml.safe_load((FOLDER / name).read_text())


def comments(name):
    """The lines before the first key, without their #."""
    lines = (FOLDER / name).read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    return [line.removeprefix("#").strip() for line in lines[:first]]


def ranks_of(name):
    """What the comment tells people to start it with."""
    command = (
        rf"mpirun (?:--bind-to none )?-n (\d+) build/release/cadenza train inputs/{name}(?: |$)"
    )
    found = [m[1] for line in comments(name) if (m := re.match(command, line))]
    assert len(found) == 1, f"{name}: one comment line has to say how to start it: {command}"
    return int(found[0])


def options(values):
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def fewer(tokens):
    return max(1, tokens // SMALLER)


def small(name):
    """Overrides that leave layout and placement as they are, and everything else tiny."""
    experiment = read(name)
    data, batch, parallel = (experiment[block] for block in ("data", "batch", "parallel"))
    values = {
        "model.layers": parallel.get("pipeline", 1) * parallel.get("chunks", 1),
        "model.d_model": 32,
        "model.ffn": 48,
        "batch.tokens": fewer(batch["tokens"]),
        "batch.microbatch": fewer(batch["microbatch"]),
        "attention.block": fewer(experiment["attention"].get("block", 128)),
        "run.steps": 2,
    }
    if data["source"] == "text":
        values["data.path"] = [str(harness.ROOT / "tests/end_to_end/*/*.py")]
    elif data["source"] == "retrieval":
        del values["batch.tokens"], values["batch.microbatch"]  # its documents are short
    else:
        values["model.vocab"] = 64
        values["data.lengths.values"] = [fewer(n) for n in data["lengths"]["values"]]
    if "sparse" in experiment["attention"]:
        below = experiment["attention"]["sparse"]["dense_below"]
        values["attention.sparse.dense_below"] = fewer(below)
    if "max_document" in data:
        values["data.max_document"] = fewer(data["max_document"])
    if "outliers" in batch:
        values["batch.outliers"] = [fewer(n) for n in batch["outliers"]]
    return options(values)


def plan_of(name, *words):
    words = ["plan", FOLDER / name, "--format", "json", *words]
    return json.loads(harness.run_well(1, words).out)


@pytest.mark.parametrize("name", INPUTS)
def test_it_trains(name, tmp_path):
    words = ["train", FOLDER / name, "--output", tmp_path / "run", *small(name)]
    harness.run_well(ranks_of(name), words)
    run = harness.Run(tmp_path / "run")
    assert run.losses.size == 2
    assert np.all(np.isfinite(run.losses))


@pytest.mark.parametrize("kind", long.KINDS)
def test_long_documents_train_with_every_kind(kind, tmp_path):
    """4096 tokens of the 128K; the settings of bench/long."""
    words = [word for key in long.settings(4096, 2, kind, 2) for word in ("--set", key)]
    harness.run_well(2, ["train", FOLDER / "attention/long.yaml", "--output", tmp_path, *words])
    steps = harness.read_metrics(tmp_path)
    assert len(steps) == 2 and all(np.isfinite(step["loss"]) for step in steps)
    assert ("sparsity" in steps[-1]) == (kind in ("vertical_slash", "xattention"))
    total, parts = long.peaks(tmp_path)
    assert 0 < parts["attention"] < total < 256 * 2**20
    assert 0 < long.attention_share(tmp_path) < 1


@pytest.mark.parametrize("name", INPUTS)
def test_it_is_planned_as_it_is(name, tmp_path):
    """At full size: planning needs neither ranks nor time."""
    path = FOLDER / name
    texts = options({"data.path": str(tmp_path)}) if read(name)["data"]["source"] == "text" else []
    (tmp_path / "document.txt").write_text("Call me Ishmael. " * 4000)
    assert "step: " in harness.run_well(1, ["plan", path, "--format", "table", *texts]).out
    report = plan_of(name, *texts)
    assert 1 <= report["ranks"] <= ranks_of(name)  # of one pool
    layout = harness.run_well(1, ["train", path, "--dry-run", *texts]).out
    ranks = ranks_of(name)
    assert f": {ranks} rank{'' if ranks == 1 else 's'} = " in layout


@pytest.mark.parametrize("name", INPUTS)
def test_it_says_what_it_is(name):
    said = comments(name)
    assert said[0] == "SPDX-License-Identifier: Apache-2.0"
    assert len(said[1]) > 40, "the second line says what the experiment shows"
    assert ranks_of(name) > 1
    if name == "quickstart.yaml":
        return
    assert f"build/release/cadenza plan inputs/{name}" in said
    assert any(line.startswith("Look at: ") for line in said)


# Words that a key may have; each of them needs an experiment.
KEYS = (
    "attention.kind",
    "attention.placement",
    "attention.sharding",
    "attention.shard_unit",
    "attention.bound",
    "attention.priority",
    "attention.inputs",
    "attention.overlap",
    "attention.mixed",
    "attention.split_keys",
    "batch.packing",
    "parallel.schedule",
    "parallel.shard",
    "run.recompute",
)


def words_of(key):
    """(valid words, default) of docs/experiment.md, which a unit test holds to the program."""
    for line in (harness.ROOT / "docs/experiment.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 6 and cells[1] == f"`{key}`":
            words = cells[2] if cells[2] == "true, false" else cells[5]
            return words.split(", "), cells[4].strip("`")
    raise AssertionError(f"docs/experiment.md does not explain {key}")


def value_of(experiment, key, default):
    block, field = key.split(".")
    value = experiment.get(block, {}).get(field, default)
    return str(value).lower() if isinstance(value, bool) else value


SIMULATED = {"parallel.shard": {"parameters"}}  # nothing trains with these words


@pytest.mark.parametrize("key", KEYS)
def test_every_word_has_an_experiment(key):
    words, default = words_of(key)
    used = {value_of(read(name), key, default) for name in INPUTS}
    assert set(words) - used == SIMULATED.get(key, set())


def test_every_dimension_is_split_alone_and_together():
    dimensions = ("data", "pipeline", "tensor", "context")
    layouts = [read(name).get("parallel", {}) for name in INPUTS]
    split = {frozenset(d for d in dimensions if layout.get(d, 1) > 1) for layout in layouts}
    together = ({"data", "context"}, {"data", "pipeline", "tensor"}, set(dimensions) - {"data"})
    for wanted in ({"data"}, {"pipeline"}, {"tensor"}, {"context"}, *together):
        assert frozenset(wanted) in split, wanted


@pytest.mark.parametrize("name", PLACEMENTS + KINDS)
def test_the_page_shows_it(name):
    folder, stem = name.removesuffix(".yaml").split("/")
    page = (PAGE.parent / f"{folder}.md").read_text()
    assert f"](../inputs/{name})" in page or f"`inputs/{name}`" in page
    if stem in ("xattention", "long"):
        return  # their pictures would be those of vertical_slash and of causal attention
    assert f"](pictures/{stem}.svg)" in page
    picture = (PAGE.parent / f"pictures/{stem}.svg").read_text()
    for rank in (2, 3) if "dedicated" in stem else range(ranks_of(name)):  # who computes
        assert f">rank {rank}<" in picture


# One document of TOKENS tokens for RANKS ranks; bytes of a token's rows as the page names them. In
# bfloat16, where the processor has it: results are longer than inputs there.
TOKENS, RANKS = 64, 4
DTYPE, ELEMENT = ("bfloat16", 2) if HAS_BFLOAT16 else ("float32", 4)
HEADS, KV_HEADS, HEAD_DIM, SUM = 8, 4, 32, 4
Q, OUT = HEADS * HEAD_DIM * ELEMENT, HEADS * HEAD_DIM * SUM
KV, DKV = 2 * KV_HEADS * HEAD_DIM * ELEMENT, 2 * KV_HEADS * HEAD_DIM * SUM
S = HEADS * SUM
UNIFORM = {
    "run.dtype": DTYPE,
    "model.layers": 1,
    "model.d_model": HEADS * HEAD_DIM,
    "model.ffn": 16,
    "model.vocab": 32,
    "data.lengths.values": [TOKENS],
    "batch.tokens": TOKENS,
    "batch.microbatch": TOKENS,
    "attention.block": 4,
    "run.steps": 1,
}
ALONE = {"parallel": {"data": 1}}
GROUP = {"parallel": {"context": RANKS}}


def keys(moved, read=None):
    """Bytes forward and backward, in parts of all keys to all other ranks; from ranks that read
    keys dK and dV return."""
    all_keys = (RANKS - 1) * TOKENS
    returned = moved if read is None else read
    return moved * all_keys * KV, all_keys * (moved * KV + returned * DKV)


def stripes(run):
    """Without the last run of each stripe to the ranks of earlier stripes."""
    return keys(1 - RANKS / 2 * run / TOKENS)


def heads_and_ring(split):
    """ulysses with split = RANKS; else the zigzag ring of groups of `split` ranks."""
    copies = max(1, split / KV_HEADS)
    away = (split - 1) / split * TOKENS
    hops = (RANKS / split - 1) * TOKENS * copies
    passed = (1 - split / (2 * RANKS)) * hops * KV
    forward = away * (Q + OUT + S + copies * KV) + passed
    backward = away * (2 * Q + OUT + 2 * S + copies * (KV + DKV)) + passed + 3 / 4 * hops * DKV
    return forward, backward


def served(keys):
    """All queries computed on other ranks than theirs, which get `keys` rows of K and V."""
    forward = TOKENS * (Q + OUT + S) + keys * KV
    return forward, TOKENS * (2 * Q + OUT + 2 * S) + keys * (KV + DKV)


BYTES = {
    "colocated": (ALONE, (0, 0)),
    "colocated, served": ({**ALONE, "attention.servers": RANKS}, served(TOKENS)),
    "packing_pooled": (ALONE, (0, 0)),
    "packing_balanced": ({**GROUP, "batch.outliers": []}, keys(3 / 4)),
    "all_gather": (GROUP, keys(3 / 4)),
    "all_gather_contiguous": (GROUP, keys(1 / 2)),
    "ring": (GROUP, keys(1 / 2)),
    "zigzag": (GROUP, keys(1 - 1 / (2 * RANKS), 3 / 4)),
    "double_ring": (GROUP, keys(3 / 4)),  # of two nodes of two ranks
    "striped": (GROUP, stripes(1)),
    "block_striped": (GROUP, stripes(4)),
    "ulysses": (GROUP, heads_and_ring(RANKS)),
    "ulysses_ring": (GROUP, heads_and_ring(2)),
    "cad": (GROUP, keys(3 / 4)),  # as all_gather
    "cad_dedicated": (
        {**ALONE, "attention.servers": RANKS, "attention.tolerance": 0},
        served(TOKENS * (3 * RANKS + 1) / 4),
    ),
}


def moves_of(report):
    return [m for plan in report["plans"] for stage in plan["stages"] for m in stage["moves"]]


@pytest.mark.parametrize("case", BYTES)
def test_bytes_are_those_of_the_page(case, tmp_path):
    overrides, (forward, backward) = BYTES[case]
    name = f"placements/{case.split(',')[0]}.yaml"
    words = options({**UNIFORM, **overrides})
    report = plan_of(name, *words)
    assert sum(move["bytes"] for move in moves_of(report)) == forward
    words = ["train", FOLDER / name, "--output", tmp_path / "run", *words]
    harness.run_well(report["ranks"], words)
    assert harness.Run(tmp_path / "run").column("bytes_moved").tolist() == [forward + backward]


def rows_away(report, plan, side):
    """Rows that tasks read where they are not at home, once per server and plan."""
    needed = {}
    for stage in plan["stages"]:
        for task in stage["tasks"]:
            key = (task["server"], task["document"])
            rows = needed.setdefault(key, np.zeros(report["documents"][key[1]], dtype=bool))
            rows[slice(*task[side])] = True
    for home in report["home"]:
        if (home["rank"], home["document"]) in needed:
            needed[home["rank"], home["document"]][slice(*home["tokens"])] = False
    return sum(int(rows.sum()) for rows in needed.values())


@pytest.mark.parametrize("name", [n for n in PLACEMENTS if re.search("/(cad|all_gather)", n)])
def test_they_move_what_their_tasks_read_and_nothing_else(name):
    model = read(name)["model"]
    head = model["d_model"] // model["heads"] * SUM  # float32, as all of them are
    query = 2 * model["heads"] * head + model["heads"] * SUM
    key = 2 * model["kv_heads"] * head
    report = plan_of(name)
    for plan in report["plans"]:
        moved = sum(move["bytes"] for stage in plan["stages"] for move in stage["moves"])
        expected = query * rows_away(report, plan, "q") + key * rows_away(report, plan, "k")
        assert moved == expected > 0
