// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/memory/shards.hpp"

#include <algorithm>
#include <iterator>

namespace cadenza::exec {
namespace {

/// Every layer, then the rest.
std::vector<Range> buckets_of(const model::ParameterTable& table) {
  std::vector<Range> buckets;
  for (std::size_t layer = 0; layer < table.layers.size(); ++layer) {
    buckets.push_back(model::layer_elements(table, static_cast<int>(layer)));
  }
  std::ranges::copy(model::remaining_elements(table), std::back_inserter(buckets));
  return buckets;
}

Range share_of(Range bucket, int rank, int ranks) {
  return {bucket.begin + bucket.size() * rank / ranks,
          bucket.begin + bucket.size() * (rank + 1) / ranks};
}

}  // namespace

GradientShards::GradientShards(const model::ParameterTable& table, int ranks)
    : layers_(table.layers.size()) {
  for (const Range elements : buckets_of(table)) {
    Bucket& bucket = buckets_.emplace_back(Bucket{elements, {}});
    for (int rank = 0; rank < ranks; ++rank) {
      bucket.counts.push_back(share_of(elements, rank, ranks).size());
    }
  }
}

std::int64_t GradientShards::owned_elements(const model::ParameterTable& table, int rank,
                                            int ranks) {
  std::int64_t owned = 0;
  for (const Range bucket : buckets_of(table)) owned += share_of(bucket, rank, ranks).size();
  return owned;
}

Range GradientShards::Bucket::of(int rank) const {
  return share_of(elements, rank, static_cast<int>(counts.size()));
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
