// SPDX-License-Identifier: Apache-2.0
// What of the model a rank holds: groups of layers of a pipeline, a slice of every matrix of a
// tensor group.
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/config/experiment.hpp"

namespace cadenza::model {

struct ModelPart {
  /// Layers of the model, group by group, all of one size; one group unless the pipeline is
  /// interleaved.
  std::vector<Range> chunks;
  bool embedding = true;  ///< the first pipeline stage's
  bool head = true;       ///< final norm and LM head: the last stage's
  int tensor_rank = 0;    ///< slice of heads, ffn, vocabulary and of rows between the products
  int tensor_size = 1;

  std::int64_t layers() const;  ///< of all chunks together; a local layer counts through them
};

/// Everything, in one chunk.
ModelPart whole_model(const config::Model& model);

/// This rank's [t n / T, (t + 1) n / T) of `count` heads, tokens, rows or columns.
Range tensor_share(const ModelPart& part, std::int64_t count);

/// Widths of a rank's matrices. heads, kv_heads and ffn are divisible by tensor_size (config says
/// so); the vocabulary need not be.
struct PartShape {
  PartShape(const config::Model& model, const ModelPart& part);

  std::int64_t width = 0;     ///< C of the whole model: of rows between the products
  std::int64_t queries = 0;   ///< H D of this rank's heads
  std::int64_t keys = 0;      ///< G D of this rank's key-value heads
  std::int64_t heads = 0;     ///< query heads here
  std::int64_t kv_heads = 0;  ///< key-value heads here
  std::int64_t ffn = 0;
  Range vocab;                    ///< tokens whose embedding and logits are here
  std::int64_t widest_vocab = 0;  ///< of all ranks of the tensor group
  std::int64_t chunk_layers = 0;  ///< layers of a chunk
  std::int64_t joined() const { return queries + 2 * keys; }
};

}  // namespace cadenza::model
