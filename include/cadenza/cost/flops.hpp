// SPDX-License-Identifier: Apache-2.0
// Floating-point operations of a model from its shape: what traces, plans and predictions state.
// A multiply and an add are two. And how its products are cut, as far as others must know.
#pragma once

#include <cstdint>
#include <span>

#include "cadenza/base/task.hpp"
#include "cadenza/config/experiment.hpp"

namespace cadenza::cost {

/// Matrix products of one layer before and after its core attention, or of the head, on one of
/// `tensor` ranks, forward, for `rows` tokens of a microbatch; backward takes twice as many.
double attention_inputs_flops(const config::Model& model, std::int64_t tensor, std::int64_t rows);
double attention_outputs_flops(const config::Model& model, std::int64_t tensor, std::int64_t rows);
double head_flops(const config::Model& model, std::int64_t tensor, std::int64_t rows);

/// Elements of the matrices of one layer.
std::int64_t layer_parameters(const config::Model& model);

/// Length in tokens at which causal attention of a document costs as many FLOPs as all matrix
/// products. Packing weighs a document of d tokens with d * d / break_even + d.
double break_even(const config::Model& model);

/// Rows whose logits are made at a time, for a microbatch of `rows` and a rank's share of the
/// vocabulary: the whole [rows, vocab] is never held. On a host a chunk stays in its caches; on a
/// device it is as large as makes products and launches efficient (1 GiB of float32).
std::int64_t logit_rows(std::int64_t vocab, std::int64_t rows, config::DeviceKind device);

/// What a training step over documents of these lengths asks for, nothing counted twice: 3 x the
/// forward pass, dense and attention (4 * head_dim * heads per pair that the mask allows, in every
/// layer). The
/// numerator of model-FLOPs utilization.
double model_flops(const config::Model& model, const Mask& mask,
                   std::span<const std::int64_t> lengths);

/// What it executes without recomputation: 3 x dense forward + 3.5 x attention forward, whose
/// backward pass makes the scores again.
double step_flops(const config::Model& model, const Mask& mask,
                  std::span<const std::int64_t> lengths);

/// What of that is core attention, with the forward passes that are recomputed: of all pairs that
/// the mask allows, however many of them sparse attention leaves out.
double attention_flops(const config::Model& model, const Mask& mask,
                       std::span<const std::int64_t> lengths, config::Recompute recompute);

// What an attention kernel goes through: tiles.

/// For one head of a task.
struct Tiles {
  std::int64_t queries = 0;  ///< tiles of queries that see a key
  std::int64_t keys = 0;     ///< tiles of keys seen, over all of them; a part of one is one
};

/// Tiles of `tile` queries and keys, counted from the task's first query and key. Constant time.
Tiles count_tiles(const Task& task, std::int64_t tile);

/// Seconds are proportional to this where a tile of queries costs `overhead` tiles of keys before
/// it sees any.
double tile_weight(const Task& task, std::int64_t tile, double overhead);

}  // namespace cadenza::cost
