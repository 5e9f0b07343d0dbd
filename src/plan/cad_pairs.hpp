// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "assemble.hpp"
#include "cad_loads.hpp"
#include "cad_traffic.hpp"

namespace cadenza::plan {

/// Head-tail geometry of one document: pair i is block i and its mirror image from the end. All
/// pairs have the same number of query-key pairs, but for the one with a short last block and the
/// middle block of an odd count, which is alone: FLOPs of a pair do not depend on where in the
/// document it lies.
struct PairGeometry {
  std::int64_t length = 0;
  std::int64_t block = 1;

  std::int64_t blocks() const { return (length + block - 1) / block; }
  std::int64_t pairs() const { return (blocks() + 1) / 2; }
  Range head(Range pairs) const {
    return {pairs.begin * block, std::min(pairs.end, blocks() - pairs.end) * block};
  }
  Range tail(Range pairs) const {
    return {(blocks() - pairs.end) * block, std::min((blocks() - pairs.begin) * block, length)};
  }
  std::int64_t cost(Range pairs) const {
    return causal_pairs(head(pairs)) + causal_pairs(tail(pairs));
  }
  /// Cost of a pair of two whole blocks.
  std::int64_t full_pair() const { return block * (block * blocks() + 1); }
};

/// The first phase: items of whole pairs go from servers above the mean to servers below it, the
/// largest balance per byte first, until all are within tolerance or no pair fits. Starts from the
/// homes; updates `loads` and `traffic`; returns who computes what.
std::vector<Assignment> balance_pairs(const Workload& workload, const Homes& homes,
                                      std::int64_t block, Loads& loads, Traffic& traffic);

}  // namespace cadenza::plan
