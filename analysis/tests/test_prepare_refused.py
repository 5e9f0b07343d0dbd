# SPDX-License-Identifier: Apache-2.0
"""What cadenza-prepare refuses: in one line, with the place, and nothing stays behind."""

import fcntl
import importlib
import json
import os

import corpora as c
import pyarrow as pa
import pyarrow.parquet
import pytest

from cadenza.prepare.cli import main


@pytest.fixture
def tokenizer(tmp_path):
    return c.write_tokenizer(tmp_path / "tokenizer")


@pytest.fixture
def refused(tmp_path, tokenizer, capfd):
    """The one line that the program ends with; the folder of the output is not there, or as it
    was."""

    def call(*inputs, words=(), code=3, workers=1, to=tmp_path / "out", of=tokenizer):
        before = {path: path.read_bytes() for path in to.glob("*")} if to.is_dir() else None
        line = [*inputs, "--tokenizer", of, "--output", to, "--workers", workers, *words]
        assert main(list(map(str, line))) == code
        out, said = capfd.readouterr()
        assert out == "" and said.count("\n") == 1, said
        assert said.startswith("cadenza-prepare: error: ")
        after = {path: path.read_bytes() for path in to.glob("*")} if to.is_dir() else None
        assert after == before
        return said.removeprefix("cadenza-prepare: error: ").rstrip("\n")

    return call


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"\xff{}", r"found b'\xff{}' at byte 0; valid: UTF-8"),
        (b'{"text": "a', "not JSON: Unterminated string"),
        (b'{"text": "a"} x', "not JSON: Extra data"),
        (b"[" * 100_000, "nests too deeply"),
        (b'{"text": ' + b"1" * 5000 + b"}", "not JSON: Exceeds the limit"),
        (b"[1]", "found a list; valid: a JSON object, with the text in 'text'"),
        (b'"x"', "found text; valid: a JSON object"),
        (b"null", "found null; valid: a JSON object"),
        (b'{"body": "a", "id": 1}', "has no column 'text'; valid: --column with one of body, id"),
        (b"{}", "has no column 'text'; valid: --column with one of its names (it has none)"),
        (b'{"text": 7}', "column 'text' is a number; valid: text"),
        (b'{"text": ["a"]}', "column 'text' is a list; valid: text"),
        (b'{"text": true}', "column 'text' is a boolean; valid: text"),
        (b'{"text": "a\\ud83d"}', r"found \ud83d, half of a character; valid: text"),
    ],
)
def test_a_line(line, said, workers, tmp_path, refused):
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'{"text": "a"}\n\n' + line + b'\n{"text": "a"}\n')
    found = refused(path, workers=workers)
    assert found.startswith(f"{path}:3: ") and said in found


def test_long_lines_and_documents(tmp_path, refused, monkeypatch):
    monkeypatch.setattr("cadenza.prepare.json_lines._LONGEST", 1000)
    for module in ("text", "encode"):
        monkeypatch.setattr(f"cadenza.prepare.{module}.LONGEST", 100)
    monkeypatch.setattr("cadenza.prepare.json_lines.BLOCK", 300)
    path = tmp_path / "d.jsonl"
    path.write_text(c.lines_of(["a", "a" * 2000]))
    assert refused(path).startswith(f"{path}:2: found a line of more than 1000 bytes; valid: ")
    path.write_text(c.lines_of(["a", "a" * 101]))
    assert refused(path).startswith(f"{path}:2: found a document of 101 bytes; valid: at most 100")
    path = tmp_path / "d.txt"
    path.write_text("a" * 101)
    assert refused(path).startswith(f"{path}: found more than 100 bytes; valid: ")


def test_text_that_is_none(tmp_path, refused):
    path = tmp_path / "d.txt"
    path.write_bytes(b"abc\xe9")
    assert refused(path).startswith(f"{path}: found b'\\xe9' at byte 3; valid: UTF-8")


