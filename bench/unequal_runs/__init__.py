# SPDX-License-Identifier: Apache-2.0
"""Two ranks of unequal speed, real and simulated."""
