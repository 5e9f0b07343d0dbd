# SPDX-License-Identifier: Apache-2.0
"""The comparison of bench/compare: what is measured, how, and the table made of it."""
