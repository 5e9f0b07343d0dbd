# SPDX-License-Identifier: Apache-2.0
"""What things are called and which colour they have, in every picture and table.

Work is cool, lost time is warm, and all of them can be told from white and from near-black paper,
and from one another by colour-blind readers: tests/test_colours.py measures it.
"""

from __future__ import annotations

PART_NAMES = {
    "compute_attention": "core attention",
    "compute_dense": "dense",
    "compute_other": "other compute",
    "optimizer": "optimizer",
    "no_core": "no core",
    "communication": "communication",
    "attention_wait": "attention wait",
    "pipeline_bubble": "pipeline bubble",
    "tensor_parallel_wait": "tensor-parallel wait",
    "data_parallel_wait": "data-parallel wait",
    "host_gap": "host gap",
    "other": "other",
}
PART_COLOURS = {
    "compute_attention": "#1157bf",
    "compute_dense": "#70c0ff",
    "compute_other": "#b0d7f1",
    "optimizer": "#2d8d6a",
    "no_core": "#84436d",
    "communication": "#f3c68a",
    "attention_wait": "#bc2c44",
    "pipeline_bubble": "#6c4b94",
    "tensor_parallel_wait": "#944304",
    "data_parallel_wait": "#c78853",
    "host_gap": "#442200",
    "other": "#97a8ab",
}
# Messages under way, by categories of events.
MESSAGE_NAMES = {
    "attention_dispatch": "attention dispatch",
    "attention_return": "attention return",
    "collective": "collective",
    "p2p_send": "point to point",
    "p2p_receive": "point to point",
}
MESSAGE_COLOURS = {
    "attention dispatch": "#c6ca50",
    "attention return": "#929100",
    "collective": "#7a8dff",
    "point to point": "#b57abc",
}
LABEL_COLOURS = {
    **{PART_NAMES[part]: colour for part, colour in PART_COLOURS.items()},
    **MESSAGE_COLOURS,
}
PHASE_COLOURS = {"forward": "#1157bf", "backward": "#bc2c44", "recompute": "#2d8d6a"}
BUBBLE_COLOURS = {"warm-up": "#c9b3da", "steady": "#9a6fb8", "cool-down": "#6c4590",
                  "ideal 1F1B": "#e9803f"}
MEMORY_COLOURS = {
    "parameters": "#1157bf",
    "gradients": "#70c0ff",
    "optimizer": "#2d8d6a",
    "activations": "#bc2c44",
    "communication": "#f3c68a",
    "attention": "#6c4b94",
    "other": "#97a8ab",
}
OTHER_COLOUR, RECORDED_COLOUR = PART_COLOURS["other"], "#667085"
RUN_COLOURS = ("#8a94a6", "#84436d", "#929100", "#c78853", "#2d8d6a", "#7a8dff")
# Okabe and Ito's: whoever is colour-blind tells them apart, too.
RANK_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442",
                "#222222")
