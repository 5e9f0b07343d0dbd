# SPDX-License-Identifier: Apache-2.0
"""Placement auto on the command line: where its answer goes, and that it is the experiment's and
the machine file's alone."""

import json
import re

import pytest

import harness

AUTO = harness.ROOT / "inputs/placements/auto.yaml"
QUESTION = harness.ROOT / "inputs/clusters/what_to_run.yaml"
SMALLER = [
    word
    for setting in ("model.layers=8", "batch.tokens=524288", "parallel.data=16",
                    "attention.tolerance=0.1")  # one plan of a tick
    for word in ("--set", setting)
]
KEPT = ["--set", "parallel.tensor=8", "--set", "parallel.context=1"]


def answer(words, **options):
    return harness.run_well(1, [*words, *SMALLER, *KEPT], cwd=harness.ROOT, **options)


def test_the_question_is_answered_with_progress_beside_it():
    found = answer(["simulate", QUESTION, "--steps", "1"])
    assert "predicted for machine h100 (inputs/machines/h100.yaml)" in found.out
    assert "cad is " in found.out
    assert "fits in 79 GiB" in found.out
    assert re.search(r"^layout +\d+/\d+  data ", found.err, re.MULTILINE)
    assert not re.search(r"^layout ", found.out, re.MULTILINE)


# Three microbatches on four nodes that may not share one: three train, and one serves.
ODD = ["--set", "parallel.data=4", "--set", "batch.tokens=393216"]
DEDICATED = ["--set", "attention.mixed=false", "--set", "data.max_document=8192"]


@pytest.mark.parametrize("more, servers", [
    ([], None), (ODD, "8 mixed servers"), ([*ODD, *DEDICATED], "8 servers"),
    ([*ODD, "--set", "attention.mixed=true"], "8 mixed servers")])
def test_the_keys_that_it_prints_give_the_chosen_step(more, servers):
    words = ["simulate", QUESTION, "--steps", "1", *SMALLER, *KEPT, *more]
    found = harness.run_well(1, words, cwd=harness.ROOT)
    (keys,) = re.findall(r"^to run it:((?: +--set \S+|\s+\\\n)+)$", found.out, re.MULTILINE)
    assert "--set run.recompute=" in keys
    assert ("--set attention.servers=8" in keys) == (servers is not None)
    assert servers is None or f"data 3 x pipeline 1 x tensor 8 x context 1 + {servers}," in (
        found.out)
    again = harness.run_well(1, [*words, *keys.replace("\\\n", " ").split()], cwd=harness.ROOT)
    times = [re.search(r"^step time +(.*)", result.out, re.MULTILINE)[1]
             for result in (found, again)]
    assert times[0] == times[1] and "layouts and placements" not in again.out


def test_the_answer_is_the_same_on_any_host():
    words = ["plan", QUESTION, "--format", "json"]
    one = answer(words, env={"OMP_NUM_THREADS": "1"}).out
    assert answer(words, env={"OMP_NUM_THREADS": "7"}).out == one
    assert json.loads(one)["summary"]["rates"] == "machine h100 (inputs/machines/h100.yaml)"


def test_programs_get_every_layout_and_what_became_of_it():
    found = json.loads(answer(["simulate", QUESTION, "--steps", "1", "--format", "json"]).out)
    rows = found["search"]
    assert rows[0]["status"] == "simulated" and rows[0]["steps"] >= 8
    for row in rows:
        assert row["status"] in ("simulated", "estimated", "excluded", "not tried")
        assert (row["why"] == "") == (row is rows[0])
        assert (row["parts"] is None) == (row["status"] != "simulated")
        if row["parts"] is not None:
            assert sum(row["parts"].values()) == pytest.approx(row["seconds"])
        assert (row["seconds"] is None) == (row["status"] in ("excluded", "not tried"))


# A GPT-2 of 1.5B, whose matrices are small for an H100.
SHORT = ["model={layers: 12, d_model: 1600, heads: 25, ffn: 4272, vocab: 50304}",
         "data.max_document=1024", "batch.tokens=262144", "parallel={data: 8, tensor: 1}",
         "attention.servers=in_place", "attention.tolerance=0.1"]


def test_the_microbatch_is_the_best_of_all():
    """Against a search for each microbatch by itself."""
    words = [word for setting in SHORT for word in ("--set", setting)]
    words = ["simulate", QUESTION, "--steps", "8", "--format", "json", *words]

    def step(microbatch):
        more = ["--set", f"batch.microbatch={microbatch}"]
        return json.loads(harness.run_well(1, [*words, *more], cwd=harness.ROOT).out)

    found = step("auto")
    sizes = {row["microbatch"] for row in found["search"]}
    assert {1024, 2048} < sizes and all(size & (size - 1) == 0 for size in sizes)
    by_hand = {size: step(size)["seconds"] for size in (1024 << i for i in range(6))}
    assert found["seconds"] <= 1.02 * min(by_hand.values())
    assert found["seconds"] < 0.99 * by_hand[1024], "nothing to choose"


@pytest.mark.parametrize("more, message", [
    ("attention.placement=cad", "placement=cad: found cad with batch.microbatch = auto, which"),
    ("data.max_document=0", "microbatch=auto: found auto with data.max_document = 0"),
    ("batch.tokens=200000", "found 200000, no multiple of data.max_document = 131072")])
def test_a_microbatch_that_cannot_be_chosen_is_refused(more, message):
    words = ["--set", "batch.microbatch=auto", "--set", more]
    found = harness.run(1, ["simulate", QUESTION, *words], cwd=harness.ROOT)
    assert found.code == harness.USAGE
    assert message in found.err
    assert found.err.count("\n") == 1


def test_of_unequal_ranks_only_cad_is_tried():
    words = ["simulate", QUESTION, "--steps", "1", "--format", "json"]
    found = json.loads(answer([*words, "--set", "attention.capacity=[[3, 50]]"]).out)
    assert len(found["search"]) > 1
    assert all("cad" in row["placement"] for row in found["search"])


def test_one_basis_of_rates():
    found = answer(["plan", QUESTION]).out
    assert found.count("machine h100 (inputs/machines/h100.yaml)") == 3  # choice, plans, step
    assert "nominal" not in found
    whole = ["--set", "parallel.context=1", "--set", "parallel.pipeline=1"]  # cad balances them
    nominal = harness.run_well(1, ["plan", AUTO, *whole]).out
    assumed = "assumed 50 GFLOP/s, 5 GB/s: set cluster.machine"
    assert nominal.count(assumed) == 4  # and the decision of the tolerance


def test_where_none_fits_it_says_so():
    words = ["plan", QUESTION, *SMALLER, *KEPT, "--set", "run.memory=1000000000"]
    found = harness.run(1, words, cwd=harness.ROOT)
    assert found.code == 2
    assert found.err.splitlines()[-1].count("run.memory: found 954 MiB, but all ") == 1
    assert "run.recompute layer, parallel.shard optimizer" in found.err
