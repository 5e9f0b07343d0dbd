# SPDX-License-Identifier: Apache-2.0
"""The command `cadenza`: becomes the program in this package."""

import os
import sys
from pathlib import Path


def main():
    program = Path(__file__).parent / "bin" / "cadenza"
    os.execv(program, ["cadenza", *sys.argv[1:]])
