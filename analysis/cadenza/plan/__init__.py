# SPDX-License-Identifier: Apache-2.0
"""A step's plans as a picture: who computes which part of attention."""
