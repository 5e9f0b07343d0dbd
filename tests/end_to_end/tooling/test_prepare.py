# SPDX-License-Identifier: Apache-2.0
"""What `cadenza-prepare` writes is what `cadenza` reads."""

import json
import subprocess
import sys

import numpy as np
import pytest
import yaml

import harness

sys.path.append(str(harness.ROOT / "analysis/tests"))
for package in ("tokenizers", "pyarrow", "cadenza.prepare.cli"):
    pytest.importorskip(package, reason=f"{package} is not installed here", exc_type=ImportError)
import corpora  # noqa: E402 - of analysis/tests, where the packages are


@pytest.mark.parametrize("vocab", [300, 70000])
def test_prepared_tokens_are_trained_on(vocab, tmp_path):
    """In 16 and 32 bits, with the printed keys and no other; the plan has all documents."""
    tokenizer = corpora.write_tokenizer(tmp_path / "tokenizer")
    (tokenizer / "config.json").write_text(json.dumps({"vocab_size": vocab}))
    inputs = [*corpora.write_kind(tmp_path, ".jsonl.zst", corpora.random_texts(30)),
              *corpora.write_kind(tmp_path, ".parquet", corpora.random_texts(30, seed=2))]
    words = [*inputs, "--tokenizer", tokenizer, "--output", tmp_path / "corpus"]
    done = subprocess.run([sys.executable, "-m", "cadenza.prepare.cli", *map(str, words)],
                          capture_output=True, text=True, timeout=harness.TIMEOUT, check=True)
    keys = yaml.safe_load(done.stdout[done.stdout.index("\nmodel:"):])
    lengths = [len(one) + 1 for one in corpora.documents_of(tmp_path / "corpus")]
    assert len(lengths) == 60

    whole = {"batch": {"tokens": sum(lengths), "microbatch": sum(lengths)}}
    path = harness.write_experiment(tmp_path / "e.yaml", harness.merged(keys, whole))
    plan = json.loads(harness.run_well(1, ["plan", path, "--format", "json"]).out)
    assert sorted(plan["documents"]) == sorted(lengths)

    path = harness.write_experiment(tmp_path / "e.yaml", keys)
    harness.run_well(1, ["train", path, "--output", tmp_path / "run"])
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert len(losses) == harness.DEFAULTS["run"]["steps"]
    assert losses[0] == pytest.approx(np.log(vocab), rel=0.1)
