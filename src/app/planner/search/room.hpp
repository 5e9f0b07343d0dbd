// SPDX-License-Identifier: Apache-2.0
// What candidates of a search need of a rank's memory, against what there is.
#pragma once

#include <cstdint>

#include "app/planner/search/search_report.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/exec/memory/estimate.hpp"

namespace cadenza::app {

/// Of a rank's memory, the part that a search fills. What a run needs grows with its steps, as
/// ranks keep the largest buffers that they ever needed: 600 steps took up to 7.5 % more than 56,
/// and allocators need some space between.
inline constexpr double kUsableMemory = 0.92;

constexpr std::int64_t usable_memory(std::int64_t bytes) {
  return static_cast<std::int64_t>(kUsableMemory * static_cast<double>(bytes));
}

/// Several threads may ask.
class Room {
 public:
  /// @param given  of all candidates; has to outlive this
  /// @param bytes  of a rank; 0: no limit
  Room(const config::Experiment& given, std::int64_t bytes) : given_(given), bytes_(bytes) {}

  /// Sets the bytes of a candidate, and what fills them most.
  /// @param more  than the least: of its plans
  void measure(Judged& judged, const exec::MemoryEstimate& more = {}) {
    exec::MemoryEstimate memory = exec::least_memory(judged.candidate.of(given_), buffers_);
    memory += more;
    judged.bytes = memory.total();
    judged.fullest = memory.largest();
  }

  bool has(const Judged& judged) const { return bytes_ == 0 || judged.bytes <= usable(); }
  std::int64_t bytes() const { return bytes_; }
  std::int64_t usable() const { return usable_memory(bytes_); }

 private:
  const config::Experiment& given_;
  std::int64_t bytes_;
  exec::StageBuffers buffers_;
};

}  // namespace cadenza::app
