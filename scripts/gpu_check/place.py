# SPDX-License-Identifier: Apache-2.0
"""Where the programs are and what they need: a bundle, or the folder of a build."""

import contextlib
import glob
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from . import cases

FILES, ABOUT = "files.tar.xz", "about.json"  # of a bundle
# Not in a bundle: cuBLAS alone is ten times its size.
OF_CUDA = re.compile(r"lib(cuda|cublas|cublasLt|nccl|nvrtc.*|cudart)\.so")


class Unfit(Exception):
    """There is nothing that could be run or bundled, or too much."""


def cuda_folders():
    """Those of a toolkit and a driver, and of the packages beside this python's PyTorch."""
    found = [path for place in ("/usr/local/cuda*/lib64", "/usr/local/cuda*/lib",
                                "/usr/local/nvidia/lib64", *(f"{folder}/nvidia/*/lib"
                                                             for folder in sys.path if folder))
             for path in sorted(glob.glob(place), reverse=True)]
    return [path for path in found if any(map(OF_CUDA.match, os.listdir(path)))]


def needs(*programs, environment=None):
    """What ldd says: {library: path, or None where it is not found}."""
    out = subprocess.run(["ldd", *programs], capture_output=True, text=True, env=environment,
                         check=False).stdout
    rows = re.findall(r"^\s+(\S+) => (\S+)", out, re.MULTILINE)
    return {name: None if path == "not" else path for name, path in rows}


class Place:
    """@param about  the revision, and the losses that the host computes in float64"""

    def __init__(self, build, peers, about, files=None):
        self.build, self.peers, self.about = build, peers, about
        self.environment = environment(files)
        self.on_device = any(name.startswith("libcuda.so")
                             for name in needs(build / cases.PROGRAM, environment=self.environment))

    @staticmethod
    @contextlib.contextmanager
    def find(here, build):
        """`here`: the folder of gpu-check, in a bundle or in the sources."""
        if build is None and (here / FILES).is_file():
            with tempfile.TemporaryDirectory() as scratch, tarfile.open(here / FILES) as archive:
                archive.extractall(scratch)
                files = Path(scratch)
                about = json.loads((files / ABOUT).read_text())
                yield Place(files / "build", files / "peers", about, files)
            return
        root = here.parent
        build = (build or root / "build/cuda").resolve()
        if not (build / cases.PROGRAM).is_file():
            raise Unfit(f"{build / cases.PROGRAM}: there is no such program; build it, or name a "
                        "build's folder with --build")
        yield Place(build, root / "bench/peers", describe(root))

    def program(self, name):
        return self.build / name


def environment(files=None):
    """For our programs; those of others get the machine's own. `files`: of a bundle."""
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
           "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp",
           "OMPI_MCA_btl_vader_single_copy_mechanism": "none",  # which containers forbid
           "PMIX_MCA_pcompress_base_silence_warning": "1",
           "OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false"}
    libraries = cuda_folders()
    if files:
        mpi = files / "openmpi"
        libraries.insert(0, str(files / "lib"))
        env.update(OPAL_PREFIX=str(mpi), OPAL_BINDIR=str(mpi / "bin"), OPAL_LIBDIR=str(mpi / "lib"),
                   OPAL_PKGLIBDIR=str(mpi / "lib"), OPAL_PKGDATADIR=str(mpi / "share"),
                   OPAL_SYSCONFDIR=str(mpi), OMPI_MCA_plm="isolated",
                   PATH=f"{mpi / 'bin'}:{env['PATH']}")
    env["LD_LIBRARY_PATH"] = ":".join(filter(None, [*libraries, env.get("LD_LIBRARY_PATH")]))
    return env


def describe(root):
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True,
                         text=True, check=False)
    host = Path(os.environ.get("CADENZA") or root / "build/release/cadenza").resolve()
    return {"revision": git.stdout.strip(), "losses": host_losses(host)}


def host_losses(program):
    """None where there is no such program."""
    if not program.is_file():
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "losses.yaml")
        path.write_text(cases.LOSSES)
        words = [program, "train", path, "--quiet", "--set", "run.dtype=float64", "--output",
                 Path(folder, "run")]
        if subprocess.run(words, env=environment(), stdout=subprocess.DEVNULL,
                          check=False).returncode:
            raise Unfit(f"{program} did not compute the losses to be met")
        return losses(Path(folder, "run"))


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses(run):
    return [row["loss"] for row in metrics(run)]
