# SPDX-License-Identifier: Apache-2.0
"""The comparison of bench/placements: what runs, how it is read from traces, and the table."""
