# SPDX-License-Identifier: Apache-2.0
"""Faults that are planted in simulated runs, and what the analysis says of them."""
