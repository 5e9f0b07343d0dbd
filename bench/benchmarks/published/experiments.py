# SPDX-License-Identifier: Apache-2.0
"""The experiment of a published step, or why there is none."""

import yaml

from benchmarks.published.rows import Row
from lib.host import ROOT

# How Transformer Engine, on which Megatron and NeMo build, exchanges keys by default.
_CONTEXT = "zigzag"
_SHARDS = {"full": "parameters"}  # else the same word

# Rates of passes over memory outside products, as in inputs/software/torchtitan.yaml.
_UNFUSED_LOSS = {"loss_rate": 0.25}
_UNFUSED = {"element_wise_rate": 0.25, **_UNFUSED_LOSS}
_FITTED = ("a100", "h100", "h200")  # processors with steps that the stacks' numbers were fitted to
_IN_TURNS = {"file": "megatron", "overlaps_tensor": False}

# The stack of a class and group, whose names begin so. Others are found by their layout.
_STACKS = [
    # Megatron-LM fuses its loss only where a flag asks for it.
    ("A1", "Megatron README", {"file": "megatron", **_UNFUSED_LOSS}),
    ("A3", "", {"file": "aleph-alpha"}),
    # Sums and gathers of ZeRO stage 1 over all ranks, seen whole.
    ("A4", "InternEvo", _IN_TURNS | {"overlaps_gradients": False, "overlaps_gathers": False,
                                     "gradients": "sums"}),
    ("A4", "VocabularyParallelism", _IN_TURNS | _UNFUSED_LOSS),
    ("B", "LLM-foundry", {"file": "llm-foundry"}),
    # Arctic's long sequences: FlashAttention-3, fused kernels, logits in pieces.
    ("B", "stas", {"file": "torchtitan", "attention": "fastest", "element_wise_rate": 1.0,
                   "loss_rate": 1.0, "kept": {"logits": 0}}),
    ("C", "nanotron", _IN_TURNS | _UNFUSED | {"attention": "table", "layer_seconds": 1e-3}),
]


def obstacle(row: Row) -> str:
    """What no experiment can say of this step; "" if there is nothing."""
    if not row.layers:
        return "one attention operation, no step"
    if not (ROOT / _machine(row)).is_file():
        return f"no machine file for {row.gpu}"
    return ""


def experiment(row: Row) -> dict:
    """For `cadenza simulate`; the row has no obstacle()."""
    return {
        "name": row.id,
        "model": {"layers": row.layers, "d_model": row.d_model, "heads": row.heads,
                  "kv_heads": row.kv, "ffn": row.ffn, "vocab": row.vocab,
                  "tie_embeddings": bool(row.tied)},
        "data": {"source": "synthetic", "documents": row.gbs,
                 "lengths": {"distribution": "constant", "median": row.seq}},
        "batch": {"tokens": row.gbs * row.seq, "microbatch": row.mbs * row.seq},
        "parallel": {"data": row.dp, "tensor": row.tp, "pipeline": row.pp, "context": row.cp,
                     "schedule": "interleaved" if row.vp > 1 else "1f1b",
                     "chunks": row.vp, "shard": _SHARDS.get(row.shard, row.shard)},
        "attention": {"placement": _CONTEXT if row.cp > 1 else "colocated"},
        "run": {"dtype": "bfloat16", "recompute": row.recompute},
        "cluster": {"machine": _machine(row), "bandwidth": _bandwidth(row),
                    "software": _software(row)},
    }


def _software(row: Row) -> dict:
    """The stack of the source, with what its own row or its group says otherwise."""
    software = {"sequence_parallel": row.sp is not False, **_stack(row)}
    if row.id.endswith("-norms"):  # in steps that also keep what the gains multiply
        software |= _UNFUSED | {"kept": {"width": 10}}
    return software


def _stack(row: Row) -> dict:
    for section, group, stack in _STACKS:
        if row.section.startswith(section) and row.group.startswith(group):
            return dict(stack)
    if row.shard == "full":
        return {"file": "torchtitan"}
    if row.gpu not in _FITTED:
        return {"file": "cadenza"}
    # tp_comm_overlap is used on H100.
    return dict(_IN_TURNS) if row.gpu == "a100" else {"file": "megatron"}


def _bandwidth(row: Row) -> float:
    """Of the network, over that of the machine file."""
    if not row.network:
        return 1.0
    machine = yaml.safe_load((ROOT / _machine(row)).read_text(encoding="utf-8"))
    if "sheet" in machine:
        rate = machine["sheet"]["network_bytes_per_second"]
    else:
        rate = machine["links"]["between"]["bytes_per_second"]
    return row.network * 1e9 / 8 / rate


def _machine(row: Row) -> str:
    return f"inputs/machines/{row.gpu}.yaml"
