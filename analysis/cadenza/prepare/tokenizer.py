# SPDX-License-Identifier: Apache-2.0
"""A tokenizer as Hugging Face stores it: `tokenizer.json`, and beside it what its special tokens
are for."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cadenza.errors import DataError
from cadenza.files import read_text
from cadenza.prepare.packages import package
from cadenza.words import shortened

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Encoding

_CONFIG, _MAP, _MODEL = "tokenizer_config.json", "special_tokens_map.json", "config.json"
_LONGEST = 1 << 28  # bytes of a tokenizer.json: ten times the largest that are published
_MOST = 1 << 32  # ids: what the widest file holds
_NAMED = 120  # characters of messages
_WITHOUT = object()

Made = TypeVar("Made")


@dataclass(frozen=True)
class Tokenizer:
    path: Path
    encoding: Encoding
    digest: str  # of what decides the tokens of a text
    begin: tuple[int, ...]  # tokens before every document
    document_end: int  # the token after every document
    vocab: int  # of the model: larger than every token


def read_tokenizer(given: Path) -> Tokenizer:
    """@param given  tokenizer.json, or the folder that has it
    @throws DataError where it cannot be used, or does not say how a document ends
    """
    path = given / "tokenizer.json" if given.is_dir() else given
    if given.is_dir() and not path.exists():
        raise DataError(f"{given}: has no tokenizer.json; valid: a folder that has one, as "
                        "save_pretrained() of a fast tokenizer writes it")
    if path.is_file() and path.stat().st_size > _LONGEST:
        raise DataError(f"{path}: found {path.stat().st_size} bytes; valid: at most {_LONGEST}")
    text = read_text(path)
    encoding = _encoding(path, text)
    folder = path.parent
    begin, end = _begin(folder, encoding), _document_end(folder, encoding)
    vocab = _vocab(folder, encoding)
    said = json.dumps([text, begin, end, vocab])
    return Tokenizer(path, encoding, hashlib.sha256(said.encode()).hexdigest(), begin, end, vocab)


def guarded(call: Callable[..., Made], place: str, *arguments: object, **options: object) -> Made:
    """A call of the library, whose errors have no type of their own.

    @throws DataError that begins with `place`
    """
    try:
        return call(*arguments, **options)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        why = shortened(str(error).partition("\n")[0], _NAMED)
        raise DataError(f"{place}: the tokenizer refuses it: {why}") from error


def _encoding(path: Path, text: str) -> Encoding:
    """What gives the tokens of a text, all of them, and special ones never: words of the text that
    look like special tokens are words."""
    library = package("tokenizers")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each worker is one thread
    found = guarded(library.Tokenizer.from_str, str(path), text)
    found.no_truncation()
    found.no_padding()
    found.encode_special_tokens = True
    if getattr(found.model, "dropout", None):  # chance would make other tokens each time
        found.model.dropout = None
    return found


def _read(path: Path) -> dict:
    """The object of a file beside the tokenizer; empty where there is none."""
    if not path.exists():
        return {}
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {shortened(str(error), _NAMED)}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: not an object")
    return found


def _token(path: Path, key: str, encoding: Encoding) -> int | None:
    """The token that a file names: as text, or as an object with its `content`."""
    found = _read(path).get(key)
    if isinstance(found, dict):
        found = found.get("content")
    if found is None:
        return None
    if not isinstance(found, str):
        raise DataError(f"{path}: {key}: found {shortened(json.dumps(found), _NAMED)}; valid: the "
                        "text of a token")
    number = guarded(encoding.token_to_id, f"{path}: {key}", found)
    if number is None:
        raise DataError(f"{path}: {key} is {shortened(found, _NAMED)!r}, which the tokenizer does "
                        "not have")
    return number


def _document_end(folder: Path, encoding: Encoding) -> int:
    """`eos_token`, else the model's `eos_token_id`."""
    for name in (_CONFIG, _MAP):
        found = _token(folder / name, "eos_token", encoding)
        if found is not None:
            return found
    model = folder / _MODEL
    found = _read(model).get("eos_token_id")
    if isinstance(found, list) and len(found) == 1:
        (found,) = found
    if found is None:
        raise DataError(f"{folder / _CONFIG}: no end-of-document token; valid: eos_token there or "
                        f"in {_MAP}, or eos_token_id in {_MODEL}")
    if type(found) is not int or not 0 <= found < _MOST or encoding.id_to_token(found) is None:
        raise DataError(f"{model}: eos_token_id: found {shortened(json.dumps(found), _NAMED)}; "
                        f"valid: one token of the tokenizer, or eos_token in {_CONFIG}")
    return found


def _begin(folder: Path, encoding: Encoding) -> tuple[int, ...]:
    """What the tokenizer puts before a text; `add_bos_token` overrides it, as in transformers."""
    path = folder / _CONFIG
    added = _read(path).get("add_bos_token")
    if added is False:
        return ()
    if added is True:
        bos = _token(path, "bos_token", encoding)
        if bos is None:
            raise DataError(f"{path}: has add_bos_token, but no bos_token")
        return (bos,)
    found = guarded(encoding.encode, str(folder), "a")
    marks = found.special_tokens_mask
    if 0 not in marks and found.ids:
        raise DataError(f"{path}: whether a document has a begin token cannot be seen; valid: "
                        "add_bos_token, true or false")
    return tuple(found.ids[: marks.index(0)]) if found.ids else ()


def _vocab(folder: Path, encoding: Encoding) -> int:
    """The model's, where its config.json is there; else that of the tokenizer."""
    tokens = encoding.get_vocab(with_added_tokens=True)
    if not tokens:
        raise DataError(f"{folder}: the tokenizer has no tokens")
    word, most = max(tokens.items(), key=lambda one: one[1])
    path = folder / _MODEL
    vocab = _read(path).get("vocab_size", _WITHOUT)
    if vocab is _WITHOUT:
        return most + 1
    if type(vocab) is not int or not 0 < vocab <= _MOST:
        raise DataError(f"{path}: vocab_size: found {shortened(json.dumps(vocab), _NAMED)}; valid: "
                        f"an integer from 1 to {_MOST}")
    if most >= vocab:
        raise DataError(f"{path}: vocab_size is {vocab}, but the tokenizer has token {most} "
                        f"({shortened(word, _NAMED)!r}); valid: at least {most + 1}")
    return vocab
