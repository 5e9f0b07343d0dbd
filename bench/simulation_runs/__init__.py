# SPDX-License-Identifier: Apache-2.0
"""Real runs beside their simulation."""
