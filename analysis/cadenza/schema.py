# SPDX-License-Identifier: Apache-2.0
"""The names behind the numbers of schema cadenza-trace/1 (docs/trace.md)."""

SCHEMA = "cadenza-trace/1"

CATEGORIES = (
    "step",
    "compute_dense",
    "compute_attention",
    "compute_other",
    "p2p_send",
    "p2p_receive",
    "collective",
    "attention_dispatch",
    "attention_return",
    "wait",
    "data",
    "optimizer",
    "checkpoint",
    "host",
    "plan",
    "trace_overhead",
)
COMMUNICATION = ("p2p_send", "p2p_receive", "collective", "attention_dispatch", "attention_return")
MESSAGES = ("p2p_send", "p2p_receive", "attention_dispatch", "attention_return")
PHASES = ("forward", "backward", "recompute", "optimizer", "other")
LANES = {"compute": 0, "compute2": 1, "communication": 2, "host": 15}
ROLES = ("trainer", "attention_server", "both")
MEMORY_KINDS = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "communication",
    "attention",
    "other",
)
FLAG_SIMULATED, FLAG_NON_BLOCKING, FLAG_SENDS = 2, 4, 8
STATUS_CLEAN, STATUS_SIGNALLED, STATUS_FAILED = 1, 2, 3

# Names of events that a category alone does not tell apart.
PACK = "pack"  # of the rows of attention's messages, right before they are sent
WAIT_FOR_ATTENTION = "wait"  # inputs or results of core attention
WAIT_FOR_STAGE = "wait_for_stage"  # a residual stream from a neighbour in the pipeline
WAIT_FOR_RANKS = "wait_for_ranks"  # the last rank to come to the collective that follows
WAIT_FOR_SENDS = "wait_for_sends"  # own messages, whose memory is needed again
# Collectives of a tensor group are called inside the operation that needs them, and block it.
TENSOR_COLLECTIVES = ("tensor_all_gather", "tensor_reduce_scatter", "tensor_all_reduce")
