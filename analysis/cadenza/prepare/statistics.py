# SPDX-License-Identifier: Apache-2.0
"""How many documents and tokens there are, and how long documents are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from cadenza.prepare.encode import Encoded

_QUANTILES = {"minimum": 0, "p1": 0.01, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9,
              "p99": 0.99, "maximum": 1}


@dataclass
class Statistics:
    empty: int = 0
    text_bytes: int = 0
    counts: Counter[int] = field(default_factory=Counter)  # of documents, by length

    def add(self, encoded: Encoded) -> None:
        self.empty += encoded.empty
        self.text_bytes += encoded.text_bytes
        lengths, counts = np.unique(encoded.lengths, return_counts=True)
        self.counts.update(dict(zip(lengths.tolist(), counts.tolist(), strict=True)))

    @property
    def histogram(self) -> list[tuple[int, int]]:
        """[length, number of documents], ascending: what `data.lengths.path` may name."""
        return sorted(self.counts.items())

    def summary(self) -> dict:
        """For JSON. Tokens and lengths count those that begin and end documents."""
        documents = self.counts.total()
        tokens = sum(length * count for length, count in self.counts.items())
        return {"documents": documents, "empty_documents": self.empty, "tokens": tokens,
                "text_bytes": self.text_bytes,
                "tokens_per_byte": tokens / max(self.text_bytes, 1),
                "mean_length": tokens / max(documents, 1),
                "lengths": self._quantiles(documents)}

    def _quantiles(self, documents: int) -> dict[str, int]:
        """A length of a document each: the least with that share of documents at or below it."""
        lengths, counts = (np.array(column) for column in zip(*self.histogram, strict=True))
        below = counts.cumsum()
        return {name: int(lengths[np.searchsorted(below, max(share * documents, 1))])
                for name, share in _QUANTILES.items()}