@pytest.mark.parametrize("kind", [".jsonl.gz", ".jsonl.zst", ".txt.gz"])
def test_compressed_files_that_are_damaged(kind, tmp_path, refused):
    (path,) = c.write_kind(tmp_path, kind, [" ".join(c.random_texts(300))])
    whole = path.read_bytes()
    name = "gzip" if kind.endswith("gz") else "zstd"
    for content in (whole[:-1], whole[: len(whole) // 2], whole[:1], b"no such file, but text",
                    whole[:40] + b"\xff" * 40 + whole[80:]):
        path.write_bytes(content)
        assert refused(path).startswith(f"{path}: {name} is damaged or cut short"), content


def test_parquet(tmp_path, refused, monkeypatch):
    path = tmp_path / "d.parquet"
    c.write_parquet(path, ["a"], column="body")
    assert refused(path) == f"{path}: has no column 'text'; valid: --column with one of id, body"
    said = f"{path}: column 'id' is int64; valid: text"
    assert refused(path, words=("--column", "id")) == said
    wrong = pa.array([b"a", b"a\xff"], pa.binary()).view(pa.string())
    pyarrow.parquet.write_table(pa.table({"text": wrong}), path)
    assert refused(path) == f"{path}: row 2: found b'\\xff' at byte 1; valid: UTF-8"
    monkeypatch.setattr("cadenza.prepare.parquet.BLOCK", 50)
    wrong = pa.array([b"a" * 20] * 70 + [b"\xff"], pa.binary()).view(pa.string())
    pyarrow.parquet.write_table(pa.table({"text": wrong}), path)
    assert refused(path).startswith(f"{path}: row 71: found b'\\xff' at byte 0")
    whole = c.write_parquet(path, c.random_texts(40)).read_bytes()
    for content in (b"", whole[:-1], whole[: len(whole) // 2], b"PAR1", whole[:300] + bytes(200)
                    + whole[500:]):
        path.write_bytes(content)
        assert refused(path).startswith(f"{path}: not a parquet file, or damaged: "), content


def test_inputs_that_are_none(tmp_path, refused):
    known = "valid are .jsonl, .json and .txt, also with .gz or .zst, and .parquet"
    for name in ("d.csv", "d", "d.gz", "d.parquet.gz", "d.jsonl.bz2"):
        path = tmp_path / name
        path.write_text("a")
        assert refused(path) == f"{path}: unknown ending; {known}"
    missing = tmp_path / "no.jsonl"
    assert refused(missing) == f"{missing}: cannot be read: No such file or directory"
    folder = tmp_path / "folder.jsonl"
    folder.mkdir()
    assert refused(folder).startswith(f"{folder}: not a file; valid: files, such as")
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert "not a file" in refused(tmp_path / "pipe.jsonl")
    path = tmp_path / "empty.jsonl"
    path.write_text('\n{"text": ""}\n')
    assert refused(path).endswith("nothing to write: no input has a document with text")
    path.write_bytes(b"")
    assert refused(path).endswith("nothing to write: no input has a document with text")


TOKENIZERS = [
    ({"tokenizer.json": None}, "has no tokenizer.json; valid: a folder that has one"),
    ({"tokenizer.json": b"{}"}, "tokenizer.json: the tokenizer refuses it: Model missing"),
    ({"tokenizer.json": b"\xff"}, "tokenizer.json: cannot be read: 'utf-8'"),
    ({"tokenizer_config.json": None},
     "tokenizer_config.json: no end-of-document token; valid: eos_token there or in "
     "special_tokens_map.json, or eos_token_id in config.json"),
    ({"tokenizer_config.json": b'{"eos_token": null}'}, "no end-of-document token"),
    ({"tokenizer_config.json": b'{"eos_token": 7}'}, "eos_token: found 7; valid: the text of"),
    ({"tokenizer_config.json": b'{"eos_token": "</s>"}'},
     "eos_token is '</s>', which the tokenizer does not have"),
    ({"tokenizer_config.json": b"[]"}, "tokenizer_config.json: not an object"),
    ({"tokenizer_config.json": b"{"}, "tokenizer_config.json: not JSON: "),
    ({"tokenizer_config.json": b'{"eos_token": "<|endoftext|>", "add_bos_token": true}'},
     "has add_bos_token, but no bos_token"),
    ({"tokenizer_config.json": b"{}", "config.json": b'{"eos_token_id": [0, 1]}'},
     "config.json: eos_token_id: found [0, 1]; valid: one token of the tokenizer"),
    ({"tokenizer_config.json": b"{}", "config.json": b'{"eos_token_id": 300}'},
     "config.json: eos_token_id: found 300; valid: one token"),
    ({"config.json": b'{"vocab_size": 299}'},
     "config.json: vocab_size is 299, but the tokenizer has token 299 ("),
    ({"config.json": b'{"vocab_size": "300"}'}, 'config.json: vocab_size: found "300"; valid: an'),
    ({"config.json": b'{"vocab_size": 9999999999}'}, "valid: an integer from 1 to 4294967296"),
]


@pytest.mark.parametrize(("files", "said"), TOKENIZERS)
def test_tokenizers(files, said, tmp_path, tokenizer, refused):
    for name, content in files.items():
        if content is None:
            (tokenizer / name).unlink()
        else:
            (tokenizer / name).write_bytes(content)
    found = refused(*c.write_kind(tmp_path, ".jsonl", ["a"]))
    assert found.startswith(str(tokenizer)) and said in found, found


def test_a_tokenizer_that_is_not_there_or_too_large(tmp_path, tokenizer, refused, monkeypatch):
    paths = c.write_kind(tmp_path, ".jsonl", ["a"])
    missing = tmp_path / "no"
    assert refused(*paths, of=missing) == f"{missing}: cannot be read: No such file or directory"
    monkeypatch.setattr("cadenza.prepare.tokenizer._LONGEST", 100)
    assert "tokenizer.json: found " in refused(*paths)


def test_a_text_that_would_end_its_document(tmp_path, tokenizer, refused):
    """Where the token that ends documents is one of the text's own."""
    config = tokenizer / "tokenizer_config.json"
    config.write_text(json.dumps({"eos_token": "a"}))
    path = tmp_path / "d.jsonl"
    path.write_text(c.lines_of(["b", "a"]))
    assert ":2: the tokenizer takes a part of the text for " in refused(path)


def test_another_run_than_before(tmp_path, tokenizer, refused, capfd):
    """Every difference has its name, and what is there stays."""
    texts = c.random_texts(9)
    paths = [*c.write_kind(tmp_path, ".jsonl", texts), *c.write_kind(tmp_path, ".txt", ["a"])]
    words = [*paths, "--tokenizer", tokenizer, "--output", tmp_path / "out"]
    assert main(list(map(str, words))) == 0 and capfd.readouterr().out
    state = tmp_path / "out/state.json"
    assert refused(*paths, words=("--column", "id")).startswith(
        f"{state}: --column was text, now id; valid: the same as before, or another --output")
    assert f"{state}: there were 2 inputs, now there are 1" in refused(paths[0])
    assert f"{paths[1]}: path was {paths[0]} when" in refused(*reversed(paths))
    times = paths[0].stat()
    os.utime(paths[0], ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert f"{paths[0]}: modified_ns was {times.st_mtime_ns} when it was read" in refused(*paths)
    paths[0].write_text(c.lines_of(texts[1:]))
    assert f"{paths[0]}: size was {times.st_size} when it was read, now" in refused(*paths)
    (tokenizer / "config.json").write_text('{"vocab_size": 400}')
    assert f"{state}: the tokenizer (a digest) was " in refused(*paths)
    (tokenizer / "config.json").unlink()
    shard = tmp_path / "out/00000.bin"
    shard.write_bytes(shard.read_bytes()[2:])
    paths[0].write_text(c.lines_of(texts))
    os.utime(paths[0], ns=(times.st_atime_ns, times.st_mtime_ns))
    assert refused(*paths).startswith(f"{shard}: is not as it was written, with ")
    shard.unlink()
    assert refused(*paths).startswith(f"{shard}: is not as it was written, with ")


@pytest.mark.parametrize("content", [
    b"", b"[]", b"{}", b"\xff", b'{"statistics": {"counts": []}}', b"[" * 100_000,
    b'{"arguments": {}, "sources": [], "shards": [-1], "statistics": {"counts": {}}}',
    b'{"arguments": {}, "sources": [{"path": 1}], "statistics": {"counts": {}}}'])
def test_a_damaged_state(content, tmp_path, refused):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/state.json").write_bytes(content)
    found = refused(*c.write_kind(tmp_path, ".jsonl", ["a"]))
    assert found.startswith(f"{tmp_path}/out/state.json: ")


def test_folders_for_nothing(tmp_path, refused, monkeypatch):
    paths = c.write_kind(tmp_path, ".jsonl", ["a"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").write_text("mine")
    assert "holds notes, which cadenza-prepare did not write" in refused(
        *paths, to=tmp_path / "mine")
    for name in ("a*", "a?", "[a]", "a\nb", os.fsdecode(b"\xff")):
        assert "data.path cannot name it" in refused(*paths, to=tmp_path / name)
    assert refused(*paths, to=tmp_path / "mine/notes").endswith("cannot be written: File exists")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    assert "is a link to" in refused(*paths, to=tmp_path / "link")
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("cadenza.prepare.prepare._LOCKED", 0)
    held = os.open(tmp_path / "empty", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert "another cadenza-prepare writes there" in refused(*paths, to=tmp_path / "empty")
    os.close(held)


@pytest.mark.parametrize("number", ["0", "-1", "two", "1025", "1" * 5000, "²"])
def test_workers(number, tmp_path, refused):
    paths = c.write_kind(tmp_path, ".jsonl", ["a"])
    found = refused(*paths, words=(f"--workers={number}",), code=2)
    assert "--workers: found" in found and "valid: an integer from 1 to 1024" in found


def test_a_killed_worker(tmp_path, refused, monkeypatch):
    here = os.getpid()

    def dies(self, block):
        assert os.getpid() != here
        os.kill(os.getpid(), 9)

    monkeypatch.setattr("cadenza.prepare.encode.Encoder.__call__", dies)
    found = refused(*c.write_kind(tmp_path, ".jsonl", ["a"]), workers=2)
    assert "a worker was killed, probably for lack of memory; valid: fewer --workers" in found


@pytest.mark.parametrize(("missing", "kind"),
                         [("tokenizers", ".txt"), ("pyarrow", ".jsonl.gz"), ("pyarrow", ".parquet"),
                          ("pyarrow.parquet", ".parquet")])
def test_packages_that_are_missing(missing, kind, tmp_path, refused, monkeypatch):
    """One line says what to install; who has no compressed files needs no Arrow."""
    paths = c.write_kind(tmp_path, kind, ["a"])

    def load(name, *arguments):
        if name == missing or name.startswith(f"{missing}."):
            raise ImportError(f"No module named '{name}'")
        return real(name, *arguments)

    real = importlib.import_module
    monkeypatch.setattr("cadenza.prepare.packages.importlib.import_module", load)
    found = refused(*paths)
    assert found.startswith(f"the Python package {missing.partition('.')[0]} cannot be loaded")
    assert found.endswith("valid: pip install pyarrow tokenizers")
