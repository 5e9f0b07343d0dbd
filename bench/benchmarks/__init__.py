# SPDX-License-Identifier: Apache-2.0
"""A module or a package for each benchmark of bench/run."""
