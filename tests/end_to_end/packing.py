# SPDX-License-Identifier: Apache-2.0
"""Packing `fixed`, written from its rules alone (docs/data.md)."""

from itertools import cycle


def cut(documents, longest):
    """Consecutive documents of at most `longest` tokens."""
    for document in documents:
        for begin in range(0, len(document), longest):
            yield document[begin : begin + longest]


def pack(documents, batch_tokens, microbatch_tokens, steps, longest=None):
    """For every step its microbatches, each a list of documents (token arrays), in file order."""
    source = cycle(list(cut(documents, longest or microbatch_tokens)))
    rest = []
    batches = []
    for _ in range(steps):
        microbatches = []
        for _ in range(batch_tokens // microbatch_tokens):
            microbatch, room = [], microbatch_tokens
            while room:
                document = rest if len(rest) else next(source)
                microbatch.append(document[:room])
                rest = document[room:]
                room -= len(microbatch[-1])
            microbatches.append(microbatch)
        batches.append(microbatches)
    return batches
