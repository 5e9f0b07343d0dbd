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
WAIT_FOR_RANKS = "wait_for_ranks"  # the last rank to come to the collective that follows
WAIT_FOR_SENDS = "wait_for_sends"  # own messages, whose memory is needed again
# Collectives of a tensor group are called inside the operation that needs them, and block it.
TENSOR_COLLECTIVES = ("tensor_all_gather", "tensor_reduce_scatter", "tensor_all_reduce")

# The tables of a rank file; a writer may add fields at the end of each.
_WORDS, _KINDS = "S64", ("<i8", (1,))  # one column per kind of memory
TABLES = {
    "/meta/config_yaml": np.dtype("u1"),
    "/meta/machine_yaml": np.dtype("u1"),
    "/meta/rank": np.dtype(
        [("host", _WORDS), ("rank", "<i4"), ("world", "<i4"), ("local_rank", "<i4"),
         ("role", "<u4"), ("data", "<i4"), ("pipeline", "<i4"), ("tensor", "<i4"),
         ("context", "<i4"), ("server", "<i4"), ("threads", "<i4"), ("device", _WORDS),
         ("peak_flops", "<f8"), ("attention_kernel", _WORDS)]),
    "/meta/strings": np.dtype("S96"),
    "/meta/status": np.dtype(
        [("state", "<u4"), ("signal", "<i4"), ("last_step", "<i8"), ("n_events", "<u8"),
         ("n_dropped", "<u8"), ("writer_ns", "<i8")]),
    "/clock/sync": np.dtype(
        [("t_local_ns", "<i8"), ("offset_ns", "<i8"), ("rtt_min_ns", "<i8"), ("n_ping", "<u4"),
         ("phase", "<u4")]),
    "/events": np.dtype(
        [("t_begin_ns", "<i8"), ("t_end_ns", "<i8"), ("bytes", "<i8"), ("flops", "<f8"),
         ("t_enq_ns", "<i8"), ("step", "<u4"), ("peer", "<i4"), ("flow", "<u4"),
         ("name_id", "<u2"), ("mb", "<i2"), ("layer", "<i2"), ("doc", "<i2"), ("cat", "u1"),
         ("phase", "u1"), ("lane", "u1"), ("flags", "u1"), ("tick", "<i4"), ("stage", "<i2"),
         ("half", "i1"), ("still_ns", "<i8")]),
    "/memory/samples": np.dtype(
        [("t_ns", "<i8"), ("step", "<u4"), ("bytes", *_KINDS), ("host_rss", "<i8")]),
    "/memory/highwater": np.dtype([("step", "<u4"), ("peak", *_KINDS), ("peak_total", "<i8")]),
    "/steps": np.dtype(
        [("step", "<u4"), ("docs", "<u4"), ("t_begin", "<i8"), ("t_end", "<i8"),
         ("tokens", "<i8"), ("sum_len2", "<f8"), ("model_flops", "<f8"),
         ("executed_flops", "<f8"), ("loss", "<f8"), ("grad_norm", "<f8"), ("lr", "<f8"),
         ("n_events_end", "<u8"), ("bytes_sent", "<i8"), ("bytes_recv", "<i8"),
         ("machine_s", "<f8"), ("dense_attention_flops", "<f8")]),
    "/plan": np.dtype(
        [("step", "<u4"), ("tick", "<i4"), ("doc", "<i4"), ("home", "<i4"), ("server", "<i4"),
         ("stage", "<i4"), ("q_begin", "<i8"), ("q_end", "<i8"), ("k_begin", "<i8"),
         ("k_end", "<i8"), ("cost", "<f8"), ("half", "<i4"), ("layer_class", "<i4"),
         ("layers", "<i4")]),
    "/plan_summary": np.dtype(
        [("step", "<u4"), ("tick", "<i4"), ("half", "<i4"), ("phase", "<u4"), ("stage", "<i4"),
         ("server", "<i4"), ("tasks", "<i4"), ("messages_in", "<i4"), ("cost", "<f8"),
         ("bytes_in", "<i8"), ("bytes_out", "<i8"), ("attend_s", "<f8"), ("receive_s", "<f8"),
         ("layer_class", "<i4"), ("layers", "<i4")]),
    "/positions": np.dtype(
        [("step", "<u4"), ("position", "<i8"), ("targets", "<i8"), ("hits", "<i8"),
         ("loss", "<f8")]),
    "/answers": np.dtype(
        [("step", "<u4"), ("hit", "<u4"), ("length", "<i8"), ("fact", "<i8"),
         ("position", "<i8"), ("loss", "<f8")]),
}  # fmt: skip
REQUIRED = ("/meta/rank", "/steps", "/events")  # what a file that is worth reading has
SINCE_LATER = {"/events": ("tick", "half", "stage", "still_ns"),
               "/plan": ("half", "layer_class", "layers"),
               "/plan_summary": ("layer_class", "layers"),
               "/steps": ("machine_s", "dense_attention_flops"),
               "/meta/rank": ("attention_kernel",)}  # older files lack these  # fmt: skip
# What the rows of a table promise.
TIMES = {"/events": ("t_begin_ns", "t_end_ns"), "/steps": ("t_begin", "t_end"),
         "/clock/sync": ("t_local_ns", "offset_ns", "rtt_min_ns"),
         "/memory/samples": ("t_ns",)}  # fmt: skip
_COUNT, _AMOUNT = (-1, 2**56), (-1.0, 1e30)  # sums of them are no overflow; -1: does not apply
RANGES = {
    "/meta/rank": {"peak_flops": _AMOUNT},
    "/events": {"flops": _AMOUNT, "bytes": _COUNT, "still_ns": _COUNT},
    "/memory/samples": {"bytes": _COUNT, "host_rss": _COUNT},
    "/memory/highwater": {"peak": _COUNT, "peak_total": _COUNT},
    "/steps": {"tokens": _COUNT, "bytes_sent": _COUNT, "bytes_recv": _COUNT,
               **dict.fromkeys(("sum_len2", "model_flops", "executed_flops", "machine_s",
                                "dense_attention_flops"), _AMOUNT)},
    "/plan": {"cost": _AMOUNT},
    "/plan_summary": {"cost": _AMOUNT, "attend_s": _AMOUNT, "receive_s": _AMOUNT,
                      "bytes_in": _COUNT, "bytes_out": _COUNT},
    "/positions": {"targets": _COUNT, "hits": _COUNT},
    "/answers": {"length": (1, 2**56), "fact": _COUNT, "position": _COUNT},
}  # fmt: skip
ONE_PER_STEP = ("/steps", "/memory/highwater")
SETS = ("flags",)  # codes of which a number may have several, as bits
