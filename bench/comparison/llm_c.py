# SPDX-License-Identifier: Apache-2.0
"""Builds bench/peers/llm_c_step.c around a checkout of llm.c (github.com/karpathy/llm.c)."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "peers/llm_c_step.c"
# What its own Makefile compiles the trainer with.
OPTIONS = ["-Ofast", "-march=native", "-fopenmp", "-DOMP", "-w"]


def build(checkout, folder):
    """The program, made from the checkout's train_gpt2.c and our few lines around it."""
    checkout = Path(checkout)
    if not (checkout / "train_gpt2.c").is_file():
        raise SystemExit(f"compare: --llm-c {checkout}: no train_gpt2.c in this folder")
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "llm_c_step"
    words = ["gcc", *OPTIONS, f"-I{checkout.resolve()}", str(SOURCE), "-o", str(program), "-lm"]
    subprocess.run(words, check=True)
    return program
