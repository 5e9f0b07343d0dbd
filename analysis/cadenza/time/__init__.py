# SPDX-License-Identifier: Apache-2.0
"""Where the time, the memory and the rates of a step went."""
