// SPDX-License-Identifier: Apache-2.0
// What the model asks of the ranks that share its matrices. The executor implements it over its
// communicators.
#pragma once

#include <cstddef>
#include <span>

namespace cadenza::model {

/// Collectives of a tensor group on device pointers, called by all its ranks in the same order:
/// each reads what the kernels before it wrote, and kernels after it read its result. With a group
/// of one none is called. Sum is an accumulator type: float or double.
template <typename Sum>
class TensorGroup {
 public:
  virtual ~TensorGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// `all` [size x mine.size()] = everybody's `mine`, rank after rank.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// `mine` = shard `rank()` of the sum of everybody's `all` [size x mine.size()].
  virtual void reduce_scatter(std::span<const Sum> all, std::span<Sum> mine) = 0;
  virtual void all_reduce_sum(std::span<Sum> values) = 0;
  virtual void all_reduce_max(std::span<Sum> values) = 0;
};

}  // namespace cadenza::model
