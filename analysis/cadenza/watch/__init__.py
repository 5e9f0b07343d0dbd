# SPDX-License-Identifier: Apache-2.0
"""A run that goes on, watched: `cadenza-analyze watch`."""
