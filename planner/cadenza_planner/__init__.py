# SPDX-License-Identifier: Apache-2.0
"""Cadenza's planner: the plan of a batch as numpy arrays. The program is the command `cadenza`."""

from cadenza_planner.plan import Plan, plan
from cadenza_planner.version import VERSION as __version__

__all__ = ["Plan", "plan", "__version__"]
