# SPDX-License-Identifier: Apache-2.0
"""`cadenza-analyze data`: what packing does, against packings that are worked out here."""

import json
import os
import subprocess
import sys
from itertools import cycle, islice

import numpy as np
import pytest

import harness
import packing

pytest.importorskip(
    "cadenza.cli", reason="the package analysis/ is not installed here", exc_type=ImportError
)

TOKENS, MICROBATCH, LONGEST, STEPS = 2048, 256, 200, 6
BASE = {
    "batch": {"tokens": TOKENS, "microbatch": MICROBATCH}, "parallel": {"data": 4},
    "data": {"source": "tokens", "dtype": "uint16", "document_end": harness.DOCUMENT_END,
             "max_document": LONGEST},
}


@pytest.fixture(scope="module")
def lengths():
    return np.clip(np.rint(np.random.default_rng(3).lognormal(3.6, 1.0, 400)), 1, 700).astype(int)


@pytest.fixture(scope="module")
def corpus(lengths, tmp_path_factory):
    documents = harness.random_documents(5, lengths)
    return harness.write_tokens(tmp_path_factory.mktemp("corpus") / "tokens.bin", documents)


def analyze(*words, **environment):
    return subprocess.run([sys.executable, "-m", "cadenza.cli", "data", *map(str, words)],
                          capture_output=True, text=True, timeout=harness.TIMEOUT,
                          env={**os.environ, "CADENZA": str(harness.PROGRAM), **environment})


