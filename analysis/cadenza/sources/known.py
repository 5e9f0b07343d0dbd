# SPDX-License-Identifier: Apache-2.0
"""The sources that can be read. A new one is a file of this folder and a name here."""

from __future__ import annotations

from cadenza.sources.kineto.source import KINETO
from cadenza.sources.neutral import Source
from cadenza.sources.neutral_files import NEUTRAL
from cadenza.sources.nsight import NSIGHT
from cadenza.sources.straggler_analysis import STRAGGLER_ANALYSIS

# The first that claims a file reads it: NEUTRAL claims all parquet.
SOURCES: tuple[Source, ...] = (KINETO, NSIGHT, STRAGGLER_ANALYSIS, NEUTRAL)
