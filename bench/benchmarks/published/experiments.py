# SPDX-License-Identifier: Apache-2.0
"""The experiment of a published step, or why there is none."""

import yaml

from benchmarks.published.rows import Row
from lib.host import ROOT

# How Transformer Engine, on which Megatron and NeMo build, exchanges keys by default.
_CONTEXT = "zigzag"
_SHARDS = {"full": "parameters"}  # else the same word


def obstacle(row: Row) -> str:
    """What no experiment can say of this step; "" if there is nothing."""
    if not row.layers:
        return "one attention operation, no step"
    if not (ROOT / _machine(row)).is_file():
        return f"no machine file for {row.gpu}"
    return ""


def stand_in(row: Row) -> str:
    """In what the experiment differs from the step in memory more than in time; "" if in nothing.

    Slicing without sequence parallelism moves the same bytes, but every rank keeps all rows."""
    return "tensor parallelism without sequence parallelism" if row.sp is False else ""


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
    """The stack that comes nearest to that of the source."""
    stack = "torchtitan" if row.shard == "full" else "megatron"
    return {"file": stack, "sequence_parallel": row.sp is not False}


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
