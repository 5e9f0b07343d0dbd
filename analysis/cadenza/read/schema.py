# SPDX-License-Identifier: Apache-2.0
"""Schema cadenza-trace/1 (docs/trace.md): its tables, and names that the analysis acts upon."""

import numpy as np

SCHEMA = "cadenza-trace/1"

# Categories of events.
COMMUNICATION = ("p2p_send", "p2p_receive", "collective", "attention_dispatch", "attention_return")
MESSAGES = ("p2p_send", "p2p_receive", "attention_dispatch", "attention_return")
# Names of events that a category alone does not tell apart.
PACK = "pack"  # of the rows of attention's messages, right before they are sent
WAIT_FOR_ATTENTION = "wait"  # inputs or results of core attention
WAIT_FOR_STAGE = "wait_for_stage"  # a residual stream from a neighbour in the pipeline
WAIT_FOR_LAYER = "wait_layer"  # the parameters of a layer, from the ranks that have shards of them
GATHER_OF_LAYER = "gather_layer_message"  # what brings them, from the rank's post on
WAIT_FOR_RANKS = "wait_for_ranks"  # the last rank to come to the collective that follows
WAIT_FOR_SENDS = "wait_for_sends"  # own messages, whose memory is needed again
WAIT_FOR_COPY = "wait_for_copy"  # activations from or to host memory
# Of imported runs: a wait ends with the communication that it was for, of a group of a dimension.
WAITS_FOR_GROUPS = {name: f"wait_for_{name}_group"
                    for name in ("data", "pipeline", "tensor", "context")}
HOST_GAP = "host_gap"  # nothing ran, as the process had not launched it (or was at something else)
# Collectives of a tensor group are called inside the operation that needs them, and block it.
TENSOR_COLLECTIVES = ("tensor_all_gather", "tensor_reduce_scatter", "tensor_all_reduce")

