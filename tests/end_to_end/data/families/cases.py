# SPDX-License-Identifier: Apache-2.0
"""What the models beside it are asked and trained with, by make.py and by Cadenza."""

import numpy as np

VOCABULARY = 64
DOCUMENT_END = 63  # in no document: each has a file of its own
STEPS = 10
OPTIMIZER = {
    "lr": 3e-3,
    "warmup": 4,
    "betas": [0.9, 0.95],
    "eps": 1e-8,
    "weight_decay": 0.1,
    "clip": 0.5,
}


def tokens(seed, count):
    return np.random.default_rng(seed).integers(0, DOCUMENT_END, count)


CONTEXT = tokens(1, 47)
DOCUMENTS = [tokens(2 + length, length) for length in (40, 9, 1, 24, 22)]
