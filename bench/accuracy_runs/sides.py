# SPDX-License-Identifier: Apache-2.0
"""The two that are measured: cadenza attend, from file to file, and PyTorch's flash attention."""

import os
import subprocess
from pathlib import Path

import h5py
import torch

RESULTS = ("out", "lse", "dq", "dk", "dv")
FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def pytorch(inputs):
    """The operator behind scaled_dot_product_attention, which also says its lse; q, k, v, dout as
    [tokens, head_dim]."""
    q, k, v, dout = (inputs[name][None, None] for name in ("q", "k", "v", "dout"))
    out, lse = FLASH(q, k, v, 0.0, True)
    gradients = FLASH_BACKWARD(dout, q, k, v, out, lse, 0.0, True)
    return {name: value[0, 0].double() for name, value in zip(RESULTS, (out, lse, *gradients))}


def cadenza(inputs, dtype, options):
    """The same from the program, on options.ranks ranks."""
    folder = Path(options.folder)
    tokens, head_dim = inputs["q"].shape
    with h5py.File(folder / "input.h5", "w") as file:
        for name, rows in inputs.items():
            file[name] = rows.float().numpy().reshape(tokens, 1, head_dim)
        file["document_lengths"] = [tokens]
    axis = "data" if options.placement in ("cad", "colocated") else "context"
    experiment = folder / "experiment.yaml"
    experiment.write_text(
        "name: accuracy\n"
        "model: {layers: 1, d_model: 64, heads: 1, kv_heads: 1, ffn: 64, vocab: 256}\n"
        "data: {source: synthetic}\n"
        f"batch: {{tokens: {128 * options.ranks}, microbatch: 128}}\n"
        f"parallel: {{{axis}: {options.ranks}}}\n"
        f"attention: {{placement: {options.placement}}}\n"
        f"run: {{steps: 1, dtype: {dtype}}}\n"
        "optimizer: {lr: 1.0e-3, warmup: 1}\n", encoding="utf-8")
    words = [str(options.program), "attend", str(experiment), "--input", str(folder / "input.h5"),
             "--output", str(folder / "output.h5")]
    if options.ranks > 1:
        words = ["mpirun", "-n", str(options.ranks), *words]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
    with h5py.File(folder / "output.h5", "r") as file:
        return {name: torch.from_numpy(file[name][...]).double().reshape(tokens, -1).squeeze(1)
                for name in RESULTS}
