// SPDX-License-Identifier: Apache-2.0
// The backward kernel's scheduling without its arithmetic: units claimed in order by threads, each
// adding to many slots that others add to as well.
#pragma once

#include <algorithm>
#include <latch>
#include <mutex>
#include <thread>
#include <vector>

#include "../../../kernels/cpu/ordered_accumulation.hpp"

namespace cadenza::testing {

struct OrderedSums {
  std::vector<std::vector<int>> units_by_slot;  ///< who added, in the order in which it happened
};

enum class Waiting : bool { no, yes };  ///< no: the planted fault

inline OrderedSums add_in_turns(int threads, Waiting waiting) {
  constexpr int kSlots = 40, kUnits = 200;
  OrderedSums sums{std::vector<std::vector<int>>(kSlots)};
  kernels::cpu::OrderedAccumulation turns(kSlots);
  std::mutex mutex;
  int next = 0;
  std::latch start(threads);
  const auto work = [&] {
    start.arrive_and_wait();
    for (;;) {
      int unit = 0;
      std::vector<std::uint32_t> tickets;
      const auto first = [](int of) { return static_cast<std::size_t>(of * 7 % kSlots); };
      {
        const std::lock_guard<std::mutex> lock(mutex);
        if (next == kUnits) return;
        unit = next++;
        for (std::size_t s = first(unit); s < kSlots; ++s) tickets.push_back(turns.draw(s));
      }
      for (std::size_t s = first(unit); s < kSlots; ++s) {
        const std::uint32_t ticket = tickets[s - first(unit)];
        if (waiting == Waiting::yes) turns.wait(s, ticket);
        sums.units_by_slot[s].push_back(unit);
        turns.finish(s, ticket);
        std::this_thread::yield();  // units overlap, however few cores there are
      }
    }
  };
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) pool.emplace_back(work);
  for (std::thread& thread : pool) thread.join();
  return sums;
}

}  // namespace cadenza::testing