def survey(path, *words):
    done = analyze(path, "--json", "--steps", STEPS, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def pairs(lengths):
    return sum(int(length) * (int(length) + 1) // 2 for length in lengths)


def looked_at(lengths):
    """Documents of STEPS steps, the last one as far as they go."""
    found, left = [], STEPS * TOKENS
    source = cycle(lengths)
    while left:
        found.append(min(int(next(source)), left))
        left -= found[-1]
    return found


def fixed(lengths):
    """Cut documents, and microbatches by step, each the lengths in it: from packing.py, whose
    tokens are here the numbers of documents."""
    count = len(looked_at(lengths))
    numbered = [np.full(length, i) for i, length in enumerate(islice(cycle(lengths), count + 1))]
    steps = packing.pack(numbered, TOKENS, MICROBATCH, STEPS, LONGEST)
    pieces = [piece for step in steps for microbatch in step for piece in microbatch]
    parts = np.bincount([piece[0] for piece in pieces], minlength=count)
    assert len(parts) == count
    return parts > 1, [[list(map(len, one)) for one in step] for step in steps]


def test_fixed_is_what_its_rules_say(lengths, corpus, tmp_path):
    path = harness.write_experiment(tmp_path / "e.yaml",
                                    harness.merged(BASE, {"data": {"path": str(corpus)}}))
    found = survey(path)
    whole = looked_at(lengths)
    cut, steps = fixed(lengths)
    pieces = [length for step in steps for microbatch in step for length in microbatch]
    one = found["packings"][0]
    assert one["packing"] == "fixed" and one["tokens"] == TOKENS and one["fullest"] == 1
    assert one["cut_documents"] == pytest.approx(cut.mean())
    assert one["cut_tokens"] == pytest.approx(np.array(whole)[cut].sum() / sum(whole))
    assert one["pairs"] == pytest.approx(pairs(pieces) / pairs(whole))
    for step, imbalance in zip(steps, one["imbalance"], strict=True):
        costs = [sum(map(pairs, step[rank::4])) for rank in range(4)]
        assert imbalance == pytest.approx(max(costs) / np.mean(costs))
    rows = found["lengths"]
    assert sum(row["documents"] for row in rows) == len(whole)
    for row in rows:
        mine = [length for length in whole if row["length"] <= length < 2 * row["length"]]
        assert row["documents"] == len(mine)
        assert row["tokens_share"] == pytest.approx(sum(mine) / sum(whole))
        assert row["pairs_share"] == pytest.approx(pairs(mine) / pairs(whole))


def test_pooled_cuts_at_steps_alone_and_balances(lengths, corpus, tmp_path):
    path = harness.write_experiment(tmp_path / "e.yaml",
                                    harness.merged(BASE, {"data": {"path": str(corpus)}}))
    first, pooled, balanced, filled = survey(path)["packings"]
    whole, begin, cut = looked_at(lengths), 0, []
    for length in whole:
        crosses = begin // TOKENS != (begin + length - 1) // TOKENS
        cut.append(length > LONGEST or crosses)
        begin += length
    assert pooled["cut_documents"] == pytest.approx(np.mean(cut))
    assert pooled["cut_tokens"] == pytest.approx(np.array(whole)[cut].sum() / sum(whole))
    assert np.mean(pooled["imbalance"]) < np.mean(first["imbalance"])
    assert first["pairs"] < pooled["pairs"] < 1 < pooled["fullest"] <= 1.25
    assert balanced["packing"] == "balanced" and balanced["fullest"] <= 1.25
    assert filled["packing"] == "best_fit" and first["pairs"] < filled["pairs"] <= 1
    assert filled["cut_documents"] == pytest.approx(np.mean([n > LONGEST for n in whole]))


def test_a_shuffled_corpus_is_cut_as_it_lies_there(corpus, tmp_path):
    """Which documents the first steps have does not change the shares of the corpus; what ranks
    get is that of the steps themselves."""
    keys = {"data": {"path": str(corpus)}}
    ordered, shuffled = (
        survey(harness.write_experiment(
            tmp_path / "e.yaml",
            harness.merged(harness.merged(BASE, keys), {"data": {"shuffle": shuffle}})))
        for shuffle in (False, True))
    assert ordered["lengths"] == shuffled["lengths"]
    for one, other in zip(ordered["packings"], shuffled["packings"], strict=True):
        assert one["imbalance"] != other["imbalance"]
        for name in ("cut_documents", "cut_tokens", "pairs"):
            assert one[name] == other[name]


def test_documents_that_wait_are_not_taken_for_cut_ones(tmp_path):
    path = harness.write_experiment(tmp_path / "e.yaml", {
        **BASE, "batch": {**BASE["batch"], "outliers": [100]},
        "data": {"source": "synthetic", "documents": 300,
                 "lengths": {"distribution": "list", "values": [30, 40, 120, 20, 50, 60]}}})
    balanced = survey(path)["packings"][2]
    assert balanced["longest_delay"] > 0 and balanced["cut_documents"] is None


def test_tables_and_picture(tmp_path):
    """Of documents that are drawn: their longest is that of the experiment."""
    path = harness.write_experiment(tmp_path / "e.yaml", {
        **BASE, "data": {"source": "synthetic", "max_document": 200, "documents": 300,
                         "lengths": {"distribution": "lognormal", "median": 60, "sigma": 1}}})
    done = analyze(path, "--steps", "2", "--output", tmp_path / "p.png")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines if "%" in line or "─" in line) <= 80, done.stdout
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    assert [line.split()[0] for line in lines if " to " in line and "(" in line][:4] == [
        "fixed", "pooled", "balanced", "best_fit"]
    classes = [int(line.split()[0]) for line in lines if line.strip()[:1].isdigit()
               and "%" in line]
    assert classes and max(classes) <= 128


def test_a_packing_that_is_not_possible(tmp_path):
    path = harness.write_experiment(tmp_path / "e.yaml", {
        **BASE, "batch": {"tokens": 2048, "microbatch": 128},
        "data": {"source": "synthetic", "max_document": 1024, "documents": 300}})
    done = analyze(path, "--steps", "1")
    assert done.returncode == 0 and "balanced: not possible: " in done.stdout, done.stderr
    assert "batch.longest: found room for" in done.stdout.replace("\n", "")


def one_line(done, code=harness.DATA):
    assert done.returncode == code and done.stderr.count("\n") == 1, done
    return done.stderr


def test_refused(tmp_path):
    path = tmp_path / "e.yaml"
    assert "e.yaml: cannot be read: No such file" in one_line(analyze(path))
    path.write_text("- a\n")
    assert "e.yaml" in one_line(analyze(path))
    synthetic = {**BASE, "data": {"source": "synthetic", "documents": 30}}
    for block, key in (("parallel", "data"), ("batch", "microbatch"), ("batch", "tokens")):
        harness.write_experiment(path, harness.merged(synthetic, {block: {key: "auto"}}))
        assert f"e.yaml: {block}.{key}: found auto; valid: a whole" in one_line(analyze(path))
    harness.write_experiment(path, harness.merged(synthetic, {"batch": {"tokens": 10**9}}))
    assert "3 steps of 1000000000 tokens; valid: steps of" in one_line(analyze(path, "--steps", 3))
    harness.write_experiment(path, harness.merged(synthetic, {"batch": {"tokens": 2047}}))
    said = one_line(analyze(path))
    assert "e.yaml: --set batch=" in said and "found 2047, no multiple of" in said
    harness.write_experiment(path, harness.merged(synthetic, {"data": {"source": "tokens"}}))
    assert "data.path: found nothing, but data.source = tokens" in one_line(analyze(path))
    harness.write_experiment(path, synthetic)
    assert "/no/cadenza: no such program; valid: " in one_line(analyze(path, CADENZA="/no/cadenza"))
    said = one_line(analyze(path, CADENZA="/bin/true"))
    assert "does not print the JSON of cadenza plan" in said
    for number in ("0", "-1", "x", "10001"):
        said = one_line(analyze(path, f"--steps={number}"), harness.USAGE)
        assert f"found '{number}'; valid: an integer from 1 to 10000" in said
    said = one_line(analyze(path, "--output", "p.txt"), harness.USAGE)
    assert "unknown format; valid endings are .png" in said
