# SPDX-License-Identifier: Apache-2.0
"""A large simulated run, and how long it takes to analyse it."""
