# SPDX-License-Identifier: Apache-2.0
"""What the numbers were measured on and with."""

import datetime
import hashlib
import os
import platform
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")


def processor():
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return platform.processor(), []

    def first(name):
        found = re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
        return found.group(1) if found else ""

    name = f"{first('model name')} (family {first('cpu family')}, model {first('model')})"
    flags = (first("flags") or first("Features")).split()
    return name, [flag for flag in EXTENSIONS if flag in flags]


def commit():
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True,
                              check=True).stdout.strip()
    try:
        changed = "+changes" if git("status", "--porcelain") else ""
        return git("rev-parse", "--short", "HEAD") + changed
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def describe():
    name, extensions = processor()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": name,
        "extensions": extensions,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "commit": commit(),
    }


def fingerprint(*programs):
    """Changes when one of the programs does, all of which must be there."""
    missing = [str(program) for program in programs if not program.is_file()]
    if missing:
        raise SystemExit(f"not there: {', '.join(missing)}")
    digest = hashlib.sha256()
    for program in programs:
        digest.update(program.read_bytes())
    return digest.hexdigest()[:16]
