# SPDX-License-Identifier: Apache-2.0
"""What things are called and which colour they have, in every picture and table.

Work is cool, lost time is warm, and all of them can be told from white and from near-black paper.
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
    "other": "other",
}
PART_COLOURS = {
    "compute_attention": "#2f6db3",
    "compute_dense": "#6ea8dc",
    "compute_other": "#a7c8e8",
    "optimizer": "#3f9c8a",
    "no_core": "#8c3b6b",
    "communication": "#e3a32f",
    "attention_wait": "#d6455d",
    "pipeline_bubble": "#9a6fb8",
    "tensor_parallel_wait": "#b04a1f",
    "data_parallel_wait": "#e9803f",
    "other": "#a3a39c",
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
    "attention dispatch": "#c9962e",
    "attention return": "#8d6a1c",
    "collective": "#7a86c8",
    "point to point": "#c978a8",
}
LABEL_COLOURS = {
    **{PART_NAMES[part]: colour for part, colour in PART_COLOURS.items()},
    **MESSAGE_COLOURS,
}
PHASE_COLOURS = {"forward": "#2f6db3", "backward": "#d6455d", "recompute": "#3f9c8a"}
BUBBLE_COLOURS = {"warm-up": "#c9b3da", "steady": "#9a6fb8", "cool-down": "#6c4590",
                  "ideal 1F1B": "#e9803f"}
MEMORY_COLOURS = {
    "parameters": "#2f6db3",
    "gradients": "#6ea8dc",
    "optimizer": "#3f9c8a",
    "activations": "#d6455d",
    "communication": "#e3a32f",
    "attention": "#9a6fb8",
    "other": "#a3a39c",
}
OTHER_COLOUR, RECORDED_COLOUR = "#a3a39c", "#667085"
RUN_COLOURS = ("#8a94a6", "#b8508f", "#5c9e3f", "#c98a1b", "#3f9c8a", "#9a6fb8")
# Okabe and Ito's: whoever is colour-blind tells them apart, too.
RANK_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442",
                "#222222")
