// SPDX-License-Identifier: Apache-2.0
// Additions to shared rows in a fixed order, independent of threads and time: sums are bitwise the
// same with any number of threads.
//
// A unit of work draws a ticket for each slot to which it will add, and waits for its turn before
// it adds. Tickets are drawn by one thread at a time, for one unit after another, in the order in
// which the units start. So a unit waits only for units that are already running, and the oldest
// never waits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace cadenza::kernels::cpu {

class OrderedAccumulation {
 public:
  explicit OrderedAccumulation(std::size_t slots) : drawn_(slots), done_(slots) {}

  /// Draws a ticket. Call it under the caller's lock.
  std::uint32_t draw(std::size_t slot) { return drawn_[slot]++; }
  /// Waits until all earlier tickets have finished; what they wrote can then be read.
  void wait(std::size_t slot, std::uint32_t ticket) const {
    constexpr int kSpins = 2000;  // afterwards others may need the core
    for (int spin = 0; done_[slot].load(std::memory_order_acquire) != ticket; ++spin) {
      if (spin > kSpins) std::this_thread::yield();
    }
  }
  void finish(std::size_t slot, std::uint32_t ticket) {
    done_[slot].store(ticket + 1, std::memory_order_release);
  }

 private:
  std::vector<std::uint32_t> drawn_;
  std::vector<std::atomic<std::uint32_t>> done_;
};

}  // namespace cadenza::kernels::cpu
