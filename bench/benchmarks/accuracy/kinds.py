# SPDX-License-Identifier: Apache-2.0
"""What a kind of attention computes, from its definition: settings, positions, pairs."""

import numpy as np
import torch

THETA = 10000.0


class Kind:
    """Full causal attention, which comes rotated."""

    settings = "kind: full"
    peer = "PyTorch"

    def paths(self, tokens):
        """(positions of the queries; which pairs [rows, keys] are on this path, of rows [begin,
        end)), for each way in which queries meet keys. Positions None: no rotation."""
        return [(None, lambda begin, end: torch.ones(end - begin, end, dtype=torch.bool))]

    def key_positions(self, tokens):
        return None

    def read_index(self, file, tokens):
        """Takes what the program chose."""


class DualChunk(Kind):
    settings = "kind: dual_chunk, chunk: 1024, local: 128"
    peer = "by definition in float32"
    stride, cap = 1024 - 128, 1024

    def paths(self, tokens):
        place = torch.arange(tokens)
        within, s = place % self.stride, self.stride
        positions = (within, (s + within).clamp(max=self.cap),
                     torch.full_like(place, min(2 * s - 1, self.cap)))

        def apart(begin, end):
            return place[begin:end, None] // s - place[None, :end] // s

        return [(positions[0], lambda begin, end: apart(begin, end) == 0),
                (positions[1], lambda begin, end: apart(begin, end) == 1),
                (positions[2], lambda begin, end: apart(begin, end) >= 2)]

    def key_positions(self, tokens):
        return torch.arange(tokens) % self.stride


class Sparse(Kind):
    peer = "by definition in float32"

    def paths(self, tokens):
        return [(None, self.visible)]


class VerticalSlash(Sparse):
    settings = ("kind: vertical_slash, sparse: {columns: 128, slashes: 32, sinks: 4, window: 8, "
                "dense_below: 0}")
    block = 64

    def read_index(self, file, tokens):
        rows = -(-tokens // self.block)
        self.offsets = torch.zeros(rows, dtype=torch.bool)
        self.offsets[torch.from_numpy(file["index/offsets"][...].astype(np.int64))] = True
        self.columns = torch.zeros(tokens, dtype=torch.bool)
        self.columns[torch.from_numpy(file["index/columns"][...].astype(np.int64))] = True

    def visible(self, begin, end):
        query, key = torch.arange(begin, end)[:, None], torch.arange(end)[None, :]
        apart = (query // self.block - key // self.block).clamp(min=0)
        return self.offsets[apart] | self.columns[None, :end]


class XAttention(Sparse):
    settings = "kind: xattention, sparse: {threshold: 0.5, dense_below: 0}"
    block = 128

    def read_index(self, file, tokens):
        rows = -(-tokens // self.block)
        words = file["index/bits"][...].astype("<u8").view(np.uint8)
        bits = torch.from_numpy(np.unpackbits(words, bitorder="little").astype(bool))
        self.active = torch.zeros(rows, rows, dtype=torch.bool)
        row, column = torch.tril_indices(rows, rows)
        self.active[row, column] = bits[row * (row + 1) // 2 + column]

    def visible(self, begin, end):
        query, key = torch.arange(begin, end)[:, None], torch.arange(end)[None, :]
        return self.active[query // self.block, key // self.block]


KINDS = {"full": Kind, "dual_chunk": DualChunk, "vertical_slash": VerticalSlash,
         "xattention": XAttention}


def rotated(rows, positions, back=False):
    """Pairs (d, d + D/2) of [tokens, D] turned by their positions, or turned back."""
    if positions is None:
        return rows
    half = rows.shape[1] // 2
    frequencies = THETA ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = positions[:, None].double() * frequencies * (-1 if back else 1)
    cos, sin = angles.cos().to(rows.dtype), angles.sin().to(rows.dtype)
    first, second = rows[:, :half], rows[:, half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], 1)

