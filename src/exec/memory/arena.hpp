// SPDX-License-Identifier: Apache-2.0
// Memory shared by users that need it at different times.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace cadenza::exec {

/// A need for `size` units of memory in the stages [first, last] of a plan; -1 is the time before
/// them.
struct Lifetime {
  int first = 0;
  int last = 0;
  std::int64_t size = 0;
};

/// Assigns offsets so that nothing alive at the same time overlaps: each gets the lowest place that
/// is free during its whole life, in the order of the calls.
class Arena {
 public:
  std::int64_t place(const Lifetime& life) {
    std::vector<Placed> others = stage(life.first).alive;
    for (int later = life.first + 1; later <= life.last; ++later) {
      const std::vector<Placed>& begun = stage(later).begun;
      others.insert(others.end(), begun.begin(), begun.end());
    }
    std::sort(others.begin(), others.end(),
              [](const Placed& a, const Placed& b) { return a.offset < b.offset; });
    std::int64_t offset = 0;
    for (const Placed& other : others) {
      if (offset + life.size <= other.offset) break;
      offset = std::max(offset, other.offset + other.size);
    }
    const Placed placed{offset, life.size};
    stage(life.first).begun.push_back(placed);
    for (int s = life.first; s <= life.last; ++s) stage(s).alive.push_back(placed);
    size_ = std::max(size_, offset + life.size);
    return offset;
  }
  std::int64_t size() const { return size_; }

 private:
  struct Placed {
    std::int64_t offset = 0;
    std::int64_t size = 0;
  };
  struct Stage {
    std::vector<Placed> alive;  ///< in this stage
    std::vector<Placed> begun;  ///< those whose life begins with it
  };
  Stage& stage(int number) {
    const auto index = static_cast<std::size_t>(number - kFirst);
    if (index >= stages_.size()) stages_.resize(index + 1);
    return stages_[index];
  }

  static constexpr int kFirst = -1;  ///< before the first stage: messages that leave from home
  std::vector<Stage> stages_;
  std::int64_t size_ = 0;
};

}  // namespace cadenza::exec
