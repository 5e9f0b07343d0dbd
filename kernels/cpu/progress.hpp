// SPDX-License-Identifier: Apache-2.0
// Calls the hook of a task list repeatedly, from the thread that made the call.
#pragma once

#include <chrono>
#include <thread>

#include "cadenza/kernels/attention.hpp"

namespace cadenza::kernels::cpu {

class Progress {
 public:
  explicit Progress(const ProgressHook& hook)
      : hook_(hook), caller_(std::this_thread::get_id()), last_(Clock::now()) {}

  /// Calls the hook if it is due. Call step() between two tiles of work, on any thread.
  void step() {
    if (hook_.call == nullptr || std::this_thread::get_id() != caller_) return;
    constexpr std::chrono::microseconds kEvery{500};
    if (Clock::now() - last_ < kEvery) return;
    hook_.call(hook_.context);
    last_ = Clock::now();
  }

 private:
  using Clock = std::chrono::steady_clock;
  ProgressHook hook_;
  std::thread::id caller_;
  Clock::time_point last_;  ///< used by the caller only
};

}  // namespace cadenza::kernels::cpu
