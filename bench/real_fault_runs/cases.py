# SPDX-License-Identifier: Apache-2.0
"""Layouts of two ranks, and the faults that are planted in one of them."""

import sysconfig

RANKS = 2
STEPS = 10
LIBRARY = sysconfig.get_paths()["stdlib"]
COMMON = [f"data.path=['{LIBRARY}/*.py', '{LIBRARY}/*/*.py']", "attention.placement=colocated",
          "batch.tokens=4096", "batch.microbatch=1024", f"run.steps={STEPS}"]
LAYOUTS = {
    "data": [],
    "tensor": ["parallel.data=1", "parallel.tensor=2"],
    "pipeline": ["parallel.data=1", "parallel.pipeline=2"],
    "cad": ["attention.placement=cad", "attention.tolerance=0.1", "attention.overlap=none"],
    # Not plain ring, whose second rank has more to attend: it would be late by that, too.
    "zigzag": ["parallel.data=1", "parallel.context=2", "attention.placement=zigzag"],
}
KINDS = {
    "pause": "the rank is stopped (SIGSTOP) once, for 0.4 s, at a random moment",
    "slow": "the rank is stopped for 10 ms of every 20 ms, in all of the run",
    "late data": "every read of the rank's documents takes 20 ms longer (strace)",
}


def settings(layout, seed):
    return [*COMMON, *LAYOUTS[layout], f"seed={seed + 1}"]
