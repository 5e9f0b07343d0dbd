# SPDX-License-Identifier: Apache-2.0
"""Traces that other programs wrote: each source reads its own files into the same twenty columns,
from which a run folder in Cadenza's schema is made."""
