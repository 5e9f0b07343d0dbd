# SPDX-License-Identifier: Apache-2.0
"""A folder that holds all that a bare machine needs to run the stages."""

import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from . import cases, place
from .place import Unfit

LIMIT = 56 * 2**20
ROOT = Path(__file__).resolve().parents[2]
# Of the machine itself: glibc fits its loader, libstdc++ what else is there.
OF_SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s))\.so")
# Plugins for networks and launchers that a single machine does not have.
NOT_TAKEN = re.compile(r"ofi|ucx|psm|openib|flux|slurm|jsm|gridengine|memheap|spml|sshmem|scoll")


def make(folder, build):
    """@return the exit code"""
    build = build or build_programs()
    absent = [name for name in cases.PROGRAMS if not (build / name).is_file()]
    if absent:
        raise Unfit(f"{build}: has no {', '.join(absent)}; build it first")
    about = place.describe(ROOT)
    if not about["losses"]:
        raise Unfit("no host's program to compute the losses: build build/release/cadenza, or let "
                    "CADENZA name one")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        gather(Path(scratch), build)
        Path(scratch, place.ABOUT).write_text(json.dumps(about))
        with tarfile.open(folder / place.FILES, "w:xz") as archive:
            archive.add(scratch, arcname="")
        shutil.copy(ROOT / "scripts/gpu-check", folder)
        shutil.copytree(ROOT / "scripts/gpu_check", folder / "gpu_check", dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("__pycache__"))
        size = check_size(folder, Path(scratch))
    print(f"{folder}: {size / 2**20:.1f} MiB; there: {folder.name}/gpu-check")
    return 0


def build_programs():
    """Of the preset cuda, those that are bundled."""
    environment = {**os.environ, "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"}
    targets = [Path(name).name for name in cases.PROGRAMS]
    for words in (["cmake", "--preset", "cuda"],
                  ["cmake", "--build", "--preset", "cuda", "--target", *targets]):
        if subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode:
            raise Unfit(f"{' '.join(words)} failed; scripts/setup installs what it needs")
    return ROOT / "build/cuda"


def gather(files, build):
    """Everything, stripped, by its folder."""
    for name in cases.PROGRAMS:
        strip(build / name, files / "build" / name)
    shutil.copytree(ROOT / "bench/peers", files / "peers", ignore=shutil.ignore_patterns("__*"))
    gather_open_mpi(files / "openmpi")
    programs = [path for path in files.rglob("*") if path.is_file()]
    for name, path in place.needs(*programs).items():
        if path and not OF_SYSTEM.match(name) and not place.OF_CUDA.match(name):
            strip(path, files / "lib" / name)


def gather_open_mpi(target):
    said = subprocess.run(["ompi_info", "--parsable", "--path", "all"], capture_output=True,
                          text=True, check=True).stdout
    paths = dict(re.findall(r"^path:(\w+):(.*)$", said, re.MULTILINE))
    for name in ("mpirun", "orted"):
        strip(Path(paths["bindir"], name), target / "bin" / name)
    for plugin in Path(paths["pkglibdir"]).glob("mca_*.so"):
        if not NOT_TAKEN.search(plugin.name):
            strip(plugin, target / "lib" / plugin.name)
    shutil.copytree(paths["pkgdatadir"], target / "share", ignore=shutil.ignore_patterns("amca*"))


def strip(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    # A script stays as it is.
    subprocess.run(["strip", "-s", target], stderr=subprocess.DEVNULL, check=False)


def check_size(folder, files, limit=LIMIT):
    """@param files  what was packed; the largest are named with their size before"""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size <= limit:
        return size
    packed = [path for path in files.rglob("*") if path.is_file()]
    packed.sort(key=lambda path: -path.stat().st_size)
    named = ", ".join(f"{path.relative_to(files)} {path.stat().st_size / 2**20:.3g}"
                      for path in packed[:5])
    raise Unfit(f"{folder}: {size / 2**20:.3g} MiB; valid: at most {limit / 2**20:.3g}; its "
                f"largest parts, in MiB before they were compressed: {named}")
