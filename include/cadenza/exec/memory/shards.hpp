// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/model/shape/parameter_table.hpp"

namespace cadenza::exec {

/// The shares of the flat arrays that each of `ranks` owns, bucket by bucket (every layer, then the
/// rest): a bucket is cut into equal parts, in rank order.
class GradientShards {
 public:
  GradientShards(const model::ParameterTable& table, int ranks);

  struct Bucket {
    Range elements;
    std::vector<std::int64_t> counts;  ///< by rank
    Range of(int rank) const;
  };
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Number of layers: bucket i < layers() is layer i; the rest follows.
  std::size_t layers() const { return layers_; }
  std::vector<Range> owned(int rank) const;
  /// How many `owned` has of so many ranks, without the shares of the others.
  static std::int64_t owned_elements(const model::ParameterTable& table, int rank, int ranks);

 private:
  std::vector<Bucket> buckets_;
  std::size_t layers_ = 0;
};

}  // namespace cadenza::exec
