// SPDX-License-Identifier: Apache-2.0
// Threads of a call and their scratch, kept between calls.
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cadenza/kernels/device.hpp"

namespace cadenza::kernels::cpu {

/// Hands out parts of a thread's scratch, each aligned to a cache line.
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

/// Number of the host's threads, but at most `most`.
inline int thread_count(int most) {
  return std::min(most, Kokkos::DefaultHostExecutionSpace().concurrency());
}

/// Runs pass.run(scratch) concurrently on as many threads as `units` occupy, each with its own
/// scratch of the size that pass.plan(scratch) takes.
template <typename Pass>
void run_pass(const char* name, Pass& pass, std::size_t units, int most_threads) {
  if (units == 0) return;
  Scratch measure;
  pass.plan(measure);
  const auto threads =
      static_cast<int>(std::min(units, static_cast<std::size_t>(thread_count(most_threads))));
  Workspace& workspace = Workspace::shared();
  workspace.require(threads, measure.used());
  on_threads(name, threads, [&](int thread) { pass.run(workspace.of(thread)); });
}

}  // namespace cadenza::kernels::cpu
