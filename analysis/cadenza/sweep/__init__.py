# SPDX-License-Identifier: Apache-2.0
"""Grids of simulations: tables, pictures, best points."""
