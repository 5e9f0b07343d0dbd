# SPDX-License-Identifier: Apache-2.0
"""The tokens of a block of documents."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np

from cadenza.errors import DataError
from cadenza.prepare.documents import LONGEST, Block, Document
from cadenza.prepare.tokenizer import Tokenizer, guarded


@dataclass(frozen=True)
class Encoded:
    tokens: bytes  # as they are written
    lengths: np.ndarray  # of the documents, in tokens
    empty: int  # documents without text, which were left out
    text_bytes: int  # of UTF-8


def dtype_of(vocab: int) -> str:
    """The narrowest of the types that `data.dtype` has."""
    return "uint16" if vocab <= 1 << 16 else "uint32"


class Encoder:
    """Makes each document its tokens between those that begin and end it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._dtype = np.dtype(dtype_of(tokenizer.vocab)).newbyteorder("<")

    def __call__(self, block: Block) -> Encoded:
        """@throws DataError where a document cannot be encoded"""
        found = list(block.documents())
        documents = [one for one in found if one.text]
        size = sum(map(_checked_bytes, documents))
        lines = self._encoded(documents)
        lengths = np.fromiter(map(len, lines), np.int64, len(lines))
        tokens = np.fromiter(chain.from_iterable(lines), self._dtype, int(lengths.sum()))
        return Encoded(tokens.tobytes(), lengths, len(found) - len(documents), size)

    def _encoded(self, documents: list[Document]) -> list[list[int]]:
        if not documents:
            return []
        begin, end = list(self._tokenizer.begin), self._tokenizer.document_end
        encode = self._tokenizer.encoding.encode_batch_fast
        found = guarded(encode, documents[0].place, [one.text for one in documents],
                        add_special_tokens=False)
        lines = [one.ids for one in found]
        for document, tokens in zip(documents, lines, strict=True):
            if end in tokens:
                raise DataError(f"{document.place}: the tokenizer takes a part of the text for "
                                f"{end}, which ends documents; valid: a document without that part")
        return [[*begin, *tokens, end] for tokens in lines]


def _checked_bytes(document: Document) -> int:
    try:
        size = len(document.text.encode())
    except UnicodeEncodeError as error:
        found = document.text[error.start]
        raise DataError(f"{document.place}: found \\u{ord(found):04x}, half of a character; valid: "
                        "text that can be written as UTF-8") from error
    if size > LONGEST:
        raise DataError(f"{document.place}: found a document of {size} bytes; valid: at most "
                        f"{LONGEST}")
    return size
