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
FLAG_NON_BLOCKING = 4
STATUS_CLEAN = 1
