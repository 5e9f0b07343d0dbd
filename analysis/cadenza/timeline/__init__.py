# SPDX-License-Identifier: Apache-2.0
"""One step as a picture: rank by time."""
