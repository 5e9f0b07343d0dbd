#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every C++ file is as clang-format 14 with .clang-format writes it, and ruff with ruff.toml finds
nothing in the Python files; `--fix` rewrites them.

Versions of clang-format differ in details, so with another one, or none, or without ruff, this says
so and exits 77, which CTest counts as skipped.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "14"
FOLDERS = ["include", "src", "kernels", "tests", "bench"]
SUFFIXES = {".cpp", ".hpp", ".cu", ".cuh"}


def formatter():
    """A clang-format of the right version, or the reason why there is none."""
    found = "none"
    for name in (f"clang-format-{VERSION}", "clang-format"):
        try:
            answer = subprocess.run([name, "--version"], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        found = re.search(r"version (\d+)", answer.stdout).group(1)
        if found == VERSION:
            return name, None
    return None, f"clang-format {VERSION} is needed (PyPI: clang-format==14.0.6), found {found}"


def main(arguments):
    name, reason = formatter()
    if not name:
        print(f"skipped: {reason}")
        return 77
    if not shutil.which("ruff"):
        print("skipped: ruff is needed (PyPI: ruff), found none")
        return 77
    root = Path(__file__).resolve().parents[2]
    files = sorted(str(file) for folder in FOLDERS for file in (root / folder).rglob("*")
                   if file.suffix in SUFFIXES)
    fix = "--fix" in arguments
    mode = ["-i"] if fix else ["--dry-run", "--Werror"]
    checks = [
        [name, "--style=file", *mode, *files],
        ["ruff", "check", "--no-cache", "--quiet", *(["--fix"] if fix else []), str(root)],
    ]
    return max(subprocess.run(check, check=False).returncode for check in checks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
