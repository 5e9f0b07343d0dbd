// SPDX-License-Identifier: Apache-2.0
// Threads of a call and their scratch, kept between calls.
#pragma once

#include <Kokkos_Core.hpp>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cadenza/kernels/device.hpp"

namespace cadenza::kernels::cpu {

/// Hands out parts of a thread's scratch, each on a cache line.
class Scratch {
 public:
  explicit Scratch(float* base = nullptr) : base_(base) {}
  float* take(std::int64_t words) {
    float* part = base_ + used_;
    used_ += (words + kLine - 1) / kLine * kLine;
    return part;
  }
  std::int64_t used() const { return used_; }

 private:
  static constexpr std::int64_t kLine = 16;
  float* base_;
  std::int64_t used_ = 0;
};

/// Scratch of at least `words` floats for each of `threads` threads; grows, never shrinks.
class Workspace {
 public:
  void require(int threads, std::int64_t words);
  Scratch of(int thread) const { return Scratch(blocks_[static_cast<std::size_t>(thread)].get()); }
  static Workspace& shared();

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::vector<std::unique_ptr<float, Free>> blocks_;
  std::int64_t words_ = 0;
};

/// Runs body(thread) once on each of `threads` threads of the host, at the same time.
template <typename Body>
void on_threads(const char* name, int threads, const Body& body) {
  using Threads = Kokkos::RangePolicy<Kokkos::DefaultHostExecutionSpace, Kokkos::IndexType<int>>;
  Kokkos::parallel_for(name, Threads(0, threads), body);
  Kokkos::fence(name);
}

inline constexpr std::size_t kAllUnits = std::size_t{1} << 40;

/// Threads worth starting for so many units.
inline int thread_count(std::size_t units, int most_threads) {
  const int all = Kokkos::DefaultHostExecutionSpace().concurrency();
  const auto most = static_cast<std::size_t>(most_threads < all ? most_threads : all);
  return static_cast<int>(units < most ? units : most);
}

}  // namespace cadenza::kernels::cpu
