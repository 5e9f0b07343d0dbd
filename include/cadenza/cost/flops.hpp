// SPDX-License-Identifier: Apache-2.0
// Floating-point operations of a model from its shape, for traces, plans and predictions; a
// multiply and an add are two. Also the chunks of logits and the tiles of attention kernels.
#pragma once

#include <cstdint>
#include <span>

#include "cadenza/base/task.hpp"
#include "cadenza/config/experiment.hpp"

namespace cadenza::cost {

/// Forward FLOPs of the matrix products of a layer before and after its core attention, and of the
/// head, on one of `tensor` ranks, for `rows` tokens of a microbatch. Backward takes twice as many.
double attention_inputs_flops(const config::Model& model, std::int64_t tensor, std::int64_t rows);
double attention_outputs_flops(const config::Model& model, std::int64_t tensor, std::int64_t rows);
double head_flops(const config::Model& model, std::int64_t tensor, std::int64_t rows);

/// Number of elements of the matrices of one layer.
std::int64_t layer_parameters(const config::Model& model);

/// Length in tokens at which causal attention of a document costs as many FLOPs as all matrix
/// products.
double break_even(const config::Model& model);
/// batch.break_even or, where that is 0, the model's.
double break_even(const config::Experiment& experiment);

/// What whole documents cost in the mean layer: layers may have other masks (attention.layers).
class DocumentCost {
 public:
  DocumentCost() = default;  ///< causal attention, as long as break_even is 1 token
  explicit DocumentCost(const config::Experiment& experiment);

  /// Pairs that the masks allow.
  double pairs(std::int64_t length) const;
  /// Attention and products, by which documents are shared out; in tokens of products: length + (2
  /// pairs - length) / break_even, with causal attention length + length^2 / break_even.
  double operator()(std::int64_t length) const;

  double break_even = 1;  ///< tokens
  Mask mask = {};         ///< of layers of attention.kind
  double full = 0;        ///< share of the layers that have full attention instead
};

/// Number of rows whose logits are computed at a time, for a microbatch of `rows` and a rank's
/// share of the vocabulary, so that [rows, vocab] is never held whole. On a host a chunk fits its
/// caches; on a device it makes products and launches efficient (1 GiB of float32).
std::int64_t logit_rows(std::int64_t vocab, std::int64_t rows, config::DeviceKind device);

/// Model FLOPs of a training step over documents of these lengths, the numerator of model-FLOPs
/// utilization: 3 x the forward pass, dense and attention (4 * head_dim * heads per pair that a
/// layer's mask allows).
/// @param evaluates  the forward pass alone
double model_flops(const config::Model& model, const config::Attention& attention,
                   std::span<const std::int64_t> lengths, bool evaluates = false);

/// FLOPs that a step executes without recomputation: 3 x dense forward + 3.5 x attention forward,
/// as the backward pass of attention computes the scores again.
double step_flops(const config::Model& model, const config::Attention& attention,
                  std::span<const std::int64_t> lengths);

/// FLOPs of core attention that a step executes, recomputed forward passes included, for all pairs
/// that the masks allow: it does not subtract those that sparse attention leaves out.
/// @param evaluates  the forward pass alone
double attention_flops(const config::Model& model, const config::Attention& attention,
                       std::span<const std::int64_t> lengths, config::Recompute recompute,
                       bool evaluates = false);

// --- Tiles of an attention kernel ---

/// The tiles of one head of a task.
struct Tiles {
  std::int64_t queries = 0;  ///< tiles of queries that see a key
  std::int64_t keys = 0;     ///< tiles of keys seen, summed over them; a partial tile counts 1
};

/// Counts tiles of `tile` queries and keys, which begin at the task's first query and key. Constant
/// time.
Tiles count_tiles(const Task& task, std::int64_t tile);

/// Relative time of a task: its tiles of keys, plus `overhead` for each tile of queries.
double tile_weight(const Task& task, std::int64_t tile, double overhead);

}  // namespace cadenza::cost
