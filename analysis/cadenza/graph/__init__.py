# SPDX-License-Identifier: Apache-2.0
"""The dependency graph of a step over all ranks: who waited for whom, and its replay."""
