// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/shape/part.hpp"

#include <algorithm>

namespace cadenza::model {

std::int64_t ModelPart::layers() const {
  std::int64_t count = 0;
  for (const Range& chunk : chunks) count += chunk.size();
  return count;
}

std::int64_t ModelPart::most_chunk_layers() const {
  std::int64_t most = 0;
  for (const Range& chunk : chunks) most = std::max(most, chunk.size());
  return most;
}

ModelPart whole_model(const config::Model& model) {
  ModelPart part;
  part.chunks = {{0, model.layers}};
  return part;
}

Range tensor_share(const ModelPart& part, std::int64_t count) {
  return {part.tensor_rank * count / part.tensor_size,
          (part.tensor_rank + 1) * count / part.tensor_size};
}

PartShape::PartShape(const config::Model& model, const ModelPart& part)
    : width(model.d_model),
      queries(model.query_width() / part.tensor_size),
      keys(model.kv_heads * model.head_dim() / part.tensor_size),
      heads(model.heads / part.tensor_size),
      kv_heads(model.kv_heads / part.tensor_size),
      ffn(model.ffn / part.tensor_size),
      vocab(tensor_share(part, model.vocab)),
      widest_vocab((model.vocab + part.tensor_size - 1) / part.tensor_size) {}

}  // namespace cadenza::model
