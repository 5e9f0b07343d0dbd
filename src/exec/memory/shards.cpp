// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/memory/shards.hpp"

#include <algorithm>

namespace cadenza::exec {

GradientShards::GradientShards(const model::ParameterTable& table, int ranks)
    : layers_(table.layers.size()) {
  for (std::size_t layer = 0; layer < layers_; ++layer) {
    add(model::layer_elements(table, static_cast<int>(layer)), ranks);
  }
  for (const Range rest : model::remaining_elements(table)) add(rest, ranks);
}

void GradientShards::add(Range elements, int ranks) {
  Bucket& bucket = buckets_.emplace_back(Bucket{elements, {}});
  for (int rank = 0; rank < ranks; ++rank) {
    bucket.counts.push_back(elements.size() * (rank + 1) / ranks - elements.size() * rank / ranks);
  }
}

Range GradientShards::Bucket::of(int rank) const {
  const auto ranks = static_cast<std::int64_t>(counts.size());
  return {elements.begin + elements.size() * rank / ranks,
          elements.begin + elements.size() * (rank + 1) / ranks};
}

std::vector<Range> GradientShards::owned(int rank) const {
  std::vector<Range> ranges;
  for (const Bucket& bucket : buckets_) {
    if (!bucket.of(rank).empty()) ranges.push_back(bucket.of(rank));
  }
  std::ranges::sort(ranges, {}, &Range::begin);
  return ranges;
}

}  // namespace cadenza::exec
