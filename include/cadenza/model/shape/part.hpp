// SPDX-License-Identifier: Apache-2.0
// The part of the model that a rank holds: layers of its pipeline stage, and its tensor group's
// slice of every matrix.
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/config/experiment.hpp"

namespace cadenza::model {

struct ModelPart {
  /// Layers of the model in chunks; one chunk unless the pipeline is interleaved.
  std::vector<Range> chunks;
  bool embedding = true;  ///< held by the first pipeline stage
  bool head = true;       ///< final norm and LM head, held by the last stage
  int tensor_rank = 0;    ///< slice of heads, ffn, vocabulary, and of rows between the products
  int tensor_size = 1;

  std::int64_t layers() const;             ///< of all chunks; local layers count through them
  std::int64_t most_chunk_layers() const;  ///< of the chunk with most
};

/// Returns the whole model as one chunk.
ModelPart whole_model(const config::Model& model);

/// Returns this rank's [t n / T, (t + 1) n / T) of n = `count` heads, tokens, rows or columns.
Range tensor_share(const ModelPart& part, std::int64_t count);

/// Widths of a rank's matrices. heads, kv_heads and ffn are divisible by tensor_size (config checks
/// it); the vocabulary need not be.
struct PartShape {
  PartShape(const config::Model& model, const ModelPart& part);

  std::int64_t width = 0;     ///< C of the whole model: width of rows between the products
  std::int64_t queries = 0;   ///< H D of this rank's heads
  std::int64_t keys = 0;      ///< G D of this rank's key-value heads
  std::int64_t heads = 0;     ///< query heads here
  std::int64_t kv_heads = 0;  ///< key-value heads here
  std::int64_t ffn = 0;
  Range vocab;                    ///< tokens whose embedding and logits are here
  std::int64_t widest_vocab = 0;  ///< largest of the tensor group's ranks
  std::int64_t joined() const { return queries + 2 * keys; }
};

}  // namespace cadenza::model
