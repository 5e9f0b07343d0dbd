# SPDX-License-Identifier: Apache-2.0
"""Who was late, why, and what a step would take otherwise."""
