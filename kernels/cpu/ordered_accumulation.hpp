// SPDX-License-Identifier: Apache-2.0
// Additions to shared rows in a fixed order, whoever makes them and whenever: sums have the same
// bits with any number of threads.
//
// Who is to add to a slot draws a ticket for it, and waits for its turn before it adds. Tickets are
// drawn by one thread at a time, for one unit of work after another and in the order in which the
// units start. So a unit waits only for units that run already, and the oldest of them never waits.
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

  /// Under the caller's lock.
  std::uint32_t draw(std::size_t slot) { return drawn_[slot]++; }
  /// Returns when everybody before has finished; what they wrote can be read then.
  void wait(std::size_t slot, std::uint32_t ticket) const {
    constexpr int kSpins = 2000;  // then others may need the core
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
