# SPDX-License-Identifier: Apache-2.0
"""Faults planted in real runs, and what the analysis says of them."""
