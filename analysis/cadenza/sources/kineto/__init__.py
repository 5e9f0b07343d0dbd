# SPDX-License-Identifier: Apache-2.0
"""Traces of PyTorch's profiler (Kineto)."""

from cadenza.sources.kineto.source import KINETO

__all__ = ["KINETO"]
