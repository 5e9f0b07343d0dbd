# SPDX-License-Identifier: Apache-2.0
"""A small tokenizer, and the same documents in every kind of file that cadenza-prepare reads."""

import gzip
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

END, BEGIN = "<|endoftext|>", "<|begin|>"
TEXTS = ["the cat sat on the mat", "  two  spaces\nand a line\n", "naïve café 東京 🙂", "a",
         f"words that look special: {END} and {BEGIN}"]


def random_texts(count, seed=1):
    rng = random.Random(seed)
    words = " ".join(TEXTS[:3]).split()
    return [" ".join(rng.choices(words, k=rng.randint(1, 40))) for _ in range(count)]


def write_tokenizer(folder, begin=False, **config):
    """A byte-level BPE of 300 tokens: END is 0, BEGIN 1. Keys of `config` that are None are left
    out.

    @param begin  whether tokenizer.json itself puts BEGIN before a text
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(TEXTS[:3] * 3, trainers.BpeTrainer(
        vocab_size=300, special_tokens=[END, BEGIN], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if begin:
        made.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A {END}", special_tokens=[(BEGIN, 1), (END, 0)])
    made.enable_truncation(5)  # as some published ones have it
    made.enable_padding(length=7)
    made.save(str(folder / "tokenizer.json"))
    config = {"eos_token": END, **config}
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def lines_of(texts, column="text"):
    return "".join(json.dumps({"id": i, column: text}) + "\n" for i, text in enumerate(texts))


def write_parquet(path, texts, kind=None, column="text"):
    kind = kind or pa.string()
    table = pa.table({"id": range(len(texts)), column: pa.array(texts, kind)})
    pyarrow.parquet.write_table(table, path, row_group_size=7)
    return path


def write_kind(folder, kind, texts):
    """The documents as files with the ending `kind`: their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == ".parquet":
        return [write_parquet(folder / "d.parquet", texts)]
    if kind.startswith(".txt"):
        named = [(folder / f"{i:03}{kind}", text) for i, text in enumerate(texts)]
    else:
        named = [(folder / f"d{kind}", lines_of(texts))]
    for path, text in named:
        path.write_bytes(compressed(kind, text.encode()))
    return [path for path, _ in named]


def compressed(kind, content):
    if kind.endswith(".gz"):
        return gzip.compress(content)
    return pa.compress(content, "zstd", asbytes=True) if kind.endswith(".zst") else content


def tokens_of(folder):
    """All shards, one after another."""
    kind = "<u2" if "uint16" in (folder / "data.yaml").read_text() else "<u4"
    return np.concatenate([np.fromfile(path, kind) for path in sorted(folder.glob("*.bin"))])


def documents_of(folder, end=0):
    """Lists of tokens without those that end them."""
    tokens = tokens_of(folder)
    ends = np.flatnonzero(tokens == end)
    assert len(ends) and ends[-1] == len(tokens) - 1
    return [part[:-1].tolist() for part in np.split(tokens, ends + 1)[:-1]]
