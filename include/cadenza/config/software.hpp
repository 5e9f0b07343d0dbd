// SPDX-License-Identifier: Apache-2.0
// A training stack: in what a step of it differs from a step of this program with the same layout.
// One YAML file per stack (inputs/software, docs/software.md); simulations alone use it.
#pragma once

#include <cstdint>
#include <string>

namespace cadenza::config {

/// The type of numbers: that of sums (float32 in a bfloat16 run), or run.dtype.
enum class Precision { sums, stored };
/// The kernels of core attention: those of the machine file's table, or the fastest known ones
/// (AttentionTimes::fastest).
enum class AttentionKernels { table, fastest };

/// Bytes that a token keeps for the backward pass in a layer, for each element of a width on its
/// rank: a token keeps width * d_model + queries * (width of Q) + keys * (width of K) + ffn *
/// (width of the feed-forward branch). All 0: what this program keeps.
struct KeptBytes {
  double width = 0;
  double whole_width = 0;  ///< the same, of which sequence parallelism leaves every rank all
  double queries = 0;
  double keys = 0;
  double ffn = 0;
  /// Of a token on the last stage, for each element of the vocabulary that its rank has, and of the
  /// whole vocabulary.
  double logits = 0;
  double whole_logits = 0;
  friend bool operator==(const KeptBytes&, const KeptBytes&) = default;
};

struct Software {
  std::string name = "cadenza";
  std::string source = "this program";
  /// Of the residual stream, of what tensor groups sum and of what pipeline stages send.
  Precision residual = Precision::sums;
  Precision gradients = Precision::sums;
  bool copies_streams = true;  ///< into messages between pipeline stages, and out of them
  bool copies_rows = false;    ///< all rows of attention into messages, and out of them
  AttentionKernels attention = AttentionKernels::table;
  double attention_rate = 1;  ///< of its kernels, over that of `attention`
  /// Of passes over memory outside products, over that of the machine file: of the layers, and of
  /// the loss.
  double element_wise_rate = 1;
  double loss_rate = 1;
  bool overlaps_tensor = true;     ///< collectives of tensor groups, with products, by shards
  bool overlaps_gradients = true;  ///< their sums, with the backward pass
  bool overlaps_gathers = false;   ///< of updated weights, with the next forward pass
  double layer_seconds = 0;  ///< of a pass through a layer beside its kernels; twice in backward
  /// Whether tensor ranks divide the rows of the residual stream (arXiv 2205.05198, section 4.2.2);
  /// otherwise each has, normalizes and sends all of them.
  bool sequence_parallel = true;
  KeptBytes kept;
  double spread = 1;          ///< activations with what the allocator leaves unused, over `kept`
  std::int64_t reserved = 0;  ///< bytes of a rank for libraries: CUDA, NCCL, workspaces
  friend bool operator==(const Software&, const Software&) = default;

  /// Whether it is this program.
  bool is_own() const { return *this == Software{}; }
  /// Whether `kept` says what activations take.
  bool says_kept() const { return kept != KeptBytes{}; }
};

}  // namespace cadenza::config
