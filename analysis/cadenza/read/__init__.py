# SPDX-License-Identifier: Apache-2.0
"""From trace files to frames: every reader looks at what it reads before it believes it."""
