// SPDX-License-Identifier: Apache-2.0
// Memory that several users share because they need it at different times.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace cadenza::exec {

/// Something that needs `size` units of memory in the stages [first, last] of a plan.
struct Lifetime {
  int first = 0;
  int last = 0;
  std::int64_t size = 0;
};

/// Offsets such that what lives at the same time does not overlap: each at the lowest place that is
/// free all its life, in the order given.
class Arena {
 public:
  std::int64_t place(const Lifetime& life) {
    std::vector<Placed> others;
    for (const Placed& other : placed_) {
      if (other.life.first <= life.last && life.first <= other.life.last) others.push_back(other);
    }
    std::sort(others.begin(), others.end(),
              [](const Placed& a, const Placed& b) { return a.offset < b.offset; });
    std::int64_t offset = 0;
    for (const Placed& other : others) {
      if (offset + life.size <= other.offset) break;
      offset = std::max(offset, other.offset + other.life.size);
    }
    placed_.push_back({life, offset});
    size_ = std::max(size_, offset + life.size);
    return offset;
  }
  std::int64_t size() const { return size_; }

 private:
  struct Placed {
    Lifetime life;
    std::int64_t offset;
  };
  std::vector<Placed> placed_;
  std::int64_t size_ = 0;
};

}  // namespace cadenza::exec