# The tables of every rank file; a later writer may add fields to each, and more tables.
_WORDS, _KINDS = "S64", ("<i8", (1,))  # one column per kind of memory
TABLES = {
    "/meta/config_yaml": np.dtype("u1"),
    "/meta/machine_yaml": np.dtype("u1"),
    "/meta/rank": np.dtype(
        [("host", _WORDS), ("rank", "<i4"), ("world", "<i4"), ("local_rank", "<i4"),
         ("role", "<u4"), ("data", "<i4"), ("pipeline", "<i4"), ("tensor", "<i4"),
         ("context", "<i4"), ("server", "<i4"), ("threads", "<i4"), ("device", _WORDS),
         ("peak_flops", "<f8"), ("attention_kernel", _WORDS), ("started_ns", "<i8")]),
    "/meta/strings": np.dtype("S96"),
    "/meta/status": np.dtype(
        [("state", "<u4"), ("signal", "<i4"), ("last_step", "<i8"), ("n_events", "<u8"),
         ("n_dropped", "<u8"), ("writer_ns", "<i8")]),
    "/clock/sync": np.dtype(
        [("time_ns", "<i8"), ("offset_ns", "<i8"), ("rtt_min_ns", "<i8"), ("pings", "<u4"),
         ("phase", "<u4")]),
    "/events": np.dtype(
        [("begin_ns", "<i8"), ("end_ns", "<i8"), ("bytes", "<i8"), ("flops", "<f8"),
         ("enqueued_ns", "<i8"), ("still_ns", "<i8"), ("step", "<u4"), ("peer", "<i4"),
         ("flow", "<u4"), ("microbatch", "<i4"), ("layer", "<i4"), ("tick", "<i4"),
         ("stage", "<i4"), ("half", "<i4"), ("name_id", "<u2"), ("category", "u1"),
         ("phase", "u1"), ("lane", "u1"), ("flags", "u1")]),
    "/memory/samples": np.dtype(
        [("time_ns", "<i8"), ("step", "<u4"), ("bytes", *_KINDS), ("host_rss_bytes", "<i8")]),
    "/memory/highwater": np.dtype(
        [("step", "<u4"), ("peak_bytes", *_KINDS), ("peak_total_bytes", "<i8")]),
    "/steps": np.dtype(
        [("step", "<u4"), ("documents", "<u4"), ("begin_ns", "<i8"), ("end_ns", "<i8"),
         ("tokens", "<i8"), ("sum_length2", "<f8"), ("model_flops", "<f8"),
         ("executed_flops", "<f8"), ("loss", "<f8"), ("gradient_norm", "<f8"),
         ("learning_rate", "<f8"), ("n_events_end", "<u8"), ("bytes_sent", "<i8"),
         ("bytes_received", "<i8"), ("machine_seconds", "<f8"),
         ("dense_attention_flops", "<f8")]),
    "/plan": np.dtype(
        [("step", "<u4"), ("tick", "<i4"), ("document", "<i4"), ("home", "<i4"), ("server", "<i4"),
         ("stage", "<i4"), ("q_begin", "<i8"), ("q_end", "<i8"), ("k_begin", "<i8"),
         ("k_end", "<i8"), ("cost", "<f8"), ("half", "<i4"), ("layer_class", "<i4"),
         ("layers", "<i4")]),
    "/plan_summary": np.dtype(
        [("step", "<u4"), ("tick", "<i4"), ("half", "<i4"), ("phase", "<u4"), ("stage", "<i4"),
         ("server", "<i4"), ("tasks", "<i4"), ("messages_in", "<i4"), ("cost", "<f8"),
         ("bytes_in", "<i8"), ("bytes_out", "<i8"), ("attend_seconds", "<f8"),
         ("receive_seconds", "<f8"), ("layer_class", "<i4"), ("layers", "<i4")]),
    "/positions": np.dtype(
        [("step", "<u4"), ("position", "<i8"), ("targets", "<i8"), ("hits", "<i8"),
         ("loss", "<f8")]),
    "/answers": np.dtype(
        [("step", "<u4"), ("hit", "<u4"), ("length", "<i8"), ("fact", "<i8"),
         ("position", "<i8"), ("loss", "<f8"), ("document", "<i4"), ("question", "<i4")]),
    "/recall": np.dtype(
        [("step", "<u4"), ("layer", "<i4"), ("distance", "<i8"), ("kept", "<f8"),
         ("attention", "<f8"), ("keys", "<i8"), ("unseen", "<i8")]),
}
# Fields whose numbers have names, which the file says.
CODES = {
    "/events": ("category", "phase", "lane", "flags"), "/plan_summary": ("phase",),
    "/clock/sync": ("phase",), "/meta/rank": ("role",), "/meta/status": ("state",),
}
# What the rows of a table promise.
TIMES = {"/meta/rank": ("started_ns",),
         "/events": ("begin_ns", "end_ns"), "/steps": ("begin_ns", "end_ns"),
         "/clock/sync": ("time_ns", "offset_ns", "rtt_min_ns"),
         "/memory/samples": ("time_ns",)}
_COUNT, _AMOUNT = (-1, 2**56), (-1.0, 1e30)  # sums of them are no overflow; -1: does not apply
RANGES = {
    "/meta/rank": {"peak_flops": _AMOUNT},
    "/events": {"flops": _AMOUNT, "bytes": _COUNT, "still_ns": _COUNT},
    "/memory/samples": {"bytes": _COUNT, "host_rss_bytes": _COUNT},
    "/memory/highwater": {"peak_bytes": _COUNT, "peak_total_bytes": _COUNT},
    "/steps": {"tokens": _COUNT, "bytes_sent": _COUNT, "bytes_received": _COUNT,
               **dict.fromkeys(("sum_length2", "model_flops", "executed_flops", "machine_seconds",
                                "dense_attention_flops"), _AMOUNT)},
    "/plan": {"cost": _AMOUNT},
    "/plan_summary": {"cost": _AMOUNT, "attend_seconds": _AMOUNT, "receive_seconds": _AMOUNT,
                      "bytes_in": _COUNT, "bytes_out": _COUNT},
    "/positions": {"targets": _COUNT, "hits": _COUNT},
    "/answers": {"length": (1, 2**56), "fact": _COUNT, "position": _COUNT},
    "/recall": {"kept": _AMOUNT, "attention": _AMOUNT, "keys": _COUNT, "unseen": _COUNT},
}
ONE_PER_STEP = ("/steps", "/memory/highwater")
SETS = ("flags",)  # codes of which a number may have several, as bits
