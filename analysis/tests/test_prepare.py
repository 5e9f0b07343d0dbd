# SPDX-License-Identifier: Apache-2.0
"""Texts as tokens: the same ones from every kind of file, by any number of workers, at once or with
interruptions."""

import json
import subprocess
import sys
import time
from pathlib import Path

import corpora as c
import pyarrow as pa
import pytest
import yaml
from tokenizers import Tokenizer

from cadenza import processes
from cadenza.prepare import encode
from cadenza.prepare.cli import main

KINDS = [plain + how for plain in (".jsonl", ".json", ".txt") for how in ("", ".gz", ".zst")]
# Small enough for many blocks and shards.
SMALL = """
from cadenza.prepare import cli, json_lines, parquet, prepare
json_lines.BLOCK = parquet.BLOCK = 500
prepare.SHARD = 900
"""


@pytest.fixture
def small(monkeypatch):
    for name in ("json_lines", "parquet"):
        monkeypatch.setattr(f"cadenza.prepare.{name}.BLOCK", 500)
    monkeypatch.setattr("cadenza.prepare.prepare.SHARD", 900)


@pytest.fixture
def tokenizer(tmp_path):
    return c.write_tokenizer(tmp_path / "tokenizer")


def run(inputs, tokenizer, output, *words, workers=1):
    words = [*inputs, "--tokenizer", tokenizer, "--output", output, "--workers", workers, *words]
    return main(list(map(str, words)))


