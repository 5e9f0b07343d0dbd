// SPDX-License-Identifier: Apache-2.0
// Measures how long a rank stood still in an operation: stopped, swapped out or without a core.
//
// Timestamps alone do not show it: a wait that ends late looks like a late message. But a waiting
// thread polls its messages all the time, and a computing thread uses its processor.
#pragma once

#include <ctime>

#include <algorithm>
#include <cstdint>

namespace cadenza::exec {

/// Standstill of the one thread that runs a rank's operations. Times are ns.
class Standstill {
 public:
  /// A running operation.
  struct Operation {
    std::int64_t began = 0;
    std::int64_t processor = 0;  ///< processor time of the thread at its begin
    std::int64_t last_look = 0;
    std::int64_t longest = 0;     ///< longest time between two polls
    std::int64_t off_within = 0;  ///< time without the processor in nested operations
  };

  /// Begins an operation. @returns the enclosing one, for end()
  Operation begin(std::int64_t now) {
    looked(now);
    const Operation outer = at_;
    at_ = {now, processor_ns(), now, 0, 0};
    return outer;
  }
  /// Notes that the rank polled its messages.
  void looked(std::int64_t now) {
    at_.longest = std::max(at_.longest, now - at_.last_look);
    at_.last_look = now;
  }
  /// Ends the operation and returns its standstill: the time without the processor (nested
  /// operations excluded), of a wait at most the longest time between two polls. Either alone
  /// misleads there: a waiting rank that shares its core loses time slices, which delay nothing;
  /// and copies between two polls take processor time.
  /// @param now  end of the operation, read after `processor`: a rank is often stopped as it
  /// returns from that system call, and this belongs to the operation
  /// @param computes  whether it computes all the time, though it may poll now and then
  std::int64_t end(const Operation& outer, std::int64_t processor, std::int64_t now,
                   bool computes) {
    looked(now);
    const std::int64_t off = now - at_.began - (processor - at_.processor);
    const std::int64_t still =
        std::clamp<std::int64_t>(off - at_.off_within, 0, computes ? now - at_.began : at_.longest);
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
