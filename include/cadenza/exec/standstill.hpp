// SPDX-License-Identifier: Apache-2.0
// For how long a rank stood still in an operation: it was stopped, swapped out or had no core.
//
// Timestamps alone do not tell: a wait that ends late looks as if its message had come late. A
// thread that waits looks at its messages all the time, and one that computes uses its processor.
#pragma once

#include <ctime>

#include <algorithm>
#include <cstdint>

namespace cadenza::exec {

/// Of the one thread that runs a rank's operations. Times are ns.
class Standstill {
 public:
  /// One that is going on.
  struct Operation {
    std::int64_t began = 0;
    std::int64_t processor = 0;  ///< time of the thread when it began
    std::int64_t last_look = 0;
    std::int64_t longest = 0;     ///< between two looks
    std::int64_t off_within = 0;  ///< without the processor, in operations within this one
  };

  /// An operation begins. @returns the one that it is part of, for end()
  Operation begin(std::int64_t now) {
    looked(now);
    const Operation outer = at_;
    at_ = {now, processor_ns(), now, 0, 0};
    return outer;
  }
  /// The rank looked at its messages.
  void looked(std::int64_t now) {
    at_.longest = std::max(at_.longest, now - at_.last_look);
    at_.last_look = now;
  }
  /// The operation is over. `now` is read after `processor`, and is its end for everybody: a rank
  /// is often stopped as it comes back from the system call, and that is part of the operation. Its
  /// waits take slices of time from a rank that shares its core, and copies between two looks take
  /// processor time: only what is both counts, without operations within it.
  std::int64_t end(const Operation& outer, std::int64_t processor, std::int64_t now) {
    looked(now);
    const std::int64_t off = now - at_.began - (processor - at_.processor);
    const std::int64_t still = std::clamp<std::int64_t>(off - at_.off_within, 0, at_.longest);
    at_ = outer;
    at_.last_look = now;
    at_.off_within += off;
    return still;
  }

  /// Processor time of this thread.
  static std::int64_t processor_ns() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
  }

 private:
  Operation at_;
};

}  // namespace cadenza::exec
