// SPDX-License-Identifier: Apache-2.0
// Which activation buffer holds which microbatch: the lowest free one from its forward to its
// backward pass, so that a rank allocates as many as it ever needs at a time.
#pragma once

#include <map>
#include <set>
#include <utility>

namespace cadenza::program {

class BufferPool {
 public:
  void take(int microbatch, int chunk) {
    if (free_.empty()) free_.insert(count_++);
    taken_[{microbatch, chunk}] = *free_.begin();
    free_.erase(free_.begin());
  }
  int of(int microbatch, int chunk) const { return taken_.at({microbatch, chunk}); }
  void release(int microbatch, int chunk) {
    free_.insert(of(microbatch, chunk));
    taken_.erase({microbatch, chunk});
  }
  int count() const { return count_; }

 private:
  int count_ = 0;
  std::set<int> free_;
  std::map<std::pair<int, int>, int> taken_;
};

}  // namespace cadenza::program