def files_of(folder):
    """What is in it, without how it was told to the program."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "state.json"}


@pytest.mark.parametrize("kind", [*KINDS, ".parquet"])
def test_documents_are_the_tokenizers_own(kind, tmp_path, tokenizer):
    """Decoded, they are the texts; without the truncation and padding that tokenizer.json asks
    for; and no text has a special token."""
    assert run(c.write_kind(tmp_path, kind, c.TEXTS), tokenizer, tmp_path / "out") == 0
    library = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    found = c.documents_of(tmp_path / "out")
    assert [library.decode(one, skip_special_tokens=False) for one in found] == c.TEXTS
    assert not any(set(one) & {0, 1} for one in found)
    library.no_truncation()
    library.no_padding()
    assert found[:4] == [library.encode(text).ids for text in c.TEXTS[:4]]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(),
                                  pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_texts_of_parquet(kind, tmp_path, tokenizer, small):
    texts = c.random_texts(60)
    column = pa.array(texts).dictionary_encode() if pa.types.is_dictionary(kind) else texts
    paths = [c.write_parquet(tmp_path / "d.parquet", column, kind), tmp_path / "d.jsonl"]
    paths[1].write_text(c.lines_of(texts))
    for i, path in enumerate(paths):
        assert run([path], tokenizer, tmp_path / f"out{i}") == 0
    assert c.documents_of(tmp_path / "out0") == c.documents_of(tmp_path / "out1")


def test_what_is_printed_and_written(tmp_path, tokenizer, capsys):
    """Worked out by hand: lengths count the token that ends a document."""
    path = tmp_path / "d.jsonl"
    path.write_text('{"text": "a"}\n\n{"text": ""}\r\n{"text": null}\n  \n' + c.lines_of(["aaa"])
                    + '{"text": "\\u00e9\\u00e9aaaaaaa"}')
    assert run([path], tokenizer, tmp_path / "out") == 0
    summary = json.loads((tmp_path / "out/statistics.json").read_text())
    assert c.tokens_of(tmp_path / "out").size == summary["tokens"]
    lengths = [len(one) + 1 for one in c.documents_of(tmp_path / "out")]
    assert lengths[0] == 2 and sorted(lengths) == lengths and len(lengths) == 3
    assert summary == {
        "documents": 3, "empty_documents": 4, "tokens": sum(lengths), "text_bytes": 1 + 3 + 11,
        "tokens_per_byte": sum(lengths) / 15, "mean_length": sum(lengths) / 3,
        "lengths": {"minimum": 2, "p1": 2, "p25": 2, "median": lengths[1], "p75": lengths[2],
                    "p90": lengths[2], "p99": lengths[2], "maximum": lengths[2]}}
    histogram = json.loads((tmp_path / "out/lengths.json").read_text())
    assert histogram == [[length, 1] for length in lengths]
    printed = capsys.readouterr().out
    experiment = (tmp_path / "out/data.yaml").read_text()
    assert printed.endswith(f"\n\n{experiment}") and "3 documents (4 more are empty" in printed
    assert yaml.safe_load(experiment) == {
        "model": {"vocab": 300},
        "data": {"source": "tokens", "path": f"{tmp_path}/out/*.bin", "dtype": "uint16",
                 "document_end": 0}}


@pytest.mark.parametrize("vocab", [65536, 65537])
def test_width_follows_the_vocabulary(vocab, tmp_path, tokenizer):
    (tokenizer / "config.json").write_text(json.dumps({"vocab_size": vocab}))
    assert run(c.write_kind(tmp_path, ".jsonl", c.TEXTS), tokenizer, tmp_path / "out") == 0
    found = yaml.safe_load((tmp_path / "out/data.yaml").read_text())
    assert found["model"]["vocab"] == vocab
    assert found["data"]["dtype"] == ("uint16" if vocab <= 65536 else "uint32")
    library = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    decoded = [library.decode(one, skip_special_tokens=False)
               for one in c.documents_of(tmp_path / "out")]
    assert decoded == c.TEXTS


@pytest.mark.parametrize(
    ("begin", "config", "found"),
    [(False, {}, []), (True, {}, [1]), (True, {"add_bos_token": False}, []),
     (False, {"add_bos_token": True, "bos_token": {"content": c.BEGIN}}, [1])],
)
def test_the_token_before_a_document(begin, config, found, tmp_path):
    """That of tokenizer.json, unless the configuration says otherwise; what tokenizer.json puts
    behind a text does not come twice."""
    tokenizer = c.write_tokenizer(tmp_path / "t", begin, **config)
    assert run(c.write_kind(tmp_path, ".jsonl", ["a", "a"]), tokenizer, tmp_path / "out") == 0
    (one,) = {tuple(one) for one in c.documents_of(tmp_path / "out")}
    assert list(one[:-1]) == found


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer_config.json", {"eos_token": c.BEGIN}),
     ("tokenizer_config.json", {"eos_token": {"content": c.BEGIN, "lstrip": False}}),
     ("special_tokens_map.json", {"eos_token": c.BEGIN}),
     ("config.json", {"eos_token_id": 1}), ("config.json", {"eos_token_id": [1]})],
)
def test_where_the_end_of_a_document_is_said(name, content, tmp_path):
    tokenizer = c.write_tokenizer(tmp_path / "t", eos_token=None)
    (tokenizer / name).write_text(json.dumps(content))
    paths = c.write_kind(tmp_path, ".jsonl", ["a", "b"])
    assert run(paths, tokenizer / "tokenizer.json", tmp_path / "out") == 0
    assert "document_end: 1\n" in (tmp_path / "out/data.yaml").read_text()
    assert len(c.documents_of(tmp_path / "out", end=1)) == 2


def two_inputs(tmp_path):
    texts = c.random_texts(120)
    return [*c.write_kind(tmp_path, ".jsonl.gz", texts[:50]),
            *c.write_kind(tmp_path, ".parquet", texts[50:])]


def test_any_number_of_workers(tmp_path, tokenizer, small):
    inputs = two_inputs(tmp_path)
    for workers in (1, 2, 3):
        assert run(inputs, tokenizer, tmp_path / "out", workers=workers) == 0
        (tmp_path / "out").rename(tmp_path / f"out{workers}")
    one, two, three = (files_of(tmp_path / f"out{workers}") for workers in (1, 2, 3))
    assert one == two == three and len([name for name in one if name.endswith(".bin")]) > 3
    assert len(c.documents_of(tmp_path / "out1")) == 120


@pytest.mark.parametrize("workers", [1, 2])
def test_blocks_of_empty_documents(workers, tmp_path, tokenizer, small):
    """They make no shard of their own, and are counted wherever they are."""
    path = tmp_path / "d.jsonl"
    texts, empty = c.random_texts(60), 700 * "\n"
    path.write_text(empty + c.lines_of(texts[:31]) + empty + c.lines_of(texts[31:]) + empty)
    assert run([path], tokenizer, tmp_path / "out", workers=workers) == 0
    sizes = [shard.stat().st_size for shard in (tmp_path / "out").glob("*.bin")]
    assert len(sizes) > 1 and min(sizes) > 0 and len(c.documents_of(tmp_path / "out")) == 60
    summary = json.loads((tmp_path / "out/statistics.json").read_text())
    assert summary["documents"] == 60 and summary["empty_documents"] == 2100


def test_a_shard_may_end_before_empty_documents(tmp_path, tokenizer, small, monkeypatch):
    monkeypatch.setattr("cadenza.prepare.prepare.SHARD", 1)
    path = tmp_path / "d.jsonl"
    path.write_text(c.lines_of(["a" * 600]) + 1500 * "\n")
    assert run([path], tokenizer, tmp_path / "out") == 0
    assert [shard.name for shard in (tmp_path / "out").glob("*.bin")] == ["00000.bin"]


DYING = {
    # while a shard is written, with the file that is not complete
    "writing": """
add = prepare._Progress.add
def dies(self, *arguments):
    add(self, *arguments)
    self.calls = getattr(self, "calls", 0) + 1
    if self.calls == 9:
        os.kill(os.getpid(), signal.SIGKILL)
prepare._Progress.add = dies
""",
    # after a shard is complete, before this is noted
    "noting": """
write = prepare.State.write
def dies(self, folder):
    if len(self.shards) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, folder)
prepare.State.write = dies
""",
    # the first shard is complete, before this is noted
    "beginning": """
write = prepare.State.write
def dies(self, folder):
    if len(self.shards) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, folder)
