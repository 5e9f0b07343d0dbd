# SPDX-License-Identifier: Apache-2.0
"""Accuracy of core attention against length (bench/accuracy)."""
