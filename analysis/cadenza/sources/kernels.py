# SPDX-License-Identifier: Apache-2.0
"""What a device computes, by the names of its kernels.

The first pattern that occurs in a name tells its class. A new kernel is a word in PATTERNS.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from cadenza.sources.neutral import ATTENTION, COPY, DENSE, HOST, OPTIMIZER, OTHER

COMMUNICATION = "communication"  # of a kernel: what it moves, its launch tells
LONGEST_NAME = 600  # letters of a name in which patterns are looked for

# class, words of which one occurs in the name: regular expressions in lower case
PATTERNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (COMMUNICATION, (
        "^nccl", "^rccl", "nccldevkernel", "ncclkernel", "nvshmem", "deep_ep::",
        "^msccl", "mscclpp", "cross_device_reduce", "multimem_", "symm_mem",
        "userbuffers_", "all_?reduce_(one|two)_?(shot|stage)",
    )),
    (COPY, ("^memcpy", "^memset", "^copy(buffer|host)", "^fillbuffer")),
    # before products, whose words occur in names of attention, too
    (ATTENTION, (
        "flash_?_?(fwd|bwd)", "flash::", "flash_?attn", "flash_?attention", "flashfwd", "flashbwd",
        "flashmla", "flash_mla", "flashinfer", "fmha", "_attn_(fwd|bwd)", "^attn_(fwd|bwd)",
        "attention", "_sdpa", "sdpa_", "ffa_(fwd|bwd)", "flexible_flash", "flex_attn", "magi_attn",
        "batch(prefill|decode)with", "paged_?attn", "aiter.*(fwd|bwd)_hd", "ck_tile.*fmha",
        "attn_(fwd|bwd)", "ring_attn", "mqa_logits", "lightning_indexer", "^sage_(fwd|bwd)",
        "sage_?attn",
    )),
    (OPTIMIZER, (
        "multi_?tensor_?apply", "multi_tensor", "adamw?_", "fused_?adam", "adam_?functor",
        "adamw?math", "lamb_?stage", "sgd_?momentum", "foreach_(add|mul|addcdiv|addcmul|lerp|sqrt)",
        "newton_?schulz", "adafactor",
    )),
    (DENSE, (
        "gemm", "gemv", "cutlass", "nvjet", "^cijk_", "cublas", "hipblaslt", "splitkreduce",
        "matmul", "convolution", "implicit_", "winograd", "fprop", "dgrad", "wgrad", "scudnn",
        "cudnn.*conv", "miopen.*conv", "igemm", "wmma", "_mma_", "xmma", "dot_kernel",
        "triton_tem_.*(mm|conv)", "triton_.*_mm(_|$)", "triton_mm", "grouped_mm", "^mm_kernel",
        "_bmm_", "^bmm_", "marlin", "conv(1d|2d|3d|_depthwise)", "im2col", "col2im",
    )),
    # what is known to be none of them
    (OTHER, (
        "at::native", "at::cuda", "^triton_", "c10::", "cub::", "thrust::", "rocprim", "hipcub",
        "elementwise", "softmax", "layer_?norm", "rms_?norm", "batch_?norm", "cudnn::(bn|ops)",
        "dropout", "rope", "rotary", "swiglu", "gelu", "silu", "embedding", "cross_entropy",
        "permute", "transpose", "reduce_kernel", "cast_", "quant", "topk", "moe(_|::)", "routing",
        "unpermute", "vectorized", "amax", "fill_kernel", "scan_kernel", "index_", "gather",
        "scatter", "pool", "transformer_engine::", "catarray", "nchwtonhwc", "nhwctonchw",
        "normalization", "subtensorop", "reshape_and_cache",
    )),
)

_PATTERNS = tuple((kind, re.compile("|".join(words))) for kind, words in PATTERNS)


def class_of(name: str) -> str:
    """Its class, or "" if no pattern occurs in it."""
    name = name[:LONGEST_NAME].lower()
    return next((kind for kind, words in _PATTERNS if words.search(name)), "")


def unknown(events: pd.DataFrame, most: int = 20) -> pd.Series:
    """By name, the ns that a device spent with kernels that no pattern knows, the most first.

    @param events rows of the neutral columns
    """
    on_host = [stream for stream in events["stream"].cat.categories if stream.startswith(HOST)]
    rows = events[(events["kind"] == OTHER) & ~events["stream"].isin(on_host)]
    spent = (rows["end_ns"] - rows["begin_ns"]).groupby(rows["name"], observed=True).sum()
    known = np.array([class_of(name) != "" for name in spent.index], bool)
    return spent[~known].sort_values(ascending=False).head(most)