prepare.State.write = dies
""",
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("when", DYING)
def test_killed_and_continued(when, workers, tmp_path, tokenizer, small, monkeypatch):
    inputs = two_inputs(tmp_path)
    assert run(inputs, tokenizer, tmp_path / "whole") == 0
    words = [*inputs, "--tokenizer", tokenizer, "--output", tmp_path / "out", "--workers", workers]
    program = f"import os, signal{SMALL}{DYING[when]}raise SystemExit(cli.main())"
    died = subprocess.run([sys.executable, "-c", program, *map(str, words)], timeout=300)
    assert died.returncode == -9 and not (tmp_path / "out/data.yaml").exists()
    assert any(path.suffix == ".unfinished" for path in (tmp_path / "out").iterdir()) == (
        when == "writing")
    noted = len(json.loads((tmp_path / "out/state.json").read_text())["shards"])
    assert noted == (0 if when == "beginning" else noted) and noted < 3

    blocks = []
    encoder = encode.Encoder.__call__
    monkeypatch.setattr(encode.Encoder, "__call__",
                        lambda self, block: blocks.append(block) or encoder(self, block))
    assert run(inputs, tokenizer, tmp_path / "out") == 0
    again = len(blocks)
    assert {name: content for name, content in files_of(tmp_path / "whole").items()
            if name != "data.yaml"} == {name: content for name, content in
                                        files_of(tmp_path / "out").items() if name != "data.yaml"}
    assert run(inputs, tokenizer, tmp_path / "out2") == 0
    everything = len(blocks) - again
    assert again < everything if noted else again == everything


def test_complete_is_complete(tmp_path, tokenizer, capsys, monkeypatch):
    inputs = c.write_kind(tmp_path, ".jsonl", c.TEXTS)
    assert run(inputs, tokenizer, tmp_path / "out") == 0
    before, said = files_of(tmp_path / "out"), capsys.readouterr().out
    monkeypatch.delattr(encode.Encoder, "__call__")
    assert run(inputs, tokenizer, tmp_path / "out", workers=2) == 0
    assert files_of(tmp_path / "out") == before and capsys.readouterr().out == said


def test_inputs_that_were_not_read_may_change(tmp_path, tokenizer, small):
    """What is repaired after an error in the middle does not begin again."""
    texts = c.random_texts(120)
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text(c.lines_of(texts[:100]))
    second.write_text("broken\n")
    assert run([first, second], tokenizer, tmp_path / "out") == 3
    assert not (tmp_path / "out/data.yaml").exists()
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.bin"))
    assert len(shards) > 1
    second.write_text(c.lines_of(texts[100:]))
    assert run([first, second], tokenizer, tmp_path / "out") == 0
    assert run([first, second], tokenizer, tmp_path / "whole") == 0
    assert (c.tokens_of(tmp_path / "out") == c.tokens_of(tmp_path / "whole")).all()
    assert len(c.documents_of(tmp_path / "out")) == 120


def test_a_worker_is_one_thread(tmp_path, tokenizer):
    """Else every worker has one for each core."""
    path = tmp_path / "d.jsonl"
    path.write_text(c.lines_of(c.random_texts(200)))
    program = f"""
import os
from cadenza.prepare.cli import main
before = len(os.listdir("/proc/self/task"))
words = ["{path}", "--tokenizer", "{tokenizer}", "--output", "{tmp_path}/out"]
assert main([*words, "--workers", "1"]) == 0
assert len(os.listdir("/proc/self/task")) == before
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300, stdout=subprocess.PIPE)


def test_progress(tmp_path, tokenizer, small, monkeypatch, capsys):
    monkeypatch.setattr("cadenza.prepare.prepare._PATIENCE", 0)
    inputs = two_inputs(tmp_path)
    assert run(inputs, tokenizer, tmp_path / "out", "--verbose") == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "% of the inputs" in line]
    shares = [float(line.split()[2]) for line in said]
    assert shares == sorted(shares) and shares[0] < 50 and shares[-1] == 100
    assert " min left" in said[-1] and " million tokens, " in said[-1]


def test_workers_end_with_their_parent(tmp_path):
    """Killed, it cannot tell them."""
    program = """
import os, sys, time
from cadenza.processes import in_order
def work(item):
    print(os.getpid(), flush=True)
    time.sleep(600 if item else 0)
for _ in in_order(work, range(2), 2):
    os.kill(os.getpid(), 9)
"""
    died = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
                          timeout=300)
    assert died.returncode == -9
    workers = [Path(f"/proc/{number}") for number in died.stdout.split()]
    assert workers
    end = time.monotonic() + 100
    while any(worker.exists() for worker in workers) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(worker.exists() for worker in workers)


def test_no_more_is_read_than_is_worked_on():
    read = []
    items = (read.append(i) or i for i in range(100))
    found = processes.in_order(lambda item: item, items, 2)
    assert next(found) == 0 and len(read) < 10
    assert list(found) == list(range(1, 100))
